//! Waits for the device without hogging the CPU, which the device shares with the guest or the benchmark.

use std::thread;
use std::time::Duration;

/// Number of empty polls before the first sleep.
const SPINS: u32 = 32;
/// Number of empty polls before the first sleep while only one request is outstanding. It is larger than [`SPINS`]
/// because that request's latency may be measured.
const SPINS_FOR_ONE: u32 = 2048;
const SHORTEST: Duration = Duration::from_micros(20);
const LONGEST: Duration = Duration::from_micros(400);

/// Waits between polls and adapts the length of its sleeps to the rate of completions.
#[derive(Debug)]
pub(crate) struct Idle {
    spins: u32,
    /// Number of completions found since the last sleep.
    found: usize,
    next: Duration,
}

impl Idle {
    pub(crate) fn new() -> Self {
        // Reduce the timer slack, because its default of 50 us is longer than the shortest sleep.
        // SAFETY: the call only sets the timer slack of the calling thread. If it fails, sleeps merely last longer.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
        Self { spins: 0, found: 0, next: SHORTEST }
    }

    /// Records that a poll found a completion.
    pub(crate) fn found(&mut self) {
        self.spins = 0;
        self.found += 1;
    }

    /// Spins or sleeps after an empty poll. `outstanding` is the number of outstanding requests.
    pub(crate) fn pause(&mut self, outstanding: usize) {
        let spins = if outstanding == 1 { SPINS_FOR_ONE } else { SPINS };
        if self.spins < spins {
            self.spins += 1;
            std::hint::spin_loop();
        } else {
            thread::sleep(self.sleep(outstanding));
        }
    }

    /// Returns how long to sleep. The time grows if no completion has been found since the last sleep. It shrinks if at
    /// least a quarter of the requests have completed, since the device may soon be idle.
    fn sleep(&mut self, outstanding: usize) -> Duration {
        let sleep = self.next;
        let found = std::mem::take(&mut self.found);
        let total = outstanding + found;
        self.next = match found {
            0 => (sleep * 2).min(LONGEST),
            _ if found * 4 >= total => (sleep / 2).max(SHORTEST),
            _ => sleep,
        };
        sleep
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleep_adapts_to_completion_rate() {
        let mut idle = Idle::new();
        let mut micros = |found, outstanding| {
            (0..found).for_each(|_| idle.found());
            idle.sleep(outstanding).as_micros()
        };
        assert_eq!([0; 6].map(|found| micros(found, 8)), [20, 40, 80, 160, 320, 400]);
        assert_eq!(micros(1, 15), 400);
        assert_eq!(micros(1, 15), 400, "few completions do not shorten the sleep");
        assert_eq!(micros(4, 12), 400);
        assert_eq!(micros(4, 12), 200);
        assert_eq!(micros(1, 0), 100, "the only request has completed");
        assert_eq!([1; 4].map(|found| micros(found, 0)), [50, 25, 20, 20]);
    }
}
