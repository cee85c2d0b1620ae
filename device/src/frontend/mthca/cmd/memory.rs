//! Memory regions: SW2HW_MPT and HW2SW_MPT.
//!
//! # Spec
//! mthca interface, sections 4.5, 6.1 and 6.2.

use protocol::hca::mthca::cmd::Command;
use protocol::hca::mthca::mpt::Mpt;
use protocol::hca::status::CmdError;

use super::Answer;
use crate::frontend::Context;
use crate::frontend::command::fixed;
use crate::frontend::mthca::device::Setup;
use crate::frontend::mthca::resources::Resources;

pub(super) fn sw2hw(
    resources: &mut Resources,
    _: &Setup,
    cx: &mut Context<'_>,
    command: &Command,
    inbox: &[u8],
) -> Result<Answer, CmdError> {
    let mpt = Mpt::parse(fixed(inbox)?, command.in_modifier, &resources.layout.mpt)?;
    resources.regions.validate(cx.dma, &mpt)?;
    Ok(Answer::Nothing)
}

/// The outbox, if the driver wants one, is not looked at by any software: it stays as it is.
pub(super) fn hw2sw(
    resources: &mut Resources,
    _: &Setup,
    _: &mut Context<'_>,
    command: &Command,
    _: &[u8],
) -> Result<Answer, CmdError> {
    resources.regions.invalidate(command.in_modifier)?;
    Ok(Answer::Nothing)
}
