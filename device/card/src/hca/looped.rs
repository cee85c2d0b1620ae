//! Frames sent by a device to itself.

use std::ops::Range;

use protocol::roce::Offload;

/// Frames to be delivered in the next iteration of the event loop, stored back to back in a reused buffer.
#[derive(Debug, Default)]
pub(super) struct LoopedFrames {
    bytes: Vec<u8>,
    frames: Vec<(Range<usize>, Offload)>,
}

impl LoopedFrames {
    pub(super) fn push(&mut self, frame: &[u8], offload: Offload) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(frame);
        self.frames.push((start..self.bytes.len(), offload));
    }

    /// Returns the frames in the order they were sent, with their offloads.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], Offload)> {
        self.frames.iter().map(|(range, offload)| (&self.bytes[range.clone()], *offload))
    }

    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }

    /// Returns the total length of the frames in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Drops all frames, but keeps the buffer. The buffer stays small, since it never holds more than the frames of one
    /// iteration.
    pub(super) fn clear(&mut self) {
        self.frames.clear();
        self.bytes.clear();
    }
}
