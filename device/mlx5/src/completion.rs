//! Writes completions and reports QP, CQ and SRQ events.
//!
//! # Spec
//! mlx5 interface, sections 8.2, 9.3, 9.6 and 18.1.

use card::frontend::Context;
use card::frontend::snapshot::Fault;
use card::limited;
use engine::{AsyncEvent, Completion, Queue, RecvDone, SendDone, SendOp, Success};
use protocol::hca::mlx5::cqe::{Content, Cqe, Failure, Receipt, RoceHeader, Sent, Source};
use protocol::hca::mlx5::eqe::{CqFault, Eqe, QueueEvent, QueueKind};
use protocol::hca::mlx5::qp::Service;
use protocol::hca::mlx5::transition::Transition;
use protocol::ids::{Cqn, Pkey, Qpn, Srqn, UserIndex};
use protocol::net::layers::Tci;
use protocol::roce::Kind;

use super::completion_queue::{Entry, LostEntry};
use super::failure;
use super::host;
use super::init_segment;
use super::queue_pair::QueuePair;
use super::resources::Resources;
use super::send_queue::SendTag;
use super::{strict, trace};

fn sent(qp: &QueuePair, tag: SendTag, done: &SendDone, timestamp: u64) -> Cqe {
    Cqe::Sent(Sent {
        wqe_opcode: tag.opcode(),
        qpn: qp.qpn,
        user_index: qp.context.user_index,
        wqe_counter: tag.index(),
        byte_count: match done.op {
            SendOp::Read { .. } | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => done.byte_len,
            _ => 0,
        },
        timestamp,
    })
}

/// Fields of a receive CQE that do not come from the received message.
struct Receiver {
    /// User index of the QP or, for XRC, of the SRQ.
    user_index: UserIndex,
    wqe_counter: u16,
    timestamp: u64,
}

/// Returns the source of a datagram.
fn source(cx: &Context<'_>, is_ethernet: bool, done: &RecvDone) -> Source {
    let qpn = done.remote_qpn;
    if is_ethernet {
        let header = if done.grh { RoceHeader::Ipv6 } else { RoceHeader::Ipv4 };
        let vlan_tag = done.tag.map(Tci::into_bits);
        return Source { qpn, service_level: header.code(), grh: true, vlan_tag, ..Source::default() };
    }
    let from = cx.port.addresses().source(done);
    Source { qpn, lid: from.slid, service_level: from.service_level, grh: from.grh, ..Source::default() }
}

fn received(cx: &Context<'_>, is_ethernet: bool, qp: &QueuePair, to: &Receiver, done: &RecvDone) -> Cqe {
    let peer = Source { qpn: done.remote_qpn, ..Source::default() };
    let pkey = || {
        let pkeys = cx.management.as_deref().map_or(&[Pkey::DEFAULT][..], |management| management.pkeys());
        pkeys.get(usize::from(done.pkey_index)).map_or(0, |pkey| pkey.get())
    };
    let content = match (done.imm, done.invalidated) {
        (Some(imm), _) if done.opcode.operation.kind() == Kind::Write => Content::WriteImm(imm.0),
        (Some(imm), _) => Content::SendImm(imm.0),
        (None, Some(key)) => Content::SendInvalidate(key.get()),
        (None, None) => Content::Send { pkey: if qp.service() == Service::Qp1 { pkey() } else { 0 } },
    };
    Cqe::Received(Receipt {
        content,
        qpn: qp.qpn,
        user_index: to.user_index,
        wqe_counter: to.wqe_counter,
        byte_count: done.byte_len,
        solicited: done.solicited,
        source: if qp.service().is_datagram() { source(cx, is_ethernet, done) } else { peer },
        timestamp: to.timestamp,
    })
}

impl Resources {
    /// Writes the CQE for a completion. If the CQE cannot be written, all QPs that use the CQ move to ERR.
    pub fn complete(&mut self, cx: &mut Context<'_>, completion: &Completion) {
        let dma = cx.dma;
        cx.monitor.check(|| strict::completion(self, completion, dma));
        let is_ethernet = self.port.ethernet().is_some();
        let Some(qp) = self.qps.get_mut(completion.qpn.get()) else { return };
        qp.count(completion);
        let tag = SendTag::from_bits(completion.wr_id);
        if matches!(completion.result, Ok(Success::Send(_))) && !tag.signaled() {
            return;
        }
        let context = &qp.context;
        let (cqn, user_index) = match (completion.queue, completion.srqn) {
            (Queue::Send, _) => (context.send_cqn, context.user_index),
            (Queue::Recv, None) => (context.recv_cqn, context.user_index),
            // Section 20, M-11: the CQE of an XRC receive goes to the SRQ's CQ.
            (Queue::Recv, Some(srqn)) => match self.srqs.get(srqn.get()).and_then(|srq| srq.xrc()) {
                Some(srq) => (srq.cqn, srq.user_index),
                None => return limited!(debug, %srqn, "completion lost: the SRQ does not exist"),
            },
        };
        let timestamp = init_segment::ticks(cx.now);
        let entry = match &completion.result {
            Ok(Success::Send(done)) => {
                Entry { cqe: sent(qp, tag, done, timestamp), solicited: tag.event(), urgent: true }
            }
            Ok(Success::Recv(done)) => {
                let to = Receiver { user_index, wqe_counter: tag.index(), timestamp };
                let cqe = received(cx, is_ethernet, qp, &to, done);
                Entry { cqe, solicited: done.solicited, urgent: true }
            }
            &Err(status) => {
                let failure = Failure {
                    send: completion.queue == Queue::Send,
                    syndrome: failure::syndrome(status).code(),
                    vendor: failure::vendor(status),
                    qpn: qp.qpn,
                    user_index,
                    wqe_opcode: if completion.queue == Queue::Send { tag.opcode() } else { 0 },
                    wqe_counter: tag.index(),
                    solicited: true,
                };
                Entry { cqe: Cqe::Failed(failure), solicited: true, urgent: true }
            }
        };
        let qpn = qp.qpn;
        if let Err(status) = completion.result {
            self.count_failure(qpn, completion.queue, status);
        }
        self.write(cx, (qpn, cqn), &entry);
    }

    /// Writes a CQE for a QP, SQ or RQ. If the CQE cannot be written, the queues that use the CQ move to the error
    /// state.
    pub(super) fn write(&mut self, cx: &mut Context<'_>, (qpn, cqn): (Qpn, Cqn), entry: &Entry) {
        let Some(cq) = self.cqs.get_mut(cqn.get()) else {
            return limited!(debug, %qpn, %cqn, "completion lost: the CQ does not exist");
        };
        let (slot, dma) = (cq.producer(), cx.dma);
        cx.monitor.check(|| strict::cqe(cq, cqn, dma));
        let written = cq.push(entry, cx.dma);
        if let Some(trace) = cx.monitor.trace() {
            trace::cqe(trace, cqn, slot, &entry.cqe, written.as_ref().err());
        }
        match written {
            Ok(None) => {}
            Ok(Some(time)) => self.notify(cx, cqn, time),
            Err(LostEntry { fault, first }) => {
                if first {
                    self.fail_cq(cx, cqn, fault);
                }
                // An XRC target is not among the QPs that `fail_cq` moves to ERR, because its context does not contain
                // the CQ of the SRQ.
                self.netdev.fail_queue(qpn.get());
                self.fail_qp(cx, qpn);
            }
        }
    }

    /// Reports a CQ that lost a completion. Section 9.6: all of its QPs move to ERR.
    fn fail_cq(&mut self, cx: &mut Context<'_>, cqn: Cqn, fault: Fault) {
        limited!(warn, %cqn, ?fault, "completion lost: cannot write to the CQ");
        let code = match fault {
            Fault::Overrun => CqFault::Overrun,
            Fault::Access => CqFault::Access,
        };
        self.raise(cx, &Eqe::CqError(cqn, code));
        self.netdev.fail_users(cqn);
        let users = self.qps.iter_from(0).filter(|(_, qp)| QueuePair::cqs(&qp.context).contains(&cqn));
        let users: Vec<Qpn> = users.map(|(number, _)| Qpn::new(number)).collect();
        for qpn in users {
            self.fail_qp(cx, qpn);
        }
    }

    /// Moves a QP to ERR, as the 2ERR_QP command would.
    fn fail_qp(&mut self, cx: &mut Context<'_>, qpn: Qpn) {
        use engine::State;
        let state = cx.engine.query_qp(qpn).map(|live| live.state);
        if matches!(state, None | Some(State::Reset | State::Err)) {
            return;
        }
        let Some(qp) = self.qps.get(qpn.get()) else { return };
        if let Some(to_err) = qp.modification(Transition::ToErr, self.port.resolver(cx.port.addresses())) {
            // Cannot fail: the engine returned the state of this QP above.
            let _ = host::modify_qp(cx, self, qpn, &to_err);
        }
    }

    pub fn qp_event(&mut self, cx: &mut Context<'_>, qpn: Qpn, event: AsyncEvent) {
        let event = match event {
            AsyncEvent::CommunicationEstablished => QueueEvent::CommunicationEstablished,
            AsyncEvent::SqDrained => QueueEvent::SqDrained,
            AsyncEvent::WqCatastrophic => QueueEvent::Catastrophic,
            AsyncEvent::InvalidRequest | AsyncEvent::InvalidXrceth(_) => QueueEvent::InvalidRequest,
            AsyncEvent::AccessError(_) | AsyncEvent::XrcDomainViolation(_) => QueueEvent::AccessViolation,
            AsyncEvent::LastWqeReached => QueueEvent::LastWqeReached,
            AsyncEvent::SrqCatastrophic => {
                if let Some(srqn) = self.qps.get(qpn.get()).map(|qp| qp.context.srqn) {
                    self.report_srq(cx, srqn);
                }
                return;
            }
            AsyncEvent::XrcSrqCatastrophic(srqn) => return self.report_srq(cx, srqn),
        };
        self.raise(cx, &Eqe::Queue { event, kind: QueueKind::Qp, number: qpn.get() });
    }

    /// Reports that an SRQ cannot be read. Every QP that uses it detects the fault, but only the first detection raises
    /// an event.
    fn report_srq(&mut self, cx: &mut Context<'_>, srqn: Srqn) {
        if self.srqs.get_mut(srqn.get()).is_some_and(|srq| srq.reports_fault()) {
            limited!(warn, %srqn, "cannot read receive WQEs from the SRQ");
            self.raise(cx, &Eqe::SrqCatastrophic(srqn));
        }
    }

    /// Reports the SRQs that fell below their limits in this turn of the event loop, and a change of the P_Key table.
    pub fn end_turn(&mut self, cx: &mut Context<'_>) {
        self.report_pkeys(cx);
        while let Some(srqn) = self.low_srqs.pop() {
            self.raise(cx, &Eqe::SrqLimit(srqn));
        }
    }
}
