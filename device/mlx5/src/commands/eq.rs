//! Commands for event queues.
//!
//! # Spec
//! mlx5 interface, sections 5.3 and 8.1.

use protocol::hca::mlx5::eq::{CreateEq, QueriedEq};
use protocol::hca::mlx5::input::Pages;
use protocol::hca::mlx5::resource::EqNumber;
use protocol::ids::Eqn;

use super::resource::check_unused;
use super::{Call, Output, nothing};
use crate::buffer::Placement;
use crate::check::{Check, Rejection};
use crate::event_queue::EventQueue;
use crate::uses::Object;

pub(super) fn create(call: Call<'_, '_>, create: &CreateEq, pages: Pages<'_>) -> Result<Output, Rejection> {
    let Call { resources, setup, .. } = call;
    let context = create.context;
    if context.log_entries > setup.options.limits.caps().log_max_eq_entries {
        return Err(Check::EqSize.rejects(context.log_entries));
    }
    if !resources.uars.contains(context.uar.get()) {
        return Err(Check::EqUar.rejects(context.uar.get()));
    }
    // Section 7.4: EQ doorbells must trap, as EQs have no doorbell record.
    if resources.uars.is_mapped(context.uar) {
        return Err(Check::EqMappedUar.rejects(context.uar.get()));
    }
    if context.vector >= setup.options.vectors.get() {
        return Err(Check::EqVector.rejects(context.vector));
    }
    if resources.eqs.next().is_none() {
        return Err(Check::EqLimit.rejects(resources.eqs.count() as u64));
    }
    let place = Placement { log_page_size: context.log_page_size, page_offset: context.page_offset };
    let too_few = Check::EqPages.rejects(context.log_entries);
    let buffer = resources.buffer(pages, place, EventQueue::ring_len(&context), too_few)?;
    let queue = EventQueue::new(context, create.mask(), buffer);
    let used = queue.uses();
    let limit = Check::EqLimit.rejects(resources.eqs.count() as u64);
    let eqn = resources.eqs.insert(queue).ok_or(limit)?;
    resources.uses.add(&used);
    Ok(EqNumber { eqn: Eqn::new(eqn) }.emit().to_vec())
}

pub(super) fn destroy(call: Call<'_, '_>, eqn: Eqn) -> Result<Output, Rejection> {
    check_unused(&call, Object::Eq(eqn.get()), Check::EqInUse)?;
    let resources = call.resources;
    let queue = resources.eqs.remove(eqn.get()).ok_or_else(|| Check::Eq.rejects(eqn.get()))?;
    resources.uses.remove(&queue.uses());
    resources.release_pages(queue.pages());
    Ok(nothing())
}

pub(super) fn query(call: Call<'_, '_>, eqn: Eqn) -> Result<Output, Rejection> {
    let queue = call.resources.eqs.get(eqn.get()).ok_or_else(|| Check::Eq.rejects(eqn.get()))?;
    Ok(QueriedEq { context: queue.context() }.emit().to_vec())
}
