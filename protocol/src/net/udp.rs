//! UDP headers.

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::checksum::Checksum;
use crate::WireError;
use crate::view::{split, view};

/// Protocol number of UDP.
pub const PROTOCOL: u8 = 17;

/// Destination port of RoCEv2.
pub const ROCE_PORT: u16 = 4791;

/// UDP header as its 8 bytes (RFC 768).
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct RawUdp {
    /// Source port.
    pub src_port: U16,
    /// Destination port.
    pub dst_port: U16,
    /// Bytes of header and payload.
    pub len: U16,
    /// Checksum, 0 for none.
    pub checksum: U16,
}

const _: () = assert!(size_of::<RawUdp>() == 8);

impl RawUdp {
    /// Splits a datagram into header and payload. Bytes of `datagram` beyond the header's length are not part of it.
    /// `pseudo` is the sum of the IP pseudo-header without its length.
    ///
    /// # Errors
    /// [`WireError::Short`]; [`WireError::Invalid`] when the length is below the header's own;
    /// [`WireError::Checksum`] when there is one and it is wrong.
    pub fn parse(datagram: &[u8], pseudo: Checksum) -> Result<(&Self, &[u8]), WireError> {
        let (raw, rest) = view::<Self>(datagram, "UDP")?;
        let Some(payload_len) = usize::from(raw.len.get()).checked_sub(size_of::<Self>()) else {
            return Err(WireError::Invalid { what: "UDP length", value: raw.len.get().into() });
        };
        let (payload, _) = split(rest, payload_len, "UDP payload")?;
        if raw.checksum != U16::ZERO {
            let sum = pseudo.with_u16(raw.len.get()).with(raw.as_bytes()).with(payload);
            if sum.value() != 0 {
                return Err(WireError::Checksum { what: "UDP" });
            }
        }
        Ok((raw, payload))
    }
}

/// Sum of the pseudo-header's addresses and protocol; the UDP length is added by whoever knows it.
pub fn pseudo_header(src: &[u8], dst: &[u8]) -> Checksum {
    Checksum::new().with(src).with(dst).with_u16(PROTOCOL.into())
}
