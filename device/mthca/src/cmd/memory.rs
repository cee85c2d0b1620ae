//! Memory regions: SW2HW_MPT and HW2SW_MPT.
//!
//! # Spec
//! mthca interface, sections 4.5, 6.1 and 6.2.

use hcr::command::fixed;
use protocol::hca::mthca::mpt::Mpt;
use protocol::hca::status::CmdError;

use super::{Answer, Call};

pub(super) fn sw2hw(call: Call<'_, '_>) -> Result<Answer, CmdError> {
    let Call { resources, cx, command, inbox, .. } = call;
    let mpt = Mpt::parse(fixed(inbox)?)?;
    mpt.check_index(command.in_modifier, &resources.layout.mpt)?;
    resources.regions.validate(cx.dma, &mpt)?;
    Ok(Answer::Nothing)
}

/// Executes HW2SW_MPT. Never writes the outbox, since no software reads it.
pub(super) fn hw2sw(call: Call<'_, '_>) -> Result<Answer, CmdError> {
    let Call { resources, command, .. } = call;
    resources.regions.invalidate(command.in_modifier)?;
    Ok(Answer::Nothing)
}
