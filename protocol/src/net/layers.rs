//! One look at a whole frame, for a NIC: where its headers are and between whom it goes. Nothing is verified but that
//! lengths fit: checksums are of whoever reports them.

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

/// Protocol number of TCP.
pub const TCP: u8 = 6;
/// Protocol number of SCTP.
pub const SCTP: u8 = 132;

/// Extension headers of IPv6 that are followed. RFC 8200, section 4.1, knows seven in its recommended order, one of them
/// twice; a frame that goes on has no transport here, so that no sender makes the walk long.
const MAX_EXTENSIONS: usize = 8;

/// What the headers of a frame say. Offsets count from the frame's first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layers {
    /// Destination.
    pub dst: MacAddr,
    /// Source.
    pub src: MacAddr,
    /// The first VLAN tag.
    pub outer_tag: Option<VlanTag>,
    /// The second, which there is only behind a first.
    pub inner_tag: Option<VlanTag>,
    /// Type of what is behind the tags.
    pub ether_type: EtherType,
    /// Where that begins.
    pub network_at: usize,
    /// The IP header, if there is one whose lengths fit.
    pub ip: Option<Ip>,
}

/// A VLAN tag: IEEE 802.1Q-2018, section 9.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VlanTag {
    /// Which kind of tag.
    pub kind: TagKind,
    /// Tag control information.
    pub tci: Tci,
}

/// Kinds of VLAN tags, by their EtherType.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagKind {
    /// 8100, a customer's VLAN.
    Customer,
    /// 88A8, a provider's VLAN.
    Service,
}

/// Tag control information.
#[bitfield(u16)]
#[derive(PartialEq, Eq)]
pub struct Tci {
    /// VLAN identifier, bits 11:0; 0 names no VLAN.
    #[bits(12)]
    pub vid: u16,
    /// The frame may be dropped first, bit 12.
    pub drop_eligible: bool,
    /// Priority, bits 15:13.
    #[bits(3)]
    pub priority: u8,
}

/// An IP header and what is known of its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ip {
    /// Version, source and destination.
    pub addresses: Addresses,
    /// Protocol of the payload, behind all extension headers that were followed.
    pub protocol: u8,
    /// Whether the payload is one of several fragments.
    pub fragment: bool,
    /// Whether there are extension headers of IPv6.
    pub extensions: bool,
    /// Where the payload begins, behind options and extension headers.
    pub payload_at: usize,
    /// Where the datagram ends; what follows is padding.
    pub end: usize,
    /// What the payload is.
    pub transport: Transport,
}

/// Addresses of an IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// IPv4
    V4 {
        /// Source.
        src: Ipv4Addr,
        /// Destination.
        dst: Ipv4Addr,
    },
    /// IPv6
    V6 {
        /// Source.
        src: Ipv6Addr,
        /// Destination.
        dst: Ipv6Addr,
    },
}

/// Payload of an IP datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP
    Tcp(Ports),
    /// UDP
    Udp(Ports),
    /// SCTP
    Sctp(Ports),
    /// ICMP in IPv4, ICMPv6 in IPv6.
    Icmp,
    /// Another protocol, one that is too short for its header, or a fragment: only the first has a header, and none can
    /// be verified alone.
    Other,
}

/// The first four bytes of TCP, UDP and SCTP headers.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct Ports {
    /// Source.
    pub src: U16,
    /// Destination.
    pub dst: U16,
}

/// What all extension headers begin with, but for the unit of the length.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct RawExtension {
    next_header: u8,
    len: u8,
    /// Routing type and segments left of a routing header, [`FragmentField`] of a fragment header.
    own: U16,
}

/// Offset and flag of a fragment header (RFC 8200, section 4.5).
#[bitfield(u16)]
struct FragmentField {
    more: bool,
    #[bits(2)]
    __: u8,
    #[bits(13)]
    offset: u16,
}

impl Layers {
    /// Looks at a frame. What is behind the Ethernet header may be anything.
    ///
    /// # Errors
    /// [`WireError::Short`] for a frame that ends in its Ethernet header or in a VLAN tag.
    pub fn parse(frame: &[u8]) -> Result<Self, WireError> {
        let (ether, mut rest) = view::<RawEther>(frame, "Ethernet")?;
        let mut ether_type = ether.ether_type.get();
        let mut next_tag = || -> Result<Option<VlanTag>, WireError> {
            let Some(kind) = TagKind::from_ether_type(ether_type) else { return Ok(None) };
            let (&[tci, behind], payload) = view::<[U16; 2]>(rest, "vlan tag")?;
            (ether_type, rest) = (behind.get(), payload);
            Ok(Some(VlanTag { kind, tci: Tci::from_bits(tci.get()) }))
        };
        let outer_tag = next_tag()?;
        let inner_tag = next_tag()?;
        let network_at = frame.len() - rest.len();
        let ether_type = EtherType::from_number(ether_type);
        let ip = match ether_type {
            EtherType::Ipv4 => Ip::parse_v4(rest),
            EtherType::Ipv6 => Ip::parse_v6(rest),
            EtherType::Arp | EtherType::Other(_) => None,
        };
        Ok(Self {
            dst: MacAddr(ether.dst),
            src: MacAddr(ether.src),
            outer_tag,
            inner_tag,
            ether_type,
            network_at,
            ip: ip.map(|ip| Ip { payload_at: ip.payload_at + network_at, end: ip.end + network_at, ..ip }),
        })
    }

    /// The IP header with its options and extension headers.
    pub fn ip_header<'a>(&self, frame: &'a [u8]) -> Option<&'a [u8]> {
        frame.get(self.network_at..self.ip?.payload_at)
    }
}

impl Ip {
    /// Reads a datagram; offsets count from its first byte.
    fn parse_v4(bytes: &[u8]) -> Option<Self> {
        let (raw, _) = view::<RawIpv4>(bytes, "IPv4").ok()?;
        let payload_at = usize::from(raw.version_ihl & 0xf) * 4;
        if raw.version_ihl >> 4 != 4 || payload_at < size_of::<RawIpv4>() {
            return None;
        }
        let end = usize::from(raw.total_len.get());
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

    /// Reads a datagram; offsets count from its first byte. An extension header that does not fit, or one too many, is
    /// left as the payload.
    fn parse_v6(bytes: &[u8]) -> Option<Self> {
        let (raw, _) = view::<RawIpv6>(bytes, "IPv6").ok()?;
        if raw.flow.version() != 6 {
            return None;
        }
        let end = size_of::<RawIpv6>() + usize::from(raw.payload_len.get());
        let mut payload = bytes.get(size_of::<RawIpv6>()..end)?;
        let mut protocol = raw.next_header;
        let mut fragment = false;
        for _ in 0..MAX_EXTENSIONS {
            // A later fragment has no headers of its own, whatever its first bytes look like.
            let Some((extension, len)) = RawExtension::at(protocol, payload).filter(|_| !fragment) else {
                break;
            };
            let Some(behind) = payload.get(len..) else { break };
            let field = FragmentField::from_bits(extension.own.get());
            fragment = protocol == extension::FRAGMENT && (field.more() || field.offset() != 0);
            (protocol, payload) = (extension.next_header, behind);
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

    /// What follows the IP header, without padding.
    pub fn payload<'a>(&self, frame: &'a [u8]) -> Option<&'a [u8]> {
        frame.get(self.payload_at..self.end)
    }

    /// Sum of the pseudo-header that the checksums of TCP, UDP and ICMPv6 cover: RFC 9293, section 3.1, and RFC 8200,
    /// section 8.1.
    pub fn pseudo_header(&self) -> Checksum {
        let addresses = match self.addresses {
            Addresses::V4 { src, dst } => Checksum::new().with(&src.octets()).with(&dst.octets()),
            Addresses::V6 { src, dst } => Checksum::new().with(&src.octets()).with(&dst.octets()),
        };
        // A datagram's length is a 16-bit number in both versions, jumbograms (RFC 2675) apart.
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
        // The shortest header of each: RFC 9293, section 3.1; RFC 768; RFC 9260, section 3.1.
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

    /// Source and destination port of what has them.
    pub const fn ports(self) -> Option<Ports> {
        match self {
            Self::Tcp(ports) | Self::Udp(ports) | Self::Sctp(ports) => Some(ports),
            Self::Icmp | Self::Other => None,
        }
    }
}

impl TagKind {
    /// The tag that an EtherType announces.
    pub const fn from_ether_type(number: u16) -> Option<Self> {
        match number {
            0x8100 => Some(Self::Customer),
            0x88a8 => Some(Self::Service),
            _ => None,
        }
    }

    /// Its EtherType.
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
    /// The extension header at the front of `bytes` and its length, if `protocol` is one.
    fn at(protocol: u8, bytes: &[u8]) -> Option<(&Self, usize)> {
        let (header, _) = view::<Self>(bytes, "extension header").ok()?;
        let len = usize::from(header.len);
        let [_, segments_left] = header.own.get().to_be_bytes();
        match protocol {
            // Not at its final destination, whose address the pseudo-header has (RFC 8200, section 8.1).
            extension::ROUTING if segments_left != 0 => None,
            extension::HOP_BY_HOP | extension::ROUTING | extension::DESTINATION | extension::MOBILITY => {
                Some((header, (len + 1) * 8))
            }
            extension::FRAGMENT => Some((header, 8)),
            // The odd one: words of four bytes, less two (RFC 4302, section 2.2).
            extension::AUTHENTICATION => Some((header, (len + 2) * 4)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
