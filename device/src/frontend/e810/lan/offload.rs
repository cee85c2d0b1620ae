//! Transmit offload: fills in lengths and checksums of a frame's headers.
//!
//! Checksums are computed from scratch. The driver seeds the field with the pseudo-header sum (without the
//! length for TSO), which is ignored; the result is the same.
//!
//! # Spec
//! E810 interface, section 8.2.

use protocol::hca::e810::tx_descriptor::{
    Command, HeaderLengths, IpType, L4Type, OuterIp, Tunnel, TunnelKind,
};
use protocol::net::checksum::Checksum;
use protocol::net::layers::TCP;
use protocol::net::udp;

use super::malicious::DriverError;

/// Minimum header lengths: RFC 791, section 3.1; RFC 8200, section 3; RFC 9293, section 3.1; RFC 768; RFC
/// 9260, section 3.1.
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const TCP_LEN: usize = 20;
const UDP_LEN: usize = 8;
const SCTP_LEN: usize = 12;
const ETHERNET_LEN: usize = 14;

/// Header offsets in a frame, in bytes, and the checksums to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offloads {
    /// Outer headers of a tunnel.
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
    version: Version,
    at: usize,
    /// Includes options or extension headers.
    len: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    V4 { checksum: bool },
    V6,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct L4Header {
    protocol: L4Protocol,
    at: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum L4Protocol {
    Tcp,
    Udp,
    Sctp,
}

/// Position of a segment in a TSO frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentPosition {
    /// Number of segments before it.
    pub(super) index: u16,
    /// Payload bytes before it.
    pub(super) offset: u32,
    /// Whether it is the last segment.
    pub(super) last: bool,
}

impl Offloads {
    /// Derives the header offsets from the descriptors of a frame. `inserted` is the length of VLAN tags to
    /// insert, which guest memory does not contain.
    ///
    /// # Errors
    /// `HeaderLengths` if a header is shorter than its minimum, or L4 is requested without IP.
    pub(super) fn new(
        command: Command,
        lengths: HeaderLengths,
        tunnel: &Tunnel,
        inserted: usize,
    ) -> Result<Self, DriverError> {
        let mut at = usize::from(lengths.mac) + inserted;
        let outer_version = match tunnel.ip {
            OuterIp::None => None,
            OuterIp::V4 => Some(Version::V4 { checksum: false }),
            OuterIp::V4Checksum => Some(Version::V4 { checksum: true }),
            OuterIp::V6 => Some(Version::V6),
        };
        let outer = match outer_version {
            None => None,
            Some(version) => {
                let ip = IpHeader::new(version, at, tunnel.ip_len.into())?;
                at += ip.len;
                let udp = (tunnel.kind == TunnelKind::Udp)
                    .then_some(OuterUdp { at, checksum: tunnel.udp_checksum });
                if udp.is_some() && usize::from(tunnel.len) < UDP_LEN {
                    return Err(DriverError::HeaderLengths);
                }
                at += usize::from(tunnel.len);
                Some(Outer { ip, udp })
            }
        };
        let version = match command.ip() {
            IpType::None => None,
            IpType::V4 => Some(Version::V4 { checksum: false }),
            IpType::V4Checksum => Some(Version::V4 { checksum: true }),
            IpType::V6 => Some(Version::V6),
        };
        let ip = version.map(|version| IpHeader::new(version, at, lengths.ip.into())).transpose()?;
        at += usize::from(lengths.ip);
        let protocol = match command.l4() {
            L4Type::None => None,
            L4Type::Tcp => Some((L4Protocol::Tcp, TCP_LEN)),
            L4Type::Udp => Some((L4Protocol::Udp, UDP_LEN)),
            L4Type::Sctp => Some((L4Protocol::Sctp, SCTP_LEN)),
        };
        let l4_len = usize::from(lengths.l4);
        let l4 = match protocol {
            None => None,
            // The pseudo-header requires an IP version.
            Some((_, minimum)) if ip.is_none() || l4_len < minimum => return Err(DriverError::HeaderLengths),
            Some((protocol, _)) => Some(L4Header { protocol, at }),
        };
        let has_ip = ip.is_some() || outer.is_some();
        if has_ip && usize::from(lengths.mac) < ETHERNET_LEN {
            return Err(DriverError::HeaderLengths);
        }
        Ok(Self { outer, ip, l4, len: if has_ip { at + l4_len } else { 0 } })
    }

    /// Returns the total length of the headers.
    pub(super) const fn headers_len(&self) -> usize {
        self.len
    }

    /// Whether frames with these headers support TSO: the transport must be TCP or UDP.
    pub(super) fn supports_tso(&self) -> bool {
        self.l4.is_some_and(|l4| l4.protocol != L4Protocol::Sctp)
    }

    /// Adjusts the headers of a segment: `frame` is the segment with a copy of the original headers.
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

    /// Computes the requested checksums, inner headers first, since outer checksums cover inner headers.
    ///
    /// # Errors
    /// The frame ends within its headers.
    pub(super) fn fill_checksums(&self, frame: &mut [u8]) -> Result<(), DriverError> {
        if self.len > frame.len() {
            return Err(DriverError::HeaderLengths);
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

impl IpHeader {
    fn new(version: Version, at: usize, len: usize) -> Result<Self, DriverError> {
        let minimum = match version {
            Version::V4 { .. } => IPV4_LEN,
            Version::V6 => IPV6_LEN,
        };
        if len < minimum { Err(DriverError::HeaderLengths) } else { Ok(Self { version, at, len }) }
    }

    fn adjust_headers(&self, frame: &mut [u8], position: SegmentPosition) {
        match self.version {
            Version::V4 { .. } => {
                put_u16(frame, self.at + 2, len_from(frame, self.at));
                let id = get_u16(frame, self.at + 4).wrapping_add(position.index);
                put_u16(frame, self.at + 4, id);
            }
            Version::V6 => put_u16(frame, self.at + 4, len_from(frame, self.at + IPV6_LEN)),
        }
    }

    fn fill_checksum(&self, frame: &mut [u8]) {
        if self.version == (Version::V4 { checksum: true }) {
            put_u16(frame, self.at + 10, 0);
            let header = frame.get(self.at..self.at + self.len).unwrap_or_default();
            put_u16(frame, self.at + 10, Checksum::new().with(header).value());
        }
    }

    /// Returns the end of the IP packet, before any Ethernet padding; the end of the frame if the header's
    /// length is invalid.
    fn end(&self, frame: &[u8]) -> usize {
        let said = match self.version {
            Version::V4 { .. } => self.at + usize::from(get_u16(frame, self.at + 2)),
            Version::V6 => self.at + IPV6_LEN + usize::from(get_u16(frame, self.at + 4)),
        };
        if said > self.at + self.len && said < frame.len() { said } else { frame.len() }
    }

    fn addresses<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        let range = match self.version {
            Version::V4 { .. } => self.at + 12..self.at + 20,
            Version::V6 => self.at + 8..self.at + 40,
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
        // RFC 768: a computed sum of 0 is transmitted as 0xFFFF, since 0 means "no checksum".
        let value = if sum == 0 && self.protocol == L4Protocol::Udp { u16::MAX } else { sum };
        put_u16(frame, field, value);
    }
}

/// RFC 9260, section 6.8 and appendix A: the CRC32c is stored in little-endian order.
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

/// RFC 9293, section 3.1: FIN and PSH belong to the last segment. RFC 3168, section 6.1.2: CWR is set only in
/// the first.
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
