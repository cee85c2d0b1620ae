//! Locates the headers of an arbitrary frame and extracts its addresses and ports, for the NIC.
//!
//! Only lengths are verified here. The code that reports checksum status verifies the checksums.

use std::net::{Ipv4Addr, Ipv6Addr};

use bitfield_struct::bitfield;
use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::checksum::Checksum;
use super::ether::{EtherType, RawEther};
use super::ipv4::RawIpv4;
use super::ipv6::RawIpv6;
use super::{icmp, icmpv6, udp};
use crate::WireError;
use crate::ids::MacAddr;
use crate::view::view;

/// IP protocol number of TCP.
pub const TCP: u8 = 6;
/// IP protocol number of SCTP.
pub const SCTP: u8 = 132;

/// Maximum number of IPv6 extension headers to parse, which bounds the time spent on an untrusted frame. Ordinary
/// frames stay below the limit, since the header order recommended by RFC 8200, section 4.1, has at most seven
/// extension headers. If a frame exceeds the limit, its transport is [`Transport::Other`].
const MAX_EXTENSIONS: usize = 8;

/// Headers of a frame. Offsets are in bytes from the beginning of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Layers {
    pub dst: MacAddr,
    pub src: MacAddr,
    /// The outermost VLAN tag.
    pub outer_tag: Option<VlanTag>,
    /// The second VLAN tag, inside the outer tag.
    pub inner_tag: Option<VlanTag>,
    /// EtherType of the data after the tags.
    pub ether_type: EtherType,
    /// Offset of the data after the tags.
    pub network_at: usize,
    /// The IP header, if the frame has one with valid lengths.
    pub ip: Option<Ip>,
}

/// VLAN tag (IEEE 802.1Q-2018, section 9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VlanTag {
    /// Whether the tag is a C-TAG or an S-TAG.
    pub kind: TagKind,
    /// Priority, drop eligibility and VLAN identifier.
    pub tci: Tci,
}

/// The kind of VLAN tag, identified by its EtherType.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagKind {
    /// C-TAG of a customer VLAN, 0x8100.
    Customer,
    /// S-TAG of a service VLAN, 0x88a8.
    Service,
}

/// Tag control information, 16 bits.
#[bitfield(u16)]
#[derive(PartialEq, Eq)]
pub struct Tci {
    /// VLAN identifier, bits 11:0; 0 in a priority tag.
    #[bits(12)]
    pub vid: u16,
    /// Drop eligible indicator, bit 12.
    pub drop_eligible: bool,
    /// Priority code point, bits 15:13.
    #[bits(3)]
    pub priority: u8,
}

/// An IP header and its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ip {
    /// Source and destination addresses of the datagram.
    pub addresses: Addresses,
    /// Protocol number of the payload, which begins after the extension headers.
    pub protocol: u8,
    /// Whether the datagram is a fragment.
    pub fragment: bool,
    /// Whether the datagram has IPv6 extension headers.
    pub extensions: bool,
    /// Offset of the payload, after options and extension headers.
    pub payload_at: usize,
    /// Offset of the end of the datagram. Ethernet padding can follow.
    pub end: usize,
    /// Transport protocol, with its ports if it has any.
    pub transport: Transport,
}

/// Source and destination addresses of an IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Addresses {
    /// Addresses of an IPv4 packet.
    V4 { src: Ipv4Addr, dst: Ipv4Addr },
    /// Addresses of an IPv6 packet.
    V6 { src: Ipv6Addr, dst: Ipv6Addr },
}

/// Transport protocol of an IP datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Transport {
    Tcp(Ports),
    Udp(Ports),
    Sctp(Ports),
    /// ICMP over IPv4, or ICMPv6 over IPv6.
    Icmp,
    /// Any other protocol, a fragment, or a payload that is too short for its transport header. Transport headers of
    /// fragments are not parsed, since only the first fragment has one and its checksum covers the whole datagram.
    Other,
}

/// Source and destination ports, which are the first four bytes of TCP, UDP and SCTP headers.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[allow(missing_docs)]
pub struct Ports {
    pub src: U16,
    pub dst: U16,
}

/// First four bytes of an extension header. The unit of `len` depends on the type of the header.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct RawExtension {
    next_header: u8,
    len: u8,
    /// In a routing header, the routing type and the segments left. In a fragment header, a [`FragmentField`].
    own: U16,
}

/// Offset and M flag of a fragment header (RFC 8200, section 4.5).
#[bitfield(u16)]
struct FragmentField {
    more: bool,
    #[bits(2)]
    __: u8,
    #[bits(13)]
    offset: u16,
}

impl Layers {
    /// Parses a frame. Any data can follow the Ethernet header.
    ///
    /// # Errors
    /// [`WireError::Short`] if the frame ends inside its Ethernet header or inside a VLAN tag.
    pub fn parse(frame: &[u8]) -> Result<Self, WireError> {
        let (ether, mut rest) = view::<RawEther>(frame, "Ethernet")?;
        let mut ether_type = ether.ether_type.get();
        let mut next_tag = || -> Result<Option<VlanTag>, WireError> {
            let Some(kind) = TagKind::from_ether_type(ether_type) else { return Ok(None) };
            let (&[tci, next_type], payload) = view::<[U16; 2]>(rest, "vlan tag")?;
            (ether_type, rest) = (next_type.get(), payload);
            Ok(Some(VlanTag { kind, tci: Tci::from_bits(tci.get()) }))
        };
        let outer_tag = next_tag()?;
        let inner_tag = next_tag()?;
        let network_at = frame.len() - rest.len();
        let ether_type = EtherType::from_number(ether_type);
        let ip = match ether_type {
            EtherType::Ipv4 => Ip::parse_v4(rest, Lengths::Valid),
            EtherType::Ipv6 => Ip::parse_v6(rest, Lengths::Valid),
            EtherType::Arp | EtherType::Other(_) => None,
        };
        Ok(Self {
            dst: MacAddr(ether.dst),
            src: MacAddr(ether.src),
            outer_tag,
            inner_tag,
            ether_type,
            network_at,
            ip: ip.map(|ip| ip.behind(network_at)),
        })
    }

    /// Returns the IP header, even if the datagram is longer than the rest of the frame. In that case, the datagram is
    /// truncated at the end of the frame.
    pub fn any_ip(&self, frame: &[u8]) -> Option<Ip> {
        let rest = frame.get(self.network_at..).unwrap_or_default();
        let cut = || match self.ether_type {
            EtherType::Ipv4 => Ip::parse_v4(rest, Lengths::Any),
            EtherType::Ipv6 => Ip::parse_v6(rest, Lengths::Any),
            EtherType::Arp | EtherType::Other(_) => None,
        };
        self.ip.or_else(|| cut().map(|ip| ip.behind(self.network_at)))
    }

    /// Returns the IP header, including options and extension headers.
    pub fn ip_header<'a>(&self, frame: &'a [u8]) -> Option<&'a [u8]> {
        frame.get(self.network_at..self.ip?.payload_at)
    }
}

/// Which datagram lengths are accepted.
#[derive(Clone, Copy)]
enum Lengths {
    /// Only lengths that fit in the frame.
    Valid,
    /// All lengths. A datagram that is too long is truncated at the end of the frame.
    Any,
}

impl Lengths {
    fn end(self, stated: usize, bytes: &[u8]) -> usize {
        match self {
            Self::Valid => stated,
            Self::Any => stated.min(bytes.len()),
        }
    }
}

impl Ip {
    /// Parses an IP header at `offset` that [`Layers`] does not find, for example because an MPLS label stack precedes
    /// it. Returns `None` if there is no IP header or if its lengths are invalid.
    pub fn at(frame: &[u8], offset: usize) -> Option<Self> {
        let bytes = frame.get(offset..)?;
        let ip = Self::parse_v4(bytes, Lengths::Valid).or_else(|| Self::parse_v6(bytes, Lengths::Valid));
        Some(ip?.behind(offset))
    }

    fn behind(self, network_at: usize) -> Self {
        Self { payload_at: self.payload_at + network_at, end: self.end + network_at, ..self }
    }

    /// Parses an IPv4 datagram. Offsets in the result are relative to the first byte of the datagram.
    fn parse_v4(bytes: &[u8], lengths: Lengths) -> Option<Self> {
        let (raw, _) = view::<RawIpv4>(bytes, "IPv4").ok()?;
        let payload_at = usize::from(raw.version_ihl & 0xf) * 4;
        if raw.version_ihl >> 4 != 4 || payload_at < size_of::<RawIpv4>() {
            return None;
        }
        let end = lengths.end(raw.total_len.get().into(), bytes);
        let payload = bytes.get(payload_at..end)?;
        let fragment = raw.fragment.more() || raw.fragment.offset() != 0;
        Some(Self {
            addresses: Addresses::V4 { src: raw.src.into(), dst: raw.dst.into() },
            protocol: raw.protocol,
            fragment,
            extensions: false,
            payload_at,
            end,
            transport: Transport::parse(raw.protocol, icmp::PROTOCOL, fragment, payload),
        })
    }

    /// Parses an IPv6 datagram. Offsets in the result are relative to the first byte of the datagram. An extension
    /// header is treated as payload if it does not fit in the datagram or if it follows [`MAX_EXTENSIONS`] others.
    fn parse_v6(bytes: &[u8], lengths: Lengths) -> Option<Self> {
        let (raw, _) = view::<RawIpv6>(bytes, "IPv6").ok()?;
        if raw.flow.version() != 6 {
            return None;
        }
        let end = lengths.end(size_of::<RawIpv6>() + usize::from(raw.payload_len.get()), bytes);
        let mut payload = bytes.get(size_of::<RawIpv6>()..end)?;
        let mut protocol = raw.next_header;
        let mut fragment = false;
        for _ in 0..MAX_EXTENSIONS {
            // Do not parse the data of a fragment as a header, since it can start anywhere in the datagram.
            let next = RawExtension::at(protocol, payload);
            let next = next.filter(|(header, _)| !fragment && !header.has_segments_left(protocol));
            let Some((extension, len)) = next else {
                break;
            };
            let Some(rest) = payload.get(len..) else { break };
            let field = FragmentField::from_bits(extension.own.get());
            fragment = protocol == extension::FRAGMENT && (field.more() || field.offset() != 0);
            (protocol, payload) = (extension.next_header, rest);
        }
        let payload_at = end - payload.len();
        Some(Self {
            addresses: Addresses::V6 { src: raw.src.into(), dst: raw.dst.into() },
            protocol,
            fragment,
            extensions: payload_at != size_of::<RawIpv6>(),
            payload_at,
            end,
            transport: Transport::parse(protocol, icmpv6::PROTOCOL, fragment, payload),
        })
    }

    /// Returns the payload of the IP datagram, without Ethernet padding.
    pub fn payload<'a>(&self, frame: &'a [u8]) -> Option<&'a [u8]> {
        frame.get(self.payload_at..self.end)
    }

    /// Returns the partial checksum over the pseudo-header for TCP, UDP and ICMPv6 (RFC 9293, section 3.1; RFC 8200,
    /// section 8.1).
    pub fn pseudo_header(&self) -> Checksum {
        let addresses = match self.addresses {
            Addresses::V4 { src, dst } => Checksum::new().with(&src.octets()).with(&dst.octets()),
            Addresses::V6 { src, dst } => Checksum::new().with(&src.octets()).with(&dst.octets()),
        };
        // Lengths fit in 16 bits; jumbograms (RFC 2675) are not supported.
        let len = u16::try_from(self.end - self.payload_at).unwrap_or(u16::MAX);
        addresses.with_u16(self.protocol.into()).with_u16(len)
    }
}

impl Transport {
    fn parse(protocol: u8, icmp: u8, fragment: bool, payload: &[u8]) -> Self {
        let ports = |header_len: usize| {
            let header = payload.get(..header_len)?;
            view::<Ports>(header, "ports").ok().map(|(ports, _)| *ports)
        };
        // Minimum header lengths: RFC 9293, section 3.1 (TCP), RFC 768 (UDP), and RFC 9260, section 3.1 (SCTP).
        let transport = match protocol {
            _ if fragment => None,
            TCP => ports(20).map(Self::Tcp),
            udp::PROTOCOL => ports(8).map(Self::Udp),
            SCTP => ports(12).map(Self::Sctp),
            protocol if protocol == icmp => Some(Self::Icmp),
            _ => None,
        };
        transport.unwrap_or(Self::Other)
    }

    /// Returns the source and destination ports, if the protocol has ports.
    pub const fn ports(self) -> Option<Ports> {
        match self {
            Self::Tcp(ports) | Self::Udp(ports) | Self::Sctp(ports) => Some(ports),
            Self::Icmp | Self::Other => None,
        }
    }
}

impl TagKind {
    /// Returns the kind of tag with EtherType `number`, if any.
    pub const fn from_ether_type(number: u16) -> Option<Self> {
        match number {
            0x8100 => Some(Self::Customer),
            0x88a8 => Some(Self::Service),
            _ => None,
        }
    }

    /// Returns the EtherType of the tag.
    pub const fn ether_type(self) -> u16 {
        match self {
            Self::Customer => 0x8100,
            Self::Service => 0x88a8,
        }
    }
}

/// Protocol numbers of extension headers (RFC 8200, section 4; RFC 4302; RFC 6275).
mod extension {
    pub(super) const HOP_BY_HOP: u8 = 0;
    pub(super) const ROUTING: u8 = 43;
    pub(super) const FRAGMENT: u8 = 44;
    pub(super) const AUTHENTICATION: u8 = 51;
    pub(super) const DESTINATION: u8 = 60;
    pub(super) const MOBILITY: u8 = 135;
}

impl RawExtension {
    /// Returns the extension header at the front of `bytes` and its length in bytes. Returns `None` if `protocol` is
    /// not an extension header that can be skipped.
    fn at(protocol: u8, bytes: &[u8]) -> Option<(&Self, usize)> {
        let (header, _) = view::<Self>(bytes, "extension header").ok()?;
        let len = usize::from(header.len);
        match protocol {
            extension::HOP_BY_HOP | extension::ROUTING | extension::DESTINATION | extension::MOBILITY => {
                Some((header, (len + 1) * 8))
            }
            extension::FRAGMENT => Some((header, 8)),
            // RFC 4302, section 2.2: the length is in 4-byte words, minus two.
            extension::AUTHENTICATION => Some((header, (len + 2) * 4)),
            _ => None,
        }
    }

    /// Returns whether this is a routing header with segments left. RFC 8200, section 8.1: the pseudo-header contains
    /// the final destination, but the IPv6 header still contains an intermediate one, so the transport checksum cannot
    /// be verified.
    fn has_segments_left(&self, protocol: u8) -> bool {
        let [_, segments_left] = self.own.get().to_be_bytes();
        protocol == extension::ROUTING && segments_left != 0
    }
}

/// Returns the protocol number that follows the extension header at the front of `bytes`, and the length of the header in
/// bytes. Returns `None` if `protocol` is not an extension header that can be skipped, or if a fragment other than the
/// first follows.
pub fn skip_extension(protocol: u8, bytes: &[u8]) -> Option<(u8, usize)> {
    let (header, len) = RawExtension::at(protocol, bytes)?;
    let is_later =
        protocol == extension::FRAGMENT && FragmentField::from_bits(header.own.get()).offset() != 0;
    (!is_later).then_some((header.next_header, len))
}

#[cfg(test)]
mod tests;
