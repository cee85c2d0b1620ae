//! Transmit offloads: checksums, segmentation (LSO) and VLAN insertion.
//!
//! # Spec
//! mlx5 interface, section 16.5.

use std::num::NonZeroU16;
use std::ops::Range;

use card::nic::offload::{IpVersion, L4Protocol, Offloads, Request};
use card::nic::segmentation::{Segmentation, SegmentationError, Segments};
use card::nic::vlan::Insertion;
use protocol::hca::mlx5::wqe::EthernetSegment;
use protocol::net::layers::{Addresses, Ip, Layers, TCP, TagKind, Tci, Transport, VlanTag, skip_extension};
use protocol::net::udp;

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
/// IP protocol numbers of IPv6 routing and fragment headers (RFC 8200, sections 4.4 and 4.5).
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
/// Types of routing headers whose first address is the final destination: Mobile IPv6 (RFC 6275, section 6.4) and
/// segment routing (RFC 8754, section 2).
const ROUTING_TYPES: [u8; 2] = [2, 4];
/// Offset of the first address in these routing headers.
const FIRST_ADDRESS: usize = 8;
/// Offset of the destination address in an IPv6 header (RFC 8200, section 3).
const DESTINATION: usize = 24;
const ADDRESS_LEN: usize = 16;
/// Maximum number of extension headers to skip, which bounds the time spent on a frame.
const MAX_EXTENSIONS: usize = 8;

/// Destinations of an IPv6 packet with a routing header. The packet is sent to the next one, but its checksums cover
/// the final one (RFC 8200, section 8.1).
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// Offset of the IPv6 header.
    network_at: usize,
    next_destination: [u8; ADDRESS_LEN],
    final_destination: [u8; ADDRESS_LEN],
}

impl Route {
    const fn field(&self) -> Range<usize> {
        let start = self.network_at + DESTINATION;
        start..start + ADDRESS_LEN
    }

    /// Writes the final destination to the IPv6 header. Must be called before the checksums are computed.
    fn write_final_destination(&self, frame: &mut [u8]) {
        if let Some(destination) = frame.get_mut(self.field()) {
            destination.copy_from_slice(&self.final_destination);
        }
    }

    /// Writes the next destination to the IPv6 header. Must be called after the checksums have been computed.
    pub fn write_next_destination(&self, frame: &mut [u8]) {
        if let Some(destination) = frame.get_mut(self.field()) {
            destination.copy_from_slice(&self.next_destination);
        }
    }
}

/// The IP header of a frame to send and the transport header that follows it.
struct Headers {
    network_at: usize,
    ip: Ip,
    /// Offset of the transport header, or of the IP payload if there is none.
    transport_at: usize,
    /// Transport protocol, with the minimum length of its header.
    l4: Option<(L4Protocol, usize)>,
    route: Option<Route>,
}

impl Headers {
    fn parse(frame: &[u8]) -> Option<Self> {
        let (network_at, ip) = ip_header(frame)?;
        let direct = Self { network_at, ip, transport_at: ip.payload_at, l4: transport(&ip), route: None };
        Some(direct.behind_route(frame).unwrap_or(direct))
    }

    /// Returns the same headers with the transport header that follows a routing header with segments left. Returns
    /// `None` if the frame has no such headers. The parser does not skip such a routing header, because the checksums
    /// of a received packet cannot be verified if it has one.
    fn behind_route(&self, frame: &[u8]) -> Option<Self> {
        let Self { network_at, ip, .. } = *self;
        let routing = ip.payload(frame).filter(|_| ip.protocol == ROUTING && !ip.fragment)?;
        if !ROUTING_TYPES.contains(routing.get(2)?) {
            return None;
        }
        let final_destination = *routing.get(FIRST_ADDRESS..)?.first_chunk()?;
        let next_destination = *frame.get(network_at + DESTINATION..)?.first_chunk()?;
        let (mut protocol, mut rest) = (ip.protocol, routing);
        for _ in 0..MAX_EXTENSIONS {
            // The checksum of a fragment covers the whole datagram. RFC 8200, section 4.5: in the first fragment, the
            // M flag is set. If it is clear, the datagram is not fragmented.
            let is_first_fragment = protocol == FRAGMENT && rest.get(3).is_some_and(|flags| flags & 1 != 0);
            let next = skip_extension(protocol, rest).filter(|_| !is_first_fragment);
            let Some((following, len)) = next else { break };
            (protocol, rest) = (following, rest.get(len..)?);
        }
        let l4 = match protocol {
            TCP => (L4Protocol::Tcp, TCP_LEN),
            udp::PROTOCOL => (L4Protocol::Udp, UDP_LEN),
            _ => return None,
        };
        let transport_at = ip.end - rest.len();
        let route = Route { network_at, next_destination, final_destination };
        (rest.len() >= l4.1).then_some(Self {
            network_at,
            ip,
            transport_at,
            l4: Some(l4),
            route: Some(route),
        })
    }
}

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
    let Some(headers) = Headers::parse(frame) else { return };
    let l4 = headers.l4.filter(|_| segment.l4_checksum);
    let Ok(offloads) = Offloads::new(&request(&headers, segment.l3_checksum, l4)) else { return };
    if let Some(route) = headers.route {
        route.write_final_destination(frame);
    }
    // Cannot fail: the parser has found the headers inside the frame.
    let _ = offloads.fill_checksums(frame);
    if let Some(route) = headers.route {
        route.write_next_destination(frame);
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

fn request(headers: &Headers, checksum: bool, l4: Option<(L4Protocol, usize)>) -> Request {
    Request {
        ether_len: headers.network_at,
        ip: Some(match headers.ip.addresses {
            Addresses::V4 { .. } => IpVersion::V4 { checksum },
            Addresses::V6 { .. } => IpVersion::V6,
        }),
        ip_len: headers.transport_at - headers.network_at,
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
/// or UDP checksum are computed for each segment. If a route is returned, each segment contains the final destination,
/// and the caller must call [`Route::write_next_destination`] for it.
///
/// # Errors
/// Fails if the headers are not TCP or UDP, there is no payload, or a segment would exceed `max_frame`.
pub fn segments(
    mut headers: Vec<u8>,
    mss: NonZeroU16,
    payload_len: u32,
    max_frame: usize,
) -> Result<(Segments, Option<Route>), SegmentationError> {
    let (offloads, route) = header_offloads(&headers).ok_or(SegmentationError::Headers)?;
    if let Some(route) = route {
        route.write_final_destination(&mut headers);
    }
    let segmentation = Segmentation { segment_len: mss, payload_len, max_frame };
    Ok((Segments::new(headers, offloads, segmentation)?, route))
}

/// Returns whether the data after the headers can be segmented. The headers must be TCP or UDP.
pub fn is_segmentable(headers: &[u8]) -> bool {
    header_offloads(headers).is_some()
}

fn header_offloads(headers: &[u8]) -> Option<(Offloads, Option<Route>)> {
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
    let found = Headers::parse(&headers)?;
    let (protocol, minimum) = found.l4?;
    let len = headers.len().checked_sub(found.transport_at).filter(|len| *len >= minimum)?;
    let offloads = Offloads::new(&request(&found, true, Some((protocol, len)))).ok()?;
    Some((offloads, found.route))
}
