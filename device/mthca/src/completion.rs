//! Completions, QP events and SRQ events.
//!
//! # Spec
//! mthca interface, sections 7.5 to 7.7.

use card::frontend::Context;
use card::frontend::snapshot::Fault;
use card::limited;
use card::net::address::Addresses;
use card::net::lid::Source;
use engine::{AsyncEvent, Completion, Engine, Queue, SendOp, Success};
use hcr::host::modify_qp;
use hcr::notify::{CqError, Notify};
use hcr::verbs::{WorkTag, cq_fault, is_solicited, syndrome, vendor_code};
use protocol::hca::mthca::cqe::{Cqe, ImmOrPkey, Outcome, Received};
use protocol::hca::mthca::eqe::{Eqe, QpEvent};
use protocol::hca::qp::Transition;
use protocol::ids::{Cqn, Qpn, Srqn};

use super::observed::Observed;
use super::qp::QueuePair;
use super::regions::DeviceMemory;
use super::resources::Resources;

fn cqe(completion: &Completion, qp: &QueuePair, addresses: &Addresses) -> Cqe {
    let tag = WorkTag::from_bits(completion.wr_id);
    let outcome = match completion.result {
        Ok(Success::Send(done)) => Outcome::Sent {
            opcode: tag.opcode(),
            byte_len: match done.op {
                SendOp::Read { .. } | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => done.byte_len,
                SendOp::Send { .. }
                | SendOp::SendInvalidate { .. }
                | SendOp::Write { .. }
                | SendOp::Local(_)
                | SendOp::Nop => 0,
            },
        },
        Ok(Success::Recv(done)) => {
            let Source { slid, service_level, grh } = addresses.source(&done);
            Outcome::Received(Received {
                remote_qpn: done.remote_qpn,
                remote_lid: slid,
                service_level,
                grh,
                path_bits: 0,
                imm_or_pkey: done.imm.map_or(ImmOrPkey::PkeyIndex(done.pkey_index), ImmOrPkey::Imm),
                opcode: done.opcode.to_byte(),
                byte_len: done.byte_len,
            })
        }
        Err(status) => Outcome::Failed {
            send: completion.queue == Queue::Send,
            syndrome: syndrome(status),
            vendor: vendor_code(status),
        },
    };
    // For a receive, `wr_id` is just the WQE offset. `tag.wqe()` returns it too, because the offset is in the lowest
    // bits of a tag.
    Cqe { qpn: qp.qpn, wqe: tag.wqe(), outcome }
}

impl Resources {
    /// Copies a QP's current state and PSNs from the engine to its context.
    pub fn observe(&mut self, engine: &Engine, qpn: Qpn) {
        let index = self.qp_index(qpn);
        if let Some(qp) = self.qps.get_mut(index)
            && let Some(live) = engine.query_qp(qp.qpn)
        {
            qp.observe(&live);
        }
    }

    /// Writes the CQE for a completion. If the CQ does not exist, the completion is lost. If the CQE cannot be written,
    /// the QP moves to ERR.
    pub fn complete(&mut self, cx: &mut Context<'_>, completion: &Completion) {
        let Self { layout, qps, cqs, regions, .. } = self;
        let Some(qp) = qps.get_mut(layout.qpc.index(completion.qpn.get())) else { return };
        cx.monitor.observe(Observed::Completion { qp, completion });
        if !WorkTag::wants_entry(completion) {
            return;
        }
        let qpn = qp.qpn;
        let cqn = match completion.queue {
            Queue::Send => qp.qpc.send_cqn,
            Queue::Recv => qp.qpc.recv_cqn,
        };
        let Some(cq) = cqs.get_mut(layout.cqc.index(cqn.get())).filter(|cq| cq.cqn() == cqn) else {
            limited!(debug, %qpn, %cqn, "completion lost: the CQ does not exist");
            return;
        };
        let entry = cqe(completion, qp, cx.port.addresses());
        let (page, record) = cq.record();
        let slot = cq.ring().producer();
        let memory = DeviceMemory { layout, regions, dma: cx.dma };
        cx.monitor.observe(Observed::CqSlot { cq, memory });
        let consumer = || memory.record(page, record);
        let written = cq.push(&entry, is_solicited(completion), &memory.access(), consumer);
        cx.monitor.observe(Observed::Cqe { cqn, slot, cqe: &entry, lost: written.as_ref().err() });
        match written {
            Ok(Notify::No) => {}
            Ok(Notify::Yes(eqn)) => self.notify(cx, eqn, cqn),
            Err(CqError { fault, first }) => {
                if first {
                    self.report_cq(cx, cqn, fault);
                }
                self.fail_qp(cx, qpn);
            }
        }
    }

    pub fn qp_event(&mut self, cx: &mut Context<'_>, qpn: Qpn, event: AsyncEvent) {
        let index = self.qp_index(qpn);
        let Some(qp) = self.qps.get(index) else { return };
        let (qpn, srqn) = (qp.qpn, qp.qpc.srqn);
        let event = match event {
            AsyncEvent::CommunicationEstablished => QpEvent::CommunicationEstablished,
            AsyncEvent::SqDrained => QpEvent::SqDrained,
            AsyncEvent::WqCatastrophic => QpEvent::Catastrophic,
            AsyncEvent::InvalidRequest => QpEvent::InvalidRequest,
            AsyncEvent::AccessError(_) => QpEvent::AccessViolation,
            AsyncEvent::LastWqeReached => QpEvent::LastWqeReached,
            AsyncEvent::SrqCatastrophic => {
                self.report_srq(cx, srqn);
                return;
            }
            // These events do not occur, as this interface has no XRC.
            AsyncEvent::InvalidXrceth(_)
            | AsyncEvent::XrcDomainViolation(_)
            | AsyncEvent::XrcSrqCatastrophic(_) => return,
        };
        if matches!(event, QpEvent::Catastrophic | QpEvent::InvalidRequest | QpEvent::AccessViolation) {
            limited!(info, %qpn, ?event, "QP entered the error state");
        }
        self.raise(cx, &Eqe::Qp(qpn, event));
    }

    /// Does the work deferred to the end of a turn of the event loop: reports SRQs that have fallen below their limit
    /// and polls mapped doorbells. Returns whether more work is pending.
    pub fn end_turn(&mut self, cx: &mut Context<'_>) -> bool {
        while let Some(srqn) = self.low_srqs.pop() {
            self.raise(cx, &Eqe::SrqLimit(srqn));
        }
        // Discard the list of changed QPs. Contexts are not written back on a change. They are updated from the engine
        // when software queries them.
        while cx.engine.poll_dirty().is_some() {}
        self.poll_rounds(cx)
    }

    fn report_cq(&mut self, cx: &mut Context<'_>, cqn: Cqn, fault: Fault) {
        limited!(warn, %cqn, ?fault, "completion lost: cannot write to the CQ");
        self.raise(cx, &Eqe::CqError(cqn, cq_fault(fault)));
    }

    /// Reports an SRQ that cannot be read. Every QP that uses it detects the fault, but only the first detection is
    /// reported.
    fn report_srq(&mut self, cx: &mut Context<'_>, srqn: Srqn) {
        let index = self.srq_index(srqn);
        let reported = self.srqs.get_mut(index).map(|srq| std::mem::replace(&mut srq.reported_broken, true));
        if reported != Some(true) {
            limited!(warn, %srqn, "cannot read receive WQEs from the SRQ");
            self.raise(cx, &Eqe::SrqCatastrophic(srqn));
        }
    }

    /// Moves a QP to ERR, as a command would.
    fn fail_qp(&mut self, cx: &mut Context<'_>, qpn: Qpn) {
        if cx.engine.query_qp(qpn).is_none_or(|live| live.state == engine::State::Err) {
            return;
        }
        let index = self.qp_index(qpn);
        let Some(qp) = self.qps.get(index) else { return };
        let to_err = qp.modification(Transition::ToErr, cx.port.addresses(), false);
        // This cannot fail, since every QP in the table exists in the engine.
        let _ = modify_qp(cx, self, qpn, &to_err);
    }
}
