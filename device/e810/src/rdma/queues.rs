//! Queue pairs and completion queues: control queue operations and doorbells.
//!
//! # Spec
//! E810 interface, sections 10.3, 12, 13 and 14.2.

use card::frontend::Context;
use card::frontend::poll_set::PollSet;
use card::limited;
use card::memory::GuestMemory;
use card::sparse::{Capacity, SparseTable};
use card::telemetry::monitor::Monitor;
use engine::Instant;
use protocol::describe::Field as _;
use protocol::hca::e810::rdma::completion_queue::{CqCommand, DestroyCq};
use protocol::hca::e810::rdma::control::Completion;
use protocol::hca::e810::rdma::cqe::Cqe;
use protocol::hca::e810::rdma::error::{CqpError, CqpErrorCode};
use protocol::hca::e810::rdma::event_queue::{EventCode, EventSource};
use protocol::hca::e810::rdma::index::ArpIndex;
use protocol::hca::e810::rdma::path::ManageArp;
use protocol::hca::e810::rdma::qp_context::QpContext;
use protocol::hca::e810::rdma::queue_pair::{
    DestroyQp, FlushQp, FlushedQueues, QpCommand, QpState, SuspendQp,
};
use protocol::ids::{Cqn, Iova, Qpn};

use super::Rdma;
use super::completion::{push, report, report_suspended};
use super::completion_queue::{CompletionQueue, CqNotification};
use super::dispatch::{Done, Outcome};
use super::event_queues::EventQueues;
use super::hmc::Pages;
use super::host;
use super::queue_pair::{Flushed, PathContext, QueuePair};
use crate::limits::Limits;
use crate::reason::{ARP_TABLE_FULL, NO_CQ, NO_QP};

/// CQ for completions of control queue operations.
pub(super) const CONTROL_CQ: Cqn = Cqn::new(0);

#[derive(Debug)]
pub(in super::super) struct Queues {
    cqs: SparseTable<CompletionQueue>,
    qps: SparseTable<Box<QueuePair>>,
    /// Whether software has acknowledged a completion event since the control queue was created.
    acknowledges: bool,
    /// QPs that are in the error state and have been flushed by software. The device polls them for WQEs posted after
    /// the flush.
    flushed: PollSet<10>,
}

impl Queues {
    pub(super) fn new(limits: &Limits) -> Self {
        // The operations that create CQs and QPs reject numbers that are not below these limits, so these
        // capacities suffice.
        let capacity = |most: u32| Capacity { entries: most as usize, leaves: most as usize / 64 + 1 };
        Self {
            cqs: SparseTable::new(capacity(limits.max_cqs.get())),
            qps: SparseTable::new(capacity(limits.max_qps.get())),
            acknowledges: false,
            flushed: PollSet::default(),
        }
    }

    pub(super) fn qp(&self, qpn: Qpn) -> Option<&QueuePair> {
        self.qps.get(qpn.get()).map(AsRef::as_ref)
    }

    pub(super) fn cq(&self, cqn: Cqn) -> Option<&CompletionQueue> {
        self.cqs.get(cqn.get())
    }

    pub(super) fn qp_mut(&mut self, qpn: Qpn) -> Option<&mut QueuePair> {
        self.qps.get_mut(qpn.get()).map(AsMut::as_mut)
    }

    /// Returns queue pairs in ascending order, starting at number `first`.
    pub(super) fn qps_from(&self, first: u32) -> impl Iterator<Item = (u32, &QueuePair)> {
        self.qps.iter_from(first).map(|(place, qp)| (place, qp.as_ref()))
    }

    /// Returns completion queues in ascending order, starting at number `first`.
    pub(super) fn cqs_from(&self, first: u32) -> impl Iterator<Item = (u32, &CompletionQueue)> {
        self.cqs.iter_from(first)
    }

    pub(super) fn cq_mut(&mut self, cqn: Cqn) -> Option<&mut CompletionQueue> {
        self.cqs.get_mut(cqn.get())
    }
}

/// Handles a send doorbell. Unknown QPs are ignored, because any process may write to the doorbell page.
pub(super) fn notify_send(rdma: &mut Rdma, cx: &mut Context<'_>, qpn: Qpn) {
    let Some(qp) = rdma.queues.qp_mut(qpn) else {
        return cx.monitor.ignored(NO_QP, Some(qpn), format_args!("wqealloc"), |_| {});
    };
    cx.monitor.count_doorbell("send");
    qp.counters.doorbells += 1;
    host::notify_send(rdma, cx, qpn);
}

/// Handles an arm doorbell for a completion queue.
pub(super) fn arm(rdma: &mut Rdma, cx: &mut Context<'_>, cqn: Cqn) {
    let Rdma { queues, events, hmc, .. } = rdma;
    let pages = hmc.pages(cx.dma);
    let Some(cq) = queues.cq_mut(cqn) else {
        let what = format_args!("cqarm");
        return cx.monitor.ignored(NO_CQ, None, what, |to| cqn.show("cqn", to));
    };
    cx.monitor.count_doorbell("arm");
    let due = cq.arm(pages);
    notify(events, pages, cx.monitor, cq, due);
}

/// Handles the acknowledgement of a completion event. Its CQ may have been destroyed since the event.
pub(super) fn acknowledge(rdma: &mut Rdma, cx: &mut Context<'_>, cqn: Cqn) {
    let Rdma { queues, events, hmc, .. } = rdma;
    queues.acknowledges = true;
    if let Some(cq) = queues.cq_mut(cqn) {
        let due = cq.acknowledge();
        notify(events, hmc.pages(cx.dma), cx.monitor, cq, due);
    }
}

/// Writes a completion event of a CQ, if one is due. Software does not acknowledge an event that is lost, so the CQ
/// must not hold back the next one.
pub(super) fn notify(
    events: &mut EventQueues,
    pages: Pages<'_>,
    monitor: &mut Monitor,
    cq: &mut CompletionQueue,
    due: Option<CqNotification>,
) {
    if let Some(CqNotification { ceq, cookie }) = due
        && !events.notify(pages, monitor, ceq, cookie)
    {
        cq.event_lost();
    }
}

/// Reports a completed control queue operation, if the control queue's CQ exists.
pub(super) fn complete_operation(rdma: &mut Rdma, cx: &mut Context<'_>, completion: &Completion) {
    let Rdma { queues, events, hmc, .. } = rdma;
    let pages = hmc.pages(cx.dma);
    let Some(cq) = queues.cq_mut(CONTROL_CQ) else { return };
    match cq.push(pages, completion.emit(), None, false) {
        Ok(due) => notify(events, pages, cx.monitor, cq, due),
        Err(lost) => limited!(warn, ?lost, "RDMA control queue completion lost: cannot write to the CQ"),
    }
}

pub(super) fn create_cq(rdma: &mut Rdma, command: &CqCommand) -> Outcome {
    let cqn = command.cqn.get();
    if cqn >= rdma.limits.max_cqs.get() {
        return Err(CqpError::invalid("completion queue", cqn.into()));
    }
    if rdma.queues.cqs.get(cqn).is_some() {
        return Err(CqpError::new(CqpErrorCode::Exists, "completion queue", cqn.into()));
    }
    let full = |_| CqpError::new(CqpErrorCode::NoRoom, "completion queue", cqn.into());
    let cq = CompletionQueue::new(command, rdma.queues.acknowledges)?;
    rdma.queues.cqs.insert(cqn, cq).map_err(full)?;
    Ok(Done::Plain)
}

pub(super) fn modify_cq(rdma: &mut Rdma, command: &CqCommand) -> Outcome {
    let cq = rdma.queues.cq_mut(command.cqn);
    let cq = cq.ok_or(CqpError::no_object("completion queue", command.cqn.get().into()))?;
    if command.resize {
        cq.resize(command)?;
    }
    Ok(Done::Plain)
}

pub(super) fn destroy_cq(rdma: &mut Rdma, command: &DestroyCq) -> Outcome {
    let cqn = command.cqn.get();
    let was = rdma.queues.cqs.remove(cqn);
    was.map(|_| Done::Plain).ok_or(CqpError::no_object("completion queue", cqn.into()))
}

pub(super) fn create_qp(rdma: &mut Rdma, cx: &mut Context<'_>, command: &QpCommand) -> Outcome {
    let qpn = command.qpn;
    let number = qpn.get();
    if number >= rdma.limits.max_qps.get() {
        return Err(CqpError::invalid("queue pair", number.into()));
    }
    if rdma.queues.qps.get(number).is_some() {
        return Err(CqpError::new(CqpErrorCode::Exists, "queue pair", number.into()));
    }
    if !matches!(command.state, QpState::Idle | QpState::Same) {
        return Err(CqpError::new(
            CqpErrorCode::State,
            "invalid initial queue pair state",
            u8::from(command.state).into(),
        ));
    }
    let mut qp = QueuePair::new(command, read_context(cx.dma, command.context)?)?;
    let modify = qp.current(path_context(rdma, cx));
    let full = || CqpError::new(CqpErrorCode::NoRoom, "queue pair", number.into());
    cx.engine.create_qp(qpn, modify.attrs).map_err(|_| full())?;
    if rdma.queues.qps.insert(number, Box::new(qp)).is_err() {
        cx.engine.destroy_qp(qpn);
        return Err(full());
    }
    host::modify(rdma, cx, qpn, &modify);
    Ok(Done::Plain)
}

pub(super) fn modify_qp(rdma: &mut Rdma, cx: &mut Context<'_>, command: &QpCommand) -> Outcome {
    // On a move to the error state, do not read the context, which software may already have freed.
    let context = match command.state {
        QpState::Error | QpState::Terminate => None,
        _ => Some(read_context(cx.dma, command.context)?),
    };
    let mac = cx.port.addresses().own.mac;
    let Rdma { queues, paths, .. } = rdma;
    let qp = queues.qp_mut(command.qpn).ok_or(unknown(command.qpn))?;
    let modify = qp.modify(command.state, context, PathContext { paths, mac })?;
    let is_suspended = qp.suspended;
    if modify.to == engine::State::Rtr && qp.lacks_peer() && paths.arp_table_is_full() {
        let what = format_args!(
            "neighbour of the QP: ARP entry {} does not exist, so the QP cannot send",
            qp.context.arp_index
        );
        cx.monitor.ignored(ARP_TABLE_FULL, Some(command.qpn), what, |_| {});
    }
    let runs = modify.to == engine::State::Rts;
    if is_suspended && modify.notify_drained {
        // In the engine, a suspended QP is already in SQD. Return it to RTS first, because the engine reports a drained
        // send queue only after a transition to SQD.
        let restart = engine::Modify { to: engine::State::Rts, notify_drained: false, ..modify };
        host::modify(rdma, cx, command.qpn, &restart);
    }
    host::modify(rdma, cx, command.qpn, &modify);
    poll_if_flushed(rdma, cx, command.qpn);
    if runs {
        // Execute the WQEs posted before RTS, since software does not ring the doorbell for them again.
        host::notify_send(rdma, cx, command.qpn);
    }
    Ok(Done::Plain)
}

pub(super) fn destroy_qp(rdma: &mut Rdma, cx: &mut Context<'_>, command: &DestroyQp) -> Outcome {
    cx.engine.destroy_qp(command.qpn);
    cx.monitor.forget_qp(command.qpn);
    rdma.queues.flushed.remove(command.qpn.get());
    let was = rdma.queues.qps.remove(command.qpn.get());
    was.map(|_| Done::Plain).ok_or(unknown(command.qpn))
}

/// Executes "Flush WQEs". Writes one completion per flushed queue that has outstanding WQEs, and returns those queues.
/// irdma generates the remaining completions itself.
pub(super) fn flush_qp(rdma: &mut Rdma, cx: &mut Context<'_>, command: &FlushQp) -> Outcome {
    let qpn = command.qpn;
    let qp = rdma.queues.qp_mut(qpn).ok_or(unknown(qpn))?;
    qp.flushed.sends |= command.sq;
    qp.flushed.receives |= command.rq;
    // The major code must be at least 1, because software treats a CQE with major code 0 as success.
    let codes = |major: u16, minor| {
        if command.codes_valid { (major.max(FLUSHED), minor) } else { (FLUSHED, FLUSHED) }
    };
    let flushed = if qp.state == QpState::Error || qp.context.privileged {
        let sends = command.sq.then(|| codes(command.sq_major, command.sq_minor));
        let receives = command.rq.then(|| codes(command.rq_major, command.rq_minor));
        poll_if_flushed(rdma, cx, qpn);
        complete_flushed(rdma, cx, qpn, sends, receives)
    } else {
        // Section 14.2: irdma also requests a flush when it moves a QP to SQD. The QP of a program keeps its WQEs: it
        // still receives, and it executes posted sends when it returns to RTS. The WQEs of a privileged QP must be
        // discarded, because irdma itself completes them after every flush.
        FlushedQueues::Neither
    };
    if command.generate_event {
        let (code, source) = (EventCode::from(command.event), EventSource::from(command.source));
        report(rdma, cx, qpn, code, source, 0);
    }
    Ok(Done::Flushed(flushed))
}

/// Starts to poll a QP in the error state for WQEs to flush, if software has requested a flush before. See
/// [`flush_late`].
pub(super) fn poll_if_flushed(rdma: &mut Rdma, cx: &Context<'_>, qpn: Qpn) {
    let Some(qp) = rdma.queues.qp(qpn) else { return };
    let is_flushed = qp.flushed.sends || qp.flushed.receives;
    // Do not poll privileged QPs for later WQEs, which the kernel completes itself. The kernel also discards a QP's
    // CQEs before it destroys the QP, and the device must not write another one in between.
    if qp.state == QpState::Error && is_flushed && !qp.context.privileged {
        rdma.queues.flushed.insert(qpn.get(), cx.now);
    }
}

/// Major code of a flushed WQE, and the default minor code.
const FLUSHED: u16 = 1;

/// Flushes late WQEs: those posted to a QP in the error state after software has flushed the QP.
///
/// Software flushes a QP a second time only if it moved the QP to the error state itself (section 14.2). If the device
/// moved the QP there, late WQEs would never complete without this function, in violation of IBTA volume 1, section
/// 10.3.1.8. The same applies to all WQEs of a QP that software flushed in state SQD: software does not flush it again
/// when it enters the error state. The device polls both queues instead of waiting for doorbells, which receive queues
/// do not have.
pub(in super::super) fn flush_late(rdma: &mut Rdma, cx: &mut Context<'_>) {
    for number in rdma.queues.flushed.take_due(cx.now) {
        let qpn = Qpn::new(number);
        let Some(qp) = rdma.queues.qp(qpn) else { continue };
        let Flushed { sends, receives } = qp.flushed;
        let codes = |flushed: bool| flushed.then_some((FLUSHED, FLUSHED));
        complete_flushed(rdma, cx, qpn, codes(sends), codes(receives));
    }
}

/// Returns the time at which [`flush_late`] must be called next.
pub(in super::super) fn next_deadline(rdma: &Rdma) -> Option<Instant> {
    rdma.queues.flushed.deadline()
}

/// Writes one completion for each queue that has outstanding WQEs, and returns those queues. A queue is skipped if its
/// error codes are `None`.
fn complete_flushed(
    rdma: &mut Rdma,
    cx: &mut Context<'_>,
    qpn: Qpn,
    sends: Option<(u16, u16)>,
    receives: Option<(u16, u16)>,
) -> FlushedQueues {
    let Rdma { queues, hmc, .. } = rdma;
    let pages = hmc.pages(cx.dma);
    let Some(qp) = queues.qp_mut(qpn) else { return FlushedQueues::Neither };
    let context = qp.context;
    let entry = |send: bool, wqe_index: u16, (major, minor): (u16, u16)| Cqe {
        context: context.completion_context,
        qpn,
        wqe_index,
        major,
        minor,
        error: true,
        send,
        ..Cqe::default()
    };
    let sends = sends.and_then(|codes| Some((context.send_cqn, entry(true, qp.send.flush(pages)?, codes))));
    let receives =
        receives.and_then(|codes| Some((context.recv_cqn, entry(false, qp.receive.flush(pages)?, codes))));
    let flushed = FlushedQueues::new(sends.is_some(), receives.is_some());
    for (cqn, entry) in sends.into_iter().chain(receives) {
        push(rdma, cx, (qpn, cqn), &entry, None, true);
    }
    flushed
}

/// Suspends a send queue. Software waits for the `Suspended` event.
pub(super) fn suspend_qp(rdma: &mut Rdma, cx: &mut Context<'_>, command: &SuspendQp) -> Outcome {
    let qp = rdma.queues.qp_mut(command.qpn).ok_or(unknown(command.qpn))?;
    qp.suspended = true;
    let modify = current(rdma, cx, command.qpn)?;
    host::modify(rdma, cx, command.qpn, &modify);
    // Section 14.4: irdma expects exactly one event per operation, even if the QP fails or is destroyed later. The
    // event must not wait for outstanding requests, which may fail, or may never complete if the peer posts no receive.
    report_suspended(rdma, cx, command.qpn);
    Ok(Done::Plain)
}

pub(super) fn resume_qp(rdma: &mut Rdma, cx: &mut Context<'_>, command: &SuspendQp) -> Outcome {
    let qp = rdma.queues.qp_mut(command.qpn).ok_or(unknown(command.qpn))?;
    qp.suspended = false;
    let modify = current(rdma, cx, command.qpn)?;
    host::modify(rdma, cx, command.qpn, &modify);
    if modify.to == engine::State::Rts {
        host::notify_send(rdma, cx, command.qpn);
    }
    Ok(Done::Plain)
}

/// Updates an ARP table entry and the connections that use it.
pub(super) fn manage_arp(rdma: &mut Rdma, cx: &mut Context<'_>, command: &ManageArp) -> Outcome {
    let was_full = rdma.paths.arp_table_is_full();
    let outcome = rdma.paths.manage_arp(command);
    if !was_full && rdma.paths.arp_table_is_full() {
        // The driver does not issue an operation for a neighbour that does not fit in the table, so report that the
        // table is full as soon as its last entry is used.
        let what = format_args!("further neighbours: the ARP table is full");
        cx.monitor.ignored(ARP_TABLE_FULL, None, what, |_| {});
    }
    update_peers(rdma, cx, command.index);
    outcome
}

/// Applies a changed ARP table entry to the connections that use it.
fn update_peers(rdma: &mut Rdma, cx: &mut Context<'_>, index: ArpIndex) {
    let all = rdma.queues.qps.iter().map(|(_, qp)| qp);
    let changed: Vec<Qpn> = all.filter(|qp| qp.context.arp_index == index).map(|qp| qp.qpn).collect();
    for qpn in changed {
        if let Ok(modify) = current(rdma, cx, qpn) {
            host::modify(rdma, cx, qpn, &modify);
        }
    }
}

fn current(rdma: &mut Rdma, cx: &Context<'_>, qpn: Qpn) -> Result<engine::Modify, CqpError> {
    let path_context = PathContext { paths: &rdma.paths, mac: cx.port.addresses().own.mac };
    Ok(rdma.queues.qp_mut(qpn).ok_or(unknown(qpn))?.current(path_context))
}

fn path_context<'a>(rdma: &'a Rdma, cx: &Context<'_>) -> PathContext<'a> {
    PathContext { paths: &rdma.paths, mac: cx.port.addresses().own.mac }
}

fn read_context(dma: &GuestMemory, at: Iova) -> Result<QpContext, CqpError> {
    let mut bytes = [0; QpContext::LEN];
    let unreachable = |_| CqpError::new(CqpErrorCode::Unreachable, "queue pair context at", at.get());
    dma.read(at, &mut bytes).map_err(unreachable)?;
    Ok(QpContext::parse(&bytes))
}

fn unknown(qpn: Qpn) -> CqpError {
    CqpError::no_object("queue pair", qpn.get().into())
}
