//! The transport part of a RoCE packet: what lies between the UDP header and the ICRC.

use super::{Bth, Ext};
use crate::WireError;

/// A parsed packet. `ext` is the variant that `bth.opcode` demands; `payload` excludes the pad bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Base transport header.
    pub bth: Bth,
    /// Extension headers.
    pub ext: Ext,
    /// Payload without pad.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Reads a packet. Reserved operations are read with [`Ext::None`], so that a responder can refuse them; pad
    /// bytes may have any value.
    ///
    /// # Errors
    /// As [`Bth::parse`]; [`WireError::Short`] when the extension headers or the pad do not fit;
    /// [`WireError::Invalid`] when payload and pad do not fill words of four bytes.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let (bth, pad, rest) = Bth::parse(bytes)?;
        let (ext, padded) = Ext::parse(bth.opcode.ext_kind(), rest)?;
        let Some(len) = padded.len().checked_sub(pad) else {
            return Err(WireError::Short { what: "pad", need: pad, have: padded.len() });
        };
        if padded.len() % 4 != 0 {
            let value = u64::try_from(padded.len()).unwrap_or(u64::MAX);
            return Err(WireError::Invalid { what: "padded payload length", value });
        }
        let payload = padded.get(..len).unwrap_or_default();
        Ok(Self { bth, ext, payload })
    }
}

/// Bytes (0 to 3) that fill a payload up to whole words.
pub const fn pad_count(payload_len: usize) -> usize {
    payload_len.wrapping_neg() & 3
}
