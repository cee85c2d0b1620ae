//! Shared receive queues: SW2HW_SRQ, HW2SW_SRQ, QUERY_SRQ, ARM_SRQ.
//!
//! # Spec
//! mthca interface, sections 3.5 and 6.6.

use card::frontend::Context;
use card::sparse::TableFull;
use hcr::command::fixed;
use protocol::hca::mthca::cmd::Command;
use protocol::hca::mthca::eqe::Eqe;
use protocol::hca::mthca::srqc::Srqc;
use protocol::hca::status::{CmdError, CmdStatus};
use protocol::ids::Srqn;

use super::{Answer, Call};
use crate::resources::Resources;
use crate::srq::SharedReceiveQueue;

pub(super) fn sw2hw(call: Call<'_, '_>) -> Result<Answer, CmdError> {
    let Call { resources, setup, command, inbox, .. } = call;
    let srqn = number(resources, command)?;
    let index = resources.srq_index(srqn);
    // A ring for 2^n WQEs has 2^(n+1) slots, because one slot is always unused and the number of slots must be a power
    // of two (section 6.6).
    let max_log_slots = setup.options.limits.dev_lim().log_max_srq_wqes + 1;
    let context = Srqc::parse(fixed(inbox)?, max_log_slots)?;
    if resources.srqs.get(index).is_some() {
        return Err(CmdError::new(
            CmdStatus::BadResState,
            "already in hardware ownership: SRQ",
            index.into(),
        ));
    }
    let queue = SharedReceiveQueue::new(Srqc { srqn, ..context });
    let full =
        |TableFull| CmdError::new(CmdStatus::ExceedLim, "limit of SRQs reached at index", index.into());
    resources.srqs.insert(index, Box::new(queue)).map_err(full)?;
    Ok(Answer::Nothing)
}

/// Executes HW2SW_SRQ, which returns the context in the outbox.
pub(super) fn hw2sw(call: Call<'_, '_>) -> Result<Answer, CmdError> {
    let Call { resources, cx, command, .. } = call;
    let answer = context(resources, cx, command)?;
    let srqn = number(resources, command)?;
    let index = resources.srq_index(srqn);
    resources.srqs.remove(index);
    // Drop a pending limit event, since the SRQ no longer exists.
    resources.low_srqs.retain(|low| *low != srqn);
    Ok(if command.out_param == 0 { Answer::Nothing } else { answer })
}

pub(super) fn query(call: Call<'_, '_>) -> Result<Answer, CmdError> {
    let Call { resources, cx, command, .. } = call;
    context(resources, cx, command)
}

/// Executes ARM_SRQ. Section 3.5: if the number of pending requests is below the limit, the event is raised
/// immediately.
pub(super) fn arm(call: Call<'_, '_>) -> Result<Answer, CmdError> {
    let Call { resources, cx, command, .. } = call;
    let limit = command.in_param;
    let limit = u16::try_from(limit).map_err(|_| CmdError::param("SRQ limit", limit))?;
    let srqn = number(resources, command)?;
    let Resources { layout, regions, srqs, .. } = resources;
    let srq = srqs.get_mut(layout.srqc.index(srqn.get())).ok_or(not_valid(srqn))?;
    let (page, record) = srq.record();
    srq.arm(limit);
    if srq.passes_limit(|| regions.record(layout, cx.dma, page, record)) {
        resources.raise(cx, &Eqe::SrqLimit(srqn));
    }
    Ok(Answer::Nothing)
}

fn context(resources: &mut Resources, cx: &Context<'_>, command: &Command) -> Result<Answer, CmdError> {
    let srqn = number(resources, command)?;
    let Resources { layout, regions, srqs, .. } = resources;
    let srq = srqs.get_mut(layout.srqc.index(srqn.get())).ok_or(not_valid(srqn))?;
    let (page, record) = srq.record();
    let outbox = srq.query(regions.record(layout, cx.dma, page, record));
    Ok(Answer::Mailbox(outbox.to_vec()))
}

/// Returns the SRQ number in in_modifier. Unlike other object numbers, it does not contain a generation.
///
/// # Errors
/// BAD_INDEX if the number is beyond the end of the table.
fn number(resources: &Resources, command: &Command) -> Result<Srqn, CmdError> {
    let number = command.in_modifier;
    if u64::from(number) >= resources.layout.srqc.entries() {
        return Err(CmdError::new(CmdStatus::BadIndex, "SRQ number", number.into()));
    }
    Ok(Srqn::new(number))
}

fn not_valid(srqn: Srqn) -> CmdError {
    CmdError::new(CmdStatus::BadResState, "not in hardware ownership: SRQ", srqn.get().into())
}
