//! Tests the parsing of frames into match parameters.

use super::frames::{C_TAG, OWN, PEER, S_TAG, TCP, UDP, arp, ethernet, ipv4, ipv6, tcp4, udp6};
use super::*;

fn headers(frame: &[u8]) -> OuterHeaders {
    Fields::of(frame, &Layers::parse(frame).unwrap()).headers()
}

const ETHERNET: OuterHeaders = OuterHeaders { src_mac: PEER, dst_mac: OWN, ..ANY };

fn v4(last: u8) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, last]
}

fn v6(last: u8) -> [u8; 16] {
    [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]
}

fn ip4() -> OuterHeaders {
    OuterHeaders {
        ether_type: 0x0800,
        ip_version: 4,
        dscp: 0x2e,
        ecn: 1,
        ttl: 64,
        src_ip: v4(2),
        dst_ip: v4(1),
        ..ETHERNET
    }
}

fn ip6() -> OuterHeaders {
    OuterHeaders {
        ether_type: 0x86dd,
        ip_version: 6,
        dscp: 0x2e,
        ecn: 1,
        ttl: 255,
        src_ip: v6(2),
        dst_ip: v6(1),
        ..ETHERNET
    }
}

#[test]
fn arp_frame_has_only_ethernet_fields() {
    assert_eq!(headers(&arp(OWN)), OuterHeaders { ether_type: 0x0806, ..ETHERNET });
    assert_eq!(
        headers(&ethernet(OWN, &[], 0x0800, &[0x45])),
        OuterHeaders { ether_type: 0x0800, ..ETHERNET }
    );
}

#[test]
fn tcp_fields_include_ports_and_flags() {
    let tcp =
        OuterHeaders { ip_protocol: 6, tcp_src_port: 0x1234, tcp_dst_port: 80, tcp_flags: 0x118, ..ip4() };
    assert_eq!(headers(&tcp4(OWN, &[])), tcp);
    let tagged = OuterHeaders { customer_tag: true, vlan_priority: 3, vlan_id: 5, ..tcp };
    assert_eq!(headers(&tcp4(OWN, &[C_TAG])), tagged);
}

#[test]
fn outermost_tag_determines_vlan_fields() {
    let udp = OuterHeaders { ip_protocol: 17, udp_src_port: 0x1234, udp_dst_port: 53, ..ip6() };
    assert_eq!(headers(&udp6(OWN, &[])), udp);
    let tagged = OuterHeaders { service_tag: true, vlan_id: 7, ..udp };
    assert_eq!(headers(&udp6(OWN, &[S_TAG, C_TAG])), tagged);
}

#[test]
fn fragment_has_no_ports() {
    for (offset, more) in [(0, 0x2000), (5, 0x2000), (5, 0)] {
        let frame = ethernet(OWN, &[], 0x0800, &ipv4(17, more | offset, &UDP));
        assert_eq!(headers(&frame), OuterHeaders { ip_protocol: 17, fragment: true, ..ip4() });
    }
    let fragment = [&[6, 0, 0, 1, 0, 0, 0, 9], &TCP[..]].concat();
    let frame = ethernet(OWN, &[], 0x86dd, &ipv6(44, &fragment));
    assert_eq!(headers(&frame), OuterHeaders { ip_protocol: 6, fragment: true, ..ip6() });
}

#[test]
fn extension_headers_are_skipped() {
    // Hop-by-hop options, then a destination options header.
    let payload = [&[60, 0, 0, 0, 0, 0, 0, 0], &[17, 0, 0, 0, 0, 0, 0, 0], &UDP[..]].concat();
    let frame = ethernet(OWN, &[], 0x86dd, &ipv6(0, &payload));
    let udp = OuterHeaders { ip_protocol: 17, udp_src_port: 0x1234, udp_dst_port: 53, ..ip6() };
    assert_eq!(headers(&frame), udp);
}

#[test]
fn overlong_datagrams_are_matched() {
    let mut frame = udp6(OWN, &[]);
    let udp = headers(&frame);
    frame[19] += 40;
    assert_eq!(headers(&frame), udp);
}

#[test]
fn no_ports_are_parsed_from_sctp_or_truncated_tcp() {
    let sctp = ethernet(OWN, &[], 0x0800, &ipv4(132, 0, &[1; 12]));
    assert_eq!(headers(&sctp), OuterHeaders { ip_protocol: 132, ..ip4() });
    let short = ethernet(OWN, &[], 0x0800, &ipv4(6, 0, &TCP[..19]));
    assert_eq!(headers(&short), OuterHeaders { ip_protocol: 6, ..ip4() });
}

#[test]
fn fields_round_trip_through_headers() {
    for frame in [tcp4(OWN, &[C_TAG]), udp6(OWN, &[S_TAG])] {
        let fields = Fields::of(&frame, &Layers::parse(&frame).unwrap());
        assert_eq!(Fields::from(&fields.headers()), fields);
    }
}
