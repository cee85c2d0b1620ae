//! InfiniBand links on a RoCE fabric: maps local route headers to RoCEv2 headers and back.
//!
//! | InfiniBand | RoCEv2 |
//! |---|---|
//! | packet without GRH | IPv4, between the addresses of the source and destination ports |
//! | packet with GRH | IPv6, with the GRH as its header and the MACs of the source and destination ports |
//! | destination LID of a group, with its MGID in the GRH | IPv6 (IPv4 for a mapped MGID), Ethernet group address |
//! | source and destination LID | MACs of the ports, as configured or derived from the LIDs |
//! | SL 0 to 15 | traffic class: SL bits 2:0 in bits 7:5, as in RoCE; SL bit 3 in bit 4 |
//!
//! The headers contain nothing specific to hcad, so soft-RoCE nodes can be peers as well. Path bits are not
//! transmitted, as every port has only one LID. The SL is not transmitted if software sets a traffic class in the GRH.
//!
//! # Spec
//! `device/book/src/inside/addresses.md`; IBTA annex A17, section A17.3.2.

use std::net::{IpAddr, Ipv6Addr};

use engine::RecvDone;
use protocol::ids::{FlowLabel, Lid, Qpn};
use protocol::net::ether::group_mac;
use protocol::net::ipv4::Fragmentation;
use protocol::roce::{Encap, IpAddrs};

use super::address::{Addresses, HOP_LIMIT, source_port};

/// First multicast LID (IBTA volume 1, section 4.1.3).
const FIRST_MULTICAST: u16 = 0xc000;
const LAST_MULTICAST: u16 = 0xfffe;

/// Global route header requested by software.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grh {
    pub dgid: [u8; 16],
    pub traffic_class: u8,
    pub flow_label: FlowLabel,
    pub hop_limit: u8,
}

/// Route of an InfiniBand packet, as requested by software.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Route {
    pub dlid: Lid,
    /// Service level, four bits.
    pub service_level: u8,
    pub grh: Option<Grh>,
}

/// Source of an InfiniBand packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// Source LID; 0 if the source MAC is neither configured nor derived from a LID.
    pub slid: Lid,
    pub service_level: u8,
    /// Whether the packet had a global route header.
    pub grh: bool,
}

impl Addresses {
    /// Returns the headers of packets from this port to an InfiniBand destination. Returns `None` if the LID is 0 or if
    /// it is a multicast LID without a valid MGID.
    pub fn route(&self, to: &Route, local: Qpn, remote: Qpn) -> Option<Encap> {
        let Route { dlid, service_level, grh } = *to;
        let gid = grh.map(|grh| Ipv6Addr::from(grh.dgid));
        let (dst_mac, dst) = match dlid.get() {
            0 => return None,
            FIRST_MULTICAST..=LAST_MULTICAST => {
                let group = gid.map(IpAddr::from).as_ref().map(IpAddr::to_canonical)?;
                (group_mac(group)?, group)
            }
            _ => {
                let port = self.of_lid(dlid);
                (port.mac, gid.map_or(port.ipv4.into(), |gid| IpAddr::from(gid).to_canonical()))
            }
        };
        let ip = match dst {
            IpAddr::V4(dst) => IpAddrs::V4 { src: self.own.ipv4, dst },
            IpAddr::V6(dst) => IpAddrs::V6 { src: self.own.link_local(), dst },
        };
        let own_class = grh.map(|grh| grh.traffic_class).filter(|class| *class != 0);
        Some(Encap {
            src_mac: self.own.mac,
            dst_mac,
            ip,
            traffic_class: own_class.unwrap_or(class_of(service_level)),
            flow_label: grh.map(|grh| grh.flow_label).unwrap_or_default(),
            hop_limit: grh.map_or(HOP_LIMIT, |grh| grh.hop_limit),
            fragment: Fragmentation::default(),
            tag: None,
            src_port: source_port(local, remote),
        })
    }

    /// Returns the source of a received packet.
    pub fn source(&self, done: &RecvDone) -> Source {
        Source {
            slid: self.lid_of(done.remote_mac),
            service_level: level_of(done.traffic_class),
            grh: done.grh,
        }
    }
}

pub const fn class_of(service_level: u8) -> u8 {
    (service_level & 7) << 5 | (service_level >> 3 & 1) << 4
}

const fn level_of(traffic_class: u8) -> u8 {
    traffic_class >> 5 | (traffic_class >> 4 & 1) << 3
}

#[cfg(test)]
mod tests {
    use protocol::ids::MacAddr;

    use super::*;
    use crate::identity::Identity;

    fn addresses() -> Addresses {
        Addresses { own: Identity::from_lid(Lid::new(1)), peers: vec![], default_peer: None }
    }

    fn route(dlid: u16, service_level: u8, grh: Option<Grh>) -> Option<Encap> {
        let to = Route { dlid: Lid::new(dlid), service_level, grh };
        addresses().route(&to, Qpn::new(5), Qpn::new(6))
    }

    fn grh(dgid: &str) -> Option<Grh> {
        let dgid: Ipv6Addr = dgid.parse().unwrap();
        Some(Grh { dgid: dgid.octets(), hop_limit: 3, ..Grh::default() })
    }

    #[test]
    fn packet_without_grh_uses_ipv4() {
        let encap = route(0x102, 0, None).unwrap();
        assert_eq!(encap.dst_mac, MacAddr([2, 0, 0, 0, 1, 2]));
        let ip = IpAddrs::V4 { src: [10, 77, 0, 1].into(), dst: [10, 77, 1, 2].into() };
        assert_eq!((encap.ip, encap.hop_limit, encap.traffic_class), (ip, 64, 0));
    }

    #[test]
    fn grh_becomes_ipv6_header() {
        let encap = route(2, 0, grh("fe80::ff:fe00:2")).unwrap();
        let ip =
            IpAddrs::V6 { src: "fe80::ff:fe00:1".parse().unwrap(), dst: "fe80::ff:fe00:2".parse().unwrap() };
        assert_eq!((encap.dst_mac, encap.ip, encap.hop_limit), (MacAddr([2, 0, 0, 0, 0, 2]), ip, 3));
        // soft-RoCE uses IPv4-mapped GIDs.
        let encap = route(2, 0, grh("::ffff:10.77.0.2")).unwrap();
        assert_eq!(encap.ip, IpAddrs::V4 { src: [10, 77, 0, 1].into(), dst: [10, 77, 0, 2].into() });
    }

    #[test]
    fn port_gid_is_link_local_address() {
        let peer = Identity::from_lid(Lid::new(2));
        let IpAddrs::V6 { dst, .. } =
            route(2, 0, Some(Grh { dgid: peer.gid(), ..Grh::default() })).unwrap().ip
        else {
            panic!("not IPv6");
        };
        assert!(peer.owns(dst.into()));
        assert_eq!(peer.guid(), 0x0000_00ff_fe00_0002);
    }

    #[test]
    fn multicast_lid_maps_to_multicast_ip_and_mac() {
        // The IPoIB broadcast group.
        let encap = route(0xc000, 0, grh("ff12:401b:ffff::ffff:ffff")).unwrap();
        assert_eq!(encap.dst_mac, MacAddr([0x33, 0x33, 0xff, 0xff, 0xff, 0xff]));
        assert!(
            matches!(encap.ip, IpAddrs::V6 { dst, .. } if dst == "ff12:401b:ffff::ffff:ffff".parse::<Ipv6Addr>().unwrap())
        );
        // RFC 1112, section 6.4: the MAC contains only the low 23 bits of the IP address.
        let encap = route(0xc001, 0, grh("::ffff:224.129.2.3")).unwrap();
        assert_eq!(encap.dst_mac, MacAddr([0x01, 0x00, 0x5e, 0x01, 0x02, 0x03]));
    }

    #[test]
    fn invalid_destinations_have_no_route() {
        assert_eq!(route(0, 0, None), None);
        assert_eq!(route(0xc000, 0, None), None);
        assert_eq!(route(0xfffe, 0, grh("fe80::1")), None);
        assert_eq!(route(0xffff, 0, None).unwrap().dst_mac, MacAddr([2, 0, 0, 0, 0xff, 0xff]));
    }

    #[test]
    fn service_level_maps_to_traffic_class() {
        for service_level in 0..16 {
            let encap = route(2, service_level, None).unwrap();
            assert_eq!(
                encap.traffic_class >> 5,
                service_level & 7,
                "the low three bits are mapped as in RoCE"
            );
            assert_eq!(level_of(encap.traffic_class), service_level);
        }
        let own = Grh { traffic_class: 0x20, ..grh("fe80::2").unwrap() };
        assert_eq!(route(2, 7, Some(own)).unwrap().traffic_class, 0x20);
    }

    #[test]
    fn receive_completion_reports_slid_and_sl() {
        let done = RecvDone {
            opcode: protocol::roce::Opcode::rc(protocol::roce::Operation::SendOnly),
            byte_len: 0,
            imm: None,
            remote_qpn: Qpn::new(1),
            remote_mac: MacAddr::from_lid(Lid::new(0xffff)),
            tag: None,
            solicited: false,
            traffic_class: 0x60,
            grh: true,
            pkey_index: 0,
            invalidated: None,
        };
        let expected = Source { slid: Lid::new(0xffff), service_level: 3, grh: true };
        assert_eq!(addresses().source(&done), expected);
    }
}
