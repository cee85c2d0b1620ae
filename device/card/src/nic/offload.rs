//! Transmit offload: fills in the lengths and checksums in a frame's headers.
//!
//! Checksums are computed from scratch. A partial sum left in the field by the driver is ignored.

use protocol::net::checksum::Checksum;
use protocol::net::layers::TCP;
use protocol::net::udp;
use thiserror::Error;

/// Minimum header lengths: RFC 791, section 3.1; RFC 8200, section 3; RFC 9293, section 3.1; RFC 768; RFC 9260, section
/// 3.1.
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const TCP_LEN: usize = 20;
const UDP_LEN: usize = 8;
const SCTP_LEN: usize = 12;
const ETHERNET_LEN: usize = 14;

/// A frame's headers, as described by a transmit descriptor, and the checksums to compute. Lengths are in bytes and
/// include options and extension headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Length of the Ethernet header, excluding the tags to insert.
    pub ether_len: usize,
    /// Length of the VLAN tags to insert. These tags are not in guest memory.
    pub inserted_len: usize,
    pub tunnel: Option<Tunnel>,
    pub ip: Option<IpVersion>,
    /// Length of the innermost IP header.
    pub ip_len: usize,
    /// Transport protocol, if a checksum is requested.
    pub l4: Option<L4Protocol>,
    /// Length of the transport header.
    pub l4_len: usize,
}

/// Outer headers of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunnel {
    pub ip: IpVersion,
    /// Length of the outer IP header.
    pub ip_len: usize,
    /// Outer UDP header, if the tunnel has one.
    pub udp: Option<TunnelUdp>,
    /// Length of everything between the two IP headers.
    pub len: usize,
}

/// UDP header of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelUdp {
    pub checksum: bool,
}

/// Version of an IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpVersion {
    V4 {
        /// Whether to compute the header checksum.
        checksum: bool,
    },
    V6,
}

/// Transport protocol whose checksum can be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum L4Protocol {
    Tcp,
    Udp,
    /// SCTP, with a CRC32c.
    Sctp,
}

/// A header is shorter than its minimum length, lies outside the frame, or depends on a header that the request does
/// not describe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a header is missing, too short or outside the frame")]
pub struct HeaderError;

/// Header offsets in a frame, in bytes, and the checksums to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offloads {
    outer: Option<Outer>,
    ip: Option<IpHeader>,
    l4: Option<L4Header>,
    /// Total length of the headers.
    len: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Outer {
    ip: IpHeader,
    udp: Option<OuterUdp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OuterUdp {
    at: usize,
    checksum: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct IpHeader {
    version: IpVersion,
    at: usize,
    len: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct L4Header {
    protocol: L4Protocol,
    at: usize,
}

/// Position of a segment in a TSO frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentPosition {
    /// Number of segments before this segment.
    pub(super) index: u16,
    /// Number of payload bytes before this segment.
    pub(super) offset: u32,
    pub(super) last: bool,
}

impl Offloads {
    /// Derives the header offsets from a request.
    ///
    /// # Errors
    /// Fails if a header is shorter than its minimum length or if an L4 checksum is requested without an IP header.
    pub fn new(request: &Request) -> Result<Self, HeaderError> {
        let Request { ether_len, inserted_len, tunnel, ip, ip_len, l4, l4_len } = *request;
        let mut at = ether_len + inserted_len;
        let outer = match tunnel {
            None => None,
            Some(tunnel) => {
                let ip = IpHeader::new(tunnel.ip, at, tunnel.ip_len)?;
                at += ip.len;
                let udp = tunnel.udp.map(|udp| OuterUdp { at, checksum: udp.checksum });
                if udp.is_some() && tunnel.len < UDP_LEN {
                    return Err(HeaderError);
                }
                at += tunnel.len;
                Some(Outer { ip, udp })
            }
        };
        let ip = ip.map(|version| IpHeader::new(version, at, ip_len)).transpose()?;
        at += ip_len;
        let l4 = match l4 {
            None => None,
            // The pseudo-header requires an IP version.
            Some(protocol) if ip.is_none() || l4_len < protocol.min_len() => return Err(HeaderError),
            Some(protocol) => Some(L4Header { protocol, at }),
        };
        let has_ip = ip.is_some() || outer.is_some();
        if has_ip && ether_len < ETHERNET_LEN {
            return Err(HeaderError);
        }
        Ok(Self { outer, ip, l4, len: if has_ip { at + l4_len } else { 0 } })
    }

    pub const fn headers_len(&self) -> usize {
        self.len
    }

    /// Returns whether frames with these headers support TSO, which requires TCP or UDP as the transport protocol.
    pub(super) fn supports_tso(&self) -> bool {
        self.l4.is_some_and(|l4| l4.protocol != L4Protocol::Sctp)
    }

    /// Adjusts the headers of a segment. `frame` begins with a copy of the original headers.
    pub(super) fn adjust_headers(&self, frame: &mut [u8], position: SegmentPosition) {
        let ips = self.outer.map(|outer| outer.ip).into_iter().chain(self.ip);
        ips.for_each(|ip| ip.adjust_headers(frame, position));
        if let Some(udp) = self.outer.and_then(|outer| outer.udp) {
            put_u16(frame, udp.at + 4, len_from(frame, udp.at));
        }
        match self.l4 {
            Some(L4Header { protocol: L4Protocol::Tcp, at }) => adjust_tcp(frame, at, position),
            Some(L4Header { protocol: L4Protocol::Udp, at }) => {
                put_u16(frame, at + 4, len_from(frame, at));
            }
            Some(L4Header { protocol: L4Protocol::Sctp, .. }) | None => {}
        }
    }

    /// Computes the requested checksums. Those of the inner headers come first, because the outer checksums cover them.
    ///
    /// # Errors
    /// Fails if the frame ends within its headers.
    pub fn fill_checksums(&self, frame: &mut [u8]) -> Result<(), HeaderError> {
        if self.len > frame.len() {
            return Err(HeaderError);
        }
        if let Some(ip) = self.ip {
            ip.fill_checksum(frame);
            if let Some(l4) = self.l4 {
                l4.fill_checksum(frame, &ip);
            }
        }
        if let Some(outer) = self.outer {
            outer.ip.fill_checksum(frame);
            if let Some(OuterUdp { at, checksum: true }) = outer.udp {
                L4Header { protocol: L4Protocol::Udp, at }.fill_checksum(frame, &outer.ip);
            }
        }
        Ok(())
    }
}

impl L4Protocol {
    const fn min_len(self) -> usize {
        match self {
            Self::Tcp => TCP_LEN,
            Self::Udp => UDP_LEN,
            Self::Sctp => SCTP_LEN,
        }
    }
}

impl IpHeader {
    fn new(version: IpVersion, at: usize, len: usize) -> Result<Self, HeaderError> {
        let minimum = match version {
            IpVersion::V4 { .. } => IPV4_LEN,
            IpVersion::V6 => IPV6_LEN,
        };
        if len < minimum { Err(HeaderError) } else { Ok(Self { version, at, len }) }
    }

    fn adjust_headers(&self, frame: &mut [u8], position: SegmentPosition) {
        match self.version {
            IpVersion::V4 { .. } => {
                put_u16(frame, self.at + 2, len_from(frame, self.at));
                let id = get_u16(frame, self.at + 4).wrapping_add(position.index);
                put_u16(frame, self.at + 4, id);
            }
            IpVersion::V6 => put_u16(frame, self.at + 4, len_from(frame, self.at + IPV6_LEN)),
        }
    }

    fn fill_checksum(&self, frame: &mut [u8]) {
        if self.version == (IpVersion::V4 { checksum: true }) {
            put_u16(frame, self.at + 10, 0);
            let header = frame.get(self.at..self.at + self.len).unwrap_or_default();
            put_u16(frame, self.at + 10, Checksum::new().with(header).value());
        }
    }

    /// Returns the offset of the first byte after the IP packet, before any Ethernet padding. Returns the length of the
    /// frame if the length in the IP header is invalid.
    fn end(&self, frame: &[u8]) -> usize {
        let stated = match self.version {
            IpVersion::V4 { .. } => self.at + usize::from(get_u16(frame, self.at + 2)),
            IpVersion::V6 => self.at + IPV6_LEN + usize::from(get_u16(frame, self.at + 4)),
        };
        if stated > self.at + self.len && stated < frame.len() { stated } else { frame.len() }
    }

    fn addresses<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        let range = match self.version {
            IpVersion::V4 { .. } => self.at + 12..self.at + 20,
            IpVersion::V6 => self.at + 8..self.at + 40,
        };
        frame.get(range).unwrap_or_default()
    }
}

impl L4Header {
    fn fill_checksum(&self, frame: &mut [u8], ip: &IpHeader) {
        let end = ip.end(frame);
        let (protocol, field) = match self.protocol {
            L4Protocol::Tcp => (TCP, self.at + 16),
            L4Protocol::Udp => (udp::PROTOCOL, self.at + 6),
            L4Protocol::Sctp => return fill_sctp(frame, self.at, end),
        };
        put_u16(frame, field, 0);
        let segment = frame.get(self.at..end).unwrap_or_default();
        let sum = Checksum::new()
            .with(ip.addresses(frame))
            .with_u16(protocol.into())
            .with_u16(u16::try_from(segment.len()).unwrap_or(u16::MAX))
            .with(segment)
            .value();
        // RFC 768: a computed sum of 0 is transmitted as 0xFFFF, because 0 means "no checksum".
        let value = if sum == 0 && self.protocol == L4Protocol::Udp { u16::MAX } else { sum };
        put_u16(frame, field, value);
    }
}

/// Fills in the CRC32c of an SCTP packet, which is stored in little-endian order (RFC 9260, section 6.8 and
/// appendix A).
fn fill_sctp(frame: &mut [u8], at: usize, end: usize) {
    let Some(packet) = frame.get_mut(at..end) else { return };
    if let Some(field) = packet.get_mut(8..12) {
        field.fill(0);
    }
    let crc = crc32c::crc32c(packet);
    if let Some(field) = packet.get_mut(8..12) {
        field.copy_from_slice(&crc.to_le_bytes());
    }
}

/// Adjusts the TCP header of a segment. FIN and PSH are set only in the last segment (RFC 9293, section 3.1), and CWR
/// only in the first (RFC 3168, section 6.1.2).
fn adjust_tcp(frame: &mut [u8], at: usize, position: SegmentPosition) {
    const FIN: u8 = 0x01;
    const PSH: u8 = 0x08;
    const CWR: u8 = 0x80;
    let high = get_u16(frame, at + 4);
    let low = get_u16(frame, at + 6);
    let sequence = (u32::from(high) << 16 | u32::from(low)).wrapping_add(position.offset);
    let [a, b, c, d] = sequence.to_be_bytes();
    put_u16(frame, at + 4, u16::from_be_bytes([a, b]));
    put_u16(frame, at + 6, u16::from_be_bytes([c, d]));
    if let Some(flags) = frame.get_mut(at + 13) {
        if !position.last {
            *flags &= !(FIN | PSH);
        }
        if position.index != 0 {
            *flags &= !CWR;
        }
    }
}

/// Returns the number of bytes from `at` to the end of the frame. Frames are shorter than 64 KiB.
fn len_from(frame: &[u8], at: usize) -> u16 {
    u16::try_from(frame.len().saturating_sub(at)).unwrap_or(u16::MAX)
}

fn get_u16(frame: &[u8], at: usize) -> u16 {
    frame.get(at..at + 2).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u16::from_be_bytes(*bytes))
}

fn put_u16(frame: &mut [u8], at: usize, value: u16) {
    if let Some(field) = frame.get_mut(at..at + 2) {
        field.copy_from_slice(&value.to_be_bytes());
    }
}
