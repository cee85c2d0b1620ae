//! Frames that are held back and released later.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::Instant;

use crate::fabric::Origin;

/// Maximum number of delayed frames per direction. [`MAX_BYTES`] limits the total length of all held frames. As in a
/// switch queue, frames beyond these limits are dropped.
const MAX_FRAMES: usize = 8192;
const MAX_BYTES: usize = 32 << 20;

/// Maximum number of frames waiting to be overtaken. Kept low because every passing frame updates all of them.
const MAX_WAITING: usize = 256;

/// The frames held in one direction.
#[derive(Debug, Default)]
pub(super) struct HoldQueue {
    /// Delayed frames, ordered by release time and then by arrival.
    delayed: BTreeMap<(Instant, u64), Frame>,
    /// Frames waiting to be overtaken, in order of arrival.
    waiting: Vec<Waiting>,
    sequence: u64,
    bytes: usize,
}

#[derive(Debug)]
struct Waiting {
    /// Number of frames that must still overtake this one.
    by: u32,
    /// Time at which the frame is released even if it has not been overtaken.
    until: Instant,
    frame: Frame,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Contents of the frame, starting with the Ethernet header.
    pub bytes: Vec<u8>,
    /// Origin of the frame. Applies only to outbound frames.
    pub origin: Origin,
}

impl HoldQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.delayed.is_empty() && self.waiting.is_empty()
    }

    /// Holds a frame until `now + by`. Returns false if there is no room.
    #[must_use]
    pub(super) fn delay(&mut self, now: Instant, by: Duration, frame: Frame) -> bool {
        self.take_in(&frame.bytes) && {
            self.delayed.insert((now + by, self.sequence), frame);
            true
        }
    }

    /// Holds a frame until other frames have overtaken it. `by` is the number of these frames. At the time `until`, the
    /// frame is released even if fewer frames have overtaken it. Returns false if there is no room.
    #[must_use]
    pub(super) fn hold(&mut self, until: Instant, by: u32, frame: Frame) -> bool {
        self.waiting.len() < MAX_WAITING && self.take_in(&frame.bytes) && {
            self.waiting.push(Waiting { by, until, frame });
            true
        }
    }

    /// Updates the waiting frames after another frame has overtaken them.
    pub(super) fn overtake(&mut self) {
        for waiting in &mut self.waiting {
            waiting.by = waiting.by.saturating_sub(1);
        }
    }

    /// Removes and returns the next frame that is due for release.
    pub(super) fn release(&mut self, now: Instant) -> Option<Frame> {
        let passed = self.waiting.iter().position(|waiting| waiting.by == 0 || waiting.until <= now);
        let frame = match passed {
            Some(index) => self.waiting.remove(index).frame,
            None => {
                let frame = self.delayed.first_entry().filter(|entry| entry.key().0 <= now)?.remove();
                self.overtake();
                frame
            }
        };
        self.bytes -= frame.bytes.len();
        Some(frame)
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let delayed = self.delayed.first_key_value().map(|((at, _), _)| *at);
        self.waiting.iter().map(|waiting| waiting.until).chain(delayed).min()
    }

    fn take_in(&mut self, frame: &[u8]) -> bool {
        let fits = self.delayed.len() < MAX_FRAMES && self.bytes + frame.len() <= MAX_BYTES;
        if fits {
            self.sequence += 1;
            self.bytes += frame.len();
        }
        fits
    }
}
