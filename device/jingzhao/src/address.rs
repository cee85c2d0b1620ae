//! Resolves the addresses in a QPC or a ud unit.
//!
//! # Spec
//! JingZhao interface, section 11.4 (J-31).

use card::net::address::{Addresses, Class, PeerName};
use card::net::lid::class_of;
use protocol::hca::jingzhao::wqe::UdUnit;
use protocol::ids::Qpn;
use protocol::roce::Encap;

use super::ctxmgt::message::RdEncap;

/// Returns the path to a connected QP's peer. Returns `None` if the context does not identify a known peer and no
/// default peer is configured.
pub fn connected(addresses: &Addresses, encap: &RdEncap, qpn: Qpn, remote_qpn: Qpn) -> Option<Encap> {
    let peer = PeerName { ip: encap.dip, mac: encap.dmac, gid: encap.remote_gid, lid: encap.dlid };
    addresses.path(&peer, &class(encap), qpn, remote_qpn)
}

/// Returns the path to a datagram's destination. `trusted` is true if the MAC and IP addresses in the ud unit may be
/// used.
pub fn datagram(
    addresses: &Addresses,
    unit: &UdUnit,
    encap: &RdEncap,
    qpn: Qpn,
    trusted: bool,
) -> Option<Encap> {
    let (ip, mac) = if trusted { (unit.dip(), unit.dmac()) } else { (None, None) };
    let peer = PeerName { ip, mac, lid: unit.dlid, ..PeerName::default() };
    addresses.path(&peer, &class(encap), qpn, unit.dqpn)
}

/// Returns a path's traffic class. If the context has none, it is derived from the service level, because RoCE has no
/// LRH to carry the service level (J-16).
fn class(encap: &RdEncap) -> Class {
    let traffic_class = match encap.traffic_class {
        0 => class_of(encap.service_level),
        given => given,
    };
    Class { traffic_class, hop_limit: encap.hop_limit }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use card::frontend::testing::{DEFAULT, OTHER, addresses};
    use card::net::UNRESOLVED;
    use protocol::hca::jingzhao::modify::StoredQpc;
    use protocol::hca::jingzhao::qpc::Qpc;
    use protocol::ids::{Lid, MacAddr};
    use protocol::roce::IpAddrs;

    use super::*;
    use crate::ctxmgt::key_qpc_data::KeyQpc;

    fn encap(image: Qpc) -> RdEncap {
        let mut context = StoredQpc::default();
        context.image = image;
        KeyQpc::new(context).read()
    }

    /// Returns the destination MAC and IPv4 address for a context.
    fn to(qpc: Qpc) -> Option<(MacAddr, Ipv4Addr)> {
        let encap = connected(&addresses(), &encap(qpc), Qpn::new(5), qpc.remote_qpn)?;
        assert_eq!(encap.src_mac, addresses().own.mac);
        match encap.ip {
            IpAddrs::V4 { src, dst } if src == addresses().own.ipv4 => Some((encap.dst_mac, dst)),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn lid_is_resolved_by_rule_or_table() {
        let rule = (MacAddr([2, 0, 0, 0, 1, 2]), Ipv4Addr::new(10, 77, 1, 2));
        assert_eq!(to(Qpc { dlid: Lid::new(0x102), ..Qpc::default() }), Some(rule));
        let table = (OTHER.mac, OTHER.ipv4);
        assert_eq!(to(Qpc { dlid: Lid::new(0x900), ..Qpc::default() }), Some(table));
        let own = (addresses().own.mac, addresses().own.ipv4);
        assert_eq!(to(Qpc { dlid: Lid::new(1), ..Qpc::default() }), Some(own));
    }

    #[test]
    fn peer_lookup_order_is_ip_mac_gid_lid() {
        let gid = Ipv4Addr::new(10, 77, 0, 4).to_ipv6_mapped().octets();
        let all = Qpc {
            dest_ip: Ipv4Addr::new(10, 77, 0, 3).to_bits(),
            dmac_high: 0x0200_0000,
            dlid: Lid::new(5),
            remote_gid: gid,
            ..Qpc::default()
        };
        assert_eq!(to(all), Some((MacAddr([2, 0, 0, 0, 0, 5]), Ipv4Addr::new(10, 77, 0, 3))));
        let no_ip = Qpc { dest_ip: 0, ..all };
        assert_eq!(to(no_ip), Some((MacAddr([2, 0, 0, 0, 0, 5]), Ipv4Addr::new(10, 77, 0, 5))));
        let no_mac = Qpc { dmac_high: 0, ..no_ip };
        assert_eq!(to(no_mac), Some((MacAddr([2, 0, 0, 0, 0, 4]), Ipv4Addr::new(10, 77, 0, 4))));
        let lid_only = Qpc { remote_gid: [0; 16], ..no_mac };
        assert_eq!(to(lid_only), Some((MacAddr([2, 0, 0, 0, 0, 5]), Ipv4Addr::new(10, 77, 0, 5))));
        assert_eq!(to(Qpc::default()), Some((DEFAULT.mac, DEFAULT.ipv4)));
    }

    #[test]
    fn unknown_ip_has_path_but_unknown_mac_does_not() {
        let far = Ipv4Addr::new(172, 16, 0, 1);
        assert_eq!(to(Qpc { dest_ip: far.to_bits(), ..Qpc::default() }), Some((UNRESOLVED, far)));
        assert_eq!(to(Qpc { dmac_high: 0x5254_7777, ..Qpc::default() }), None);
        let lonely = Addresses { default_peer: None, ..addresses() };
        assert_eq!(connected(&lonely, &RdEncap::default(), Qpn::new(5), Qpn::new(9)), None);
    }

    #[test]
    fn ud_unit_addresses_are_ignored_unless_trusted() {
        let unit =
            UdUnit { dlid: Lid::new(0x900), dmac_high: 0xdead_beef, dest_ip: 0xffff, ..UdUnit::default() };
        let encap = datagram(&addresses(), &unit, &RdEncap::default(), Qpn::new(5), false).unwrap();
        assert_eq!(encap.dst_mac, OTHER.mac);
        let trusted = datagram(&addresses(), &unit, &RdEncap::default(), Qpn::new(5), true).unwrap();
        assert_eq!(trusted.dst_mac, MacAddr([0xde, 0xad, 0xbe, 0xef, 0x09, 0x00]));
    }

    /// RoCE maps the service level to the precedence bits of the DSCP.
    #[test]
    fn service_level_sets_default_traffic_class() {
        let class_of = |service_level, traffic_class| {
            let encap = encap(Qpc { service_level, traffic_class, ..Qpc::default() });
            let unit = UdUnit { dlid: Lid::new(2), ..UdUnit::default() };
            let connected = connected(&addresses(), &encap, Qpn::new(5), Qpn::new(9)).unwrap();
            let datagram = datagram(&addresses(), &unit, &encap, Qpn::new(5), true).unwrap();
            assert_eq!(connected.traffic_class, datagram.traffic_class);
            connected.traffic_class
        };
        assert_eq!([0, 1, 5, 7].map(|level| class_of(level, 0)), [0, 0x20, 0xa0, 0xe0]);
        assert_eq!(class_of(5, 0x68), 0x68);
    }

    #[test]
    fn guest_cannot_change_source_address() {
        let qpc = Qpc { source_ip: 1, smac_high: 1, slid: Lid::new(7), ..Qpc::default() };
        assert_eq!(to(qpc), Some((DEFAULT.mac, DEFAULT.ipv4)));
    }
}
