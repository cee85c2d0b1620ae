//! Commands for SQs.
//!
//! # Spec
//! mlx5 interface, sections 5.6 and 16.1.

use protocol::hca::mlx5::doorbell::RECORD_LEN;
use protocol::hca::mlx5::input::Pages;
use protocol::hca::mlx5::resource::SqNumber;
use protocol::hca::mlx5::sq::{CreateSq, ModifySq, QueriedSq, SqContext, WorkQueueState};
use protocol::hca::mlx5::srq::{WorkQueue, WorkQueueKind};
use protocol::hca::mlx5::wqe::BLOCK;
use protocol::ids::Sqn;

use super::{Call, Output, nothing};
use crate::buffer::Placement;
use crate::check::{Check, Rejection};
use crate::limits::netdev::LOG_MAX_WORK_QUEUE;
use crate::mapped::Word;
use crate::netdev::Queue;
use crate::netdev::sq::Sq;
use crate::resources::Resources;
use crate::umem::Umems;

fn unknown(sqn: Sqn) -> Rejection {
    Check::Sq.rejects(sqn.get())
}

/// Returns the position of a queue within its pages.
pub(super) const fn placement(queue: &WorkQueue) -> Placement {
    Placement { log_page_size: queue.log_page_size, page_offset: queue.page_offset }
}

/// Returns whether a queue may move from one state to another. Any state can move to reset and to error.
pub(super) const fn is_transition(from: WorkQueueState, to: WorkQueueState) -> bool {
    use WorkQueueState::{Error, Ready, Reset};
    matches!((from, to), (_, Reset | Error) | (Reset | Ready, Ready))
}

pub(super) fn create(call: Call<'_, '_>, create: &CreateSq, pages: Pages<'_>) -> Result<Output, Rejection> {
    let Call { resources, .. } = call;
    let mut context = create.context;
    let umems = Umems { queue: context.queue.place(), record: context.queue.record_place() };
    resources.resolve_record(&umems, &mut context.queue.record)?;
    check_geometry(&context.queue)?;
    check_objects(resources, &context)?;
    let full = Check::WorkQueueLimit.rejects(resources.netdev.queues.count() as u64);
    let sqn = Sqn::new(resources.netdev.queues.next().ok_or(full)?);
    let len = (BLOCK as u64) << context.queue.log_entries;
    let too_few = Check::SqPages.rejects(context.queue.log_entries);
    let buffer = resources.buffer_in(&umems, pages, placement(&context.queue), len, too_few)?;
    let mut queue = Sq::new(sqn, context, buffer);
    queue.umems = umems;
    resources.uses.add(&Sq::uses(&context));
    resources.uses.add(&umems.uses());
    resources.netdev.queues.insert(Queue::Send(Box::new(queue))).ok_or(full)?;
    resources.poll_queue(context.queue.uar, Word::Send, sqn.get());
    Ok(SqNumber { sqn }.emit().to_vec())
}

fn check_geometry(queue: &WorkQueue) -> Result<(), Rejection> {
    if WorkQueueKind::from_code(queue.kind) != Some(WorkQueueKind::Cyclic) {
        return Err(Check::SqKind.rejects(queue.kind));
    }
    if 1 << queue.log_stride != BLOCK {
        return Err(Check::SqStride.rejects(queue.log_stride));
    }
    if queue.log_entries > LOG_MAX_WORK_QUEUE {
        return Err(Check::SqSize.rejects(queue.log_entries));
    }
    if !queue.record.get().is_multiple_of(RECORD_LEN as u64) {
        return Err(Check::SqRecord.rejects(queue.record.get()));
    }
    Ok(())
}

fn check_objects(resources: &Resources, context: &SqContext) -> Result<(), Rejection> {
    let queue = &context.queue;
    if !resources.pds.contains(queue.pd.get()) {
        return Err(Check::SqPd.rejects(queue.pd.get()));
    }
    if !resources.uars.contains(queue.uar.get()) {
        return Err(Check::SqUar.rejects(queue.uar.get()));
    }
    if !resources.cqs.contains(context.cqn.get()) {
        return Err(Check::SqCq.rejects(context.cqn.get()));
    }
    if context.tis_count > 1 {
        return Err(Check::SqTisCount.rejects(context.tis_count));
    }
    match context.tis() {
        Some(tisn) if !resources.netdev.tiss.contains(tisn.get()) => Err(Check::SqTis.rejects(tisn.get())),
        _ => Ok(()),
    }
}

/// Changes the state of an SQ. The current state in the input is ignored, because it may be out of date if the SQ has
/// just failed.
pub(super) fn modify(call: Call<'_, '_>, modify: &ModifySq) -> Result<Output, Rejection> {
    let Call { resources: Resources { netdev, uars, .. }, cx, .. } = call;
    let sq = netdev.sq_mut(modify.sqn).ok_or_else(|| unknown(modify.sqn))?;
    let state = WorkQueueState::from_code(modify.context.state);
    let state = state.filter(|state| is_transition(sq.state(), *state));
    sq.set_state(state.ok_or_else(|| Check::SqTransition.rejects(modify.context.state))?);
    // Section 7.4: the device may poll the record before the driver has posted the first WQE after the reset.
    if sq.state() == WorkQueueState::Reset && uars.is_mapped(sq.uar()) {
        sq.clear_record(cx.dma);
    }
    if sq.has_work() {
        netdev.schedule(modify.sqn.get());
    }
    Ok(nothing())
}

/// Destroys an SQ. Afterwards, the device no longer accesses the SQ's memory.
pub(super) fn destroy(call: Call<'_, '_>, sqn: Sqn) -> Result<Output, Rejection> {
    let resources = call.resources;
    let sq = resources.netdev.sq(sqn).ok_or_else(|| unknown(sqn))?;
    let (used, umems, pages, uar) = (Sq::uses(&sq.context()), sq.umems, sq.pages(), sq.uar());
    resources.netdev.remove_queue(sqn.get());
    resources.polled.remove((uar, Word::Send), sqn.get());
    resources.uses.remove(&used);
    resources.uses.remove(&umems.uses());
    resources.release_pages(pages);
    Ok(nothing())
}

pub(super) fn query(call: Call<'_, '_>, sqn: Sqn) -> Result<Output, Rejection> {
    let sq = call.resources.netdev.sq(sqn).ok_or_else(|| unknown(sqn))?;
    let mut context = sq.context();
    context.queue.record = sq.umems.specified(context.queue.record);
    Ok(QueriedSq { context }.emit().to_vec())
}
