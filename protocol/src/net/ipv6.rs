//! IPv6 headers without extension headers.

use std::net::Ipv6Addr;

use bitfield_struct::bitfield;
use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::WireError;
use crate::ids::FlowLabel;
use crate::view::{split, view};

/// Wire format of the IPv6 header, 40 bytes (RFC 8200).
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[allow(missing_docs)]
pub struct RawIpv6 {
    /// Version, traffic class and flow label.
    pub flow: Ipv6Flow,
    /// Length in bytes of everything after this header.
    pub payload_len: U16,
    /// Protocol number of the payload.
    pub next_header: u8,
    pub hop_limit: u8,
    pub src: [u8; 16],
    pub dst: [u8; 16],
}

const _: () = assert!(size_of::<RawIpv6>() == 40);

/// First word of an IPv6 header.
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct Ipv6Flow {
    /// Flow label, bits 19:0.
    #[bits(20)]
    pub label: u32,
    /// Traffic class, bits 27:20.
    #[bits(8)]
    pub traffic_class: u8,
    /// Version, bits 31:28; always 6.
    #[bits(4)]
    pub version: u8,
}

/// The parsed header of an IPv6 packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Ipv6 {
    /// Traffic class, including the ECN bits.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: FlowLabel,
    pub hop_limit: u8,
    /// Protocol number of the payload. Extension headers are not followed.
    pub next_header: u8,
    pub src: Ipv6Addr,
    pub dst: Ipv6Addr,
}

impl Ipv6 {
    /// Parses a datagram. Returns the header, and the payload truncated to the payload length.
    ///
    /// # Errors
    /// [`WireError::Short`] if the datagram is truncated; [`WireError::Invalid`] if the version is not 6.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), WireError> {
        let (raw, rest) = view::<RawIpv6>(bytes, "IPv6")?;
        if raw.flow.version() != 6 {
            return Err(WireError::Invalid { what: "IPv6 version", value: raw.flow.version().into() });
        }
        let (payload, _) = split(rest, raw.payload_len.get().into(), "IPv6 payload")?;
        let header = Self {
            traffic_class: raw.flow.traffic_class(),
            flow_label: FlowLabel::new(raw.flow.label()),
            hop_limit: raw.hop_limit,
            next_header: raw.next_header,
            src: raw.src.into(),
            dst: raw.dst.into(),
        };
        Ok((header, payload))
    }

    /// Returns the header in wire format, for a payload of `payload_len` bytes, at most 65535.
    ///
    /// # Errors
    /// [`WireError::Invalid`] if the length does not fit into its field.
    pub fn emit(&self, payload_len: usize) -> Result<RawIpv6, WireError> {
        let payload_len = u16::try_from(payload_len).map_err(|_| WireError::Invalid {
            what: "IPv6 payload length",
            value: u64::try_from(payload_len).unwrap_or(u64::MAX),
        })?;
        Ok(RawIpv6 {
            flow: Ipv6Flow::new()
                .with_version(6)
                .with_traffic_class(self.traffic_class)
                .with_label(self.flow_label.get()),
            payload_len: payload_len.into(),
            next_header: self.next_header,
            hop_limit: self.hop_limit,
            src: self.src.octets(),
            dst: self.dst.octets(),
        })
    }
}
