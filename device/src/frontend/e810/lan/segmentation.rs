//! Cutting the payload of one frame into many: TCP and UDP over IPv4 and IPv6, in tunnels or not.
//!
//! The headers are kept once. A piece is a copy of them, the next bytes of the payload, and lengths, numbers and checksums
//! put right.
//!
//! # Spec
//! E810 interface, section 8.2, "TSO".

use protocol::hca::e810::tx_descriptor::Segmentation;

use super::malicious::Fault;
use super::offload::{Offloads, Piece};

/// The sizes of pieces that a driver may ask for; what a real E810 takes.
const SEGMENT_SIZES: std::ops::RangeInclusive<u16> = 64..=9668;

/// A frame that is being cut.
#[derive(Debug)]
pub(super) struct Segments {
    /// With inserted tags.
    headers: Vec<u8>,
    offloads: Offloads,
    size: u32,
    /// Bytes of payload that left.
    sent: u32,
    payload_len: u32,
    /// Pieces that left; counts as the identification of IPv4 does.
    pieces: u16,
}

impl Segments {
    /// Cuts a frame with these headers.
    ///
    /// # Errors
    /// The size is out of bounds, there is nothing to cut, it has no transport that can be cut, or a piece would be longer
    /// than `max_frame`.
    pub(super) fn new(
        headers: Vec<u8>,
        offloads: Offloads,
        asked: Segmentation,
        max_frame: usize,
    ) -> Result<Self, Fault> {
        if !SEGMENT_SIZES.contains(&asked.mss) {
            return Err(Fault::SegmentSize);
        }
        if asked.payload_len == 0 {
            return Err(Fault::SegmentedLength);
        }
        if !offloads.can_cut() || offloads.headers_len() != headers.len() {
            return Err(Fault::HeaderLengths);
        }
        let size = u32::from(asked.mss);
        if headers.len() + size.min(asked.payload_len) as usize > max_frame {
            return Err(Fault::FrameTooLong);
        }
        Ok(Self { headers, offloads, size, sent: 0, payload_len: asked.payload_len, pieces: 0 })
    }

    /// Appends the next piece; `payload` is asked to append as many bytes as it is told. Whether it was the last.
    ///
    /// # Errors
    /// Those of `payload`, and then nothing is appended.
    pub(super) fn emit(
        &mut self,
        out: &mut Vec<u8>,
        payload: impl FnOnce(usize, &mut Vec<u8>) -> Result<(), Fault>,
    ) -> Result<bool, Fault> {
        let start = out.len();
        let len = self.size.min(self.payload_len - self.sent);
        let last = self.sent + len == self.payload_len;
        out.extend_from_slice(&self.headers);
        payload(len as usize, out).inspect_err(|_| out.truncate(start))?;
        let frame = out.get_mut(start..).unwrap_or_default();
        self.offloads.cut(frame, Piece { index: self.pieces, offset: self.sent, last });
        self.offloads.fill_checksums(frame)?;
        self.sent += len;
        self.pieces = self.pieces.wrapping_add(1);
        Ok(last)
    }

    /// The memory of the headers, for another frame.
    pub(super) fn into_headers(self) -> Vec<u8> {
        self.headers
    }
}
