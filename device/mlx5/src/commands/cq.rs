//! Commands for completion queues.
//!
//! # Spec
//! mlx5 interface, sections 5.3, 9.1 and 9.5.

use protocol::hca::mlx5::cq::{CqChange, CqContext, CreateCq, ModifyCq, QueriedCq};
use protocol::hca::mlx5::doorbell::RECORD_LEN;
use protocol::hca::mlx5::input::Pages;
use protocol::hca::mlx5::resource::CqNumber;
use protocol::ids::Cqn;

use super::resource::check_unused;
use super::{Call, Output, nothing};
use crate::buffer::Placement;
use crate::check::{Check, Rejection};
use crate::completion_queue::CompletionQueue;
use crate::mapped::Word;
use crate::umem::Umems;
use crate::uses::Object;

fn unknown(cqn: Cqn) -> Rejection {
    Check::Cq.rejects(cqn.get())
}

fn placement(context: &CqContext) -> Placement {
    Placement { log_page_size: context.log_page_size, page_offset: context.page_offset }
}

pub(super) fn create(call: Call<'_, '_>, create: &CreateCq, pages: Pages<'_>) -> Result<Output, Rejection> {
    let Call { resources, setup, cx, .. } = call;
    let mut context = create.context;
    let umems = Umems { queue: create.place(), record: context.record_place() };
    resources.resolve_record(&umems, &mut context.record)?;
    let size = context.cqe_size().ok_or_else(|| Check::CqEntrySize.rejects(context.cqe_size))?;
    if context.log_entries > setup.options.limits.caps().log_max_cq_entries {
        return Err(Check::CqSize.rejects(context.log_entries));
    }
    if !resources.uars.contains(context.uar.get()) {
        return Err(Check::CqUar.rejects(context.uar.get()));
    }
    if !resources.eqs.contains(context.eqn.get()) {
        return Err(Check::CqEq.rejects(context.eqn.get()));
    }
    if !context.record.get().is_multiple_of(RECORD_LEN as u64) {
        return Err(Check::CqRecord.rejects(context.record.get()));
    }
    let full = Check::CqLimit.rejects(resources.cqs.count() as u64);
    let cqn = Cqn::new(resources.cqs.next().ok_or(full)?);
    let len = CompletionQueue::ring_len(size, context.log_entries);
    let too_few = Check::CqPages.rejects(context.log_entries);
    let buffer = resources.buffer_in(&umems, pages, placement(&context), len, too_few)?;
    let mut queue = CompletionQueue::new(cqn, context, size, buffer);
    queue.umems = umems;
    if resources.uars.is_mapped(context.uar) {
        queue.mark_never_armed(cx.dma);
    }
    resources.uses.add(&queue.uses());
    resources.cqs.insert(Box::new(queue)).ok_or(full)?;
    resources.poll_queue(context.uar, Word::ArmCq, cqn.get());
    Ok(CqNumber { cqn }.emit().to_vec())
}

/// Destroys a CQ. Completions that the engine reports for it afterwards are dropped.
pub(super) fn destroy(call: Call<'_, '_>, cqn: Cqn) -> Result<Output, Rejection> {
    check_unused(&call, Object::Cq(cqn.get()), Check::CqInUse)?;
    let resources = call.resources;
    let queue = resources.cqs.remove(cqn.get()).ok_or_else(|| unknown(cqn))?;
    resources.uses.remove(&queue.uses());
    resources.delayed.cancel(queue.eqn(), cqn);
    if let Some(eq) = resources.eqs.get_mut(queue.eqn().get()) {
        eq.cancel_held(cqn);
    }
    resources.polled.remove((queue.uar(), Word::ArmCq), cqn.get());
    resources.release_pages(queue.pages());
    Ok(nothing())
}

pub(super) fn query(call: Call<'_, '_>, cqn: Cqn) -> Result<Output, Rejection> {
    let queue = call.resources.cqs.get(cqn.get()).ok_or_else(|| unknown(cqn))?;
    let mut context = queue.context(call.cx.dma);
    context.record = queue.umems.specified(context.record);
    Ok(QueriedCq { context }.emit().to_vec())
}

pub(super) fn modify(call: Call<'_, '_>, modify: &ModifyCq, pages: Pages<'_>) -> Result<Output, Rejection> {
    let Call { resources, setup, cx, .. } = call;
    let queue = resources.cqs.get_mut(modify.cqn.get()).ok_or_else(|| unknown(modify.cqn))?;
    match modify.change() {
        Some(CqChange::Moderation) => queue.moderate(modify),
        Some(CqChange::Resize) => {
            let new = &modify.context;
            if new.log_entries > setup.options.limits.caps().log_max_cq_entries {
                return Err(Check::CqSize.rejects(new.log_entries));
            }
            let (old_pages, size, old) = (queue.pages(), queue.size(), queue.umems);
            let umems = Umems { queue: modify.place(), ..old };
            let len = CompletionQueue::ring_len(size, new.log_entries);
            let too_few = Check::CqPages.rejects(new.log_entries);
            let buffer = resources.buffer_in(&umems, pages, placement(new), len, too_few)?;
            let new_pages = buffer.pages();
            let queue = resources.cqs.get_mut(modify.cqn.get()).ok_or_else(|| unknown(modify.cqn))?;
            let resized = queue.resize(new, buffer, cx.dma);
            if resized.is_ok() {
                queue.umems = umems;
                resources.uses.add(&umems.uses());
                resources.uses.remove(&old.uses());
            }
            resources.release_pages(if resized.is_ok() { old_pages } else { new_pages });
            resized?;
        }
        None => return Err(Check::CqChange.rejects(modify.change)),
    }
    Ok(nothing())
}
