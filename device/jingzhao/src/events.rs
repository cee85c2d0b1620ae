//! Reports completions and asynchronous events to the guest.
//!
//! # Spec
//! JingZhao interface, sections 7, 8.3, 8.5 and 9.5.

use card::frontend::Context;
use card::frontend::snapshot::Fault;
use card::limited;
use engine::{AsyncEvent, Completion, Queue};
use hcr::entry_ring::WriteError;
use hcr::host::modify_qp;
use hcr::notify::Notify;
use hcr::verbs::{WorkTag, cq_fault, is_solicited};
use protocol::hca::jingzhao::cqc::{STATUS_OVERFLOW, STATUS_WRITE_FAIL};
use protocol::hca::jingzhao::eqe::{Eqe, QpEvent};
use protocol::hca::jingzhao::qpc::{QpState, Qpc, ServiceType};
use protocol::hca::jingzhao::transition::Transition;
use protocol::ids::{Cqn, Eqn, Lid, Qpn};

use super::completion::cqe;
use super::ctxmgt::CtxMgt;
use super::ctxmgt::key_qpc_data::KeyQpc;
use super::ctxmgt::message::{RdCqCst, RdQpNpst, RdQpRst, RdQpSst, RdQpState, ReadQp};
use super::ctxmgt::request_controller::Channel;
use super::event_queue::EqSlot;
use super::observed::Observed;
use super::options::Setup;
use super::qp::{attributes, modification};
use super::resources::Resources;

impl Resources {
    /// Writes an asynchronous event to the lowest-numbered EQ whose mask contains the event's type. If no such EQ
    /// exists, the event is dropped.
    pub fn raise(&mut self, cx: &mut Context<'_>, event: &Eqe) {
        let (place, result) = self.eqs.raise(event, &self.regions.access(cx.dma));
        self.finish_event(cx, event, place, result);
    }

    /// Writes a completion event to the EQ of a CQ, if that EQ exists.
    fn notify(&mut self, cx: &mut Context<'_>, eqn: Eqn, cqn: Cqn) {
        let Some(queue) = self.eqs.get_mut(eqn.get()) else { return };
        let event = Eqe::Completion { cqn };
        let place = EqSlot { eqn: eqn.get(), slot: queue.producer() };
        let result = queue.push(&event, &self.regions.access(cx.dma));
        self.finish_event(cx, &event, Some(place), result);
    }

    /// Writes the CQE for a completion. If the CQ does not exist, the completion is lost. If the CQE cannot be written,
    /// the QP moves to ERR.
    pub(super) fn complete(&mut self, setup: &Setup, cx: &mut Context<'_>, completion: &Completion) {
        let Self { ctx, qps, cqs, regions, .. } = self;
        let Some(qp) = qps.get_mut(ctx.qp_index(completion.qpn)) else { return };
        cx.monitor.observe(Observed::Completion { qp, completion });
        if setup.options.queues.honour_c && !WorkTag::wants_entry(completion) {
            return;
        }
        let qpn = qp.qpn;
        let (channel, cqn, rlid) = cqe_target(ctx, &qp.key, completion.queue);
        let entry = cqe(completion, qpn, rlid, cx.port.addresses(), setup.options.ud_grh);
        let Some(cq) = cqs.get_mut(ctx.cq_index(cqn)) else {
            ctx.miss(channel);
            limited!(debug, %qpn, %cqn, "completion lost: the CQ does not exist");
            return;
        };
        let (full_cqn, slot) = (cq.cqn(), cq.producer());
        let result = cq.push(&entry, is_solicited(completion), &regions.access(cx.dma));
        cx.monitor.observe(Observed::Cqe { cqn: full_cqn, slot, cqe: &entry, lost: result.as_ref().err() });
        match result {
            Ok(Notify::No) => {}
            Ok(Notify::Yes(eqn)) => self.notify(cx, eqn, full_cqn),
            Err(error) => {
                if error.first {
                    self.report_cq(cx, full_cqn, error.fault);
                }
                self.fail_qp(setup, cx, qpn);
            }
        }
    }

    /// Reports a lost completion by setting a status in the CQ's context and raising an event.
    fn report_cq(&mut self, cx: &mut Context<'_>, cqn: Cqn, fault: Fault) {
        limited!(warn, %cqn, ?fault, "completion lost: cannot write to the CQ");
        let status = match fault {
            Fault::Overrun => STATUS_OVERFLOW,
            Fault::Access => STATUS_WRITE_FAIL,
        };
        self.ctx.wr_cq_status(cx.dma, cqn, status);
        self.raise(cx, &Eqe::CqError { cqn, fault: cq_fault(fault) });
    }

    /// Moves a QP to ERR, as the 2ERR_QP command would.
    fn fail_qp(&mut self, setup: &Setup, cx: &mut Context<'_>, qpn: Qpn) {
        self.observe(cx, qpn);
        let Some(qp) = self.qp(qpn) else { return };
        let RdQpState { state, .. } = qp.key.read();
        if state == Some(QpState::Err) {
            return;
        }
        let attrs = attributes(qpn, &qp.key, cx.port.addresses(), &setup.options);
        let to_err = modification(Transition::ToErr, &qp.key, attrs, &Qpc::default());
        // Cannot fail: every QP in the table exists in the engine.
        let _ = modify_qp(cx, self, qpn, &to_err);
    }

    pub(super) fn qp_event(&mut self, cx: &mut Context<'_>, qpn: Qpn, event: AsyncEvent) {
        let Some(qpn) = self.qp(qpn).map(|qp| qp.qpn) else { return };
        let event = match event {
            AsyncEvent::CommunicationEstablished => QpEvent::CommunicationEstablished,
            AsyncEvent::SqDrained => QpEvent::SqDrained,
            AsyncEvent::WqCatastrophic => QpEvent::WqCatastrophic,
            AsyncEvent::InvalidRequest => QpEvent::WqInvalidRequest,
            AsyncEvent::AccessError(_) => QpEvent::WqAccess,
            // These events do not occur, as this interface has neither SRQs nor XRC.
            AsyncEvent::SrqCatastrophic
            | AsyncEvent::LastWqeReached
            | AsyncEvent::InvalidXrceth(_)
            | AsyncEvent::XrcDomainViolation(_)
            | AsyncEvent::XrcSrqCatastrophic(_) => return,
        };
        if matches!(event, QpEvent::WqCatastrophic | QpEvent::WqInvalidRequest | QpEvent::WqAccess) {
            limited!(info, %qpn, ?event, "QP entered the error state");
        }
        self.raise(cx, &Eqe::Qp { qpn, event });
    }

    /// Raises the interrupt for an event that was written, or reports a lost event.
    fn finish_event(
        &mut self,
        cx: &mut Context<'_>,
        event: &Eqe,
        place: Option<EqSlot>,
        result: Result<Option<u16>, WriteError>,
    ) {
        cx.monitor.observe(Observed::Eqe { place, event, lost: result.as_ref().err() });
        match result {
            Ok(Some(vector)) => cx.interrupt(vector),
            Ok(None) => {}
            Err(error) => {
                limited!(warn, ?event, "event lost: {error}");
                // Section 8.5: a full queue reports its own overflow later. An inaccessible queue cannot report
                // anything, so the EQ that receives internal errors reports the loss.
                let reachable = error == WriteError::Full;
                if !reachable && *event != Eqe::LocalCatastrophic {
                    self.raise(cx, &Eqe::LocalCatastrophic);
                }
            }
        }
    }
}

/// Returns the channel, the CQN and the connected peer's LID for a completion on `queue`. The channel belongs to the
/// unit that writes the CQE. Requester Recv Control writes the CQE of an RC send, which completes when it is
/// acknowledged. Requester Trans Control writes the CQE of a UC or UD send, which completes when it is transmitted.
fn cqe_target(ctx: &mut CtxMgt, key: &KeyQpc, queue: Queue) -> (Channel, Cqn, Lid) {
    let RdQpSst { service, .. } = key.read();
    match (queue, service) {
        (Queue::Recv, _) => {
            let RdQpRst { recv_cqn, rlid, .. } = ctx.read_of(key);
            (RdQpRst::CHANNEL, recv_cqn, rlid)
        }
        (Queue::Send, Some(ServiceType::Uc | ServiceType::Ud)) => {
            let RdQpNpst { send_cqn, rlid, .. } = ctx.read_of(key);
            (RdQpNpst::CHANNEL, send_cqn, rlid)
        }
        (Queue::Send, Some(ServiceType::Rc) | None) => {
            let RdCqCst { send_cqn, rlid, .. } = ctx.read_of(key);
            (RdCqCst::CHANNEL, send_cqn, rlid)
        }
    }
}
