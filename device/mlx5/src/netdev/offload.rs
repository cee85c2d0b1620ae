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
    let Ok(layers) = Layers::parse(frame) else { return };
    let Some(ip) = layers.ip else { return };
    let l4 = transport(&ip).filter(|_| segment.l4_checksum);
    let request = request(&layers, &ip, segment.l3_checksum, l4);
    if let Ok(offloads) = Offloads::new(&request) {
        // Cannot fail: the parser has found the headers inside the frame.
        let _ = offloads.fill_checksums(frame);
    }
}

fn request(layers: &Layers, ip: &Ip, checksum: bool, l4: Option<(L4Protocol, usize)>) -> Request {
    Request {
        ether_len: layers.network_at,
        ip: Some(match ip.addresses {
            Addresses::V4 { .. } => IpVersion::V4 { checksum },
            Addresses::V6 { .. } => IpVersion::V6,
        }),
        ip_len: ip.payload_at - layers.network_at,
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
    let network_at = Layers::parse(&headers).ok()?.network_at;
    // Section 16.5: the length fields may be 0 or wrong. The parser checks them, so they are first set to the length of
    // the headers.
    let (field, length) = match headers.get(network_at)? >> 4 {
        4 => (network_at + 2, headers.len().checked_sub(network_at)?),
        6 => (network_at + 4, headers.len().checked_sub(network_at + IPV6_LEN)?),
        _ => return None,
    };
    let length = u16::try_from(length).ok()?.to_be_bytes();
    headers.get_mut(field..field + 2)?.copy_from_slice(&length);
    let layers = Layers::parse(&headers).ok()?;
    let ip = layers.ip?;
    let (protocol, minimum) = transport(&ip)?;
    let len = headers.len().checked_sub(ip.payload_at).filter(|len| *len >= minimum)?;
    Offloads::new(&request(&layers, &ip, true, Some((protocol, len)))).ok()
}
