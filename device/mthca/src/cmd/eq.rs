//! Event queues: SW2HW_EQ, HW2SW_EQ, MAP_EQ.
//!
//! # Spec
//! mthca interface, sections 3.5 and 6.3.

use hcr::command::fixed;
use protocol::hca::mthca::eqc::Eqc;
use protocol::hca::status::{CmdError, CmdStatus};
use protocol::ids::Eqn;

use super::{Answer, Call};
use crate::event_queue::EventQueue;

pub(super) fn sw2hw(call: Call<'_, '_>) -> Result<Answer, CmdError> {
    let Call { resources, command, inbox, .. } = call;
    let eqn = command.eqn();
    let eqc = Eqc::parse(fixed(inbox)?)?;
    if !resources.layout.has_eq(eqn) {
        return Err(CmdError::new(CmdStatus::BadIndex, "EQ number", eqn.get().into()));
    }
    if resources.eqs.contains(eqn) {
        return Err(CmdError::new(
            CmdStatus::BadResState,
            "already in hardware ownership: EQ",
            eqn.get().into(),
        ));
    }
    resources.eqs.insert(eqn, EventQueue::new(&eqc));
    Ok(Answer::Nothing)
}

pub(super) fn hw2sw(call: Call<'_, '_>) -> Result<Answer, CmdError> {
    let Call { resources, command, .. } = call;
    let eqn = command.eqn();
    resources.eqs.remove(eqn).ok_or(not_valid(eqn))?;
    Ok(Answer::Nothing)
}

pub(super) fn map(call: Call<'_, '_>) -> Result<Answer, CmdError> {
    let Call { resources, command, .. } = call;
    let map = command.map_eq();
    if !resources.eqs.contains(map.eqn) {
        return Err(not_valid(map.eqn));
    }
    resources.eqs.map(&map);
    Ok(Answer::Nothing)
}

fn not_valid(eqn: Eqn) -> CmdError {
    CmdError::new(CmdStatus::BadResState, "not in hardware ownership: EQ", eqn.get().into())
}
