//! Transmit offloads: checksums, segmentation (LSO) and VLAN insertion.
//!
//! # Spec
//! mlx5 interface, section 16.5.

use std::num::NonZeroU16;

use card::nic::offload::{IpVersion, L4Protocol, Offloads, Request};
use card::nic::segmentation::{Segmentation, SegmentationError, Segments};
use card::nic::vlan::Insertion;
use protocol::hca::mlx5::wqe::EthernetSegment;
use protocol::net::layers::{Addresses, Ip, Layers, TagKind, Tci, Transport, VlanTag};

/// Length of an IPv6 header (RFC 8200, section 3). The payload length field does not include it.
const IPV6_LEN: usize = 40;
/// Minimum lengths of transport headers (RFC 9293, section 3.1, and RFC 768).
const TCP_LEN: usize = 20;
const UDP_LEN: usize = 8;
/// EtherTypes of MPLS packets (RFC 3032, section 5).
const MPLS: [u16; 2] = [0x8847, 0x8848];
/// Length of an entry in an MPLS label stack. Bit 0 of the third byte is set only in the last entry (RFC 3032, section
/// 2.1).
const LABEL_LEN: usize = 4;
const LAST_LABEL: u8 = 1;
/// Maximum number of labels to skip, which bounds the time spent on a frame. A Linux route adds at most 30.
const MAX_LABELS: usize = 32;

/// Returns the tag to insert after the MAC addresses.
pub fn tags(segment: &EthernetSegment) -> Insertion {
    let tag = VlanTag { kind: TagKind::Customer, tci: Tci::from_bits(segment.vlan_tag) };
    Insertion::new(segment.insert_vlan.then_some(tag), None)
}

/// Computes the requested checksums of a frame. Checksums for headers that the frame does not have are skipped.
pub fn fill_checksums(frame: &mut [u8], segment: &EthernetSegment) {
    if !segment.l3_checksum && !segment.l4_checksum {
        return;
    }
    let Some((network_at, ip)) = ip_header(frame) else { return };
    let l4 = transport(&ip).filter(|_| segment.l4_checksum);
    let request = request(network_at, &ip, segment.l3_checksum, l4);
    if let Ok(offloads) = Offloads::new(&request) {
        // Cannot fail: the parser has found the headers inside the frame.
        let _ = offloads.fill_checksums(frame);
    }
}

/// Returns the IP header of a frame and its offset.
fn ip_header(frame: &[u8]) -> Option<(usize, Ip)> {
    let layers = Layers::parse(frame).ok()?;
    match layers.ip {
        Some(ip) => Some((layers.network_at, ip)),
        None => {
            let network_at = behind_labels(frame, &layers)?;
            Some((network_at, Ip::at(frame, network_at)?))
        }
    }
}

/// Returns the offset of the data behind a frame's MPLS label stack. Returns `None` if the frame has no complete label
/// stack. Section 16.5: the driver requests checksums and segmentation for MPLS packets too.
fn behind_labels(frame: &[u8], layers: &Layers) -> Option<usize> {
    if !MPLS.contains(&layers.ether_type.number()) {
        return None;
    }
    let labels = frame.get(layers.network_at..)?.chunks_exact(LABEL_LEN).take(MAX_LABELS);
    let (before, _) =
        labels.enumerate().find(|(_, label)| label.get(2).is_some_and(|byte| byte & LAST_LABEL != 0))?;
    Some(layers.network_at + (before + 1) * LABEL_LEN)
}

fn request(network_at: usize, ip: &Ip, checksum: bool, l4: Option<(L4Protocol, usize)>) -> Request {
    Request {
        ether_len: network_at,
        ip: Some(match ip.addresses {
            Addresses::V4 { .. } => IpVersion::V4 { checksum },
            Addresses::V6 { .. } => IpVersion::V6,
        }),
        ip_len: ip.payload_at - network_at,
        l4: l4.map(|(protocol, _)| protocol),
        l4_len: l4.map_or(0, |(_, len)| len),
        ..Request::default()
    }
}

/// Returns the transport protocol and the minimum length of its header.
const fn transport(ip: &Ip) -> Option<(L4Protocol, usize)> {
    match ip.transport {
        Transport::Tcp(_) => Some((L4Protocol::Tcp, TCP_LEN)),
        Transport::Udp(_) => Some((L4Protocol::Udp, UDP_LEN)),
        _ => None,
    }
}

/// Starts segmentation of the `payload_len` bytes that follow `headers`. The IPv4 header checksum, if any, and the TCP
/// or UDP checksum are computed for each segment.
///
/// # Errors
/// Fails if the headers are not TCP or UDP, there is no payload, or a segment would exceed `max_frame`.
pub fn segments(
    headers: Vec<u8>,
    mss: NonZeroU16,
    payload_len: u32,
    max_frame: usize,
) -> Result<Segments, SegmentationError> {
    let offloads = header_offloads(&headers).ok_or(SegmentationError::Headers)?;
    Segments::new(headers, offloads, Segmentation { segment_len: mss, payload_len, max_frame })
}

/// Returns whether the data after the headers can be segmented. The headers must be TCP or UDP.
pub fn is_segmentable(headers: &[u8]) -> bool {
    header_offloads(headers).is_some()
}

fn header_offloads(headers: &[u8]) -> Option<Offloads> {
    let mut headers = headers.to_vec();
    let layers = Layers::parse(&headers).ok()?;
    let network_at = behind_labels(&headers, &layers).unwrap_or(layers.network_at);
    // Section 16.5: the length fields may be 0 or wrong. The parser checks them, so they are first set to the length of
    // the headers.
    let (field, length) = match headers.get(network_at)? >> 4 {
        4 => (network_at + 2, headers.len().checked_sub(network_at)?),
        6 => (network_at + 4, headers.len().checked_sub(network_at + IPV6_LEN)?),
        _ => return None,
    };
    let length = u16::try_from(length).ok()?.to_be_bytes();
    headers.get_mut(field..field + 2)?.copy_from_slice(&length);
    let (network_at, ip) = ip_header(&headers)?;
    let (protocol, minimum) = transport(&ip)?;
    let len = headers.len().checked_sub(ip.payload_at).filter(|len| *len >= minimum)?;
    Offloads::new(&request(network_at, &ip, true, Some((protocol, len)))).ok()
}
