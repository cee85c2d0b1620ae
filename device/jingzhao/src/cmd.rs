//! Command execution. Writing the last HCR word starts a command.
//!
//! Checks common to all commands are in [`Command::decode`]; each family of commands has its own file. A rejected
//! command has no effect.
//!
//! # Spec
//! JingZhao interface, sections 1.4, 2 and 3.

mod cq;
mod eq;
mod hca;
mod icm;
mod memory;
mod qp;

use card::frontend::Context;
use hcr::command::{Mailboxes, Outbox, fixed};
use protocol::hca::jingzhao::cmd::{CmdError, CmdStatus, Command, Op, PendingCommand};
use protocol::hca::jingzhao::transition::Transition;

use super::options::{Options, Setup};
use super::resources::{DeviceState, Resources};
use super::strict::{self, Strict};

/// Executes a command: copies the inbox once, works on the copy, and writes the outbox. `mailboxes` keeps the contents
/// of the inbox and the outbox for the trace.
///
/// # Errors
/// Returns the completion status of the command if it is rejected.
pub fn execute(
    state: &mut DeviceState,
    strict: &mut Strict,
    setup: &Setup,
    cx: &mut Context<'_>,
    pending: &PendingCommand,
    mailboxes: &mut Mailboxes,
) -> Result<(), CmdError> {
    reject_unsupported(&setup.options, pending)?;
    let command = Command::decode(pending, state.resources.is_some())?;
    let inbox = mailboxes.inbox.fetch(cx.dma, command.in_param, command.inbox_len)?;
    let examined = cx.monitor.is_strict().then(|| {
        let before = strict::Before { strict, state, setup, own: &cx.port.addresses().own, dma: cx.dma };
        strict::examine(before, pending, &command, inbox)
    });
    mailboxes.outbox = dispatch(state, setup, cx, &command, inbox)?;
    if matches!(command.op, Op::InitHca | Op::CloseHca) {
        strict.close();
    }
    if let Some(examined) = examined {
        strict.record(&examined);
        examined.report(cx.monitor);
    }
    mailboxes.send(cx.dma, command.out_param)
}

/// Rejects the two commands that the vendor's document lists without defining their layouts, CONF_SPECIAL_QP and
/// MAD_IFC. The option `mad_ifc` enables MAD_IFC. No software issues either command (section 3.14).
fn reject_unsupported(options: &Options, pending: &PendingCommand) -> Result<(), CmdError> {
    let unsupported = match Op::from_code(pending.command.op()) {
        Some(Op::ConfSpecialQp) => true,
        Some(Op::MadIfc) => !options.mad_ifc,
        _ => false,
    };
    if unsupported {
        return Err(CmdError::new(CmdStatus::BadOp, "opcode", pending.command.op().into()));
    }
    Ok(())
}

fn dispatch(
    state: &mut DeviceState,
    setup: &Setup,
    cx: &mut Context<'_>,
    command: &Command,
    inbox: &[u8],
) -> Result<Outbox, CmdError> {
    match (command.op, state.resources.as_mut()) {
        (Op::QueryDevLim, _) => return Ok(hca::query_dev_lim(&setup.options)),
        (Op::QueryAdapter, _) => return Ok(hca::query_adapter(&setup.options)),
        (Op::InitHca, _) => hca::init(state, setup, cx, fixed(inbox)?)?,
        (Op::CloseHca, _) => hca::close(state, setup, cx),
        (Op::Nop, _) => {}
        (Op::QueryQp, Some(resources)) => return qp::query(resources, setup, cx, command),
        (Op::MadIfc, Some(_)) => return Ok(hca::mad_ifc(cx)),
        (_, Some(resources)) => on_resources(resources, setup, cx, command, inbox)?,
        (_, None) => {
            return Err(CmdError::new(
                CmdStatus::BadSysState,
                "INIT_HCA required before opcode",
                command.op.spec().code.into(),
            ));
        }
    }
    Ok(Outbox::new())
}

/// Executes the commands that require INIT_HCA and have no outbox.
fn on_resources(
    resources: &mut Resources,
    setup: &Setup,
    cx: &mut Context<'_>,
    command: &Command,
    inbox: &[u8],
) -> Result<(), CmdError> {
    let dma = cx.dma;
    match command.op {
        Op::MapIcm => icm::map(resources, command, inbox),
        Op::UnmapIcm => icm::unmap(resources, command),
        Op::Sw2HwMpt => memory::sw2hw_mpt(resources, dma, command, fixed(inbox)?),
        Op::Hw2SwMpt => memory::hw2sw_mpt(resources, dma, command),
        Op::WriteMtt => memory::write_mtt(resources, dma, command, inbox),
        Op::Sw2HwCq => cq::sw2hw(resources, setup, dma, command, fixed(inbox)?),
        Op::Hw2SwCq => cq::hw2sw(resources, dma, command),
        Op::ResizeCq => cq::resize(resources, setup, dma, command, fixed(inbox)?),
        Op::Sw2HwEq => eq::sw2hw(resources, dma, command, fixed(inbox)?),
        Op::Hw2SwEq => eq::hw2sw(resources, dma, command),
        Op::MapEq => eq::map(resources, command),
        op => match Transition::from_op(op) {
            Some(transition) => qp::modify(resources, setup, cx, command, transition, inbox),
            None => Err(CmdError::new(CmdStatus::BadOp, "opcode", op.spec().code.into())),
        },
    }
}
