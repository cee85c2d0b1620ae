//! Who is where on the fabric: from what software says of a peer to the headers of a frame.
//!
//! # Spec
//! `design.md`, section 5.

use std::net::{Ipv4Addr, Ipv6Addr};

use protocol::ids::{Lid, MacAddr, Qpn};
use protocol::roce::{IpAddrs, Shell};

use crate::identity::Identity;

/// Hop limit when software gives none.
const HOP_LIMIT: u8 = 64;

/// The ports an HCA knows, all of them from its configuration. A port that follows the LID rule need not be listed.
#[derive(Clone, Debug)]
pub struct Addresses {
    /// Its own.
    pub own: Identity,
    /// Ports that do not follow the LID rule.
    pub peers: Vec<Identity>,
    /// Where QPs send whose software names no peer, as the public driver does.
    pub default_peer: Option<Identity>,
}

/// What software says of a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// IPv4 address.
    pub ip: Option<Ipv4Addr>,
    /// Ethernet address.
    pub mac: Option<MacAddr>,
    /// GID; counts if it is a mapped IPv4 address.
    pub gid: [u8; 16],
    /// LID; 0 is none.
    pub lid: Lid,
}

/// How software wants packets to travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Class {
    /// Traffic class of the IP header.
    pub traffic_class: u8,
    /// Hop limit; 0 is ours to choose.
    pub hop_limit: u8,
}

impl Addresses {
    /// The way to a peer; `None` if software named none that is known, and no default is configured. The source is
    /// always our own: a guest must not speak in another's name, whatever its context says.
    pub fn path(&self, peer: &Peer, class: &Class, local: Qpn, remote: Qpn) -> Option<Shell> {
        let (dst_mac, dst) = self.resolve(peer)?;
        Some(Shell {
            src_mac: self.own.mac,
            dst_mac,
            ip: IpAddrs::V4 { src: self.own.ipv4, dst },
            traffic_class: class.traffic_class,
            hop_limit: if class.hop_limit == 0 { HOP_LIMIT } else { class.hop_limit },
            src_port: entropy(local, remote),
        })
    }

    /// Where packets go that must not arrive: of a QP whose peer is not known. They time out, as they do on a wire
    /// where the peer is gone.
    pub fn nowhere(&self) -> Shell {
        Shell {
            src_mac: self.own.mac,
            dst_mac: MacAddr::default(),
            ip: IpAddrs::V4 { src: self.own.ipv4, dst: Ipv4Addr::UNSPECIFIED },
            traffic_class: 0,
            hop_limit: HOP_LIMIT,
            src_port: 0xc000,
        }
    }

    /// LID of the port with this MAC, 0 if unknown.
    pub fn lid_of(&self, mac: MacAddr) -> Lid {
        self.known(|port| port.mac == mac).map_or(Identity::lid_of(mac), |port| port.lid)
    }

    /// The peer's MAC and IPv4 address; the first kind of address that is given decides.
    fn resolve(&self, peer: &Peer) -> Option<(MacAddr, Ipv4Addr)> {
        let mapped = || Ipv6Addr::from(peer.gid).to_ipv4_mapped().filter(|ip| !ip.is_unspecified());
        if let Some(ip) = peer.ip {
            return Some((peer.mac.or_else(|| self.mac_of(ip, peer.lid))?, ip));
        }
        if let Some(mac) = peer.mac {
            let by_rule = || Some(Identity::lid_of(mac)).filter(is_set).map(Identity::from_lid);
            let port = self.known(|port| port.mac == mac).or_else(by_rule)?;
            return Some((mac, port.ipv4));
        }
        if let Some(ip) = mapped() {
            return Some((self.mac_of(ip, peer.lid)?, ip));
        }
        let port = if is_set(&peer.lid) { self.of_lid(peer.lid) } else { self.default_peer? };
        Some((port.mac, port.ipv4))
    }

    /// MAC to send to for an IPv4 address: of the port that has it, else of the LID given beside it, else of the
    /// default peer, as of a gateway.
    fn mac_of(&self, ip: Ipv4Addr, lid: Lid) -> Option<MacAddr> {
        let [_, _, hi, lo] = ip.octets();
        let by_rule = Identity::from_lid(Lid::new(u16::from_be_bytes([hi, lo])));
        let port = self.known(|port| port.ipv4 == ip).or(Some(by_rule).filter(|port| port.ipv4 == ip));
        let by_lid = || is_set(&lid).then(|| self.of_lid(lid));
        port.or_else(by_lid).or(self.default_peer).map(|port| port.mac)
    }

    fn of_lid(&self, lid: Lid) -> Identity {
        self.known(|port| port.lid == lid).unwrap_or(Identity::from_lid(lid))
    }

    fn known(&self, wanted: impl Fn(&Identity) -> bool) -> Option<Identity> {
        [&self.own].into_iter().chain(&self.peers).chain(&self.default_peer).copied().find(wanted)
    }
}

fn is_set(lid: &Lid) -> bool {
    *lid != Lid::default()
}

/// UDP source port of a flow, in the dynamic range: stable, and spread over the ports so that networks can spread
/// flows over paths.
fn entropy(local: Qpn, remote: Qpn) -> u16 {
    const DYNAMIC: u16 = 0xc000;
    let mixed = (local.get() ^ remote.get().rotate_left(12)).wrapping_mul(0x9e37_79b1);
    let [high, low, ..] = mixed.to_be_bytes();
    u16::from_be_bytes([high, low]) | DYNAMIC
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER: Identity = Identity {
        mac: MacAddr([0x52, 0x54, 0, 1, 0, 2]),
        ipv4: Ipv4Addr::new(192, 168, 7, 9),
        lid: Lid::new(0x900),
    };
    const DEFAULT: Identity = Identity {
        mac: MacAddr([0x52, 0x54, 0, 9, 9, 9]),
        ipv4: Ipv4Addr::new(10, 1, 1, 1),
        lid: Lid::new(0x901),
    };

    fn addresses() -> Addresses {
        Addresses { own: Identity::from_lid(Lid::new(1)), peers: vec![OTHER], default_peer: Some(DEFAULT) }
    }

    #[test]
    fn a_mac_has_a_lid_by_table_or_by_rule() {
        assert_eq!(addresses().lid_of(OTHER.mac), Lid::new(0x900));
        assert_eq!(addresses().lid_of(MacAddr([2, 0, 0, 0, 1, 2])), Lid::new(0x102));
        assert_eq!(addresses().lid_of(addresses().own.mac), Lid::new(1));
        assert_eq!(addresses().lid_of(MacAddr([0x52, 0x54, 0, 7, 7, 7])), Lid::default());
    }

    #[test]
    fn source_ports_are_dynamic_and_differ_between_flows() {
        let ports: std::collections::BTreeSet<_> =
            (0..64).map(|n| entropy(Qpn::new(n), Qpn::new(9))).collect();
        assert!(ports.iter().all(|port| *port >= 0xc000));
        assert!(ports.len() > 48, "{} of 64 differ", ports.len());
    }
}
