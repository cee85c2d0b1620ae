//! Queue pairs: state transitions, QUERY_QP and CONF_SPECIAL_QP.
//!
//! # Spec
//! mthca interface, sections 3.1, 6.5 and 8.1.

use card::frontend::Context;
use hcr::command::fixed;
use hcr::host::modify_qp;
use protocol::hca::mthca::doorbell::UarRegister;
use protocol::hca::mthca::modify::{ModifyQp, QpAttributes};
use protocol::hca::mthca::qpc::Qpc;
use protocol::hca::qp::Transition;
use protocol::hca::status::{CmdError, CmdStatus};
use protocol::ids::Qpn;

use super::{Answer, Call};
use crate::qp::{QueuePair, service};
use crate::resources::Resources;

pub(super) fn modify(call: Call<'_, '_>, transition: Transition) -> Result<Answer, CmdError> {
    let Call { resources, setup, cx, command, inbox } = call;
    let qpn = command.qpn();
    let index = resources.qp_index(qpn);
    if resources.qps.get(index).is_some_and(|qp| qp.qpn != qpn) {
        return Err(CmdError::new(
            CmdStatus::BadResState,
            "another QP uses the context table entry of QP",
            qpn.get().into(),
        ));
    }
    let new = match inbox {
        [] => ModifyQp { named: QpAttributes::empty(), qpc: Qpc::default() },
        inbox => ModifyQp::parse(fixed(inbox)?),
    };
    resources.observe(cx.engine, qpn);
    let current = resources.qps.get(index).map_or_else(Qpc::default, |qp| qp.qpc);
    let next = current.modify(transition, &new)?;
    let pkey_index = next.primary.pkey_index;
    if u16::from(pkey_index) >= setup.options.limits.pkeys() {
        return Err(CmdError::new(CmdStatus::BadIndex, "P_Key index", pkey_index.into()));
    }
    match (transition, resources.qps.get_mut(index)) {
        (Transition::ToRst, _) => {
            // Section 12, T41: the kernel frees the QP's buffers after this command. No later DMA may touch them.
            cx.engine.destroy_qp(qpn);
            cx.monitor.forget_qp(qpn);
            resources.qps.remove(index);
            resources.uar.remove((current.page, UarRegister::Send), index);
            let wanted = command.requests_context().then(|| ModifyQp::outbox(&current).to_vec());
            return Ok(wanted.map_or(Answer::Nothing, Answer::Mailbox));
        }
        (Transition::Rst2Init, _) => create(resources, cx, qpn, next)?,
        (_, Some(qp)) => qp.qpc = next,
        // A QP in RESET is not in the table. It has no queues to flush and cannot move to ERR.
        (_, None) => return Err(CmdError::new(CmdStatus::BadQpState, "unknown QP", qpn.get().into())),
    }
    let Some(qp) = resources.qps.get(index) else { return Ok(Answer::Nothing) };
    let modification = qp.modification(transition, cx.port.addresses(), command.requests_drained_event());
    modify_qp(cx, resources, qpn, &modification)?;
    Ok(Answer::Nothing)
}

/// Adds a QP in the RESET state to the table and to the engine.
fn create(resources: &mut Resources, cx: &mut Context<'_>, qpn: Qpn, qpc: Qpc) -> Result<(), CmdError> {
    let index = resources.qp_index(qpn);
    let exceeded = CmdError::new(CmdStatus::ExceedLim, "limit of QPs reached at index", index.into());
    let kind = qpc.kind().ok_or(CmdError::param("service type", qpc.kind.into()))?;
    let service = service(kind, qpn, cx.engine.smi(), cx.engine.gsi());
    let service = service
        .ok_or(CmdError::param("CONF_SPECIAL_QP required before creating management QP", qpn.get().into()))?;
    let page = qpc.page;
    let qp = QueuePair::new(qpn, service, kind, qpc);
    cx.engine.create_qp(qpn, qp.attributes(cx.port.addresses())).map_err(|_| exceeded)?;
    if resources.qps.insert(index, Box::new(qp)).is_err() {
        cx.engine.destroy_qp(qpn);
        return Err(exceeded);
    }
    resources.uar.add((page, UarRegister::Send), index);
    Ok(())
}

/// Executes QUERY_QP, which accepts any QP number. Returns zeros for a QP that is in RESET or never existed.
pub(super) fn query(call: Call<'_, '_>) -> Result<Answer, CmdError> {
    let Call { resources, cx, command, .. } = call;
    let qpn = command.qpn();
    resources.observe(cx.engine, qpn);
    let qp = resources.qps.get(resources.qp_index(qpn)).filter(|qp| qp.qpn == qpn);
    let qpc = qp.map_or_else(Qpc::default, |qp| qp.qpc);
    Ok(Answer::Mailbox(ModifyQp::outbox(&qpc).to_vec()))
}

/// Executes CONF_SPECIAL_QP, which declares the QP that acts as QP0 or QP1. The command contains the QPN for the first
/// port; 0 means none.
pub(super) fn conf_special(call: Call<'_, '_>) -> Result<Answer, CmdError> {
    let Call { cx, command, .. } = call;
    const SMI: u8 = 0;
    const GSI: u8 = 1;
    let qpn = Some(command.qpn()).filter(|qpn| qpn.get() != 0);
    match command.op_modifier {
        SMI => cx.engine.set_smi(qpn),
        GSI => cx.engine.set_gsi(qpn),
        other => return Err(CmdError::new(CmdStatus::BadOp, "unsupported special QP type", other.into())),
    }
    Ok(Answer::Nothing)
}
