//! PathRecords. There is one path, through the switch, from every port to every other port.
//!
//! # Spec
//! IBTA volume 1, section 15.2.5.16; mthca interface, section 9.4.

use std::net::Ipv6Addr;

use protocol::ids::{Lid, MacAddr, Pkey};
use protocol::mad::node::{guid_of_mac, mac_of_guid};
use protocol::mad::record::path::{DGID, DLID, MTU, MTU_SELECTOR, PKEY, RATE, RATE_SELECTOR, SGID, SL, SLID};
use protocol::mad::record::{EXACTLY, PathRecord};
use protocol::mad::{MadStatus, Method};

use super::groups::{ONE_SECOND, RATE_20, mlid};
use super::selector::{Bound, Quantity};
use super::{Request, SaContext};
use crate::management::{GID_PREFIX, SM_LID, gid};

/// One end of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct End {
    gid: [u8; 16],
    lid: Lid,
}

/// Returns the paths that match a request.
pub(super) fn find(context: &SaContext<'_>, request: &Request<'_>) -> Result<Vec<Vec<u8>>, MadStatus> {
    let wanted = PathRecord::parse(request.attribute());
    let has = |component| request.has(component);
    // A Get for one path must specify its destination (section 15.2.5.16).
    if request.header.method == Method::GET && !(has(DGID) || has(DLID)) {
        return Err(MadStatus::INSUFFICIENT_COMPONENTS);
    }
    let Some(pkey) = partition(context, has(PKEY).then_some(wanted.pkey)) else { return Ok(Vec::new()) };
    let mtu = context.port.mtu();
    let admits = |quantity, components, values, is| {
        Bound::of(request, quantity, components, values).is_none_or(|bound| bound.admits(is))
    };
    if !admits(Quantity::Mtu, [MTU_SELECTOR, MTU], [wanted.mtu_selector, wanted.mtu], mtu)
        || !admits(Quantity::Rate, [RATE_SELECTOR, RATE], [wanted.rate_selector, wanted.rate], RATE_20)
        || has(SL) && wanted.sl != 0
    {
        return Ok(Vec::new());
    }
    let own = End { gid: gid(context.port.guid()), lid: context.port.lid() };
    let all_ends = || context.subnet.lids().chain([SM_LID]).map(|lid| by_lid(context, lid)).collect();
    let ends = |gid: Option<[u8; 16]>, lid: Option<Lid>, any: Vec<End>| -> Vec<End> {
        let found = match (gid, lid) {
            (Some(gid), _) => by_gid(context, gid).into_iter().collect(),
            (None, Some(lid)) => vec![by_lid(context, lid)],
            (None, None) => any,
        };
        found.into_iter().filter(|end| lid.is_none_or(|lid| end.lid == lid)).collect()
    };
    // If no source is specified, paths begin at this HCA's port. One end is therefore always a single port, which
    // limits the number of paths.
    let sources = ends(has(SGID).then_some(wanted.sgid), has(SLID).then_some(wanted.slid), vec![own]);
    let destinations = ends(has(DGID).then_some(wanted.dgid), has(DLID).then_some(wanted.dlid), all_ends());
    let path = |source: &End, destination: &End| PathRecord {
        service_id: wanted.service_id,
        dgid: destination.gid,
        sgid: source.gid,
        dlid: destination.lid,
        slid: source.lid,
        // With hop limit 0, software does not add a GRH. Routing by LID needs none.
        hop_limit: 0,
        traffic_class: wanted.traffic_class,
        reversible: true,
        path_count: 1,
        pkey,
        mtu_selector: EXACTLY,
        mtu,
        rate_selector: EXACTLY,
        rate: RATE_20,
        life_time_selector: EXACTLY,
        life_time: ONE_SECOND,
        ..PathRecord::default()
    };
    let paths = sources.iter().flat_map(|source| destinations.iter().map(move |end| path(source, end)));
    Ok(paths.map(|path| path.emit().to_vec()).collect())
}

/// Returns the P_Key for a path: the requested P_Key if the port has it, or the port's first valid P_Key if none was
/// requested.
fn partition(context: &SaContext<'_>, wanted: Option<Pkey>) -> Option<Pkey> {
    let mut valid = context.port.pkeys().iter().copied().filter(|pkey| pkey.get() & 0x7fff != 0);
    match wanted {
        Some(wanted) => valid.find(|pkey| pkey.get() & 0x7fff == wanted.get() & 0x7fff),
        None => valid.next(),
    }
}

/// Returns the port with LID `lid`: a configured peer, or a port whose addresses are derived from its LID.
fn by_lid(context: &SaContext<'_>, lid: Lid) -> End {
    let known = context.addresses.ports().find(|port| port.lid == lid);
    let mac = known.map_or(MacAddr::from_lid(lid), |port| port.mac);
    End { gid: gid(guid_of_mac(mac)), lid }
}

/// Returns the port with GID `gid`, which is either derived from the port's MAC or equal to one of its IP addresses.
/// For a multicast GID, returns the group.
fn by_gid(context: &SaContext<'_>, gid: [u8; 16]) -> Option<End> {
    if gid[0] == 0xff {
        return Some(End { gid, lid: mlid(&gid) });
    }
    let ip = Ipv6Addr::from(gid);
    let known = context.addresses.ports().find(|port| match ip.to_ipv4_mapped() {
        Some(ip) => port.owns(ip.into()),
        None => port.owns(ip.into()),
    });
    let lid = match known {
        Some(port) => port.lid,
        None => {
            let [prefix, guid] = halves(gid);
            let mac = mac_of_guid(guid).filter(|_| prefix == GID_PREFIX)?;
            context.addresses.lid_of(mac)
        }
    };
    (1..=SM_LID.get()).contains(&lid.get()).then_some(End { gid, lid })
}

fn halves(gid: [u8; 16]) -> [u64; 2] {
    let bits = u128::from_be_bytes(gid);
    [bits >> 64, bits].map(|half| u64::try_from(half & u128::from(u64::MAX)).unwrap_or(0))
}
