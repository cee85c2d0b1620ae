//! Builds frames of every kind that the flow tables distinguish.

use protocol::ids::MacAddr;

pub(crate) const OWN: MacAddr = MacAddr([2, 0, 0, 0x55, 0, 1]);
pub(crate) const PEER: MacAddr = MacAddr([2, 0, 0, 0x55, 0, 2]);

/// Tag of VLAN 5 with priority 3.
pub(crate) const C_TAG: [u8; 4] = [0x81, 0x00, 0x60, 5];
pub(crate) const S_TAG: [u8; 4] = [0x88, 0xa8, 0x00, 7];

pub(crate) fn ethernet(dst: MacAddr, tags: &[[u8; 4]], ether_type: u16, payload: &[u8]) -> Vec<u8> {
    [&dst.0[..], &PEER.0, tags.as_flattened(), &ether_type.to_be_bytes(), payload].concat()
}

pub(crate) fn arp(dst: MacAddr) -> Vec<u8> {
    ethernet(dst, &[], 0x0806, &[0; 28])
}

/// Builds an IPv4 packet from 10.0.0.2 to 10.0.0.1. `fragment` contains the flags and the fragment offset.
pub(crate) fn ipv4(protocol: u8, fragment: u16, payload: &[u8]) -> Vec<u8> {
    let total = u16::try_from(20 + payload.len()).unwrap();
    let mut packet = vec![0x45, 0xb9];
    packet.extend(total.to_be_bytes());
    packet.extend([0, 1]);
    packet.extend(fragment.to_be_bytes());
    packet.extend([64, protocol, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1]);
    [&packet, payload].concat()
}

/// Builds an IPv6 packet from fe80::2 to fe80::1.
pub(crate) fn ipv6(next_header: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x6b, 0x90, 0, 0];
    packet.extend(u16::try_from(payload.len()).unwrap().to_be_bytes());
    packet.extend([next_header, 255]);
    for last in [2, 1] {
        packet.extend([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
    }
    [&packet, payload].concat()
}

/// TCP header from port 0x1234 to port 80, with the flags NS, ACK and PSH.
pub(crate) const TCP: [u8; 20] = [0x12, 0x34, 0, 80, 0, 0, 0, 1, 0, 0, 0, 2, 0x51, 0x18, 1, 0, 0, 0, 0, 0];
/// UDP header from port 0x1234 to port 53.
pub(crate) const UDP: [u8; 8] = [0x12, 0x34, 0, 53, 0, 8, 0, 0];

pub(crate) fn tcp4(dst: MacAddr, tags: &[[u8; 4]]) -> Vec<u8> {
    ethernet(dst, tags, 0x0800, &ipv4(6, 0x4000, &TCP))
}

pub(crate) fn udp6(dst: MacAddr, tags: &[[u8; 4]]) -> Vec<u8> {
    ethernet(dst, tags, 0x86dd, &ipv6(17, &UDP))
}
