//! Address resolution: derives a frame's headers from the address that software specifies for a peer.
//!
//! # Spec
//! `device/book/src/inside/addresses.md`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use protocol::ids::{FlowLabel, Lid, MacAddr, Qpn};
use protocol::net::ipv4::Fragmentation;
use protocol::roce::{Encap, IpAddrs};

use crate::identity::Identity;
use crate::net::UNRESOLVED;

pub(super) const HOP_LIMIT: u8 = 64;

/// Configured ports on the fabric. Ports whose addresses are derived from their LID need not be listed.
#[derive(Clone, Debug)]
pub struct Addresses {
    /// The port of this HCA.
    pub own: Identity,
    /// Ports whose addresses are not derived from their LID.
    pub peers: Vec<Identity>,
    /// Destination of QPs whose peer is not specified by software, as with the public JingZhao driver.
    pub default_peer: Option<Identity>,
}

/// Addresses that software can use to specify a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerName {
    pub ip: Option<Ipv4Addr>,
    pub mac: Option<MacAddr>,
    /// GID. Used only if it is an IPv6 address or a mapped IPv4 address.
    pub gid: [u8; 16],
    /// LID; 0 means none.
    pub lid: Lid,
}

/// Traffic class and hop limit of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Class {
    /// Traffic class in the IP header.
    pub traffic_class: u8,
    /// Hop limit; 0 selects the default.
    pub hop_limit: u8,
}

impl From<Identity> for Addresses {
    fn from(own: Identity) -> Self {
        Self { own, peers: Vec::new(), default_peer: None }
    }
}

impl Addresses {
    /// Returns all configured ports, this HCA's own first.
    pub fn ports(&self) -> impl Iterator<Item = &Identity> {
        [&self.own].into_iter().chain(&self.peers).chain(&self.default_peer)
    }

    /// Returns whether `mac` is the MAC of a configured port or of this HCA.
    pub fn lists(&self, mac: MacAddr) -> bool {
        self.ports().any(|port| port.mac == mac)
    }

    /// Returns the headers of packets to a peer, or `None` if no IP address can be derived. If software did not specify
    /// an address, the default peer is used. If the MAC for the IP address is unknown, the destination MAC is
    /// [`UNRESOLVED`]. The source is always this port, whatever the QP context contains, so that a guest cannot use
    /// another port's address.
    pub fn path(&self, peer: &PeerName, class: &Class, local: Qpn, remote: Qpn) -> Option<Encap> {
        let (dst_mac, dst) = self.resolve(peer)?;
        Some(Encap {
            src_mac: self.own.mac,
            dst_mac,
            ip: self.own.towards(dst),
            traffic_class: class.traffic_class,
            flow_label: FlowLabel::default(),
            hop_limit: if class.hop_limit == 0 { HOP_LIMIT } else { class.hop_limit },
            fragment: Fragmentation::default(),
            tag: None,
            src_port: source_port(local, remote),
        })
    }

    /// Returns headers with an unreachable destination, for a QP whose peer is unknown. Its packets time out, as if the
    /// peer were unplugged.
    pub fn nowhere(&self) -> Encap {
        Encap {
            src_mac: self.own.mac,
            dst_mac: UNRESOLVED,
            ip: IpAddrs::V4 { src: self.own.ipv4, dst: Ipv4Addr::UNSPECIFIED },
            traffic_class: 0,
            flow_label: FlowLabel::default(),
            hop_limit: HOP_LIMIT,
            fragment: Fragmentation::default(),
            tag: None,
            src_port: 0xc000,
        }
    }

    /// Returns the LID of the port that has `mac`, or 0 if the LID is unknown.
    pub fn lid_of(&self, mac: MacAddr) -> Lid {
        self.known(|port| port.mac == mac).map_or(Identity::lid_of(mac), |port| port.lid)
    }

    /// Returns the peer's MAC and IP address. Uses the first of these that is present: IP address, MAC, IPv4-mapped
    /// GID, GID of a configured port, LID, any other GID, default peer.
    fn resolve(&self, peer: &PeerName) -> Option<(MacAddr, IpAddr)> {
        let gid = Ipv6Addr::from(peer.gid);
        if let Some(ip) = peer.ip {
            return Some((peer.mac.unwrap_or_else(|| self.mac_of(ip, peer.lid)), ip.into()));
        }
        if let Some(mac) = peer.mac {
            let by_rule = || Some(Identity::lid_of(mac)).filter(is_set).map(Identity::from_lid);
            let by_mac = || self.known(|port| port.mac == mac).or_else(by_rule).map(|port| port.ip());
            let ip = ipv6(gid).map(IpAddr::V6).or_else(by_mac).or_else(|| mapped(gid).map(IpAddr::V4))?;
            return Some((mac, ip));
        }
        if let Some(ip) = mapped(gid) {
            return Some((self.mac_of(ip, peer.lid), ip.into()));
        }
        if let Some(port) = ipv6(gid).and_then(|ip| self.known(|port| port.owns(ip.into()))) {
            return Some((port.mac, gid.into()));
        }
        if is_set(&peer.lid) {
            // The LID takes precedence over an unknown GID, since a GID can be any number on InfiniBand links.
            let port = self.of_lid(peer.lid);
            return Some((port.mac, port.ip()));
        }
        if let Some(ip) = ipv6(gid) {
            return Some((Identity::mac_of_link_local(ip).unwrap_or(UNRESOLVED), ip.into()));
        }
        let port = self.default_peer?;
        Some((port.mac, port.ip()))
    }

    /// Returns the MAC of the port that has `ip`. If no such port is known, returns the MAC of the port with LID `lid`,
    /// or [`UNRESOLVED`] if `lid` is 0.
    fn mac_of(&self, ip: Ipv4Addr, lid: Lid) -> MacAddr {
        let [_, _, hi, lo] = ip.octets();
        let by_rule = Identity::from_lid(Lid::new(u16::from_be_bytes([hi, lo])));
        let port = self.known(|port| port.ipv4 == ip).or(Some(by_rule).filter(|port| port.ipv4 == ip));
        let by_lid = || is_set(&lid).then(|| self.of_lid(lid));
        port.or_else(by_lid).map_or(UNRESOLVED, |port| port.mac)
    }

    pub(super) fn of_lid(&self, lid: Lid) -> Identity {
        self.known(|port| port.lid == lid).unwrap_or(Identity::from_lid(lid))
    }

    fn known(&self, wanted: impl Fn(&Identity) -> bool) -> Option<Identity> {
        self.ports().copied().find(wanted)
    }
}

/// Returns the IPv4 address mapped into a GID, if any.
fn mapped(gid: Ipv6Addr) -> Option<Ipv4Addr> {
    gid.to_ipv4_mapped().filter(|ip| !ip.is_unspecified())
}

/// Returns a GID as an IPv6 address, or `None` if the GID cannot be the address of a port: a multicast GID, or a GID
/// that begins with 16 zero bits, such as the unspecified GID.
fn ipv6(gid: Ipv6Addr) -> Option<Ipv6Addr> {
    Some(gid).filter(|gid| gid.segments()[0] != 0 && !gid.is_multicast())
}

fn is_set(lid: &Lid) -> bool {
    *lid != Lid::default()
}

/// Returns the UDP source port of a flow, from the dynamic range. The port is constant for a flow and varies between
/// flows so that the network can use multiple paths.
pub fn source_port(local: Qpn, remote: Qpn) -> u16 {
    const DYNAMIC: u16 = 0xc000;
    let mixed = (local.get() ^ remote.get().rotate_left(12)).wrapping_mul(0x9e37_79b1);
    let [high, low, ..] = mixed.to_be_bytes();
    u16::from_be_bytes([high, low]) | DYNAMIC
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frontend::testing::{OTHER, addresses};

    const GLOBAL: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 9);

    #[test]
    fn mac_maps_to_configured_or_derived_lid() {
        assert_eq!(addresses().lid_of(OTHER.mac), Lid::new(0x900));
        assert_eq!(addresses().lid_of(MacAddr([2, 0, 0, 0, 1, 2])), Lid::new(0x102));
        assert_eq!(addresses().lid_of(addresses().own.mac), Lid::new(1));
        assert_eq!(addresses().lid_of(MacAddr([0x52, 0x54, 0, 7, 7, 7])), Lid::default());
    }

    fn path(peer: &PeerName) -> Option<Encap> {
        addresses().path(peer, &Class::default(), Qpn::new(5), Qpn::new(6))
    }

    fn to(peer: &PeerName) -> Option<(MacAddr, IpAddr)> {
        path(peer).map(|encap| match encap.ip {
            IpAddrs::V4 { dst, .. } => (encap.dst_mac, dst.into()),
            IpAddrs::V6 { dst, .. } => (encap.dst_mac, dst.into()),
        })
    }

    fn gid(text: &str) -> [u8; 16] {
        text.parse::<Ipv6Addr>().unwrap().octets()
    }

    #[test]
    fn unknown_ip_without_lid_is_unresolved() {
        let far = Ipv4Addr::new(172, 16, 0, 1);
        assert_eq!(to(&PeerName { ip: Some(far), ..PeerName::default() }), Some((UNRESOLVED, far.into())));
        let by_gid = PeerName { gid: far.to_ipv6_mapped().octets(), ..PeerName::default() };
        assert_eq!(to(&by_gid), Some((UNRESOLVED, far.into())));
        let with_lid = PeerName { ip: Some(far), lid: Lid::new(0x900), ..PeerName::default() };
        assert_eq!(to(&with_lid), Some((OTHER.mac, far.into())));
    }

    #[test]
    fn ipv6_gid_becomes_destination_address() {
        let own = Identity::from_lid(Lid::new(1));
        let cases = [
            ("2001:db8::9", OTHER.mac, own.link_local()),
            // rdma_rxe's default GID is the link-local address derived from its MAC.
            ("fe80::5054:ff:fe01:2", OTHER.mac, own.link_local()),
            ("fe80::5054:ff:fe77:7777", MacAddr([0x52, 0x54, 0, 0x77, 0x77, 0x77]), own.link_local()),
            ("fe80::1234", UNRESOLVED, own.link_local()),
            ("2001:db8::77", UNRESOLVED, own.link_local()),
        ];
        for (text, mac, src) in cases {
            let encap = path(&PeerName { gid: gid(text), ..PeerName::default() }).unwrap();
            let dst = text.parse().unwrap();
            assert_eq!((encap.dst_mac, encap.ip), (mac, IpAddrs::V6 { src, dst }), "{text}");
        }
    }

    #[test]
    fn mac_given_with_ipv6_gid_is_used() {
        let mac = MacAddr([0x52, 0x54, 0, 1, 1, 1]);
        let peer = PeerName { mac: Some(mac), gid: gid("2001:db8::77"), ..PeerName::default() };
        assert_eq!(to(&peer), Some((mac, "2001:db8::77".parse().unwrap())));
    }

    #[test]
    fn lid_takes_precedence_over_unknown_gid() {
        let peer = PeerName { lid: Lid::new(3), gid: gid("fe80::2:c903:0:1234"), ..PeerName::default() };
        assert_eq!(to(&peer), Some((MacAddr([2, 0, 0, 0, 0, 3]), Ipv4Addr::new(10, 77, 0, 3).into())));
    }

    #[test]
    fn prefer_ipv6_applies_to_lid_and_mac() {
        let peers = vec![Identity { prefer_ipv6: true, ..OTHER }];
        let addresses = Addresses { peers, ..addresses() };
        for peer in [
            PeerName { lid: OTHER.lid, ..PeerName::default() },
            PeerName { mac: Some(OTHER.mac), ..PeerName::default() },
        ] {
            assert_eq!(addresses.resolve(&peer), Some((OTHER.mac, GLOBAL.into())));
        }
    }

    #[test]
    fn udp_source_ports_vary_within_dynamic_range() {
        let ports: std::collections::BTreeSet<_> =
            (0..64).map(|n| source_port(Qpn::new(n), Qpn::new(9))).collect();
        assert!(ports.iter().all(|port| *port >= 0xc000));
        assert!(ports.len() > 48, "{} of 64 differ", ports.len());
    }
}
