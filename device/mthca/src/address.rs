//! Address resolution for paths, address vectors and software-built headers.
//!
//! # Spec
//! mthca interface, sections 6.5, 6.8 and 8.3.

use card::net::address::Addresses;
use card::net::lid::{Grh, Route};
use protocol::hca::mthca::path::Address;
use protocol::hca::mthca::wqe::{MlxWqe, PackedHeaders};
use protocol::ids::{FlowLabel, Qpn};
use protocol::roce::Encap;

/// Returns the path to a destination. Packets to an unknown destination are sent and lost, as on a real fabric.
pub fn path(addresses: &Addresses, to: &Address, local: Qpn, remote: Qpn) -> Encap {
    let Address { dlid, service_level, traffic_class, hop_limit, dgid, .. } = *to;
    let flow_label = FlowLabel::new(to.flow_label);
    let grh = to.grh.then_some(Grh { dgid, traffic_class, flow_label, hop_limit });
    let route = Route { dlid, service_level, grh };
    addresses.route(&route, local, remote).unwrap_or_else(|| addresses.nowhere())
}

pub fn management(addresses: &Addresses, wqe: &MlxWqe, headers: &PackedHeaders, local: Qpn) -> Encap {
    let grh = headers.grh.map(|grh| Grh {
        dgid: grh.dgid,
        traffic_class: grh.traffic_class,
        flow_label: FlowLabel::new(grh.flow_label),
        hop_limit: grh.hop_limit,
    });
    let route = Route { dlid: wqe.dlid, service_level: headers.service_level, grh };
    addresses.route(&route, local, headers.bth.dest_qp).unwrap_or_else(|| addresses.nowhere())
}
