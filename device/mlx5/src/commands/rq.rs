//! Commands for RQs.
//!
//! # Spec
//! mlx5 interface, sections 5.6 and 16.2.

use protocol::hca::mlx5::doorbell::RECORD_LEN;
use protocol::hca::mlx5::input::Pages;
use protocol::hca::mlx5::resource::RqNumber;
use protocol::hca::mlx5::rq::{CreateRq, ModifyRq, QueriedRq, RqContext, RqMemory, rq_fields};
use protocol::hca::mlx5::sq::WorkQueueState;
use protocol::hca::mlx5::srq::WorkQueueKind;
use protocol::ids::{CounterSet, Rqn};

use super::resource::check_unused;
use super::sq::{is_transition, placement};
use super::{Call, Output, nothing};
use crate::check::{Check, Rejection};
use crate::limits::LOG_MAX_RECV_ENTRY;
use crate::limits::netdev::{LOG_MAX_WORK_QUEUE, LOG_MIN_RECV_ENTRY};
use crate::netdev::Queue;
use crate::netdev::rq::Rq;
use crate::resources::Resources;
use crate::umem::Umems;
use crate::uses::Object;

fn unknown(rqn: Rqn) -> Rejection {
    Check::Rq.rejects(rqn.get())
}

pub(super) fn create(call: Call<'_, '_>, create: &CreateRq, pages: Pages<'_>) -> Result<Output, Rejection> {
    let Call { resources, .. } = call;
    let mut context = create.context;
    let umems = Umems { queue: context.queue.place(), record: context.queue.record_place() };
    resources.resolve_record(&umems, &mut context.queue.record)?;
    check_geometry(&context)?;
    check_objects(resources, &context)?;
    let full = Check::WorkQueueLimit.rejects(resources.netdev.queues.count() as u64);
    let rqn = Rqn::new(resources.netdev.queues.next().ok_or(full)?);
    let len = 1 << (context.queue.log_entries + context.queue.log_stride);
    let too_few = Check::RqPages.rejects(context.queue.log_entries);
    let buffer = resources.buffer_in(&umems, pages, placement(&context.queue), len, too_few)?;
    let mut queue = Rq::new(rqn, context, buffer);
    queue.umems = umems;
    resources.uses.add(&Rq::uses(&context));
    resources.uses.add(&umems.uses());
    resources.netdev.queues.insert(Queue::Receive(Box::new(queue))).ok_or(full)?;
    Ok(RqNumber { rqn }.emit().to_vec())
}

fn check_geometry(context: &RqContext) -> Result<(), Rejection> {
    let queue = &context.queue;
    if RqMemory::from_code(context.memory) != Some(RqMemory::Inline) {
        return Err(Check::RqMemory.rejects(context.memory));
    }
    if WorkQueueKind::from_code(queue.kind) != Some(WorkQueueKind::Cyclic) {
        return Err(Check::RqKind.rejects(queue.kind));
    }
    if !(LOG_MIN_RECV_ENTRY..=LOG_MAX_RECV_ENTRY).contains(&queue.log_stride) {
        return Err(Check::RqStride.rejects(queue.log_stride));
    }
    if queue.log_entries > LOG_MAX_WORK_QUEUE {
        return Err(Check::RqSize.rejects(queue.log_entries));
    }
    if !queue.record.get().is_multiple_of(RECORD_LEN as u64) {
        return Err(Check::RqRecord.rejects(queue.record.get()));
    }
    Ok(())
}

fn check_objects(resources: &Resources, context: &RqContext) -> Result<(), Rejection> {
    let pd = context.queue.pd.get();
    // PD 0 is accepted: the driver uses it for the RQ that drops all frames.
    if pd != 0 && !resources.pds.contains(pd) {
        return Err(Check::RqPd.rejects(pd));
    }
    if !resources.cqs.contains(context.cqn.get()) {
        return Err(Check::RqCq.rejects(context.cqn.get()));
    }
    check_counter_set(resources, context.counter_set)
}

fn check_counter_set(resources: &Resources, set: CounterSet) -> Result<(), Rejection> {
    match set.get() {
        0 => Ok(()),
        number if resources.counter_sets.contains(number.into()) => Ok(()),
        number => Err(Check::RqCounterSet.rejects(number)),
    }
}

/// Changes the state and the selected fields of an RQ. The current state in the input is ignored, because it may be out
/// of date if the RQ has just failed.
pub(super) fn modify(call: Call<'_, '_>, modify: &ModifyRq) -> Result<Output, Rejection> {
    let resources = call.resources;
    let ModifyRq { rqn, fields, context, .. } = modify;
    if fields & rq_fields::COUNTER_SET != 0 {
        check_counter_set(resources, context.counter_set)?;
    }
    let rq = resources.netdev.rq_mut(*rqn).ok_or_else(|| unknown(*rqn))?;
    if fields & !(rq_fields::VLAN_STRIP | rq_fields::COUNTER_SET) != 0 {
        return Err(Check::RqChange.rejects(*fields));
    }
    let state = WorkQueueState::from_code(context.state);
    let state = state.filter(|state| is_transition(rq.state(), *state));
    rq.set_state(state.ok_or_else(|| Check::RqTransition.rejects(context.state))?);
    rq.modify(*fields, context);
    if rq.state() == WorkQueueState::Error {
        resources.netdev.schedule(rqn.get());
    }
    Ok(nothing())
}

/// Destroys an RQ. Afterwards, the device no longer accesses the RQ's memory.
pub(super) fn destroy(call: Call<'_, '_>, rqn: Rqn) -> Result<Output, Rejection> {
    check_unused(&call, Object::Rq(rqn.get()), Check::RqInUse)?;
    let resources = call.resources;
    let rq = resources.netdev.rq(rqn).ok_or_else(|| unknown(rqn))?;
    let (used, umems, pages) = (Rq::uses(&rq.context()), rq.umems, rq.pages());
    resources.netdev.remove_queue(rqn.get());
    resources.uses.remove(&used);
    resources.uses.remove(&umems.uses());
    resources.release_pages(pages);
    Ok(nothing())
}

pub(super) fn query(call: Call<'_, '_>, rqn: Rqn) -> Result<Output, Rejection> {
    let rq = call.resources.netdev.rq(rqn).ok_or_else(|| unknown(rqn))?;
    let mut context = rq.context();
    context.queue.record = rq.umems.specified(context.queue.record);
    Ok(QueriedRq { context }.emit().to_vec())
}
