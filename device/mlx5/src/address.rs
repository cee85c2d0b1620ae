//! Resolves paths in QP contexts to packet headers.
//!
//! # Spec
//! mlx5 interface, section 10.3.

use card::net::address::Addresses;
use card::net::lid::{Grh, Route};
use protocol::hca::mlx5::path::Path;
use protocol::ids::Qpn;
use protocol::roce::Encap;

/// Returns the headers for packets to a connected peer. Packets to an unknown destination are sent and lost, as on a
/// real fabric.
pub fn path(addresses: &Addresses, to: &Path, local: Qpn, remote: Qpn) -> Encap {
    let grh = to.grh.then_some(Grh {
        dgid: to.gid,
        traffic_class: to.traffic_class,
        flow_label: to.flow_label,
        hop_limit: to.hop_limit,
    });
    let route = Route { dlid: to.lid, service_level: to.service_level, grh };
    addresses.route(&route, local, remote).unwrap_or_else(|| addresses.nowhere())
}
