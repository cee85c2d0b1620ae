//! Tests peers with a known IP address whose MAC address must be resolved.

use std::net::{Ipv4Addr, Ipv6Addr};

use protocol::net::ether::{EtherFrame, EtherType};
use protocol::roce::{IpAddrs, RoceFrame};

use super::*;

/// Creates two machines without configured peers. Each learns its peer's address only from the QP context that `image`
/// returns.
fn unconfigured_pair(own: [Identity; 2], image: impl Fn(&Identity) -> Qpc) -> [Machine; 2] {
    let [a, b] = own;
    [(a, b), (b, a)].map(|(own, other)| {
        let addresses = Addresses { own, peers: Vec::new(), default_peer: None };
        let machine = initialised_with(setup(1, Options::default()), addresses);
        connected(machine, &image(&other))
    })
}

fn identities() -> [Identity; 2] {
    [1, 2].map(|n| Identity {
        ipv4: Ipv4Addr::new(192, 0, 2, n),
        ipv6: Some(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, n.into())),
        ..Identity::from_lid(Lid::new(n.into()))
    })
}

/// Transfers data in both directions. Returns the frames that `a` sends before and right after the first reply from
/// `b`.
fn write_and_read(a: &mut Machine, b: &mut Machine) -> Vec<Vec<u8>> {
    let data = pattern(0x1900, 7);
    put_data(a, 0, &data);
    send(a, 0, 0x08, &[remote(0, DATA_KEY), data_unit(0, 0x1900)]);
    let first = a.settle();
    first.iter().for_each(|frame| b.hca.handle_frame(frame));
    let answer = b.settle();
    answer.iter().for_each(|frame| a.hca.handle_frame(frame));
    let rest = a.settle();
    rest.iter().for_each(|frame| b.hca.handle_frame(frame));
    exchange(a, b);
    assert_eq!(get_data(b, 0, 0x1900), data);
    put_data(a, 0, &[0; 0x1900]);
    send(a, 1, 0x10, &[remote(0, DATA_KEY), data_unit(0, 0x1900)]);
    exchange(a, b);
    assert_eq!(get_data(a, 0, 0x1900), data);
    assert_eq!([0, 1].map(|slot| cqe(a, slot)[0x1c]), [0x08, 0x10]);
    [first, rest].concat()
}

fn kinds(frames: &[Vec<u8>]) -> Vec<EtherType> {
    frames.iter().map(|frame| EtherFrame::parse(frame).unwrap().ether_type).collect()
}

#[test]
fn packets_wait_until_ipv4_peer_is_resolved_by_arp() {
    let image = |other: &Identity| Qpc { dest_ip: other.ipv4.to_bits(), ..qpc() };
    let [mut a, mut b] = unconfigured_pair(identities(), image);
    let frames = write_and_read(&mut a, &mut b);
    assert_eq!(frames.len(), 26, "an ARP request and the 25 packets that waited for the reply");
    assert_eq!(kinds(&frames[..2]), [EtherType::Arp, EtherType::Ipv4]);
    assert_eq!(a.hca.port_stats().arp, 1, "one ARP reply arrives");
    assert_eq!(b.hca.port_stats().arp, 1, "the ARP request contains the sender's address");
}

#[test]
fn ipv6_gid_is_used_as_address() {
    let image =
        |other: &Identity| Qpc { remote_gid: other.own_ipv6().octets(), traffic_class: 0x6a, ..qpc() };
    let [own, other] = identities();
    let [mut a, mut b] = unconfigured_pair([own, other], image);
    let frames = write_and_read(&mut a, &mut b);
    assert_eq!(kinds(&frames), [EtherType::Ipv6; 26]);
    let packet = RoceFrame::parse(&frames[1]).unwrap();
    let (src, dst) = (own.own_ipv6(), other.own_ipv6());
    assert_eq!(packet.encap.ip, IpAddrs::V6 { src, dst });
    assert_eq!(packet.encap.traffic_class, 0x6a, "DSCP and ECN come from the context");
    assert_eq!(a.hca.port_stats().neighbour_discovery, 1);
}

#[test]
fn link_local_gid_does_not_need_resolution() {
    let image = |other: &Identity| Qpc { remote_gid: other.link_local().octets(), ..qpc() };
    let [mut a, mut b] = unconfigured_pair(identities(), image);
    let frames = write_and_read(&mut a, &mut b);
    assert_eq!(kinds(&frames), [EtherType::Ipv6; 25]);
}

#[test]
fn packets_to_unresolvable_destination_are_not_sent() {
    let [mut a, _] = unconfigured_pair(identities(), |_| qpc());
    send(&mut a, 0, 0x08, &[remote(0, DATA_KEY), data_unit(0, 0x100)]);
    assert_eq!(a.settle(), Vec::<Vec<u8>>::new());
    assert_eq!(a.hca.port_stats().lost_unresolved, 1);
}
