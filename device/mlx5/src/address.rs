//! Resolves paths in QP contexts and datagram segments to packet headers.
//!
//! # Spec
//! mlx5 interface, sections 10.3, 11.1 and 15.3.

use std::net::{IpAddr, Ipv6Addr};

use card::net::address::{Addresses, source_port};
use card::net::lid::{Grh, Route};
use protocol::hca::mlx5::path::Path;
use protocol::hca::mlx5::wqe::DatagramSegment;
use protocol::ids::{FlowLabel, MacAddr, Qpn};
use protocol::net::ipv4::Fragmentation;
use protocol::net::layers::Tci;
use protocol::roce::{Encap, IpAddrs};

use super::port::gid_table::GidTable;

/// Hop limit for packets whose path does not specify one.
const HOP_LIMIT: u8 = 64;

/// Resolves paths according to the port type. Packets to an unknown destination are sent but lost, as on a real fabric.
#[derive(Clone, Copy, Debug)]
pub enum Resolver<'a> {
    InfiniBand(&'a Addresses),
    Ethernet { addresses: &'a Addresses, gids: &'a GidTable },
}

/// Path of RoCE packets, as specified by software.
struct RocePath {
    gid_index: u8,
    /// Destination MAC, resolved by the driver.
    mac: MacAddr,
    gid: [u8; 16],
    traffic_class: u8,
    flow_label: FlowLabel,
    hop_limit: u8,
    /// Priority to set in the VLAN tag.
    priority: u8,
    /// UDP source port, or 0 if the device selects one.
    udp_port: u16,
}

impl Resolver<'_> {
    pub const fn is_ethernet(&self) -> bool {
        matches!(self, Self::Ethernet { .. })
    }

    /// Returns the headers for packets to a connected peer.
    pub fn path(&self, to: &Path, local: Qpn, remote: Qpn) -> Encap {
        match self {
            Self::InfiniBand(addresses) => {
                let grh = to.grh.then_some(Grh {
                    dgid: to.gid,
                    traffic_class: to.traffic_class,
                    flow_label: to.flow_label,
                    hop_limit: to.hop_limit,
                });
                let route = Route { dlid: to.lid, service_level: to.service_level, grh };
                addresses.route(&route, local, remote).unwrap_or_else(|| addresses.nowhere())
            }
            Self::Ethernet { addresses, gids } => {
                let path = RocePath {
                    gid_index: to.gid_index,
                    mac: to.mac,
                    gid: to.gid,
                    traffic_class: match to.traffic_class {
                        0 => to.dscp << 2 | to.ecn,
                        class => class,
                    },
                    flow_label: to.flow_label,
                    hop_limit: to.hop_limit,
                    priority: to.priority,
                    udp_port: to.udp_port,
                };
                path.headers(gids, local, remote).unwrap_or_else(|| addresses.nowhere())
            }
        }
    }

    /// Returns the headers for a datagram.
    pub fn datagram(&self, to: &DatagramSegment, local: Qpn) -> Encap {
        match self {
            Self::InfiniBand(addresses) => {
                let grh = to.grh.then_some(Grh {
                    dgid: to.gid,
                    traffic_class: to.traffic_class,
                    flow_label: to.flow_label,
                    hop_limit: to.hop_limit,
                });
                let route = Route { dlid: to.lid, service_level: to.service_level, grh };
                addresses.route(&route, local, to.qpn).unwrap_or_else(|| addresses.nowhere())
            }
            Self::Ethernet { addresses, gids } => {
                let path = RocePath {
                    gid_index: to.gid_index,
                    mac: to.mac,
                    gid: to.gid,
                    traffic_class: to.traffic_class,
                    flow_label: to.flow_label,
                    hop_limit: to.hop_limit,
                    // The VLAN priority is in the upper three bits of the service level.
                    priority: to.service_level >> 1,
                    udp_port: to.lid.get(),
                };
                path.headers(gids, local, to.qpn).unwrap_or_else(|| addresses.nowhere())
            }
        }
    }
}

impl RocePath {
    /// Returns the packet headers, or `None` if the GID table entry is empty or its IP version differs from the
    /// destination's.
    fn headers(&self, gids: &GidTable, local: Qpn, remote: Qpn) -> Option<Encap> {
        let source = gids.get(self.gid_index.into())?;
        let ip = match (source.ip, IpAddr::from(Ipv6Addr::from(self.gid)).to_canonical()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => IpAddrs::V4 { src, dst },
            (IpAddr::V6(src), IpAddr::V6(dst)) => IpAddrs::V6 { src, dst },
            _ => return None,
        };
        let flow_label = match ip {
            IpAddrs::V4 { .. } => FlowLabel::default(),
            IpAddrs::V6 { .. } => self.flow_label,
        };
        Some(Encap {
            src_mac: source.mac,
            dst_mac: self.mac,
            tag: source.vlan.map(|vlan| Tci::new().with_vid(vlan).with_priority(self.priority & 7)),
            ip,
            traffic_class: self.traffic_class,
            flow_label,
            hop_limit: if self.hop_limit == 0 { HOP_LIMIT } else { self.hop_limit },
            fragment: Fragmentation::default(),
            src_port: if self.udp_port == 0 { source_port(local, remote) } else { self.udp_port },
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use card::frontend::testing::addresses;
    use protocol::hca::mlx5::roce_address::RoceEntry;
    use protocol::ids::Lid;

    use super::*;

    const MAC: MacAddr = MacAddr([2, 0, 0, 0x55, 0, 1]);
    const PEER: MacAddr = MacAddr([2, 0, 0, 0x55, 0, 2]);

    fn ipv4(last: u8) -> [u8; 16] {
        Ipv4Addr::new(10, 8, 0, last).to_ipv6_mapped().octets()
    }

    fn gids() -> GidTable {
        let mut gids = GidTable::default();
        let entry = RoceEntry { gid: ipv4(1), vlan_valid: true, vlan: 5, mac: MAC, l3_type: 0, version: 2 };
        gids.set(3, &entry).unwrap();
        gids
    }

    #[test]
    fn gid_entry_determines_packet_source() {
        let (gids, addresses) = (gids(), addresses());
        let resolver = Resolver::Ethernet { addresses: &addresses, gids: &gids };
        let to = Path {
            gid_index: 3,
            mac: PEER,
            gid: ipv4(2),
            dscp: 0x2a,
            flow_label: FlowLabel::new(7),
            priority: 6,
            udp_port: 0xc001,
            ..Path::default()
        };
        let encap = resolver.path(&to, Qpn::new(0x80), Qpn::new(0x81));
        let ip = IpAddrs::V4 { src: Ipv4Addr::new(10, 8, 0, 1), dst: Ipv4Addr::new(10, 8, 0, 2) };
        assert_eq!((encap.src_mac, encap.dst_mac, encap.ip), (MAC, PEER, ip));
        assert_eq!(encap.tag, Some(Tci::new().with_vid(5).with_priority(6)));
        assert_eq!((encap.traffic_class, encap.hop_limit, encap.src_port), (0xa8, 64, 0xc001));
        assert_eq!(encap.flow_label, FlowLabel::default());
        let to = DatagramSegment {
            gid_index: 3,
            mac: PEER,
            gid: ipv4(2),
            lid: Lid::new(0xc002),
            hop_limit: 9,
            ..DatagramSegment::default()
        };
        let encap = resolver.datagram(&to, Qpn::new(0x80));
        assert_eq!((encap.dst_mac, encap.ip, encap.hop_limit, encap.src_port), (PEER, ip, 9, 0xc002));
    }

    #[test]
    fn packets_without_source_gid_are_lost() {
        let (gids, addresses) = (gids(), addresses());
        let resolver = Resolver::Ethernet { addresses: &addresses, gids: &gids };
        let to = Path { gid_index: 3, mac: PEER, gid: ipv4(2), ..Path::default() };
        let path = |to: &Path| resolver.path(to, Qpn::new(0x80), Qpn::new(0x81));
        for lost in
            [Path { gid_index: 0, ..to }, Path { gid_index: 255, ..to }, Path { gid: [0xfe; 16], ..to }]
        {
            assert_eq!(path(&lost), addresses.nowhere());
        }
        assert!(path(&to).src_port >= 0xc000);
    }
}
