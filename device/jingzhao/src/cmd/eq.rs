//! Event queues: SW2HW_EQ, HW2SW_EQ, MAP_EQ.
//!
//! # Spec
//! JingZhao interface, sections 3.9 and 3.10.

use card::memory::GuestMemory;
use protocol::hca::jingzhao::cmd::{CmdError, CmdStatus, Command};
use protocol::hca::jingzhao::eqc::Eqc;
use protocol::ids::Eqn;

use crate::event_queue::EventQueue;
use crate::resources::Resources;

pub(super) fn sw2hw(
    resources: &mut Resources,
    dma: &GuestMemory,
    command: &Command,
    inbox: &[u8; Eqc::LEN],
) -> Result<(), CmdError> {
    let eqn = command.eqn()?;
    let eqc = Eqc::parse(inbox)?;
    // Unlike QPNs and CQNs, EQ numbers have no high bits above the index, so a number beyond the table is an error.
    if !resources.ctx.ctxmdata().eqc.contains(eqn.get()) {
        return Err(CmdError::new(CmdStatus::BadIndex, "EQ number", eqn.get().into()));
    }
    if resources.eqs.contains(eqn.get()) {
        return Err(CmdError::new(
            CmdStatus::BadResState,
            "already in hardware ownership: EQ",
            eqn.get().into(),
        ));
    }
    resources.ctx.wr_eq_all(dma, eqn, inbox)?;
    let queue = EventQueue::new(&eqc, &resources.regions.access(dma));
    resources.eqs.insert(eqn.get(), queue);
    Ok(())
}

pub(super) fn hw2sw(resources: &mut Resources, dma: &GuestMemory, command: &Command) -> Result<(), CmdError> {
    let eqn = command.eqn()?;
    resources.eqs.remove(eqn.get()).ok_or(not_valid(eqn))?;
    resources.ctx.wr_eq_invalid(dma, eqn);
    Ok(())
}

pub(super) fn map(resources: &mut Resources, command: &Command) -> Result<(), CmdError> {
    let map = command.map_eq()?;
    resources.eqs.get_mut(map.eqn.get()).ok_or(not_valid(map.eqn))?.map(&map);
    Ok(())
}

fn not_valid(eqn: Eqn) -> CmdError {
    CmdError::new(CmdStatus::BadResState, "not in hardware ownership: EQ", eqn.get().into())
}
