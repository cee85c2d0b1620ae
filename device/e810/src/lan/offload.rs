//! Translates transmit descriptors into offload requests.
//!
//! Drivers write the pseudo-header sum to the checksum field. For TSO, this sum excludes the length. The device ignores
//! the field and computes the whole checksum, with the same result.
//!
//! # Spec
//! E810 interface, section 8.2.

use std::num::NonZeroU16;
use std::ops::RangeInclusive;

use card::nic::offload::{self, HeaderError, IpVersion, L4Protocol, Offloads, Request, TunnelUdp};
use card::nic::segmentation::{self, SegmentationError, Segments};
use card::nic::vlan::Insertion;
use protocol::hca::e810::tx_descriptor::{
    Command, ContextDescriptor, HeaderLengths, IpType, L4Type, OuterIp, Segmentation, Tunnel, TunnelKind,
};
use protocol::net::layers::{TagKind, Tci, VlanTag};

use super::malicious::DriverError;
use super::transmit_queue::MAX_FRAME_LEN;

/// Valid MSS range in bytes, the same as on E810 hardware.
const SEGMENT_SIZES: RangeInclusive<u16> = 64..=9668;

/// Combines the context descriptor's tag (outer) with the data descriptors' tag (inner).
pub(super) fn tags(context: &ContextDescriptor, inner: Option<u16>) -> Insertion {
    let tag = |kind, tci| VlanTag { kind, tci: Tci::from_bits(tci) };
    Insertion::new(
        context.tag2.map(|tci| tag(TagKind::Service, tci)),
        inner.map(|tci| tag(TagKind::Customer, tci)),
    )
}

/// Derives the header offsets from a frame's descriptors. `inserted_len` is the total length of the VLAN tags
/// to insert.
///
/// # Errors
/// `HeaderLengths` if a header is shorter than its minimum or if an L4 offload is requested without an IP header.
pub(super) fn headers(
    command: Command,
    lengths: HeaderLengths,
    tunnel: &Tunnel,
    inserted_len: usize,
) -> Result<Offloads, DriverError> {
    let request = Request {
        ether_len: lengths.mac.into(),
        inserted_len,
        tunnel: outer(tunnel),
        ip: match command.ip() {
            IpType::None => None,
            IpType::V4 => Some(IpVersion::V4 { checksum: false }),
            IpType::V4Checksum => Some(IpVersion::V4 { checksum: true }),
            IpType::V6 => Some(IpVersion::V6),
        },
        ip_len: lengths.ip.into(),
        l4: match command.l4() {
            L4Type::None => None,
            L4Type::Tcp => Some(L4Protocol::Tcp),
            L4Type::Udp => Some(L4Protocol::Udp),
            L4Type::Sctp => Some(L4Protocol::Sctp),
        },
        l4_len: lengths.l4.into(),
    };
    Ok(Offloads::new(&request)?)
}

fn outer(tunnel: &Tunnel) -> Option<offload::Tunnel> {
    let ip = match tunnel.ip {
        OuterIp::None => return None,
        OuterIp::V4 => IpVersion::V4 { checksum: false },
        OuterIp::V4Checksum => IpVersion::V4 { checksum: true },
        OuterIp::V6 => IpVersion::V6,
    };
    let udp = (tunnel.kind == TunnelKind::Udp).then_some(TunnelUdp { checksum: tunnel.udp_checksum });
    Some(offload::Tunnel { ip, ip_len: tunnel.ip_len.into(), udp, len: tunnel.len.into() })
}

/// Starts segmentation of a frame with the given headers (section 8.2, "TSO").
///
/// # Errors
/// Fails if the MSS is out of range, or the frame cannot be segmented.
pub(super) fn segments(
    headers: Vec<u8>,
    offloads: Offloads,
    request: Segmentation,
) -> Result<Segments, DriverError> {
    let Segmentation { payload_len, mss } = request;
    let segment_len = NonZeroU16::new(mss).filter(|_| SEGMENT_SIZES.contains(&mss));
    let segment_len = segment_len.ok_or(DriverError::SegmentSize)?;
    let request = segmentation::Segmentation { segment_len, payload_len, max_frame: MAX_FRAME_LEN };
    Ok(Segments::new(headers, offloads, request)?)
}

impl From<HeaderError> for DriverError {
    fn from(HeaderError: HeaderError) -> Self {
        Self::HeaderLengths
    }
}

impl From<SegmentationError> for DriverError {
    fn from(error: SegmentationError) -> Self {
        match error {
            SegmentationError::NoPayload => Self::SegmentedLength,
            SegmentationError::Headers => Self::HeaderLengths,
            SegmentationError::TooLong => Self::FrameTooLong,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn context_descriptor_tag_becomes_outer_tag() {
        let tags = |outer, inner| {
            let context = ContextDescriptor { tag2: outer, ..ContextDescriptor::default() };
            tags(&context, inner).bytes().to_vec()
        };
        assert!(tags(None, None).is_empty());
        assert_eq!(tags(None, Some(0x6005)), [0x81, 0x00, 0x60, 0x05]);
        assert_eq!(tags(Some(0x0007), Some(0x6005)), [0x88, 0xa8, 0x00, 0x07, 0x81, 0x00, 0x60, 0x05]);
        assert_eq!(tags(Some(7), None), [0x88, 0xa8, 0x00, 0x07]);
    }
}
