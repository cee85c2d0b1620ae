//! The UDP header (RFC 768).

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::checksum::Checksum;
use crate::WireError;
use crate::view::{split, view};

/// IP protocol number of UDP.
pub const PROTOCOL: u8 = 17;

/// UDP destination port of RoCEv2.
pub const ROCE_PORT: u16 = 4791;

/// Wire format of the UDP header, 8 bytes (RFC 768).
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[allow(missing_docs)]
pub struct RawUdp {
    pub src_port: U16,
    pub dst_port: U16,
    /// Combined length of the header and payload, in bytes.
    pub len: U16,
    /// UDP checksum; 0 means no checksum.
    pub checksum: U16,
}

const _: () = assert!(size_of::<RawUdp>() == 8);

impl RawUdp {
    /// Splits a datagram into its header and payload. The payload is truncated to the length given in the header.
    /// `pseudo` is the sum of the IP pseudo-header, without the UDP length.
    ///
    /// # Errors
    /// [`WireError::Short`] if the datagram is truncated; [`WireError::Invalid`] if its length field is less than the
    /// header length; [`WireError::Checksum`] if a nonzero checksum is wrong.
    pub fn parse(datagram: &[u8], pseudo: Checksum) -> Result<(&Self, &[u8]), WireError> {
        let (raw, rest) = view::<Self>(datagram, "UDP")?;
        let Some(payload_len) = usize::from(raw.len.get()).checked_sub(size_of::<Self>()) else {
            return Err(WireError::Invalid { what: "UDP length", value: raw.len.get().into() });
        };
        let (payload, _) = split(rest, payload_len, "UDP payload")?;
        // RFC 768: a checksum of 0 means that the sender did not compute one.
        if raw.checksum != U16::ZERO {
            let sum = pseudo.with_u16(raw.len.get()).with(raw.as_bytes()).with(payload);
            if sum.value() != 0 {
                return Err(WireError::Checksum { what: "UDP" });
            }
        }
        Ok((raw, payload))
    }
}

/// Returns the sum of the pseudo-header without the UDP length, which the caller adds.
pub fn pseudo_header(src: &[u8], dst: &[u8]) -> Checksum {
    Checksum::new().with(src).with(dst).with_u16(PROTOCOL.into())
}
