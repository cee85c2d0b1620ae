//! Reports engine events to software: completions, QP events and CQ events.
//!
//! A failed request does not produce a CQE. Instead, the QP enters the error state and an asynchronous event reports
//! the cause. Software then flushes the queues, and the first flush completion reports the cause.
//!
//! # Spec
//! E810 interface, sections 12.1 and 14.1.

use card::frontend::Context;
use card::limited;
use engine::{AsyncEvent, Completion, Event, Queue, RecvDone, Success};
use protocol::hca::e810::rdma::cqe::{Cqe, ExtendedCqe};
use protocol::hca::e810::rdma::event_queue::{self, EventCode, EventSource};
use protocol::hca::e810::rdma::number::MacNumber;
use protocol::hca::e810::rdma::queue_pair::QpState;
use protocol::hca::e810::rdma::send_wqe::Service;
use protocol::ids::{Cqn, Qpn};

use super::Rdma;
use super::completion_queue::PushError;
use super::failure;
use super::queue_pair::QueuePair;
use super::queues::{notify, poll_if_flushed};
use super::send_queue::SendTag;
use super::trace;

pub(in super::super) fn handle_event(rdma: &mut Rdma, cx: &mut Context<'_>, event: &Event) {
    match event {
        Event::Completion(completion) => complete(rdma, cx, completion),
        Event::Async { qpn, event } => qp_event(rdma, cx, *qpn, *event),
    }
}

fn complete(rdma: &mut Rdma, cx: &mut Context<'_>, completion: &Completion) {
    let Some(qp) = rdma.queues.qp_mut(completion.qpn) else { return };
    match (completion.queue, completion.result) {
        (_, Ok(Success::Send(done))) => {
            qp.send.finish();
            qp.counters.sends_completed += 1;
            let tag = SendTag::from_bits(completion.wr_id);
            if tag.signaled() {
                let entry =
                    Cqe { len: done.byte_len, opcode: tag.opcode(), send: true, ..base_cqe(qp, tag.index()) };
                let cqn = qp.context.send_cqn;
                push(rdma, cx, (completion.qpn, cqn), &entry, None, false);
            }
        }
        (_, Ok(Success::Recv(done))) => {
            qp.receive.finish();
            qp.counters.receives_completed += 1;
            let (entry, more) = received(qp, index(completion.wr_id), &done);
            let cqn = qp.context.recv_cqn;
            push(rdma, cx, (completion.qpn, cqn), &entry, more.as_ref(), done.solicited);
        }
        (Queue::Send, Err(status)) => {
            let tag = SendTag::from_bits(completion.wr_id);
            let reject_code =
                qp.rejected.take().filter(|(rejected, _)| *rejected == tag).map(|(_, code)| code);
            if let Some(code) = reject_code.or_else(|| failure::of_send(status, tag.opcode())) {
                qp.counters.failed += 1;
                fail(
                    rdma,
                    cx,
                    completion.qpn,
                    QpFailure { code, source: EventSource::SendQueue, wqe: tag.index() },
                );
            }
        }
        (Queue::Recv, Err(status)) => {
            if let Some(code) = failure::of_receive(status) {
                qp.counters.failed += 1;
                let wqe = index(completion.wr_id);
                fail(rdma, cx, completion.qpn, QpFailure { code, source: EventSource::ReceiveQueue, wqe });
            }
        }
    }
}

/// Returns the WQE index contained in a receive request's `wr_id`.
fn index(wr_id: u64) -> u16 {
    u16::try_from(wr_id).unwrap_or_default()
}

/// Returns a CQE with the fields common to all completions of a QP.
fn base_cqe(qp: &QueuePair, wqe_index: u16) -> Cqe {
    Cqe { context: qp.context.completion_context, qpn: qp.qpn, wqe_index, ..Cqe::default() }
}

/// Builds the CQE for a received message, and the extended CQE if one is needed.
fn received(qp: &QueuePair, wqe_index: u16, done: &RecvDone) -> (Cqe, Option<ExtendedCqe>) {
    /// Mask of the BTH opcode bits that do not depend on the service.
    const OPERATION: u8 = 0x1f;
    let mut entry = Cqe {
        len: done.byte_len,
        opcode: done.opcode.to_byte() & OPERATION,
        solicited: done.solicited,
        ..base_cqe(qp, wqe_index)
    };
    let mut more = ExtendedCqe::default();
    if let Some(imm) = done.imm {
        (more.imm, more.has_imm) = (u32::from_be_bytes(imm.0), true);
    }
    match qp.service {
        Service::Connection => {
            if let Some(key) = done.invalidated {
                (entry.source, entry.invalidated_or_ipv4) = (key.get(), true);
            }
        }
        Service::Datagram => {
            (entry.source, entry.invalidated_or_ipv4) = (done.remote_qpn.get(), !done.grh);
            (more.source_mac, more.has_source_mac) = (MacNumber(done.remote_mac), true);
            if let Some(tag) = done.tag {
                (more.tag, more.has_tag) = (tag.into_bits(), true);
            }
        }
    }
    entry.extended = more != ExtendedCqe::default();
    (entry, entry.extended.then_some(more))
}

/// Writes a CQE. If the CQ has been destroyed, the completion is dropped. If the CQE cannot be written, the QP enters
/// the error state.
pub(super) fn push(
    rdma: &mut Rdma,
    cx: &mut Context<'_>,
    (qpn, cqn): (Qpn, Cqn),
    entry: &Cqe,
    more: Option<&ExtendedCqe>,
    solicited: bool,
) {
    let Rdma { queues, hmc, events, .. } = rdma;
    let pages = hmc.pages(cx.dma);
    let Some(cq) = queues.cq_mut(cqn) else {
        return limited!(debug, %qpn, %cqn, "completion lost: the CQ does not exist");
    };
    let slot = cq.next();
    let pushed = cq.push(pages, entry.emit(), more.map(ExtendedCqe::emit), solicited);
    trace::completion(cx.monitor, (cqn, slot), entry, more, pushed.as_ref().err());
    match pushed {
        Ok(due) => notify(events, pages, cx.monitor, cq, due),
        Err(PushError { fault, first }) => {
            if first {
                limited!(warn, %cqn, ?fault, "completion lost: cannot write to the CQ");
                let event = event_queue::AsyncEvent {
                    context: cq.cookie(),
                    code: EventCode::CqOverflow,
                    source: EventSource::CompletionQueue,
                    ..event_queue::AsyncEvent::of(cqn.get())
                };
                events.report(pages, cx.monitor, &event);
            }
            // IBTA volume 1, section 11.6.3: a work queue whose completions cannot be reported has a catastrophic
            // error. The CQ's event alone does not make irdma flush the QP, whose other queue may use another CQ.
            let source = if entry.send { EventSource::SendQueue } else { EventSource::ReceiveQueue };
            fail(rdma, cx, qpn, QpFailure { code: EventCode::Catastrophic, source, wqe: entry.wqe_index });
        }
    }
}

/// Handles a QP event that is not reported by a completion. Such an event moves the QP to the error state, unless it
/// only reports that the send queue has drained.
fn qp_event(rdma: &mut Rdma, cx: &mut Context<'_>, qpn: Qpn, event: AsyncEvent) {
    let inbound = |code| QpFailure { code, source: EventSource::Inbound, wqe: 0 };
    let cause = match event {
        AsyncEvent::SqDrained => return report_suspended(rdma, cx, qpn),
        AsyncEvent::WqCatastrophic => {
            QpFailure { code: EventCode::Catastrophic, source: EventSource::SendQueue, wqe: 0 }
        }
        AsyncEvent::InvalidRequest => inbound(EventCode::UnexpectedRequest),
        AsyncEvent::AccessError(reason) => inbound(failure::of_key(reason)),
        // These events cannot occur. The CM establishes connections without involving the device, and the
        // device supports neither shared receive queues nor XRC.
        AsyncEvent::CommunicationEstablished
        | AsyncEvent::SrqCatastrophic
        | AsyncEvent::LastWqeReached
        | AsyncEvent::InvalidXrceth(_)
        | AsyncEvent::XrcDomainViolation(_)
        | AsyncEvent::XrcSrqCatastrophic(_) => return,
    };
    fail(rdma, cx, qpn, cause);
}

/// Cause of a QP failure, as reported to software.
#[derive(Clone, Copy, Debug)]
struct QpFailure {
    code: EventCode,
    source: EventSource,
    wqe: u16,
}

/// Moves a QP to the error state and reports the cause. Has no effect if the QP is already in the error
/// state.
fn fail(rdma: &mut Rdma, cx: &mut Context<'_>, qpn: Qpn, cause: QpFailure) {
    let QpFailure { code, source, wqe } = cause;
    let Some(qp) = rdma.queues.qp_mut(qpn).filter(|qp| qp.state != QpState::Error) else { return };
    qp.state = QpState::Error;
    limited!(info, %qpn, ?code, ?source, "QP entered the error state");
    report(rdma, cx, qpn, code, source, wqe);
    stop(rdma, cx, qpn);
    poll_if_flushed(rdma, cx, qpn);
}

pub(super) fn report(
    rdma: &mut Rdma,
    cx: &mut Context<'_>,
    qpn: Qpn,
    code: EventCode,
    source: EventSource,
    wqe: u16,
) {
    let Rdma { queues, hmc, events, .. } = rdma;
    let Some(qp) = queues.qp_mut(qpn) else { return };
    let event = event_queue::AsyncEvent {
        context: qp.context.completion_context,
        wqe,
        code,
        source,
        state: qp.state,
        ..event_queue::AsyncEvent::of(qpn.get())
    };
    events.report(hmc.pages(cx.dma), cx.monitor, &event);
}

pub(super) fn report_suspended(rdma: &mut Rdma, cx: &mut Context<'_>, qpn: Qpn) {
    report(rdma, cx, qpn, EventCode::Suspended, EventSource::SendQueue, 0);
}

/// Moves a QP to the error state in the engine, without reporting an event, because the error has already been reported
/// to software.
fn stop(rdma: &mut Rdma, cx: &mut Context<'_>, qpn: Qpn) {
    if cx.engine.query_qp(qpn).is_none_or(|live| live.state == engine::State::Err) {
        return;
    }
    let mac = cx.port.addresses().own.mac;
    let Some(qp) = rdma.queues.qp_mut(qpn) else { return };
    qp.state = QpState::Error;
    let modify = qp.current(super::queue_pair::PathContext { paths: &rdma.paths, mac });
    super::host::modify(rdma, cx, qpn, &modify);
}
