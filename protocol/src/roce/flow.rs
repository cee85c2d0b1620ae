//! Recognises frames of a known flow without parsing their headers again.

use zerocopy::FromBytes as _;

use super::encap::{RawHeaders, Unwrapped};
use super::{Encap, IpAddrs};
use crate::net::checksum::Checksum;
use crate::net::ipv4::{Fragmentation, RawIpv4};
use crate::net::udp::RawUdp;

/// Number of 64-bit words to compare. The words cover the headers and the first bytes of the BTH. The mask clears the
/// bytes of the BTH.
const WORDS: usize = size_of::<RawHeaders>().div_ceil(8);
const COMPARED: usize = WORDS * 8;

/// Mask of the bits that are equal in all frames of a flow.
const MASK: [u64; WORDS] = {
    let mut bytes = [0; COMPARED];
    let mut at = 0;
    while at < size_of::<RawHeaders>() {
        // Fields that vary within a flow: total length and identification, header checksum, UDP source port, UDP
        // length.
        bytes[at] = if matches!(at, 16..20 | 24..26 | 34..36 | 38..40) { 0 } else { 0xff };
        at += 1;
    }
    let mut mask = [0; WORDS];
    let mut word = 0;
    while word < WORDS {
        let (_, rest) = bytes.split_at(word * 8);
        if let Some(bytes) = rest.first_chunk() {
            mask[word] = u64::from_ne_bytes(*bytes);
        }
        word += 1;
    }
    mask
};

/// Headers of a parsed frame. A later frame whose headers differ only in lengths, IPv4 identification and UDP source
/// port is parsed with a few comparisons.
///
/// Only untagged IPv4 frames without a UDP checksum are supported. Almost all RoCE frames are of this kind.
#[derive(Clone, Copy, Debug)]
pub struct FlowHeaders {
    words: [u64; WORDS],
    /// Result of [`differing_sum`] for a valid IPv4 header of the flow.
    sum: u16,
    encap: Encap,
}

impl FlowHeaders {
    /// Returns the headers of a frame that was parsed as `encap`. Returns `None` unless the frame is an untagged IPv4
    /// frame without a UDP checksum.
    pub fn of(frame: &[u8], encap: &Encap) -> Option<Self> {
        let (raw, _) = RawHeaders::ref_from_prefix(frame).ok()?;
        let is_plain = encap.tag.is_none() && matches!(encap.ip, IpAddrs::V4 { .. });
        if !is_plain || raw.udp.checksum.get() != 0 {
            return None;
        }
        Some(Self { words: masked(frame)?, sum: differing_sum(&raw.ip), encap: *encap })
    }

    /// Parses the headers of a frame, with the same result as [`Encap::unwrap`]. Returns `None` if the frame is not
    /// part of the flow or is malformed.
    pub(super) fn unwrap<'a>(&self, frame: &'a [u8]) -> Option<Unwrapped<'a>> {
        let (encap, rest, transport_len) = self.unwrap_headers(frame)?;
        let transport = rest.get(..transport_len)?;
        let ip_and_udp = frame.get(encap.ether_len()..size_of::<RawHeaders>())?;
        Some(Unwrapped { encap, ip_and_udp, transport })
    }

    /// Parses the headers of a frame of which `frame` may be only the beginning. Returns the encapsulation, the bytes
    /// after the UDP header, and how many bytes should follow the UDP header according to the headers. Returns `None`
    /// if the frame is not part of the flow or is malformed.
    #[inline(always)]
    pub(super) fn unwrap_headers<'a>(&self, frame: &'a [u8]) -> Option<(Encap, &'a [u8], usize)> {
        // Combine the differences of all words instead of comparing the arrays, which would compile to a call of
        // `memcmp`.
        let words = masked(frame)?;
        if words.iter().zip(&self.words).fold(0, |bits, (found, word)| bits | (found ^ word)) != 0 {
            return None;
        }
        let (raw, rest) = RawHeaders::ref_from_prefix(frame).ok()?;
        let (total, udp_len) = (usize::from(raw.ip.total_len.get()), usize::from(raw.udp.len.get()));
        if total != size_of::<RawIpv4>() + udp_len || differing_sum(&raw.ip) != self.sum {
            return None;
        }
        let transport_len = udp_len.checked_sub(size_of::<RawUdp>())?;
        let encap = Encap {
            fragment: Fragmentation { id: raw.ip.id.get(), ..self.encap.fragment },
            src_port: raw.udp.src_port.get(),
            ..self.encap
        };
        Some((encap, rest, transport_len))
    }
}

/// Returns the checksum of the IPv4 header fields that vary within a flow, including the header checksum. All other
/// fields are constant, so a header is valid if and only if this checksum equals that of a header known to be valid.
fn differing_sum(ip: &RawIpv4) -> u16 {
    let fields = [ip.total_len, ip.id, ip.checksum];
    fields.iter().fold(Checksum::new(), |sum, field| sum.with_u16(field.get())).value()
}

/// Returns the first words of a frame, with the bits that vary within a flow cleared.
fn masked(frame: &[u8]) -> Option<[u64; WORDS]> {
    let bytes: &[u8; COMPARED] = frame.first_chunk()?;
    let mut words = MASK;
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word &= u64::from_ne_bytes(*bytes);
    }
    Some(words)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;
    use crate::Psn;
    use crate::ids::{FlowLabel, MacAddr, Pkey, Qpn};
    use crate::roce::{Bth, Ext, FrameWriter, Mtu, Offload, Opcode, Operation, RoceFrame, RoceHeaders};

    const ENCAP: Encap = Encap {
        src_mac: MacAddr([2, 0, 0, 0, 0, 1]),
        dst_mac: MacAddr([2, 0, 0, 0, 0, 2]),
        tag: None,
        ip: IpAddrs::V4 { src: Ipv4Addr::new(10, 0, 0, 1), dst: Ipv4Addr::new(10, 0, 0, 2) },
        traffic_class: 2,
        flow_label: FlowLabel::new(0),
        hop_limit: 64,
        fragment: Fragmentation { id: 0, flags: 0x4000 },
        src_port: 0xc001,
    };

    fn frame(encap: &Encap, payload: &[u8]) -> Vec<u8> {
        let bth = Bth {
            opcode: Opcode::rc(Operation::SendOnly),
            solicited: false,
            mig_req: true,
            pkey: Pkey::DEFAULT,
            fecn: false,
            becn: false,
            dest_qp: Qpn::new(5),
            ack_req: true,
            psn: Psn::new(7),
        };
        let mut frame = Vec::new();
        let mut writer = FrameWriter::new(&mut frame, encap, &bth, &Ext::None, payload.len());
        writer.extend(payload);
        writer.finish();
        frame
    }

    fn flow() -> FlowHeaders {
        FlowHeaders::of(&frame(&ENCAP, &[]), &ENCAP).unwrap()
    }

    #[test]
    fn flow_frames_may_differ_in_length_and_source_port() {
        let encap = Encap { src_port: 0xd234, ..ENCAP };
        let bytes = frame(&encap, &[7; 100]);
        let found = RoceFrame::parse_in_flow(&flow(), &bytes, Offload::None);
        assert_eq!(found, RoceFrame::parse(&bytes).ok());
        assert!(found.is_some_and(|found| found.encap == encap && found.packet.payload == [7; 100]));
    }

    #[test]
    fn frame_with_different_headers_is_not_part_of_flow() {
        for other in [
            Encap { src_mac: MacAddr([2, 0, 0, 0, 0, 9]), ..ENCAP },
            Encap { traffic_class: 3, ..ENCAP },
            Encap { hop_limit: 63, ..ENCAP },
            Encap {
                ip: IpAddrs::V4 { src: Ipv4Addr::new(10, 0, 0, 3), dst: Ipv4Addr::new(10, 0, 0, 2) },
                ..ENCAP
            },
        ] {
            let bytes = frame(&other, &[]);
            assert_eq!(RoceFrame::parse_in_flow(&flow(), &bytes, Offload::None), None, "{other:?}");
        }
    }

    proptest! {
        /// A damaged frame either does not match the flow or parses to the same result as without a flow.
        #[test]
        fn parse_in_flow_agrees_with_parse_on_damaged_frames(
            payload in proptest::collection::vec(any::<u8>(), 0..40),
            damage in proptest::collection::vec((0..60_usize, any::<u8>()), 0..3),
            cut in 0..80_usize,
            left_out in any::<bool>(),
        ) {
            let mut bytes = frame(&ENCAP, &payload);
            for (at, value) in damage {
                bytes.get_mut(at).into_iter().for_each(|byte| *byte = value);
            }
            if cut < 70 {
                bytes.truncate(bytes.len().saturating_sub(cut));
            }
            let offload = if left_out { Offload::Icrc } else { Offload::None };
            if let Some(found) = RoceFrame::parse_in_flow(&flow(), &bytes, offload) {
                prop_assert_eq!(Ok(found), RoceFrame::parse_with(&bytes, offload));
            }
        }

        #[test]
        fn headers_alone_parse_like_whole_frame(
            payload in proptest::collection::vec(any::<u8>(), 0..400),
            damage in proptest::collection::vec((0..60_usize, any::<u8>()), 0..3),
            cut in 0..80_usize,
            head_len in 0..200_usize,
            offload in prop_oneof![
                Just(Offload::None),
                Just(Offload::Icrc),
                Just(Offload::Segmentation(Mtu::Mtu256)),
            ],
        ) {
            let mut bytes = frame(&ENCAP, &payload);
            for (at, value) in damage {
                bytes.get_mut(at).into_iter().for_each(|byte| *byte = value);
            }
            if cut < 70 {
                bytes.truncate(bytes.len().saturating_sub(cut));
            }
            let head = &bytes[..head_len.min(bytes.len())];
            let whole = RoceFrame::parse_in_flow(&flow(), &bytes, offload);
            let found = RoceHeaders::parse_in_flow(&flow(), head, bytes.len(), offload);
            let holds_headers = whole.is_some_and(|whole| {
                let headers_len = whole.packet.payload.as_ptr().addr() - bytes.as_ptr().addr();
                head_len >= headers_len.max(COMPARED)
            });
            if offload == Offload::None || !holds_headers {
                prop_assert_eq!(found, None);
            }
            if let (Some(found), Some(whole)) = (found, whole) {
                let RoceHeaders { encap, packet, payload_at } = found;
                let range = payload_at..payload_at + packet.payload.0;
                prop_assert_eq!(packet.with_payload(&bytes[range]), whole.packet);
                prop_assert_eq!(encap, whole.encap);
            } else if offload != Offload::None && holds_headers {
                prop_assert_eq!(found.is_some(), whole.is_some());
            }
        }
    }
}
