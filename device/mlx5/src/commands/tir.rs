//! Commands for TIRs.
//!
//! # Spec
//! mlx5 interface, sections 5.6 and 16.3.

use protocol::hca::mlx5::resource::TirNumber;
use protocol::hca::mlx5::tir::{CreateTir, ModifyTir, QueriedTir};
use protocol::ids::Tirn;

use super::resource::check_unused;
use super::{Call, Output, nothing};
use crate::check::{Check, Rejection};
use crate::netdev::tir::Tir;
use crate::resources::Resources;
use crate::uses::Object;

fn unknown(tirn: Tirn) -> Rejection {
    Check::Tir.rejects(tirn.get())
}

fn check_objects(resources: &Resources, tir: &Tir) -> Result<(), Rejection> {
    for object in tir.uses() {
        match object {
            Object::Rq(rqn) if resources.netdev.rq(tir.context().rqn).is_none() => {
                return Err(Check::TirRq.rejects(rqn));
            }
            Object::Rqt(rqtn) if !resources.netdev.rqts.contains(rqtn) => {
                return Err(Check::TirRqt.rejects(rqtn));
            }
            Object::Domain(domain) if !resources.domains.contains(domain) => {
                return Err(Check::TirDomain.rejects(domain));
            }
            _ => {}
        }
    }
    Ok(())
}

pub(super) fn create(call: Call<'_, '_>, create: &CreateTir) -> Result<Output, Rejection> {
    let resources = call.resources;
    let tir = Tir::new(create.context)?;
    check_objects(resources, &tir)?;
    let used = tir.uses();
    let full = Check::TirLimit.rejects(resources.netdev.tirs.count() as u64);
    let tirn = Tirn::new(resources.netdev.tirs.insert(Box::new(tir)).ok_or(full)?);
    resources.uses.add(&used);
    Ok(TirNumber { tirn }.emit().to_vec())
}

pub(super) fn modify(call: Call<'_, '_>, modify: &ModifyTir) -> Result<Output, Rejection> {
    let tir = call.resources.netdev.tirs.get_mut(modify.tirn.get()).ok_or_else(|| unknown(modify.tirn))?;
    **tir = tir.modified(modify.fields, &modify.context)?;
    Ok(nothing())
}

pub(super) fn destroy(call: Call<'_, '_>, tirn: Tirn) -> Result<Output, Rejection> {
    check_unused(&call, Object::Tir(tirn.get()), Check::TirInUse)?;
    let resources = call.resources;
    let tir = resources.netdev.tirs.remove(tirn.get()).ok_or_else(|| unknown(tirn))?;
    resources.uses.remove(&tir.uses());
    Ok(nothing())
}

pub(super) fn query(call: Call<'_, '_>, tirn: Tirn) -> Result<Output, Rejection> {
    let tir = call.resources.netdev.tirs.get(tirn.get()).ok_or_else(|| unknown(tirn))?;
    Ok(QueriedTir { context: *tir.context() }.emit().to_vec())
}
