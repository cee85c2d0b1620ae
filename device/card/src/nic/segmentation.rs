//! TCP and UDP segmentation (TSO) over IPv4 and IPv6, with or without tunnels.
//!
//! The headers are stored once. Each segment consists of a copy of the headers and the next payload bytes, with
//! lengths, sequence numbers and checksums adjusted.

use std::num::NonZeroU16;

use thiserror::Error;

use super::offload::{HeaderError, Offloads, SegmentPosition};

/// Parameters for segmenting a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segmentation {
    /// Number of payload bytes in every segment except the last (MSS).
    pub segment_len: NonZeroU16,
    /// Number of payload bytes in all segments.
    pub payload_len: u32,
    pub max_frame: usize,
}

/// Why a frame cannot be segmented.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SegmentationError {
    /// The frame has no payload.
    #[error("the frame has no payload to segment")]
    NoPayload,
    /// The headers do not have the length given in the offload request, or the transport is neither TCP nor UDP.
    #[error("the frame's headers are not valid for segmentation")]
    Headers,
    /// A segment would exceed the maximum frame length.
    #[error("a segment exceeds the maximum frame length")]
    TooLong,
}

/// A frame being segmented.
#[derive(Debug)]
pub struct Segments {
    /// Original headers, including inserted VLAN tags.
    headers: Vec<u8>,
    offloads: Offloads,
    size: u32,
    sent: u32,
    payload_len: u32,
    /// Number of segments emitted, modulo 2^16. This number is added to the IPv4 identification.
    emitted: u16,
}

impl Segments {
    /// Starts segmentation of a frame with the given headers.
    ///
    /// # Errors
    /// Fails if the payload is empty, if the headers do not support TSO or do not have the length given in the offload
    /// request, or if a segment would exceed the maximum frame length.
    pub fn new(
        headers: Vec<u8>,
        offloads: Offloads,
        request: Segmentation,
    ) -> Result<Self, SegmentationError> {
        let Segmentation { segment_len, payload_len, max_frame } = request;
        if payload_len == 0 {
            return Err(SegmentationError::NoPayload);
        }
        if !offloads.supports_tso() || offloads.headers_len() != headers.len() {
            return Err(SegmentationError::Headers);
        }
        let size = u32::from(segment_len.get());
        if headers.len() + size.min(payload_len) as usize > max_frame {
            return Err(SegmentationError::TooLong);
        }
        Ok(Self { headers, offloads, size, sent: 0, payload_len, emitted: 0 })
    }

    /// Appends the next segment to `out`. `payload` is called with a number of bytes and appends that many payload
    /// bytes. Returns whether this was the last segment.
    ///
    /// # Errors
    /// Fails if `payload` fails, or if `payload` shortens `out` so far that part of the headers is missing. On error,
    /// nothing is appended and the next call starts with the same segment.
    pub fn emit<E: From<HeaderError>>(
        &mut self,
        out: &mut Vec<u8>,
        payload: impl FnOnce(usize, &mut Vec<u8>) -> Result<(), E>,
    ) -> Result<bool, E> {
        let start = out.len();
        let len = self.size.min(self.payload_len - self.sent);
        let last = self.sent + len == self.payload_len;
        out.extend_from_slice(&self.headers);
        payload(len as usize, out).inspect_err(|_| out.truncate(start))?;
        let frame = out.get_mut(start..).unwrap_or_default();
        self.offloads.adjust_headers(frame, SegmentPosition { index: self.emitted, offset: self.sent, last });
        self.offloads.fill_checksums(frame).inspect_err(|_| out.truncate(start))?;
        self.sent += len;
        self.emitted = self.emitted.wrapping_add(1);
        Ok(last)
    }

    /// Returns the header buffer for reuse.
    pub fn into_headers(self) -> Vec<u8> {
        self.headers
    }
}

#[cfg(test)]
mod tests;
