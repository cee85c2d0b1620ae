//! Commands for shared receive queues: RMPs, XRC SRQs, and the basic SRQs available at interface step (ISSI) 0.
//!
//! # Spec
//! mlx5 interface, sections 5.4 and 12.

use protocol::hca::mlx5::doorbell::RECORD_LEN;
use protocol::hca::mlx5::eqe::Eqe;
use protocol::hca::mlx5::input::Pages;
use protocol::hca::mlx5::opcode::Opcode;
use protocol::hca::mlx5::resource::SrqNumber;
use protocol::hca::mlx5::srq::{
    ArmSrq, CreateRmp, CreateSrq, ModifyRmp, QueriedRmp, QueriedSrq, SrqContext, WorkQueueKind,
};
use protocol::ids::Srqn;

use super::resource::check_unused;
use super::{Call, Output, nothing};
use crate::check::{Check, Rejection};
use crate::limits::LOG_MAX_SRQ_ENTRY;
use crate::resources::Resources;
use crate::srq::{Context, SharedReceiveQueue};
use crate::umem::Umems;
use crate::uses::Object;

/// The only supported `op_mod` of an arm command: set the limit.
const ARM_LIMIT: u16 = 1;

pub(super) fn create_rmp(
    call: Call<'_, '_>,
    create: &CreateRmp,
    pages: Pages<'_>,
) -> Result<Output, Rejection> {
    let kind = create.context.queue.kind;
    if !matches!(WorkQueueKind::from_code(kind), Some(WorkQueueKind::Linked | WorkQueueKind::Cyclic))
        || create.context.without_links
    {
        return Err(Check::SrqKind.rejects(kind));
    }
    let mut context = create.context;
    let umems = Umems { queue: context.queue.place(), record: context.queue.record_place() };
    call.resources.resolve_record(&umems, &mut context.queue.record)?;
    self::create(call, Context::Rmp(context), umems, pages)
}

pub(super) fn create_xrc(
    call: Call<'_, '_>,
    create: &CreateSrq,
    pages: Pages<'_>,
) -> Result<Output, Rejection> {
    let SrqContext { xrcd, cqn, .. } = create.context;
    if !call.resources.xrcds.contains(xrcd.get()) {
        return Err(Check::SrqXrcd.rejects(xrcd.get()));
    }
    if !call.resources.cqs.contains(cqn.get()) {
        return Err(Check::SrqCq.rejects(cqn.get()));
    }
    self::create(call, Context::Xrc(create.context), Umems::default(), pages)
}

/// Executes CREATE_SRQ, which requires ISSI 0. With ISSI 1, the driver uses RMPs instead.
pub(super) fn create_basic(
    call: Call<'_, '_>,
    create: &CreateSrq,
    pages: Pages<'_>,
) -> Result<Output, Rejection> {
    if call.issi != 0 {
        return Err(Check::SrqStep.rejects(Opcode::CreateSrq.code()));
    }
    self::create(call, Context::Basic(create.context), Umems::default(), pages)
}

fn create(call: Call<'_, '_>, context: Context, umems: Umems, pages: Pages<'_>) -> Result<Output, Rejection> {
    let Call { resources, setup, .. } = call;
    let [log_entries, log_stride] = context.logs();
    if log_entries > setup.options.limits.caps().log_max_srq_entries {
        return Err(Check::SrqSize.rejects(log_entries));
    }
    if log_stride > LOG_MAX_SRQ_ENTRY {
        return Err(Check::SrqSize.rejects(log_stride));
    }
    let record = context.record().get();
    if !record.is_multiple_of(RECORD_LEN as u64) {
        return Err(Check::SrqRecord.rejects(record));
    }
    let used = context.uses();
    for object in &used {
        if let Object::Pd(pd) = *object
            && !resources.pds.contains(pd)
        {
            return Err(Check::SrqPd.rejects(pd));
        }
    }
    let full = Check::SrqLimit.rejects(resources.srqs.count() as u64);
    resources.srqs.next().ok_or(full)?;
    let too_few = Check::SrqPages.rejects(log_entries);
    let buffer =
        resources.buffer_in(&umems, pages, context.placement(), 1 << (log_entries + log_stride), too_few)?;
    let mut queue = SharedReceiveQueue::new(context, buffer);
    queue.umems = umems;
    let srqn = Srqn::new(resources.srqs.insert(Box::new(queue)).ok_or(full)?);
    resources.uses.add(&used);
    resources.uses.add(&umems.uses());
    Ok(SrqNumber { srqn }.emit().to_vec())
}

/// Returns an SRQ that was created with the command `by`.
fn find(resources: &mut Resources, by: Opcode, srqn: Srqn) -> Result<&mut SharedReceiveQueue, Rejection> {
    let queue = resources.srqs.get_mut(srqn.get()).filter(|queue| queue.created_by() == by);
    queue.map(|queue| &mut **queue).ok_or_else(|| Check::Srq.rejects(srqn.get()))
}

pub(super) fn destroy(call: Call<'_, '_>, by: Opcode, srqn: Srqn) -> Result<Output, Rejection> {
    check_unused(&call, Object::Srq(srqn.get()), Check::SrqInUse)?;
    let resources = call.resources;
    let queue = find(resources, by, srqn)?;
    let (used, pages) = (queue.uses(), queue.pages());
    resources.srqs.remove(srqn.get());
    // Drop a pending limit event, since the SRQ no longer exists.
    resources.low_srqs.retain(|low| *low != srqn);
    resources.uses.remove(&used);
    resources.release_pages(pages);
    Ok(nothing())
}

pub(super) fn query(call: Call<'_, '_>, by: Opcode, srqn: Srqn) -> Result<Output, Rejection> {
    let queue = find(call.resources, by, srqn)?;
    Ok(match queue.context(call.cx.dma) {
        Context::Rmp(mut context) => {
            context.queue.record = queue.umems.specified(context.queue.record);
            QueriedRmp { context }.emit().to_vec()
        }
        Context::Xrc(context) | Context::Basic(context) => QueriedSrq { context }.emit().to_vec(),
    })
}

pub(super) fn modify_rmp(call: Call<'_, '_>, modify: &ModifyRmp) -> Result<Output, Rejection> {
    let queue = find(call.resources, Opcode::CreateRmp, modify.srqn)?;
    if modify.has_limit {
        queue.set_limit(modify.context.queue.limit);
        report_limit(call, modify.srqn);
    }
    Ok(nothing())
}

pub(super) fn arm(call: Call<'_, '_>, by: Opcode, arm: &ArmSrq) -> Result<Output, Rejection> {
    let queue = find(call.resources, by, arm.srqn)?;
    if arm.op_mod != ARM_LIMIT {
        return Err(Check::SrqArm.rejects(arm.op_mod));
    }
    queue.set_limit(arm.limit);
    report_limit(call, arm.srqn);
    Ok(nothing())
}

/// Raises the limit event of an SRQ that has fewer entries than its new limit.
fn report_limit(call: Call<'_, '_>, srqn: Srqn) {
    let Call { resources, cx, .. } = call;
    if resources.srqs.get_mut(srqn.get()).is_some_and(|queue| queue.passes_limit(cx.dma)) {
        resources.raise(cx, &Eqe::SrqLimit(srqn));
    }
}
