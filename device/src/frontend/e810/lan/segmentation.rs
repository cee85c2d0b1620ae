//! TCP and UDP segmentation (TSO) over IPv4 and IPv6, with or without tunnels.
//!
//! The headers are stored once. Each segment consists of a copy of them and the next payload bytes, with
//! lengths, sequence numbers and checksums adjusted.
//!
//! # Spec
//! E810 interface, section 8.2, "TSO".

use protocol::hca::e810::tx_descriptor::Segmentation;

use super::malicious::DriverError;
use super::offload::{Offloads, SegmentPosition};

/// Range of the MSS, as in the E810.
const SEGMENT_SIZES: std::ops::RangeInclusive<u16> = 64..=9668;

/// A frame being segmented.
#[derive(Debug)]
pub(super) struct Segments {
    /// Original headers, including inserted VLAN tags.
    headers: Vec<u8>,
    offloads: Offloads,
    size: u32,
    sent: u32,
    payload_len: u32,
    /// Segments emitted, modulo 2^16, as added to the IPv4 identification.
    emitted: u16,
}

impl Segments {
    /// Starts segmentation of a frame with these headers.
    ///
    /// # Errors
    /// The MSS is out of range, the payload is empty, the transport does not support TSO, or a segment would
    /// exceed `max_frame`.
    pub(super) fn new(
        headers: Vec<u8>,
        offloads: Offloads,
        request: Segmentation,
        max_frame: usize,
    ) -> Result<Self, DriverError> {
        if !SEGMENT_SIZES.contains(&request.mss) {
            return Err(DriverError::SegmentSize);
        }
        if request.payload_len == 0 {
            return Err(DriverError::SegmentedLength);
        }
        if !offloads.supports_tso() || offloads.headers_len() != headers.len() {
            return Err(DriverError::HeaderLengths);
        }
        let size = u32::from(request.mss);
        if headers.len() + size.min(request.payload_len) as usize > max_frame {
            return Err(DriverError::FrameTooLong);
        }
        Ok(Self { headers, offloads, size, sent: 0, payload_len: request.payload_len, emitted: 0 })
    }

    /// Appends the next segment to `out`. `payload` appends the given number of payload bytes. Returns
    /// whether it was the last segment.
    ///
    /// # Errors
    /// Those of `payload`; nothing is appended.
    pub(super) fn emit(
        &mut self,
        out: &mut Vec<u8>,
        payload: impl FnOnce(usize, &mut Vec<u8>) -> Result<(), DriverError>,
    ) -> Result<bool, DriverError> {
        let start = out.len();
        let len = self.size.min(self.payload_len - self.sent);
        let last = self.sent + len == self.payload_len;
        out.extend_from_slice(&self.headers);
        payload(len as usize, out).inspect_err(|_| out.truncate(start))?;
        let frame = out.get_mut(start..).unwrap_or_default();
        self.offloads.adjust_headers(frame, SegmentPosition { index: self.emitted, offset: self.sent, last });
        self.offloads.fill_checksums(frame)?;
        self.sent += len;
        self.emitted = self.emitted.wrapping_add(1);
        Ok(last)
    }

    /// Returns the header buffer for reuse.
    pub(super) fn into_headers(self) -> Vec<u8> {
        self.headers
    }
}
