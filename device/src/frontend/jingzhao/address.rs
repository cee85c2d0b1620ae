//! Who is where on the fabric: from what a QPC or a ud unit says of its peer to the headers of a frame.
//!
//! # Spec
//! JingZhao interface, section 11.4 (J-31); `design.md`, section 5.

use std::net::{Ipv4Addr, Ipv6Addr};

use protocol::hca::jingzhao::qpc::Qpc;
use protocol::hca::jingzhao::wqe::UdUnit;
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
#[derive(Clone, Copy, Debug, Default)]
struct Peer {
    ip: Option<Ipv4Addr>,
    mac: Option<MacAddr>,
    gid: [u8; 16],
    lid: Lid,
}

impl Addresses {
    /// The way to the peer of a connected QP; `None` if software named none that is known, and no default is
    /// configured.
    pub fn connected(&self, qpc: &Qpc, qpn: Qpn) -> Option<Shell> {
        let peer = Peer { ip: qpc.dip(), mac: qpc.dmac(), gid: qpc.remote_gid, lid: qpc.dlid };
        self.shell(&peer, qpc, entropy(qpn, qpc.remote_qpn))
    }

    /// The way to the destination of a datagram. `believe`: MAC and IP addresses of the unit mean something.
    pub fn datagram(&self, unit: &UdUnit, qpc: &Qpc, qpn: Qpn, believe: bool) -> Option<Shell> {
        let (ip, mac) = if believe { (unit.dip(), unit.dmac()) } else { (None, None) };
        let peer = Peer { ip, mac, lid: unit.dlid, ..Peer::default() };
        self.shell(&peer, qpc, entropy(qpn, unit.dqpn))
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

    /// The source is always our own: a guest must not speak in another's name, whatever its context says.
    fn shell(&self, peer: &Peer, qpc: &Qpc, src_port: u16) -> Option<Shell> {
        let (dst_mac, dst) = self.resolve(peer)?;
        Some(Shell {
            src_mac: self.own.mac,
            dst_mac,
            ip: IpAddrs::V4 { src: self.own.ipv4, dst },
            traffic_class: qpc.traffic_class,
            hop_limit: if qpc.hop_limit == 0 { HOP_LIMIT } else { qpc.hop_limit },
            src_port,
        })
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

    /// Destination MAC and IPv4 address for a context.
    fn to(qpc: Qpc) -> Option<(MacAddr, Ipv4Addr)> {
        let shell = addresses().connected(&qpc, Qpn::new(5))?;
        assert_eq!(shell.src_mac, addresses().own.mac);
        match shell.ip {
            IpAddrs::V4 { src, dst } if src == addresses().own.ipv4 => Some((shell.dst_mac, dst)),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_lid_stands_for_the_addresses_of_the_rule_or_of_the_table() {
        let rule = (MacAddr([2, 0, 0, 0, 1, 2]), Ipv4Addr::new(10, 77, 1, 2));
        assert_eq!(to(Qpc { dlid: Lid::new(0x102), ..Qpc::default() }), Some(rule));
        let table = (OTHER.mac, OTHER.ipv4);
        assert_eq!(to(Qpc { dlid: Lid::new(0x900), ..Qpc::default() }), Some(table));
        let own = (addresses().own.mac, addresses().own.ipv4);
        assert_eq!(to(Qpc { dlid: Lid::new(1), ..Qpc::default() }), Some(own));
    }

    #[test]
    fn ip_comes_before_mac_before_gid_before_lid_before_the_default_peer() {
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
    fn an_unknown_ip_goes_through_the_default_peer_and_an_unknown_mac_nowhere() {
        let far = Ipv4Addr::new(172, 16, 0, 1);
        assert_eq!(to(Qpc { dest_ip: far.to_bits(), ..Qpc::default() }), Some((DEFAULT.mac, far)));
        assert_eq!(to(Qpc { dmac_high: 0x5254_7777, ..Qpc::default() }), None);
        let lonely = Addresses { default_peer: None, ..addresses() };
        assert_eq!(lonely.connected(&Qpc::default(), Qpn::new(5)), None);
    }

    #[test]
    fn stale_addresses_in_a_ud_unit_are_ignored_when_not_believed() {
        let unit =
            UdUnit { dlid: Lid::new(0x900), dmac_high: 0xdead_beef, dest_ip: 0xffff, ..UdUnit::default() };
        let shell = addresses().datagram(&unit, &Qpc::default(), Qpn::new(5), false).unwrap();
        assert_eq!(shell.dst_mac, OTHER.mac);
        let believed = addresses().datagram(&unit, &Qpc::default(), Qpn::new(5), true).unwrap();
        assert_eq!(believed.dst_mac, MacAddr([0xde, 0xad, 0xbe, 0xef, 0x09, 0x00]));
    }

    #[test]
    fn a_guest_cannot_choose_its_source() {
        let qpc = Qpc { source_ip: 1, smac_high: 1, slid: Lid::new(7), ..Qpc::default() };
        assert_eq!(to(qpc), Some((DEFAULT.mac, DEFAULT.ipv4)));
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
