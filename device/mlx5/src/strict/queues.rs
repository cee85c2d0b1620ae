//! Checks queues when they are created, and when the device is about to write or fetch an entry.

use card::frontend::strict::Findings;
use card::memory::GuestMemory;
use engine::RecvSource;
use protocol::hca::mlx5::cq::CqContext;
use protocol::hca::mlx5::cqe::{self, CqeOpcode};
use protocol::hca::mlx5::eq::EqContext;
use protocol::hca::mlx5::eqe;
use protocol::hca::mlx5::input::{Command, Pages};
use protocol::hca::mlx5::qp::{QpContext, ReceiveKind};
use protocol::hca::mlx5::srq::WorkQueue;
use protocol::ids::{Cqn, Iova, Srqn};

use super::is_past;
use super::rules::{CQ_CONSUMER, CQ_OVERRUN, ENTRY_OWNER, RECORD_SHARED, RQ_OVERRUN, SRQ_LINK};
use crate::buffer::{Placement, QueueBuffer};
use crate::completion_queue::CompletionQueue;
use crate::event_queue::EventQueue;
use crate::netdev::Queue;
use crate::queue_pair::QueuePair;
use crate::resources::Resources;
use crate::srq::SharedReceiveQueue;

pub(super) fn created(resources: &Resources, command: &Command<'_>, dma: &GuestMemory, found: &mut Findings) {
    let record = match command {
        Command::CreateEq(create, pages) => {
            eq_entries(resources, &create.context, *pages, dma, found);
            None
        }
        Command::CreateCq(create, pages) => {
            cq_entries(resources, &create.context, *pages, dma, found);
            Some(create.context.record).filter(|_| !create.context.record_in_umem)
        }
        Command::CreateQp(create, _) => {
            let context = &create.context;
            Some(context.record).filter(|_| has_queue(context) && !context.record_in_umem)
        }
        Command::CreateRmp(create, _) => work_queue_record(&create.context.queue),
        Command::CreateXrcSrq(create, _) | Command::CreateSrq(create, _) => Some(create.context.record),
        Command::CreateSq(create, _) => work_queue_record(&create.context.queue),
        Command::CreateRq(create, _) => work_queue_record(&create.context.queue),
        _ => None,
    };
    // An SQ and an RQ can share a record, each using one half of it. libmlx5 does this for a raw QP.
    let is_shareable = |queue: &Queue| {
        matches!(
            (command, queue),
            (Command::CreateSq(..), Queue::Receive(_)) | (Command::CreateRq(..), Queue::Send(_))
        )
    };
    if let Some(record) = record
        && let Some(user) = user_of(resources, record, is_shareable)
    {
        found.add(
            &RECORD_SHARED,
            format!("{}: the doorbell record at {record} is already used by {user}", command.opcode().name()),
        );
    }
}

/// Returns the address of a work queue's doorbell record, or `None` if the record is in a UMEM.
fn work_queue_record(queue: &WorkQueue) -> Option<Iova> {
    (!queue.record_in_umem).then_some(queue.record)
}

/// Returns whether a QP has queues of its own and uses its doorbell record. An XRC target has no queues.
fn has_queue(context: &QpContext) -> bool {
    !context.no_sq || context.receive_kind() == Some(ReceiveKind::Own)
}

/// Returns the name of the queue that already uses a doorbell record, if any. Ignores SQs and RQs that `is_shareable`
/// accepts.
fn user_of(resources: &Resources, record: Iova, is_shareable: impl Fn(&Queue) -> bool) -> Option<String> {
    let mut qps = resources.qps.iter_from(0).filter(|(_, qp)| has_queue(&qp.context));
    let qp = qps.find(|(_, qp)| qp.context.record == record).map(|(qpn, _)| format!("QP {qpn:#x}"));
    let cq = || {
        let found = resources.cqs.iter_from(0).find(|(_, cq)| cq.record() == record);
        found.map(|(cqn, _)| format!("CQ {cqn:#x}"))
    };
    let srq = || {
        let found = resources.srqs.iter_from(0).find(|(_, srq)| srq.record() == record);
        found.map(|(srqn, _)| format!("SRQ {srqn:#x}"))
    };
    let work_queue = || {
        let mut queues = resources.netdev.queues.iter_from(0).filter(|(_, queue)| !is_shareable(queue));
        let found = queues.find(|(_, queue)| queue.record() == record);
        found.map(|(number, queue)| match queue {
            Queue::Send(_) => format!("SQ {number:#x}"),
            Queue::Receive(_) => format!("RQ {number:#x}"),
        })
    };
    qp.or_else(cq).or_else(srq).or_else(work_queue)
}

fn eq_entries(
    resources: &Resources,
    context: &EqContext,
    pages: Pages<'_>,
    dma: &GuestMemory,
    found: &mut Findings,
) {
    const OWNER_BYTE: u64 = 0x3f;
    let place = Placement { log_page_size: context.log_page_size, page_offset: context.page_offset };
    let buffer = QueueBuffer::new(pages, place, EventQueue::ring_len(context));
    let entries = Entries { buffer, stride: eqe::LEN as u64, at: OWNER_BYTE, log: context.log_entries };
    let is_new = |byte: u8| byte & 1 == 0;
    entries.check(&format!("EQ {:#x}", resources.eqs.next().unwrap_or(0)), is_new, dma, found);
}

fn cq_entries(
    resources: &Resources,
    context: &CqContext,
    pages: Pages<'_>,
    dma: &GuestMemory,
    found: &mut Findings,
) {
    let Some(size) = context.cqe_size() else { return };
    let place = Placement { log_page_size: context.log_page_size, page_offset: context.page_offset };
    let buffer = QueueBuffer::new(pages, place, CompletionQueue::ring_len(size, context.log_entries));
    let (stride, at) = (size.stride() as u64, (size.fields_at() + cqe::OWNER_BYTE) as u64);
    let is_new = |byte: u8| byte & 1 == 0 && byte >> 4 != CqeOpcode::Invalid.code();
    let entries = Entries { buffer, stride, at, log: context.log_entries };
    entries.check(&format!("CQ {:#x}", resources.cqs.next().unwrap_or(0)), is_new, dma, found);
}

/// Owner bytes of a new queue's entries.
struct Entries {
    /// Memory of the queue; `None` if the page list is too short.
    buffer: Option<QueueBuffer>,
    stride: u64,
    /// Offset of the owner byte in an entry.
    at: u64,
    log: u8,
}

impl Entries {
    /// Reports the first entry whose owner byte marks it as new.
    fn check(self, queue: &str, is_new: impl Fn(u8) -> bool, dma: &GuestMemory, found: &mut Findings) {
        /// Maximum number of entries checked: enough to detect a driver that does not initialise them.
        const CHECKED: u64 = 512;
        let Some(buffer) = self.buffer else { return };
        let entries = CHECKED.min(1 << self.log);
        let owner = |entry: &u64| {
            let mut byte = [0];
            let read = buffer.read(dma, entry * self.stride + self.at, &mut byte);
            read.is_ok_and(|()| is_new(byte[0]))
        };
        if let Some(entry) = (0..entries).find(owner) {
            found.add(
                &ENTRY_OWNER,
                format!("entry {entry:#x} of {queue} looks new, although the device has not written it"),
            );
        }
    }
}

/// Checks a CQ before the device writes its next entry.
pub(in super::super) fn cqe(cq: &CompletionQueue, cqn: Cqn, dma: &GuestMemory) -> Findings {
    let mut found = Findings::default();
    let CqContext { consumer, producer, .. } = cq.context(dma);
    if is_past(consumer, producer) {
        found.add(
            &CQ_CONSUMER,
            format!(
                "CQ {cqn}: consumer index {consumer:#x} in its doorbell record is past producer index {producer:#x}"
            ),
        );
    } else if cq.is_full(dma) {
        let entries = cq.entries();
        found.add(&CQ_OVERRUN, format!("CQ {cqn} has {entries} entries, and all of them are unread"));
    }
    found
}

/// Checks a receive queue or SRQ before the device fetches its next request.
pub(in super::super) fn receives(resources: &Resources, source: RecvSource, dma: &GuestMemory) -> Findings {
    let mut found = Findings::default();
    let (RecvSource::Qp(qpn) | RecvSource::XrcSrq { qpn, .. }) = source;
    let Some(qp) = resources.qps.get(qpn.get()) else { return found };
    match source.srqn().or_else(|| qp.srqn()) {
        Some(srqn) => {
            if let Some(srq) = resources.srqs.get(srqn.get()) {
                shared(srq, srqn, dma, &mut found);
            }
        }
        None => own(qp, dma, &mut found),
    }
    found
}

fn own(qp: &QueuePair, dma: &GuestMemory, found: &mut Findings) {
    let (queue, qpn) = (qp.recv_queue(), qp.qpn);
    let Some(record) = qp.record(dma).filter(|_| queue.entries() != 0) else { return };
    let outstanding = qp.counters.receives.saturating_sub(qp.counters.receives_completed);
    let posted = outstanding + u64::from(record.received.wrapping_sub(queue.taken()));
    if posted > queue.entries().into() {
        let entries = queue.entries();
        found.add(
            &RQ_OVERRUN,
            format!("the receive queue of QP {qpn} has {entries} entries, but {posted} posted requests"),
        );
    }
}

fn shared(srq: &SharedReceiveQueue, srqn: Srqn, dma: &GuestMemory, found: &mut Findings) {
    let (posted, entries, head) = (srq.available(dma), srq.entries(), srq.head());
    if u32::from(posted) > entries {
        found.add(&RQ_OVERRUN, format!("SRQ {srqn} has {entries} entries, but {posted} posted requests"));
        return;
    }
    if posted != 0
        && let Some(next) = srq.entry(head, dma).and_then(|entry| srq.link(&entry))
        && u32::from(next) >= entries
    {
        found.add(
            &SRQ_LINK,
            format!(
                "entry {head:#x} of SRQ {srqn} links to entry {next:#x}, but the SRQ has {entries} entries"
            ),
        );
    }
}
