//! Commands for the vport and the GID table of an Ethernet port.
//!
//! # Spec
//! mlx5 interface, sections 5.5 and 15.

use protocol::hca::mlx5::nic_vport::{
    AdminState, ModifyNicVport, ModifyVportState, QueriedNicVport, QueryNicVport, VportFields, VportState,
};
use protocol::hca::mlx5::roce_address::{QueriedRoceAddress, QueryRoceAddress, SetRoceAddress};
use protocol::hca::mlx5::vport::{QueriedVportPkey, QueryVportPkey};
use protocol::ids::Pkey;

use super::{Call, Output, nothing};
use crate::check::{Check, Rejection};

pub(super) fn query_state(mut call: Call<'_, '_>) -> Result<Output, Rejection> {
    let admin = call.ethernet()?.admin.code();
    Ok(VportState { admin, up: call.cx.port.is_up() }.emit().to_vec())
}

pub(super) fn modify_state(mut call: Call<'_, '_>, modify: &ModifyVportState) -> Result<Output, Rejection> {
    let port = call.ethernet()?;
    port.admin =
        AdminState::from_code(modify.admin).ok_or_else(|| Check::VportState.rejects(modify.admin))?;
    call.resources.update_link(call.cx);
    Ok(nothing())
}

pub(super) fn query_context(mut call: Call<'_, '_>, query: &QueryNicVport) -> Result<Output, Rejection> {
    let port = call.ethernet()?;
    let (context, list) = port.vport.query(query.list_type)?;
    Ok([&QueriedNicVport { context }.emit(), list].concat())
}

pub(super) fn modify_context(
    mut call: Call<'_, '_>,
    modify: &ModifyNicVport,
    list: &[u8],
) -> Result<Output, Rejection> {
    let port = call.ethernet()?;
    port.vport.modify(modify, list)?;
    let fields = VportFields::from_bits_retain(modify.fields);
    let Call { resources, cx, .. } = call;
    let Some(port) = resources.port.ethernet() else { return Ok(nothing()) };
    if let Some(mac) = port.vport.mac().filter(|_| fields.contains(VportFields::LIST)) {
        cx.port.set_mac(mac);
    }
    if fields.contains(VportFields::ROCE) {
        port.publish_gids(cx.port);
    }
    Ok(nothing())
}

pub(super) fn set_roce_address(mut call: Call<'_, '_>, set: &SetRoceAddress) -> Result<Output, Rejection> {
    let port = call.ethernet()?;
    port.gids.set(set.index, &set.entry)?;
    let Call { resources, cx, .. } = call;
    if let Some(port) = resources.port.ethernet() {
        port.publish_gids(cx.port);
    }
    Ok(nothing())
}

pub(super) fn query_roce_address(
    mut call: Call<'_, '_>,
    query: &QueryRoceAddress,
) -> Result<Output, Rejection> {
    let entry = call.ethernet()?.gids.query(query.index)?;
    Ok(QueriedRoceAddress { entry }.emit().to_vec())
}

/// Returns the default P_Key, the only one in an Ethernet port's table.
pub(super) fn query_pkey(query: &QueryVportPkey) -> Result<Output, Rejection> {
    match query.index {
        0 | QueryVportPkey::ALL => Ok(QueriedVportPkey { pkey: Pkey::DEFAULT }.emit().to_vec()),
        index => Err(Check::PkeyIndex.rejects(index)),
    }
}
