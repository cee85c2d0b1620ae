//! Commands for objects without a context: PDs, UAR pages, XRC domains and transport domains.
//!
//! # Spec
//! mlx5 interface, section 5.2.

use protocol::hca::mlx5::resource::{PdNumber, TransportDomainNumber, UarNumber, XrcDomainNumber};
use protocol::ids::{Pdn, TransportDomain, UarIndex, XrcDomain};

use super::{Call, Output, nothing};
use crate::check::{Check, Rejection};
use crate::numbered::Numbered;
use crate::resources::Resources;
use crate::uses::Object;

fn alloc(table: &mut Numbered<()>, limit: Check) -> Result<u32, Rejection> {
    table.insert(()).ok_or_else(|| limit.rejects(table.count() as u64))
}

fn dealloc(table: &mut Numbered<()>, number: u32, unknown: Check) -> Result<Output, Rejection> {
    table.remove(number).map(|()| nothing()).ok_or_else(|| unknown.rejects(number))
}

/// Rejects the destruction of an object that other objects refer to.
pub(super) fn check_unused(call: &Call<'_, '_>, object: Object, check: Check) -> Result<(), Rejection> {
    if call.resources.uses.is_used(object) { Err(check.rejects(object.number())) } else { Ok(()) }
}

pub(super) fn alloc_pd(call: Call<'_, '_>) -> Result<Output, Rejection> {
    let pd = alloc(&mut call.resources.pds, Check::PdLimit)?;
    Ok(PdNumber { pd: Pdn::new(pd) }.emit().to_vec())
}

pub(super) fn dealloc_pd(call: Call<'_, '_>, pd: Pdn) -> Result<Output, Rejection> {
    check_unused(&call, Object::Pd(pd.get()), Check::PdInUse)?;
    dealloc(&mut call.resources.pds, pd.get(), Check::Pd)
}

pub(super) fn alloc_uar(call: Call<'_, '_>) -> Result<Output, Rejection> {
    let Resources { uars, eqs, .. } = call.resources;
    let uar = uars.alloc(eqs.count() != 0);
    let uar = uar.ok_or_else(|| Check::UarLimit.rejects(uars.count() as u64))?;
    Ok(UarNumber { uar }.emit().to_vec())
}

pub(super) fn dealloc_uar(call: Call<'_, '_>, uar: UarIndex) -> Result<Output, Rejection> {
    check_unused(&call, Object::Uar(uar.get()), Check::UarInUse)?;
    if call.resources.uars.dealloc(uar) { Ok(nothing()) } else { Err(Check::Uar.rejects(uar.get())) }
}

pub(super) fn alloc_xrcd(call: Call<'_, '_>) -> Result<Output, Rejection> {
    let xrcd = alloc(&mut call.resources.xrcds, Check::XrcdLimit)?;
    Ok(XrcDomainNumber { xrcd: XrcDomain::new(xrcd) }.emit().to_vec())
}

pub(super) fn dealloc_xrcd(call: Call<'_, '_>, xrcd: XrcDomain) -> Result<Output, Rejection> {
    check_unused(&call, Object::Xrcd(xrcd.get()), Check::XrcdInUse)?;
    dealloc(&mut call.resources.xrcds, xrcd.get(), Check::Xrcd)
}

pub(super) fn alloc_domain(call: Call<'_, '_>) -> Result<Output, Rejection> {
    let domain = alloc(&mut call.resources.domains, Check::DomainLimit)?;
    Ok(TransportDomainNumber { domain: TransportDomain::new(domain) }.emit().to_vec())
}

pub(super) fn dealloc_domain(call: Call<'_, '_>, domain: TransportDomain) -> Result<Output, Rejection> {
    check_unused(&call, Object::Domain(domain.get()), Check::DomainInUse)?;
    dealloc(&mut call.resources.domains, domain.get(), Check::Domain)
}
