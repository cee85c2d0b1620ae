//! Whether to look for work a little longer before sleeping.
//!
//! To fall asleep and to be woken takes ten to thirty microseconds of a virtual machine, as long as some dozen small
//! messages. So, where a processor can be spared, a thread whose last pause was short looks again for a while; one whose
//! last pause was long sleeps at once, and an idle HCA costs nothing. Yielding in between would be worse than either: it
//! puts the thread behind every busy virtual CPU, while who wakes up goes before them.

use std::time::Duration;

/// A pause this many times the time we look may have been short, but for the waking up.
const WAKING: u32 = 2;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct Linger {
    limit: Duration,
    busy: bool,
}

impl Linger {
    /// Looks for up to `limit` before each sleep; not at all if that is zero.
    pub(super) const fn new(limit: Duration) -> Self {
        Self { limit, busy: false }
    }

    /// How long to look before sleeping this time.
    pub(super) fn patience(&self) -> Option<Duration> {
        (self.busy && !self.limit.is_zero()).then_some(self.limit)
    }

    /// There is something to do again, after `pause` without.
    pub(super) fn resumed(&mut self, pause: Duration) {
        self.busy = pause <= self.limit * WAKING;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_micros(50);

    #[test]
    fn only_short_pauses_are_followed_by_looking() {
        let mut linger = Linger::new(LIMIT);
        assert_eq!(linger.patience(), None, "nothing is known yet");
        linger.resumed(LIMIT + Duration::from_micros(30));
        assert_eq!(linger.patience(), Some(LIMIT));
        linger.resumed(Duration::from_millis(1));
        assert_eq!(linger.patience(), None);
    }

    #[test]
    fn a_limit_of_zero_always_sleeps() {
        let mut linger = Linger::new(Duration::ZERO);
        linger.resumed(Duration::ZERO);
        assert_eq!(linger.patience(), None);
    }
}
