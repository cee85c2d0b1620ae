//! Determines the source addresses of frames and the owners of a network's IP addresses.
//!
//! Members of `local` and `ring` networks have configured addresses. A member's frames must not have a source
//! address that belongs to another member, whether the address was chosen by a NIC driver or by another
//! process.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use protocol::ids::MacAddr;
use protocol::net::ether::{TAG_LEN, TAGS};
use protocol::net::icmpv6;
use protocol::net::layers::skip_extension;

use crate::identity::Identity;

const ETHER_TYPE: usize = 12;
const ARP: [u8; 2] = [0x08, 0x06];
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];

/// ICMPv6 type of a neighbour advertisement (RFC 4861, section 4.4).
const NEIGHBOR_ADVERTISEMENT: u8 = 136;

const IPV6_HEADER_LEN: usize = 40;

/// Source addresses of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Source {
    /// Source address in the Ethernet header.
    pub(super) mac: MacAddr,
    /// Source address in the IP header, or the sender protocol address in an ARP packet.
    ip: Option<IpAddr>,
    /// Target of a neighbour advertisement, which the sender claims as its own address.
    target: Option<Ipv6Addr>,
}

impl Source {
    /// Parses a frame, which may have VLAN tags. Returns `None` if the frame is shorter than an Ethernet
    /// header.
    pub(super) fn of(frame: &[u8]) -> Option<Self> {
        let mac = MacAddr(bytes(frame, 6)?);
        let mut at = ETHER_TYPE;
        let mut ether_type: [u8; 2] = bytes(frame, at)?;
        // VLAN tags must not hide the addresses, since NIC drivers and RDMA engines accept tagged frames.
        while TAGS.contains(&ether_type) {
            at += TAG_LEN;
            let Some(next) = bytes(frame, at) else { return Some(Self { mac, ip: None, target: None }) };
            ether_type = next;
        }
        let payload = frame.get(at + 2..).unwrap_or_default();
        let ipv4 = |at| bytes(payload, at).map(|ip: [u8; 4]| Ipv4Addr::from(ip));
        let (ip, target) = match ether_type {
            IPV4 => (ipv4(12).map(IpAddr::from), None),
            ARP => (ipv4(14).map(IpAddr::from), None),
            IPV6 => {
                (bytes(payload, 8).map(|ip: [u8; 16]| Ipv6Addr::from(ip).into()), advertised_target(payload))
            }
            _ => (None, None),
        };
        Some(Self { mac, ip, target })
    }

    fn ips(&self) -> impl Iterator<Item = IpAddr> {
        self.ip.into_iter().chain(self.target.map(IpAddr::from))
    }
}

/// Returns the target address if an IPv6 packet is a neighbour advertisement. Skips extension headers, because the
/// guests' kernels also accept an advertisement behind them.
fn advertised_target(packet: &[u8]) -> Option<Ipv6Addr> {
    let mut protocol = *packet.get(6)?;
    let mut at = IPV6_HEADER_LEN;
    // The loop is bounded by the length of the frame, since each header has at least 8 bytes. A limit on the number of
    // headers would hide the target behind more of them. Later fragments need no check, because hosts ignore fragmented
    // advertisements (RFC 6980, section 5).
    while protocol != icmpv6::PROTOCOL {
        let (next_header, len) = skip_extension(protocol, packet.get(at..)?)?;
        (protocol, at) = (next_header, at + len);
    }
    let is_advertisement = packet.get(at) == Some(&NEIGHBOR_ADVERTISEMENT);
    bytes(packet, at + 8).filter(|_| is_advertisement).map(|ip: [u8; 16]| ip.into())
}

fn bytes<const N: usize>(from: &[u8], at: usize) -> Option<[u8; N]> {
    from.get(at..)?.first_chunk().copied()
}

/// Owners of a network's IP addresses. Members are identified by their configured MACs.
#[derive(Debug, Default)]
pub(super) struct IpOwners {
    /// For each address, the members configured with it. The first one owns the address.
    claims: HashMap<IpAddr, Vec<MacAddr>>,
}

impl IpOwners {
    /// Adds the addresses of a member. An address shared by several members belongs to the member whose MAC it is
    /// derived from, or otherwise to the member added first.
    pub(super) fn add(&mut self, member: &Identity) {
        // DHCP clients and ARP probes send from the unspecified address (RFC 2131, section 4.1, and RFC 5227, section
        // 1.1). A ring member that announces it as its own must not block these frames.
        for ip in member.addresses().filter(|ip| !ip.is_unspecified()) {
            let claims = self.claims.entry(ip).or_default();
            match follows(ip, member.mac) {
                true => claims.insert(0, member.mac),
                false => claims.push(member.mac),
            }
        }
    }

    /// Removes the addresses of a member.
    pub(super) fn remove(&mut self, member: MacAddr) {
        self.claims.retain(|_, claims| {
            claims.retain(|other| *other != member);
            !claims.is_empty()
        });
    }

    /// Returns whether `member` may send a frame with the addresses in `source`.
    pub(super) fn admits(&self, source: &Source, member: MacAddr) -> bool {
        source.ips().all(|ip| {
            self.claims.get(&ip).and_then(|claims| claims.first()).is_none_or(|owner| *owner == member)
        })
    }
}

/// Returns whether `ip` is derived from `mac`, either by the LID rule of [`Identity`] or as the link-local IPv6
/// address.
fn follows(ip: IpAddr, mac: MacAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => Identity::of_mac(mac).is_some_and(|by_rule| by_rule.ipv4 == ip),
        IpAddr::V6(ip) => Identity::mac_of_link_local(ip) == Some(mac),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use protocol::ids::Lid;
    use protocol::net::arp::{Arp, ArpOperation};
    use protocol::net::icmpv6::Advertisement;

    use super::*;

    pub(in super::super) fn member(lid: u16) -> Identity {
        Identity::from_lid(Lid::new(lid))
    }

    /// Returns frames from `mac` to `dst`, each of which claims one of `victim`'s IP addresses in a different way.
    pub(in super::super) fn frames_from(mac: MacAddr, dst: MacAddr, victim: &Identity) -> Vec<Vec<u8>> {
        let ether = |rest: &[&[u8]]| [&dst.0[..], &mac.0, &rest.concat()].concat();
        let ipv4 = [&[0x45; 12][..], &victim.ipv4.octets(), &[0; 30]].concat();
        let ipv6 = [&[0x60; 8][..], &victim.link_local().octets(), &[0; 40]].concat();
        let mut arp = Vec::new();
        let reply = Arp {
            operation: ArpOperation::Reply,
            sender_mac: mac,
            sender_ip: victim.ipv4,
            target_mac: dst,
            target_ip: Ipv4Addr::new(10, 77, 0, 9),
        };
        reply.emit_frame(&mut arp);
        let mut advertisement = Vec::new();
        let fields = Advertisement {
            target: victim.link_local(),
            target_mac: Some(mac),
            solicited: true,
            overrides: true,
        };
        fields.emit_frame(mac, dst, member(9).link_local(), &mut advertisement);
        // Only the target address belongs to `victim`; the source address has no owner.
        advertisement[22..38].copy_from_slice(&member(9).link_local().octets());
        vec![
            ether(&[&IPV4, &ipv4]),
            ether(&[&TAGS[0], &[0, 5], &IPV4, &ipv4]),
            ether(&[&TAGS[1], &[0, 5], &TAGS[0], &[0, 6], &IPV6, &ipv6]),
            ether(&[&IPV6, &ipv6]),
            arp,
            advertisement,
        ]
    }

    #[test]
    fn only_owner_may_send_from_its_ip_address() {
        let mut owners = IpOwners::default();
        owners.add(&member(2));
        owners.add(&member(3));
        let (dst, bridged) = (member(2).mac, MacAddr([0x52, 0x54, 0, 0, 0, 1]));
        for mac in [member(1).mac, member(3).mac, bridged] {
            for (kind, frame) in frames_from(mac, dst, &member(3)).iter().enumerate() {
                let source = Source::of(frame).unwrap();
                assert_eq!(source.mac, mac);
                assert!(!owners.admits(&source, member(1).mac), "kind {kind}");
                assert!(owners.admits(&source, member(3).mac), "kind {kind}");
            }
        }
        owners.remove(member(3).mac);
        let freed = Source::of(&frames_from(member(1).mac, dst, &member(3))[0]).unwrap();
        assert!(owners.admits(&freed, member(1).mac));
    }

    #[test]
    fn member_cannot_claim_ip_derived_from_another_mac() {
        let mut owners = IpOwners::default();
        let claimant = Identity { ipv4: member(3).ipv4, ipv6: Some(member(3).link_local()), ..member(7) };
        owners.add(&claimant);
        owners.add(&member(3));
        for frame in frames_from(member(7).mac, member(2).mac, &member(3)) {
            assert!(!owners.admits(&Source::of(&frame).unwrap(), member(7).mac));
        }
    }

    #[test]
    fn extension_headers_do_not_hide_advertised_target() {
        let mut owners = IpOwners::default();
        owners.add(&member(3));
        let frame = frames_from(member(1).mac, member(2).mac, &member(3)).pop().unwrap();
        let (headers, message) = frame.split_at(14 + IPV6_HEADER_LEN);
        // Hop-by-hop, destination, routing, fragment, authentication and mobility header.
        let extensions = [
            (0, vec![0; 8]),
            (60, [&[0, 1][..], &[0; 14]].concat()),
            (43, vec![0; 8]),
            (44, vec![0; 8]),
            (51, [&[0, 4][..], &[0; 22]].concat()),
            (135, vec![0; 8]),
        ];
        let single = extensions.iter().map(|extension| vec![extension.clone()]);
        let many = vec![(60, vec![0; 8]); 100];
        for chain in single.chain([extensions.to_vec(), many]) {
            let mut hidden = headers.to_vec();
            hidden[14 + 6] = chain[0].0;
            for (index, (_, header)) in chain.iter().enumerate() {
                let next_header = chain.get(index + 1).map_or(icmpv6::PROTOCOL, |(protocol, _)| *protocol);
                hidden.extend([&[next_header][..], &header[1..]].concat());
            }
            hidden.extend(message);
            assert!(!owners.admits(&Source::of(&hidden).unwrap(), member(1).mac), "{chain:?}");
            assert!(owners.admits(&Source::of(&hidden).unwrap(), member(3).mac), "{chain:?}");
            for len in 14..hidden.len() {
                assert!(Source::of(&hidden[..len]).is_some());
            }
        }
    }

    #[test]
    fn no_member_owns_unspecified_address() {
        let mut owners = IpOwners::default();
        let unspecified =
            Identity { ipv4: Ipv4Addr::UNSPECIFIED, ipv6: Some(Ipv6Addr::UNSPECIFIED), ..member(7) };
        owners.add(&unspecified);
        let mut probe = Vec::new();
        let request = Arp {
            operation: ArpOperation::Request,
            sender_mac: member(3).mac,
            sender_ip: Ipv4Addr::UNSPECIFIED,
            target_mac: MacAddr::default(),
            target_ip: member(3).ipv4,
        };
        request.emit_frame(&mut probe);
        assert!(owners.admits(&Source::of(&probe).unwrap(), member(3).mac));
        let link_local = member(7).link_local();
        let advertised = Source { mac: member(3).mac, ip: Some(link_local.into()), target: None };
        assert!(!owners.admits(&advertised, member(3).mac), "the member owns its other addresses");
    }

    #[test]
    fn source_requires_complete_ethernet_header() {
        for frame in frames_from(member(1).mac, member(2).mac, &member(3)) {
            for len in 0..frame.len() {
                let source = Source::of(&frame[..len]);
                assert_eq!(source.is_some(), len >= 14, "{len}");
            }
        }
    }
}
