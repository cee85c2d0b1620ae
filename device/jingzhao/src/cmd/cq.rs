//! Completion queues: SW2HW_CQ, HW2SW_CQ, RESIZE_CQ.
//!
//! # Spec
//! JingZhao interface, section 3.11.

use card::memory::GuestMemory;
use protocol::hca::jingzhao::cmd::{CmdError, CmdStatus, Command};
use protocol::hca::jingzhao::cqc::{Cqc, ResizeCq};

use crate::completion_queue::CompletionQueue;
use crate::options::Setup;
use crate::resources::Resources;

pub(super) fn sw2hw(
    resources: &mut Resources,
    setup: &Setup,
    dma: &GuestMemory,
    command: &Command,
    inbox: &[u8; Cqc::LEN],
) -> Result<(), CmdError> {
    let cqn = command.cqn()?;
    let index = resources.ctx.cq_index(cqn);
    let cqc = Cqc::parse(inbox, setup.options.limits.dev_lim().log_max_cqes)?;
    if resources.cqs.get(index).is_some() {
        return Err(CmdError::new(CmdStatus::BadResState, "already in hardware ownership: CQ", index.into()));
    }
    resources.ctx.wr_cq_all(dma, cqn, inbox)?;
    let cq = CompletionQueue::new(cqn, &cqc, &resources.regions.access(dma));
    resources
        .cqs
        .insert(index, Box::new(cq))
        .map_err(|_| CmdError::new(CmdStatus::ExceedLim, "limit of CQs reached at index", index.into()))?;
    Ok(())
}

/// Executes HW2SW_CQ. QPs that still use the CQ lose their completions.
pub(super) fn hw2sw(resources: &mut Resources, dma: &GuestMemory, command: &Command) -> Result<(), CmdError> {
    let cqn = command.cqn()?;
    let index = resources.ctx.cq_index(cqn);
    resources.cqs.remove(index).ok_or(not_valid(index))?;
    resources.ctx.wr_cq_invalid(dma, cqn);
    Ok(())
}

/// Executes RESIZE_CQ. The producer counter keeps its value.
pub(super) fn resize(
    resources: &mut Resources,
    setup: &Setup,
    dma: &GuestMemory,
    command: &Command,
    inbox: &[u8; ResizeCq::LEN],
) -> Result<(), CmdError> {
    let cqn = command.cqn()?;
    let index = resources.ctx.cq_index(cqn);
    let resize = ResizeCq::parse(inbox, setup.options.limits.dev_lim().log_max_cqes)?;
    let Resources { ctx, regions, cqs, .. } = resources;
    let cq = cqs.get_mut(index).ok_or(not_valid(index))?;
    cq.resize(&resize, &regions.access(dma));
    // RESIZE_CQ succeeds even if the context's ICM page has been unmapped, so a failed write is ignored.
    let _ = ctx.wr_cq_modify(dma, cqn, &resize);
    Ok(())
}

fn not_valid(index: u32) -> CmdError {
    CmdError::new(CmdStatus::BadResState, "not in hardware ownership: CQ", index.into())
}
