//! Commands for RQTs.
//!
//! # Spec
//! mlx5 interface, sections 5.6 and 16.3.

use protocol::hca::mlx5::resource::RqtNumber;
use protocol::hca::mlx5::rqt::{CreateRqt, ModifyRqt, QueriedRqt, RqNumbers};
use protocol::ids::Rqtn;

use super::resource::check_unused;
use super::{Call, Output, nothing};
use crate::check::{Check, Rejection};
use crate::netdev::rqt::Rqt;
use crate::resources::Resources;
use crate::uses::Object;

fn unknown(rqtn: Rqtn) -> Rejection {
    Check::Rqt.rejects(rqtn.get())
}

fn check_queues(resources: &Resources, table: &Rqt) -> Result<(), Rejection> {
    match table.queues().iter().find(|rqn| resources.netdev.rq(**rqn).is_none()) {
        Some(rqn) => Err(Check::RqtQueue.rejects(rqn.get())),
        None => Ok(()),
    }
}

pub(super) fn create(
    call: Call<'_, '_>,
    create: &CreateRqt,
    list: RqNumbers<'_>,
) -> Result<Output, Rejection> {
    let resources = call.resources;
    let table = Rqt::new(&create.context, list)?;
    check_queues(resources, &table)?;
    let used = table.uses();
    let full = Check::RqtLimit.rejects(resources.netdev.rqts.count() as u64);
    let rqtn = Rqtn::new(resources.netdev.rqts.insert(table).ok_or(full)?);
    resources.uses.add(&used);
    Ok(RqtNumber { rqtn }.emit().to_vec())
}

pub(super) fn modify(
    call: Call<'_, '_>,
    modify: &ModifyRqt,
    list: RqNumbers<'_>,
) -> Result<Output, Rejection> {
    let resources = call.resources;
    let number = modify.rqtn.get();
    let table = resources.netdev.rqts.get(number).ok_or_else(|| unknown(modify.rqtn))?;
    if !modify.has_entries {
        return Ok(nothing());
    }
    let new = table.with_entries(&modify.context, list)?;
    check_queues(resources, &new)?;
    let used = new.uses();
    if let Some(table) = resources.netdev.rqts.get_mut(number) {
        let old = std::mem::replace(table, new);
        resources.uses.add(&used);
        resources.uses.remove(&old.uses());
    }
    Ok(nothing())
}

pub(super) fn destroy(call: Call<'_, '_>, rqtn: Rqtn) -> Result<Output, Rejection> {
    check_unused(&call, Object::Rqt(rqtn.get()), Check::RqtInUse)?;
    let resources = call.resources;
    let table = resources.netdev.rqts.remove(rqtn.get()).ok_or_else(|| unknown(rqtn))?;
    resources.uses.remove(&table.uses());
    Ok(nothing())
}

pub(super) fn query(call: Call<'_, '_>, rqtn: Rqtn) -> Result<Output, Rejection> {
    let table = call.resources.netdev.rqts.get(rqtn.get()).ok_or_else(|| unknown(rqtn))?;
    let mut output = QueriedRqt { context: table.context() }.emit().to_vec();
    output.extend(table.queues().iter().flat_map(|rqn| rqn.get().to_be_bytes()));
    Ok(output)
}
