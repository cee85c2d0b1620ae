//! Commands for multicast groups.
//!
//! # Spec
//! mlx5 interface, section 5.4.

use protocol::hca::mlx5::qp::Service;
use protocol::hca::mlx5::resource::Multicast;

use super::{Call, Output, nothing};
use crate::check::{Check, Rejection};

pub(super) fn attach(call: Call<'_, '_>, member: &Multicast) -> Result<Output, Rejection> {
    let resources = call.resources;
    let number = member.qpn.get();
    let qp = resources.qps.get(number).ok_or_else(|| Check::Qp.rejects(number))?;
    if qp.service() != Service::Ud {
        return Err(Check::GroupService.rejects(qp.service().code()));
    }
    resources.groups.attach(member.gid, member.qpn).map(|()| nothing())
}

pub(super) fn detach(call: Call<'_, '_>, member: &Multicast) -> Result<Output, Rejection> {
    call.resources.groups.detach(&member.gid, member.qpn).map(|()| nothing())
}
