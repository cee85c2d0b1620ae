//! Seam of the queue half.

use protocol::hca::mthca::cmd::Command;
use protocol::hca::status::{CmdError, CmdStatus};

use super::Answer;
use crate::frontend::Context;
use crate::frontend::mthca::device::Setup;
use crate::frontend::mthca::resources::Resources;

pub(super) fn sw2hw(
    _: &mut Resources,
    _: &Setup,
    _: &mut Context<'_>,
    command: &Command,
    _: &[u8],
) -> Result<Answer, CmdError> {
    Err(CmdError::new(CmdStatus::BadOp, command.op.name(), 0))
}

pub(super) fn hw2sw(
    _: &mut Resources,
    _: &Setup,
    _: &mut Context<'_>,
    command: &Command,
    _: &[u8],
) -> Result<Answer, CmdError> {
    Err(CmdError::new(CmdStatus::BadOp, command.op.name(), 0))
}

pub(super) fn query(
    _: &mut Resources,
    _: &Setup,
    _: &mut Context<'_>,
    command: &Command,
    _: &[u8],
) -> Result<Answer, CmdError> {
    Err(CmdError::new(CmdStatus::BadOp, command.op.name(), 0))
}

pub(super) fn arm(
    _: &mut Resources,
    _: &Setup,
    _: &mut Context<'_>,
    command: &Command,
    _: &[u8],
) -> Result<Answer, CmdError> {
    Err(CmdError::new(CmdStatus::BadOp, command.op.name(), 0))
}
