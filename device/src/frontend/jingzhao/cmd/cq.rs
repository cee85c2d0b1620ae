//! Completion queues: SW2HW_CQ, HW2SW_CQ, RESIZE_CQ.
//!
//! # Spec
//! JingZhao interface, section 3.11.

use protocol::hca::jingzhao::cmd::{CmdError, CmdStatus, Command};
use protocol::hca::jingzhao::cqc::{Cqc, ResizeCq};
use protocol::hca::jingzhao::icm::IcmTable;

use crate::frontend::jingzhao::completion_queue::CompletionQueue;
use crate::frontend::jingzhao::device::Setup;
use crate::frontend::jingzhao::resources::Resources;
use crate::memory::GuestMemory;

pub(super) fn sw2hw(
    resources: &mut Resources,
    setup: &Setup,
    dma: &GuestMemory,
    command: &Command,
    inbox: &[u8; Cqc::LEN],
) -> Result<(), CmdError> {
    let cqn = command.cqn()?;
    let (index, entry) = resources.cq_slot(cqn);
    let cqc = Cqc::parse(inbox, setup.options.limits.dev_lim().log_max_cqes)?;
    if resources.cqs.get(index).is_some() {
        return Err(CmdError::new(CmdStatus::BadResState, "CQ is valid already", index.into()));
    }
    resources.icm.write(dma, IcmTable::Context, entry, &inbox[..Cqc::STORED_LEN])?;
    let cq = CompletionQueue::new(cqn, &cqc, &resources.regions.access(dma));
    resources
        .cqs
        .insert(index, Box::new(cq))
        .map_err(|_| CmdError::new(CmdStatus::ExceedLim, "CQs in use with", index.into()))?;
    Ok(())
}

/// QPs that still name it lose their completions.
pub(super) fn hw2sw(resources: &mut Resources, dma: &GuestMemory, command: &Command) -> Result<(), CmdError> {
    let (index, entry) = resources.cq_slot(command.cqn()?);
    resources.cqs.remove(index).ok_or(not_valid(index))?;
    // The page may have been unmapped; the CQ is invalid all the same.
    let _ = resources.icm.write(dma, IcmTable::Context, entry, &[0; Cqc::STORED_LEN]);
    Ok(())
}

/// The producer counter runs on.
pub(super) fn resize(
    resources: &mut Resources,
    setup: &Setup,
    dma: &GuestMemory,
    command: &Command,
    inbox: &[u8; ResizeCq::LEN],
) -> Result<(), CmdError> {
    let (index, _) = resources.cq_slot(command.cqn()?);
    let resize = ResizeCq::parse(inbox, setup.options.limits.dev_lim().log_max_cqes)?;
    let Resources { regions, cqs, .. } = resources;
    let cq = cqs.get_mut(index).ok_or(not_valid(index))?;
    cq.resize(&resize, &regions.access(dma));
    Ok(())
}

fn not_valid(index: u32) -> CmdError {
    CmdError::new(CmdStatus::BadResState, "CQ is not valid", index.into())
}
