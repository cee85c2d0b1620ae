//! Encapsulation of a RoCE packet: Ethernet, IP and UDP headers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::WireError;
use crate::ids::{FlowLabel, MacAddr};
use crate::net::checksum::Checksum;
use crate::net::ether::{self, EtherFrame, EtherType, RawEther};
use crate::net::ipv4::{Fragmentation, Ipv4, RawIpv4};
use crate::net::ipv6::Ipv6;
use crate::net::layers::Tci;
use crate::net::udp::{self, RawUdp};

/// Source and destination IP addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum IpAddrs {
    /// Addresses of an IPv4 packet.
    V4 { src: Ipv4Addr, dst: Ipv4Addr },
    /// Addresses of an IPv6 packet.
    V6 { src: Ipv6Addr, dst: Ipv6Addr },
}

/// Ethernet, IP and UDP headers of a RoCEv2 frame, without lengths and checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Encap {
    pub src_mac: MacAddr,
    pub dst_mac: MacAddr,
    /// Tag control information of the VLAN tag, if the frame has one.
    pub tag: Option<Tci>,
    /// Source and destination IP addresses.
    pub ip: IpAddrs,
    /// IPv4 TOS or IPv6 traffic class, including the ECN bits.
    pub traffic_class: u8,
    /// IPv6 flow label; 0 for IPv4.
    pub flow_label: FlowLabel,
    /// IPv4 TTL or IPv6 hop limit.
    pub hop_limit: u8,
    /// IPv4 identification and fragmentation fields as received. Frames are sent with the default values.
    pub fragment: Fragmentation,
    /// UDP source port. The destination port is always 4791.
    pub src_port: u16,
}

/// Headers of an untagged IPv4 frame.
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub(super) struct RawHeaders {
    pub(super) ether: RawEther,
    pub(super) ip: RawIpv4,
    pub(super) udp: RawUdp,
}

impl IpAddrs {
    /// Returns the length of the IP header in bytes.
    pub const fn header_len(&self) -> usize {
        match self {
            Self::V4 { .. } => 20,
            Self::V6 { .. } => 40,
        }
    }

    /// Returns the source IP address.
    pub fn src(&self) -> IpAddr {
        match *self {
            Self::V4 { src, .. } => src.into(),
            Self::V6 { src, .. } => src.into(),
        }
    }

    /// Returns the destination IP address.
    pub fn dst(&self) -> IpAddr {
        match *self {
            Self::V4 { dst, .. } => dst.into(),
            Self::V6 { dst, .. } => dst.into(),
        }
    }

    /// Returns the sum of the UDP pseudo-header without the UDP length, which the caller adds.
    pub(super) fn pseudo_header(&self) -> Checksum {
        match self {
            Self::V4 { src, dst } => udp::pseudo_header(&src.octets(), &dst.octets()),
            Self::V6 { src, dst } => udp::pseudo_header(&src.octets(), &dst.octets()),
        }
    }
}

/// A frame's encapsulation and content, with verified lengths and checksums.
pub(super) struct Unwrapped<'a> {
    pub(super) encap: Encap,
    /// IP and UDP headers as received, for the ICRC.
    pub(super) ip_and_udp: &'a [u8],
    /// Bytes after the UDP header, including the ICRC.
    pub(super) transport: &'a [u8],
}

impl Encap {
    /// Parses the encapsulation of a frame.
    pub(super) fn unwrap(frame: &[u8]) -> Result<Unwrapped<'_>, WireError> {
        let (ether, tag) = EtherFrame::parse_tagged(frame)?;
        let (ip, traffic_class, flow_label, hop_limit, protocol, datagram) = match ether.ether_type {
            EtherType::Ipv4 => {
                let (ip, datagram) = Ipv4::parse(ether.payload)?;
                let addrs = IpAddrs::V4 { src: ip.src, dst: ip.dst };
                (addrs, ip.tos, FlowLabel::default(), ip.ttl, ip.protocol, datagram)
            }
            EtherType::Ipv6 => {
                let (ip, datagram) = Ipv6::parse(ether.payload)?;
                let addrs = IpAddrs::V6 { src: ip.src, dst: ip.dst };
                (addrs, ip.traffic_class, ip.flow_label, ip.hop_limit, ip.next_header, datagram)
            }
            other => {
                return Err(WireError::Invalid { what: "EtherType", value: other.number().into() });
            }
        };
        if protocol != udp::PROTOCOL {
            return Err(WireError::Invalid { what: "IP protocol", value: protocol.into() });
        }
        let (udp, transport) = RawUdp::parse(datagram, ip.pseudo_header())?;
        // The IP and UDP lengths must match, because the ICRC is at the end of the datagram.
        if usize::from(udp.len.get()) != datagram.len() {
            return Err(WireError::Invalid { what: "UDP length", value: udp.len.get().into() });
        }
        // IBTA annex A17: the destination port identifies RoCEv2.
        if udp.dst_port.get() != udp::ROCE_PORT {
            return Err(WireError::Invalid { what: "UDP port", value: udp.dst_port.get().into() });
        }
        let fragment = match ip {
            IpAddrs::V4 { .. } => Ipv4::fragmentation(ether.payload)?,
            IpAddrs::V6 { .. } => Fragmentation::default(),
        };
        let encap = Self {
            src_mac: ether.src,
            dst_mac: ether.dst,
            tag: tag.map(Tci::from_bits),
            ip,
            traffic_class,
            flow_label,
            hop_limit,
            fragment,
            src_port: udp.src_port.get(),
        };
        let ip_and_udp = ether.payload.get(..ip.header_len() + size_of::<RawUdp>()).unwrap_or_default();
        Ok(Unwrapped { encap, ip_and_udp, transport })
    }

    /// Appends the headers of a frame with `transport_len` bytes after the UDP header. The UDP checksum remains 0.
    ///
    /// # Errors
    /// [`WireError::Invalid`] if the length does not fit into its field. In that case, nothing is appended.
    pub(super) fn emit(&self, transport_len: usize, out: &mut Vec<u8>) -> Result<(), WireError> {
        let udp_len = size_of::<RawUdp>().saturating_add(transport_len);
        let udp = RawUdp {
            src_port: self.src_port.into(),
            dst_port: udp::ROCE_PORT.into(),
            len: u16::try_from(udp_len)
                .map_err(|_| WireError::Invalid {
                    what: "UDP length",
                    value: u64::try_from(udp_len).unwrap_or(u64::MAX),
                })?
                .into(),
            checksum: U16::ZERO,
        };
        match self.ip {
            IpAddrs::V4 { src, dst } => {
                let ip =
                    Ipv4 { tos: self.traffic_class, ttl: self.hop_limit, protocol: udp::PROTOCOL, src, dst };
                let ip = ip.emit(udp_len)?;
                if self.tag.is_none() {
                    // Fast path: most frames are untagged IPv4.
                    let ether = RawEther::new(self.dst_mac, self.src_mac, EtherType::Ipv4);
                    out.extend_from_slice(RawHeaders { ether, ip, udp }.as_bytes());
                    return Ok(());
                }
                self.emit_ether(EtherType::Ipv4, out);
                out.extend_from_slice(ip.as_bytes());
            }
            IpAddrs::V6 { src, dst } => {
                let ip = Ipv6 {
                    traffic_class: self.traffic_class,
                    flow_label: self.flow_label,
                    hop_limit: self.hop_limit,
                    next_header: udp::PROTOCOL,
                    src,
                    dst,
                };
                let ip = ip.emit(udp_len)?;
                self.emit_ether(EtherType::Ipv6, out);
                out.extend_from_slice(ip.as_bytes());
            }
        }
        out.extend_from_slice(udp.as_bytes());
        Ok(())
    }

    /// Returns the length in bytes of the Ethernet header, including a VLAN tag.
    pub const fn ether_len(&self) -> usize {
        size_of::<RawEther>() + if self.tag.is_some() { ether::TAG_LEN } else { 0 }
    }

    fn emit_ether(&self, ether_type: EtherType, out: &mut Vec<u8>) {
        let header = RawEther::new(self.dst_mac, self.src_mac, ether_type);
        match self.tag {
            None => out.extend_from_slice(header.as_bytes()),
            Some(tag) => {
                let (addresses, ether_type) = header.as_bytes().split_at(ether::ADDRESSES_LEN);
                [addresses, &ether::tag(tag.into_bits()), ether_type]
                    .iter()
                    .for_each(|part| out.extend_from_slice(part));
            }
        }
    }
}
