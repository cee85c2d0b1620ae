//! Whether to look for work a little longer before sleeping.
//!
//! To fall asleep and to be woken takes ten to thirty microseconds of a virtual machine, on a busy host far more, and
//! most of it from whoever wakes: as long as it takes to send or to receive a batch of full packets. So, as a hypervisor
//! does for a virtual CPU that halts, a thread whose last sleep was short looks again for a while; one whose last sleep
//! was long sleeps at once, and an idle HCA costs nothing.
//!
//! Only while data are moved in bulk, though. Who looks instead of sleeping uses up its share of a processor, and is put
//! behind busy virtual CPUs when a message comes at last, while who wakes up goes before them. That is worth more to
//! small messages than the time to wake up. For the same reason it never yields in between: with that, a 64-byte WRITE
//! between emulated guests took 1.9 ms instead of 30 us.

use std::time::Duration;

/// Bytes moved from one pause to the next, as a decaying sum, that make them many.
const BULK: usize = 32 << 10;

/// A sleep of up to this is short: on a busy host the waking up alone takes some hundred microseconds.
const SHORT: Duration = Duration::from_micros(400);

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct Linger {
    limit: Duration,
    /// The last sleep was short.
    busy: bool,
    /// Bytes of frames, halved at each pause.
    moved: usize,
}

impl Linger {
    /// Looks for up to `limit` before a sleep; not at all if that is zero.
    pub(super) const fn new(limit: Duration) -> Self {
        Self { limit, busy: false, moved: 0 }
    }

    /// Frames of so many bytes came or went.
    pub(super) fn moved(&mut self, bytes: usize) {
        self.moved = self.moved.saturating_add(bytes);
    }

    /// There is nothing to do: how long to look before sleeping.
    pub(super) fn pause(&mut self) -> Option<Duration> {
        let bulk = self.moved >= BULK;
        self.moved /= 2;
        (bulk && self.busy && !self.limit.is_zero()).then_some(self.limit)
    }

    /// There is something to do again, after a sleep of `time`.
    pub(super) fn slept(&mut self, time: Duration) {
        self.busy = time <= SHORT;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_micros(50);

    fn after(bytes: usize, sleep: Duration) -> Linger {
        let mut linger = Linger::new(LIMIT);
        linger.slept(sleep);
        linger.moved(bytes);
        linger
    }

    #[test]
    fn only_short_sleeps_are_followed_by_looking() {
        let mut linger = Linger::new(LIMIT);
        linger.moved(BULK);
        assert_eq!(linger.pause(), None, "nothing is known yet");
        assert_eq!(after(BULK, SHORT).pause(), Some(LIMIT));
        assert_eq!(after(BULK, Duration::from_millis(1)).pause(), None);
    }

    #[test]
    fn small_messages_are_not_worth_looking_for() {
        let mut linger = after(8 * BULK, Duration::ZERO);
        let looks = (0..100).take_while(|_| {
            linger.moved(64);
            linger.pause().is_some()
        });
        assert_eq!(looks.count(), 4, "what was moved long ago does not count");
    }

    #[test]
    fn a_limit_of_zero_always_sleeps() {
        let mut linger = Linger::new(Duration::ZERO);
        linger.slept(Duration::ZERO);
        linger.moved(BULK);
        assert_eq!(linger.pause(), None);
    }
}
