//! Command execution. Writing the last HCR word starts a command.
//!
//! Checks common to all commands are in [`Command::decode`]; each command family has its own file. A rejected command
//! has no effect, unless it was rejected because its outbox is not accessible.
//!
//! # Spec
//! mthca interface, section 3.

mod cq;
mod eq;
mod hca;
mod icm;
mod memory;
mod multicast;
mod port;
mod qp;
mod srq;

use card::frontend::Context;
use hcr::command::{Mailboxes, Outbox};
use protocol::hca::hcr::PendingCommand;
use protocol::hca::mthca::cmd::{Command, Op};
use protocol::hca::status::{CmdError, CmdStatus};

use super::options::Setup;
use super::resources::{DeviceState, Resources};
use super::strict::{self, Strict};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Nothing,
    /// Immediate result in out_param.
    Immediate(u64),
    /// Contents of the outbox.
    Mailbox(Outbox),
}

/// Executes a command on a copy of the inbox and writes the outbox. `mailboxes` holds the data of both.
///
/// # Errors
/// Returns the status if the command is rejected.
pub fn execute(
    state: &mut DeviceState,
    strict: &mut Strict,
    setup: &Setup,
    cx: &mut Context<'_>,
    pending: &PendingCommand,
    mailboxes: &mut Mailboxes,
) -> Result<Answer, CmdError> {
    let command = Command::decode(pending, state.resources().is_some())?;
    let inbox = mailboxes.inbox.fetch(cx.dma, command.in_param, command.inbox_len)?;
    let examined = cx.monitor.is_strict().then(|| {
        let uar_pages = setup.options.limits.uar_pages();
        strict::examine(strict, state, cx.dma, uar_pages, pending, &command, inbox)
    });
    let answer = dispatch(state, setup, cx, &command, inbox)?;
    if let Some(examined) = examined {
        examined.succeeded(strict, state, cx.monitor);
    }
    if let Answer::Mailbox(outbox) = &answer {
        mailboxes.outbox.clone_from(outbox);
        mailboxes.send(cx.dma, command.out_param)?;
    }
    Ok(answer)
}

/// Executes a decoded command. Most commands require INIT_HCA.
fn dispatch(
    state: &mut DeviceState,
    setup: &Setup,
    cx: &mut Context<'_>,
    command: &Command,
    inbox: &[u8],
) -> Result<Answer, CmdError> {
    match command.op {
        Op::QueryFw => Ok(hca::query_fw(cx)),
        Op::EnableLam | Op::DisableLam => Err(hca::no_local_memory()),
        Op::MapFa | Op::MapIcmAux => icm::map_unused(inbox),
        // These commands have no effect. The device does not run firmware or use the memory that MAP_FA and MAP_ICM_AUX
        // provide.
        Op::UnmapFa | Op::RunFw | Op::UnmapIcmAux | Op::Nop => Ok(Answer::Nothing),
        Op::QueryDevLim => Ok(hca::query_dev_lim(setup)),
        Op::QueryAdapter => Ok(hca::query_adapter(setup)),
        Op::SetIcmSize => hca::set_icm_size(setup, command),
        Op::MapIcm => icm::map(state, inbox),
        Op::UnmapIcm => icm::unmap(state, command),
        Op::InitHca => hca::init(state, setup, cx, inbox),
        Op::CloseHca => Ok(hca::close(state, setup, cx)),
        _ => match state.resources_mut() {
            Some(resources) => on_resources(Call { resources, setup, cx, command, inbox }),
            None => Err(CmdError::new(
                CmdStatus::BadSysState,
                "INIT_HCA required, in_modifier",
                command.in_modifier.into(),
            )),
        },
    }
}

/// A command that requires INIT_HCA, with everything that it may access.
struct Call<'a, 'cx> {
    resources: &'a mut Resources,
    setup: &'a Setup,
    cx: &'a mut Context<'cx>,
    command: &'a Command,
    /// The inbox, with the length that the command specifies.
    inbox: &'a [u8],
}

fn on_resources(call: Call<'_, '_>) -> Result<Answer, CmdError> {
    match call.command.op {
        Op::InitIb => port::init(call),
        Op::CloseIb => port::close(call),
        Op::SetIb => port::set(call),
        Op::MadIfc => port::mad_ifc(call),
        Op::Sw2HwMpt => memory::sw2hw(call),
        Op::Hw2SwMpt => memory::hw2sw(call),
        Op::MapEq => eq::map(call),
        Op::Sw2HwEq => eq::sw2hw(call),
        Op::Hw2SwEq => eq::hw2sw(call),
        Op::Sw2HwCq => cq::sw2hw(call),
        Op::Hw2SwCq => cq::hw2sw(call),
        Op::ResizeCq => cq::resize(call),
        Op::Modify(transition) => qp::modify(call, transition),
        Op::QueryQp => qp::query(call),
        Op::ConfSpecialQp => qp::conf_special(call),
        Op::ReadMgm => multicast::read(call),
        Op::WriteMgm => multicast::write(call),
        Op::MgidHash => multicast::hash(call),
        Op::Sw2HwSrq => srq::sw2hw(call),
        Op::Hw2SwSrq => srq::hw2sw(call),
        Op::QuerySrq => srq::query(call),
        Op::ArmSrq => srq::arm(call),
        op => Err(CmdError::new(CmdStatus::BadOp, op.name(), 0)),
    }
}
