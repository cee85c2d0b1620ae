//! Completion queues: SW2HW_CQ, HW2SW_CQ, RESIZE_CQ.
//!
//! # Spec
//! mthca interface, sections 3.5 and 6.4.

use card::sparse::TableFull;
use hcr::command::fixed;
use protocol::hca::mthca::cmd::Command;
use protocol::hca::mthca::cqc::{Cqc, ResizeCq};
use protocol::hca::mthca::doorbell::UarRegister;
use protocol::hca::status::{CmdError, CmdStatus};

use super::{Answer, Call};
use crate::completion_queue::CompletionQueue;
use crate::resources::Resources;

pub(super) fn sw2hw(call: Call<'_, '_>) -> Result<Answer, CmdError> {
    let Call { resources, setup, command, inbox, .. } = call;
    let cqn = command.cqn();
    let index = resources.cq_index(cqn);
    let cqc = Cqc::parse(fixed(inbox)?, setup.options.limits.dev_lim().log_max_cqes)?;
    if resources.cqs.get(index).is_some() {
        return Err(CmdError::new(CmdStatus::BadResState, "already in hardware ownership: CQ", index.into()));
    }
    let full = |TableFull| CmdError::new(CmdStatus::ExceedLim, "limit of CQs reached at index", index.into());
    resources.cqs.insert(index, Box::new(CompletionQueue::new(cqn, &cqc))).map_err(full)?;
    resources.uar.add((cqc.page, UarRegister::ArmCq), index);
    Ok(Answer::Nothing)
}

/// Executes HW2SW_CQ. QPs that still use the CQ lose their completions.
pub(super) fn hw2sw(call: Call<'_, '_>) -> Result<Answer, CmdError> {
    let Call { resources, command, .. } = call;
    let page = find(resources, command)?.page();
    let index = resources.cq_index(command.cqn());
    resources.cqs.remove(index);
    resources.uar.remove((page, UarRegister::ArmCq), index);
    Ok(Answer::Nothing)
}

pub(super) fn resize(call: Call<'_, '_>) -> Result<Answer, CmdError> {
    let Call { resources, setup, cx, command, inbox } = call;
    let resize = ResizeCq::parse(fixed(inbox)?, setup.options.limits.dev_lim().log_max_cqes)?;
    let (page, record) = find(resources, command)?.record();
    let consumer = resources.regions.record(&resources.layout, cx.dma, page, record);
    find(resources, command)?.resize(&resize, consumer)?;
    Ok(Answer::Nothing)
}

fn find<'a>(resources: &'a mut Resources, command: &Command) -> Result<&'a mut CompletionQueue, CmdError> {
    let cqn = command.cqn();
    let index = resources.cq_index(cqn);
    let cq = resources.cqs.get_mut(index).filter(|cq| cq.cqn() == cqn);
    cq.map(|cq| &mut **cq).ok_or(CmdError::new(
        CmdStatus::BadResState,
        "not in hardware ownership: CQ",
        cqn.get().into(),
    ))
}
