//! The port and its management: INIT_IB, CLOSE_IB, SET_IB, MAD_IFC.
//!
//! # Spec
//! mthca interface, sections 3.5, 8.2 and 8.5.

use protocol::hca::mthca::cmd::Command;
use protocol::hca::mthca::eqe::Eqe;
use protocol::hca::mthca::port::{self, SetIb};
use protocol::hca::status::{CmdError, CmdStatus};

use super::Answer;
use crate::frontend::Context;
use crate::frontend::command::fixed;
use crate::frontend::mthca::device::Setup;
use crate::frontend::mthca::resources::Resources;

pub(super) fn init(
    resources: &mut Resources,
    _: &Setup,
    cx: &mut Context<'_>,
    command: &Command,
    _: &[u8],
) -> Result<Answer, CmdError> {
    port::check(command.in_modifier)?;
    resources.raise(cx, &Eqe::PortChange { port: 1, active: true });
    Ok(Answer::Nothing)
}

pub(super) fn close(
    resources: &mut Resources,
    _: &Setup,
    cx: &mut Context<'_>,
    command: &Command,
    _: &[u8],
) -> Result<Answer, CmdError> {
    port::check(command.in_modifier)?;
    resources.raise(cx, &Eqe::PortChange { port: 1, active: false });
    Ok(Answer::Nothing)
}

pub(super) fn set(
    _: &mut Resources,
    _: &Setup,
    _: &mut Context<'_>,
    command: &Command,
    inbox: &[u8],
) -> Result<Answer, CmdError> {
    port::check(command.in_modifier)?;
    let _ = SetIb::parse(fixed(inbox)?);
    Ok(Answer::Nothing)
}

pub(super) fn mad_ifc(
    _: &mut Resources,
    _: &Setup,
    _: &mut Context<'_>,
    command: &Command,
    _: &[u8],
) -> Result<Answer, CmdError> {
    Err(CmdError::new(CmdStatus::BadPacket, "management of port", command.in_modifier.into()))
}
