//! Commands for TISs.
//!
//! # Spec
//! mlx5 interface, sections 5.6 and 16.3.

use protocol::hca::mlx5::resource::TisNumber;
use protocol::hca::mlx5::tis::{CreateTis, ModifyTis, PRIORITY, QueriedTis, TisContext};
use protocol::ids::Tisn;

use super::resource::check_unused;
use super::{Call, Output, nothing};
use crate::check::{Check, Rejection};
use crate::uses::{Object, Used};

fn unknown(tisn: Tisn) -> Rejection {
    Check::Tis.rejects(tisn.get())
}

fn uses(context: &TisContext) -> Used {
    Used::from_slice(&[Object::Domain(context.domain.get())])
}

pub(super) fn create(call: Call<'_, '_>, create: &CreateTis) -> Result<Output, Rejection> {
    let resources = call.resources;
    let context = create.context;
    if !resources.domains.contains(context.domain.get()) {
        return Err(Check::TisDomain.rejects(context.domain.get()));
    }
    let full = Check::TisLimit.rejects(resources.netdev.tiss.count() as u64);
    let tisn = Tisn::new(resources.netdev.tiss.insert(context).ok_or(full)?);
    resources.uses.add(&uses(&context));
    Ok(TisNumber { tisn }.emit().to_vec())
}

pub(super) fn modify(call: Call<'_, '_>, modify: &ModifyTis) -> Result<Output, Rejection> {
    let tis = call.resources.netdev.tiss.get_mut(modify.tisn.get()).ok_or_else(|| unknown(modify.tisn))?;
    if modify.fields & !PRIORITY != 0 {
        return Err(Check::TisChange.rejects(modify.fields));
    }
    if modify.fields & PRIORITY != 0 {
        tis.priority = modify.context.priority;
    }
    Ok(nothing())
}

pub(super) fn destroy(call: Call<'_, '_>, tisn: Tisn) -> Result<Output, Rejection> {
    check_unused(&call, Object::Tis(tisn.get()), Check::TisInUse)?;
    let resources = call.resources;
    let context = resources.netdev.tiss.remove(tisn.get()).ok_or_else(|| unknown(tisn))?;
    resources.uses.remove(&uses(&context));
    Ok(nothing())
}

pub(super) fn query(call: Call<'_, '_>, tisn: Tisn) -> Result<Output, Rejection> {
    let context = call.resources.netdev.tiss.get(tisn.get()).ok_or_else(|| unknown(tisn))?;
    Ok(QueriedTis { context: *context }.emit().to_vec())
}
