//! ICMPv6 for a host: neighbour discovery (RFC 4861) and echo (RFC 4443).

use std::net::Ipv6Addr;

use zerocopy::IntoBytes;

use super::checksum::Checksum;
use super::ether::{EtherType, RawEther};
use super::ipv6::Ipv6;
use crate::WireError;
use crate::ids::{FlowLabel, MacAddr};
use crate::view::split;

/// Next header value of ICMPv6.
pub const PROTOCOL: u8 = 58;

/// All-nodes link-local multicast group.
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

const ECHO_REQUEST: u8 = 128;
const ECHO_REPLY: u8 = 129;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;

const SOURCE_MAC: u8 = 1;
const TARGET_MAC: u8 = 2;

const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;

/// Hop limit of valid neighbour discovery messages. A lower hop limit shows that a router has forwarded the message.
/// Receivers discard such messages (RFC 4861, section 7.1).
const ND_HOP_LIMIT: u8 = 255;

/// A parsed ICMPv6 message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Icmpv6<'a> {
    /// Identifier, sequence number and data of an echo request. The reply repeats them.
    EchoRequest(&'a [u8]),
    /// Neighbour solicitation: requests the link-layer address of a target.
    Solicitation(Solicitation),
    /// Neighbour advertisement: reports the link-layer address of a target.
    Advertisement(Advertisement),
    /// A message of any other type.
    Other,
}

/// Neighbour solicitation (RFC 4861, section 4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Solicitation {
    /// IPv6 address to resolve.
    pub target: Ipv6Addr,
    /// Link-layer address of the sender. Absent in duplicate address detection (RFC 4862).
    pub source_mac: Option<MacAddr>,
}

/// Neighbour advertisement (RFC 4861, section 4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advertisement {
    /// IPv6 address of the target.
    pub target: Ipv6Addr,
    /// Link-layer address of the target.
    pub target_mac: Option<MacAddr>,
    /// Whether the advertisement responds to a solicitation.
    pub solicited: bool,
    /// Value of the Override flag: whether receivers replace the link-layer address of an existing cache entry.
    pub overrides: bool,
}

impl<'a> Icmpv6<'a> {
    /// Parses the payload of an IPv6 datagram.
    ///
    /// # Errors
    /// [`WireError::Short`] if the message is truncated; [`WireError::Checksum`] if the checksum is wrong;
    /// [`WireError::Invalid`] for messages that a receiver must discard according to RFC 4861, section 7.1.
    pub fn parse(ip: &Ipv6, bytes: &'a [u8]) -> Result<Self, WireError> {
        let (header, body) = split(bytes, 4, "ICMPv6")?;
        if checksum(ip, bytes).value() != 0 {
            return Err(WireError::Checksum { what: "ICMPv6" });
        }
        let (kind, code) = match header {
            [kind, code, ..] => (*kind, *code),
            _ => return Ok(Self::Other),
        };
        match kind {
            ECHO_REQUEST if code == 0 => {
                split(body, 4, "ICMPv6 echo")?;
                Ok(Self::EchoRequest(body))
            }
            SOLICITATION | ADVERTISEMENT => {
                let invalid = |what, value: u8| Err(WireError::Invalid { what, value: value.into() });
                // RFC 4861, sections 7.1.1 and 7.1.2: discard messages that fail any of these checks.
                if ip.hop_limit != ND_HOP_LIMIT {
                    return invalid("neighbour discovery hop limit", ip.hop_limit);
                }
                if code != 0 {
                    return invalid("neighbour discovery code", code);
                }
                let (fixed, options) = split(body, 20, "neighbour discovery")?;
                let (flags, target) = split(fixed, 4, "neighbour discovery")?;
                let target = <[u8; 16]>::try_from(target).map(Ipv6Addr::from).unwrap_or(ALL_NODES);
                if target.is_multicast() {
                    return invalid("neighbour discovery target", target.octets()[0]);
                }
                if kind == SOLICITATION {
                    let source_mac = mac_option(options, SOURCE_MAC)?;
                    // RFC 4861, section 7.1.1: a solicitation from the unspecified address must not have this option.
                    if ip.src.is_unspecified() && source_mac.is_some() {
                        return invalid("source address option of an unspecified source", SOURCE_MAC);
                    }
                    return Ok(Self::Solicitation(Solicitation { target, source_mac }));
                }
                let target_mac = mac_option(options, TARGET_MAC)?;
                let has = |flag| flags.first().is_some_and(|flags| flags & flag != 0);
                let (solicited, overrides) = (has(SOLICITED), has(OVERRIDE));
                // RFC 4861, section 7.1.2: a multicast advertisement must not have the Solicited flag.
                if solicited && ip.dst.is_multicast() {
                    return invalid("solicited flag of a multicast advertisement", SOLICITED);
                }
                Ok(Self::Advertisement(Advertisement { target, target_mac, solicited, overrides }))
            }
            _ => Ok(Self::Other),
        }
    }
}

/// Appends the complete echo reply frame. `ip` is the IP header of the reply, and `data` comes from the request.
///
/// # Errors
/// [`WireError::Invalid`] if the reply does not fit into an IPv6 datagram. In that case, nothing is appended.
pub fn emit_echo_reply(
    dst: MacAddr,
    src: MacAddr,
    ip: Ipv6,
    data: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), WireError> {
    let ip = Ipv6 { next_header: PROTOCOL, ..ip };
    let header = ip.emit(data.len().saturating_add(4))?;
    out.extend_from_slice(RawEther::new(dst, src, EtherType::Ipv6).as_bytes());
    out.extend_from_slice(header.as_bytes());
    emit_message(&ip, &[ECHO_REPLY, 0, 0, 0], &[data], out);
    Ok(())
}

impl Solicitation {
    /// Appends the complete frame, addressed to the target's solicited-node group. `src` is an address of the sender.
    pub fn emit_frame(&self, src_mac: MacAddr, src: Ipv6Addr, out: &mut Vec<u8>) {
        let dst = solicited_node(self.target);
        let target = self.target.octets();
        let option = self.source_mac.map(|mac| option(SOURCE_MAC, mac));
        let body = [&[0; 4][..], &target, option.as_ref().map_or(&[], |option| &option[..])];
        emit_discovery(SOLICITATION, multicast_mac(dst), src_mac, src, dst, &body, out);
    }
}

impl Advertisement {
    /// Appends the complete frame.
    pub fn emit_frame(&self, src_mac: MacAddr, dst_mac: MacAddr, dst: Ipv6Addr, out: &mut Vec<u8>) {
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        let flags = [flag(self.solicited, SOLICITED) | flag(self.overrides, OVERRIDE), 0, 0, 0];
        let target = self.target.octets();
        let option = self.target_mac.map(|mac| option(TARGET_MAC, mac));
        let body = [&flags[..], &target, option.as_ref().map_or(&[], |option| &option[..])];
        emit_discovery(ADVERTISEMENT, dst_mac, src_mac, self.target, dst, &body, out);
    }
}

/// Returns the solicited-node multicast group of an address (RFC 4291, section 2.7.1).
pub fn solicited_node(target: Ipv6Addr) -> Ipv6Addr {
    let [.., high, low] = target.segments();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | high & 0xff, low)
}

/// Returns the Ethernet address of an IPv6 multicast group (RFC 2464, section 7).
pub fn multicast_mac(group: Ipv6Addr) -> MacAddr {
    let [.., a, b, c, d] = group.octets();
    MacAddr([0x33, 0x33, a, b, c, d])
}

fn emit_discovery(
    kind: u8,
    dst_mac: MacAddr,
    src_mac: MacAddr,
    src: Ipv6Addr,
    dst: Ipv6Addr,
    body: &[&[u8]; 3],
    out: &mut Vec<u8>,
) {
    let ip = Ipv6 {
        traffic_class: 0,
        flow_label: FlowLabel::default(),
        hop_limit: ND_HOP_LIMIT,
        next_header: PROTOCOL,
        src,
        dst,
    };
    let len = 4 + body.iter().map(|part| part.len()).sum::<usize>();
    let Ok(header) = ip.emit(len) else { return };
    out.extend_from_slice(RawEther::new(dst_mac, src_mac, EtherType::Ipv6).as_bytes());
    out.extend_from_slice(header.as_bytes());
    emit_message(&ip, &[kind, 0, 0, 0], body, out);
}

fn emit_message(ip: &Ipv6, head: &[u8; 4], body: &[&[u8]], out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(head);
    body.iter().for_each(|part| out.extend_from_slice(part));
    let Some(message) = out.get_mut(start..) else { return };
    let sum = checksum(ip, message).value();
    if let Some(field) = message.get_mut(2..4) {
        field.copy_from_slice(&sum.to_be_bytes());
    }
}

fn option(kind: u8, mac: MacAddr) -> [u8; 8] {
    let [a, b, c, d, e, f] = mac.0;
    [kind, 1, a, b, c, d, e, f]
}

fn mac_option(mut options: &[u8], wanted: u8) -> Result<Option<MacAddr>, WireError> {
    let mut found = None;
    while let [kind, units, ..] = *options {
        // RFC 4861, section 7.1: all options must have a nonzero length.
        if units == 0 {
            return Err(WireError::Invalid { what: "length of a neighbour discovery option", value: 0 });
        }
        let (option, rest) = split(options, usize::from(units) * 8, "neighbour discovery option")?;
        if kind == wanted && found.is_none() {
            found = option.get(2..8).and_then(|mac| mac.try_into().ok()).map(MacAddr);
        }
        options = rest;
    }
    Ok(found)
}

/// Returns the checksum of the pseudo-header and the message (RFC 8200, section 8.1). The message length always fits in
/// 16 bits.
fn checksum(ip: &Ipv6, message: &[u8]) -> Checksum {
    let len = u16::try_from(message.len()).unwrap_or(u16::MAX);
    let pseudo = Checksum::new().with(&ip.src.octets()).with(&ip.dst.octets());
    pseudo.with_u16(len).with_u16(PROTOCOL.into()).with(message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Lid;
    use crate::net::ether::EtherFrame;

    const A: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0xff, 0xfe00, 1);
    const B: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0xff, 0xfe00, 2);

    /// Generated by scapy 2.8.0: Ether(src="02:00:00:00:00:01", dst="33:33:ff:00:00:02") /
    /// IPv6(src="fe80::ff:fe00:1", dst="ff02::1:ff00:2", hlim=255) / ICMPv6ND_NS(tgt="fe80::ff:fe00:2") /
    /// ICMPv6NDOptSrcLLAddr(lladdr="02:00:00:00:00:01").
    const SOLICITATION: &str = "3333ff00000202000000000186dd6000000000203afffe80000000000000000000fffe000001ff0200000000\
        000000000001ff00000287007c9700000000fe80000000000000000000fffe0000020101020000000001";
    /// The response to the solicitation, generated by scapy 2.8.0: ICMPv6ND_NA(tgt="fe80::ff:fe00:2", R=0, S=1, O=1) /
    /// ICMPv6NDOptDstLLAddr(lladdr="02:00:00:00:00:02").
    const ADVERTISEMENT: &str = "02000000000102000000000286dd6000000000203afffe80000000000000000000fffe000002fe8000000000\
        0000000000fffe00000188001b1a60000000fe80000000000000000000fffe0000020201020000000002";
    /// The same solicitation with src="::" and no option, generated by scapy 2.8.0.
    const PROBE: &str = "3333ff00000202000000000186dd6000000000183aff00000000000000000000000000000000ff02000000000000\
        00000001ff00000287007d2300000000fe80000000000000000000fffe000002";
    /// Generated by scapy 2.8.0 for the same hosts: ICMPv6EchoRequest(id=0x4321, seq=7, data=b"hcad ping") and the
    /// reply.
    const PING: &str = "02000000000202000000000186dd6000000000113a40fe80000000000000000000fffe000001fe80000000000000\
        000000fffe000002800086e043210007686361642070696e67";
    const PONG: &str = "02000000000102000000000286dd6000000000113a40fe80000000000000000000fffe000002fe80000000000000\
        000000fffe000001810085e043210007686361642070696e67";

    fn bytes(hex: &str) -> Vec<u8> {
        let pairs = hex.as_bytes().as_chunks::<2>().0;
        pairs.iter().map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
    }

    fn mac(lid: u16) -> MacAddr {
        MacAddr::from_lid(Lid::new(lid))
    }

    fn parsed<T>(frame: &[u8], check: impl FnOnce(&Ipv6, Result<Icmpv6<'_>, WireError>) -> T) -> T {
        let ether = EtherFrame::parse(frame).unwrap();
        let (ip, payload) = Ipv6::parse(ether.payload).unwrap();
        check(&ip, Icmpv6::parse(&ip, payload))
    }

    #[test]
    fn scapy_solicitations_round_trip() {
        let expected = Solicitation { target: B, source_mac: Some(mac(1)) };
        parsed(&bytes(SOLICITATION), |_, message| assert_eq!(message, Ok(Icmpv6::Solicitation(expected))));
        let mut out = vec![0xa5; 3];
        expected.emit_frame(mac(1), A, &mut out);
        assert_eq!(out[3..], bytes(SOLICITATION));

        let probe = Solicitation { target: B, source_mac: None };
        parsed(&bytes(PROBE), |_, message| assert_eq!(message, Ok(Icmpv6::Solicitation(probe))));
        out.clear();
        probe.emit_frame(mac(1), Ipv6Addr::UNSPECIFIED, &mut out);
        assert_eq!(out, bytes(PROBE));
    }

    #[test]
    fn scapy_advertisements_round_trip() {
        let expected =
            Advertisement { target: B, target_mac: Some(mac(2)), solicited: true, overrides: true };
        parsed(&bytes(ADVERTISEMENT), |_, message| assert_eq!(message, Ok(Icmpv6::Advertisement(expected))));
        let mut out = vec![0xa5; 3];
        expected.emit_frame(mac(2), mac(1), A, &mut out);
        assert_eq!(out[3..], bytes(ADVERTISEMENT));

        // RFC 4861, section 4.4: the flags are R, S and O, from the most significant bit of the word down.
        let (mut frame, checksum) = (bytes(ADVERTISEMENT), 56..58);
        frame[58] = 0x40;
        let sum = u16::from_be_bytes([frame[56], frame[57]]) + 0x2000;
        frame[checksum].copy_from_slice(&sum.to_be_bytes());
        let expected = Advertisement { overrides: false, ..expected };
        parsed(&frame, |_, message| assert_eq!(message, Ok(Icmpv6::Advertisement(expected))));
        out.clear();
        expected.emit_frame(mac(2), mac(1), A, &mut out);
        assert_eq!(out, frame);
    }

    #[test]
    fn echo_reply_matches_scapy() {
        let mut out = Vec::new();
        parsed(&bytes(PING), |ip, message| {
            let Ok(Icmpv6::EchoRequest(data)) = message else { panic!("{message:?}") };
            let answer = Ipv6 { src: ip.dst, dst: ip.src, ..*ip };
            emit_echo_reply(mac(1), mac(2), answer, data, &mut out).unwrap();
        });
        assert_eq!(out, bytes(PONG));
        parsed(&bytes(PONG), |_, message| assert_eq!(message, Ok(Icmpv6::Other)));
    }

    #[test]
    fn rejects_messages_that_receivers_must_discard() {
        let ip = Ipv6 {
            traffic_class: 0,
            flow_label: FlowLabel::default(),
            hop_limit: 255,
            next_header: PROTOCOL,
            src: A,
            dst: B,
        };
        let message = |ip: &Ipv6, head: [u8; 4], target: Ipv6Addr, options: &[u8]| {
            let mut out = Vec::new();
            emit_message(ip, &head, &[&[0; 4], &target.octets(), options], &mut out);
            out
        };
        let refused = |ip: &Ipv6, bytes: &[u8]| match Icmpv6::parse(ip, bytes) {
            Err(WireError::Invalid { what, .. } | WireError::Short { what, .. }) => what,
            other => panic!("{other:?}"),
        };
        let far = Ipv6 { hop_limit: 254, ..ip };
        let good = message(&ip, [135, 0, 0, 0], B, &[]);
        assert!(Icmpv6::parse(&ip, &good).is_ok());
        assert_eq!(refused(&far, &good), "neighbour discovery hop limit");
        assert_eq!(refused(&ip, &message(&ip, [135, 1, 0, 0], B, &[])), "neighbour discovery code");
        assert_eq!(refused(&ip, &message(&ip, [136, 0, 0, 0], ALL_NODES, &[])), "neighbour discovery target");
        assert_eq!(
            refused(&ip, &message(&ip, [135, 0, 0, 0], B, &[1, 0, 0, 0, 0, 0, 0, 0])),
            "length of a neighbour discovery option"
        );
        assert_eq!(
            refused(&ip, &message(&ip, [135, 0, 0, 0], B, &[1, 2, 0, 0, 0, 0, 0, 0])),
            "neighbour discovery option"
        );
        let unspecified = Ipv6 { src: Ipv6Addr::UNSPECIFIED, ..ip };
        assert_eq!(
            refused(&unspecified, &message(&unspecified, [135, 0, 0, 0], B, &option(1, mac(1)))),
            "source address option of an unspecified source"
        );
        let mut damaged = good;
        damaged[8] ^= 1;
        assert_eq!(Icmpv6::parse(&ip, &damaged), Err(WireError::Checksum { what: "ICMPv6" }));
    }

    #[test]
    fn solicited_node_addresses_match_rfc_examples() {
        // RFC 4291, section 2.7.1, and RFC 2464, section 7.
        let target = "4037::01:800:200e:8c6c".parse().unwrap();
        let group = solicited_node(target);
        assert_eq!(group, "ff02::1:ff0e:8c6c".parse::<Ipv6Addr>().unwrap());
        assert_eq!(multicast_mac(group), MacAddr([0x33, 0x33, 0xff, 0x0e, 0x8c, 0x6c]));
    }
}
