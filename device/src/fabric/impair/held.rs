//! Frames that go on later.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::Instant;

use crate::fabric::Origin;

/// Bound: frames of one direction that are held back, and their bytes. What comes beyond is lost, as in a queue of any
/// switch.
const MAX_FRAMES: usize = 8192;
const MAX_BYTES: usize = 32 << 20;

/// Bound: frames that wait to be overtaken. Each is looked at for every frame that passes.
const MAX_WAITING: usize = 256;

/// Frames of one direction.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// By the time they go on, then in the order they came.
    delayed: BTreeMap<(Instant, u64), Frame>,
    /// In the order they came.
    waiting: Vec<Waiting>,
    came: u64,
    bytes: usize,
}

#[derive(Debug)]
struct Waiting {
    /// Frames that are still to overtake it.
    by: u32,
    /// It goes on then, overtaken or not.
    until: Instant,
    frame: Frame,
}

/// A frame that was held back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// From the Ethernet header on.
    pub bytes: Vec<u8>,
    /// Why it leaves, if it does.
    pub origin: Origin,
}

impl Held {
    pub(super) fn is_empty(&self) -> bool {
        self.delayed.is_empty() && self.waiting.is_empty()
    }

    /// Holds a frame back for a time. False: there is no room.
    #[must_use]
    pub(super) fn delay(&mut self, now: Instant, by: Duration, frame: Frame) -> bool {
        self.take_in(&frame.bytes) && {
            self.delayed.insert((now + by, self.came), frame);
            true
        }
    }

    /// Holds a frame back until `by` others have passed, or until a time. False: there is no room.
    #[must_use]
    pub(super) fn hold(&mut self, until: Instant, by: u32, frame: Frame) -> bool {
        self.waiting.len() < MAX_WAITING && self.take_in(&frame.bytes) && {
            self.waiting.push(Waiting { by, until, frame });
            true
        }
    }

    /// A frame passes.
    pub(super) fn overtake(&mut self) {
        for waiting in &mut self.waiting {
            waiting.by = waiting.by.saturating_sub(1);
        }
    }

    /// The next frame that goes on now.
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
            self.came += 1;
            self.bytes += frame.len();
        }
        fits
    }
}
