//! Transport part of a RoCE packet: everything between the UDP header and the ICRC.

use super::ext::RawXrceth;
use super::{Bth, Ext};
use crate::WireError;
use crate::ids::Srqn;

/// Parsed transport headers and payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// The base transport header (BTH).
    pub bth: Bth,
    /// SRQ number in the XRCETH, present if and only if [`Opcode::has_xrceth`](super::Opcode::has_xrceth) is true.
    pub srqn: Option<Srqn>,
    /// Extension headers, which are always the variant that `bth.opcode` requires.
    pub ext: Ext,
    /// Payload without pad bytes.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Parses a packet. Reserved operations parse with [`Ext::None`], so that a responder can NAK them. Pad bytes can
    /// have any value.
    ///
    /// # Errors
    /// Fails in the same cases as [`Bth::parse`]. Also returns [`WireError::Short`] if the extension headers or the pad
    /// bytes are truncated, and [`WireError::Invalid`] if the padded payload length is not a multiple of four.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let (bth, pad, rest) = Bth::parse(bytes)?;
        let (srqn, rest) = if bth.opcode.has_xrceth() {
            let (srqn, rest) = RawXrceth::parse(rest)?;
            (Some(srqn), rest)
        } else {
            (None, rest)
        };
        let (ext, padded) = Ext::parse(bth.opcode.ext_kind(), rest)?;
        let Some(len) = padded.len().checked_sub(pad) else {
            return Err(WireError::Short { what: "pad", need: pad, have: padded.len() });
        };
        if padded.len() % 4 != 0 {
            let value = u64::try_from(padded.len()).unwrap_or(u64::MAX);
            return Err(WireError::Invalid { what: "padded payload length", value });
        }
        let payload = padded.get(..len).unwrap_or_default();
        Ok(Self { bth, srqn, ext, payload })
    }
}

/// Returns the number of pad bytes (0 to 3) that align a payload to four bytes.
pub const fn pad_count(payload_len: usize) -> usize {
    payload_len.wrapping_neg() & 3
}
