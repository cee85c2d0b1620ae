//! IPv4 headers without options.

use std::net::Ipv4Addr;

use bitfield_struct::bitfield;
use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::checksum::Checksum;
use crate::WireError;
use crate::view::{split, view};

/// Wire format of the IPv4 header, 20 bytes (RFC 791).
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[allow(missing_docs)]
pub struct RawIpv4 {
    /// Version (bits 7:4) and header length in 32-bit words (bits 3:0).
    pub version_ihl: u8,
    /// Type of service, including the ECN bits.
    pub tos: u8,
    /// Length of the header and the payload in bytes.
    pub total_len: U16,
    /// Value of the identification field; see [`Fragmentation::id`].
    pub id: U16,
    /// Flags and fragment offset.
    pub fragment: Ipv4Fragment,
    pub ttl: u8,
    /// Protocol number of the payload.
    pub protocol: u8,
    /// Checksum of the header.
    pub checksum: U16,
    pub src: [u8; 4],
    pub dst: [u8; 4],
}

const _: () = assert!(size_of::<RawIpv4>() == 20);

/// Flags and fragment offset of an IPv4 header.
#[bitfield(u16, repr = U16, from = U16::new, into = U16::get)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct Ipv4Fragment {
    /// Fragment offset in units of 8 bytes, bits 12:0.
    #[bits(13)]
    pub offset: u16,
    /// More fragments (MF), bit 13.
    pub more: bool,
    /// Don't fragment (DF), bit 14.
    pub dont_fragment: bool,
    #[bits(1)]
    __: u8,
}

/// Identification and fragmentation fields of an IPv4 header. The default values, identification 0 and DF set, describe
/// an atomic datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fragmentation {
    /// Identification, the same in all fragments of a datagram.
    pub id: u16,
    /// Flags and fragment offset, as one 16-bit field.
    pub flags: u16,
}

impl Default for Fragmentation {
    fn default() -> Self {
        Self { id: 0, flags: Ipv4Fragment::new().with_dont_fragment(true).into_bits().get() }
    }
}

/// Parsed IPv4 header, without constant and computed fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Ipv4 {
    /// Type of service, including the ECN bits.
    pub tos: u8,
    pub ttl: u8,
    /// Protocol number of the payload.
    pub protocol: u8,
    pub src: Ipv4Addr,
    pub dst: Ipv4Addr,
}

impl Ipv4 {
    /// Parses an unfragmented datagram. Returns the header, and the payload truncated to the total length.
    ///
    /// # Errors
    /// [`WireError::Short`] if the datagram is truncated; [`WireError::Invalid`] for other versions, options and
    /// fragments; [`WireError::Checksum`] if the header checksum is wrong.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), WireError> {
        let (raw, rest) = view::<RawIpv4>(bytes, "IPv4")?;
        // RoCE senders do not use options.
        if raw.version_ihl != 0x45 {
            return Err(WireError::Invalid { what: "IPv4 version and IHL", value: raw.version_ihl.into() });
        }
        if Checksum::new().with(raw.as_bytes()).value() != 0 {
            return Err(WireError::Checksum { what: "IPv4" });
        }
        // Fragments are not reassembled: RoCE packets fit in the MTU and are sent with DF set.
        if raw.fragment.more() || raw.fragment.offset() != 0 {
            return Err(WireError::Invalid { what: "IPv4 fragment", value: raw.fragment.offset().into() });
        }
        let total = usize::from(raw.total_len.get());
        let Some(payload_len) = total.checked_sub(size_of::<RawIpv4>()) else {
            return Err(WireError::Invalid { what: "IPv4 total length", value: raw.total_len.get().into() });
        };
        let (payload, _) = split(rest, payload_len, "IPv4 payload")?;
        let header = Self {
            tos: raw.tos,
            ttl: raw.ttl,
            protocol: raw.protocol,
            src: raw.src.into(),
            dst: raw.dst.into(),
        };
        Ok((header, payload))
    }

    /// Returns the identification and fragmentation fields of the header at the front of `bytes`.
    ///
    /// # Errors
    /// [`WireError::Short`] if the header is truncated.
    pub fn fragmentation(bytes: &[u8]) -> Result<Fragmentation, WireError> {
        let (raw, _) = view::<RawIpv4>(bytes, "IPv4")?;
        Ok(Fragmentation { id: raw.id.get(), flags: raw.fragment.into_bits().get() })
    }

    /// Returns the header in wire format, for a payload of `payload_len` bytes, at most 65515.
    ///
    /// Identification is 0 and DF is set. Such a datagram is atomic, and its identification is meaningless (RFC 6864,
    /// section 4.1). A constant value also avoids revealing how much other traffic the port sends.
    ///
    /// # Errors
    /// [`WireError::Invalid`] if the total length does not fit into its field.
    pub fn emit(&self, payload_len: usize) -> Result<RawIpv4, WireError> {
        let total = size_of::<RawIpv4>().saturating_add(payload_len);
        let total_len = u16::try_from(total).map_err(|_| WireError::Invalid {
            what: "IPv4 total length",
            value: u64::try_from(total).unwrap_or(u64::MAX),
        })?;
        let mut raw = RawIpv4 {
            version_ihl: 0x45,
            tos: self.tos,
            total_len: total_len.into(),
            id: U16::ZERO,
            fragment: Ipv4Fragment::new().with_dont_fragment(true),
            ttl: self.ttl,
            protocol: self.protocol,
            checksum: U16::ZERO,
            src: self.src.octets(),
            dst: self.dst.octets(),
        };
        raw.checksum = Checksum::new().with(raw.as_bytes()).value().into();
        Ok(raw)
    }
}
