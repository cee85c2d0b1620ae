//! Waiting for the device without keeping the processor from it: an emulated guest and its device share the host's, and
//! so do a benchmark and what it measures.

use std::thread;
use std::time::Duration;

/// Looks in vain before the first sleep.
const SPINS: u32 = 32;
/// The same while a single request is under way: how long it takes is what its sender waits for, and may measure.
const SPINS_FOR_ONE: u32 = 2048;
const SHORTEST: Duration = Duration::from_micros(20);
const LONGEST: Duration = Duration::from_micros(400);

/// See the module.
#[derive(Debug)]
pub(crate) struct Idle {
    spins: u32,
    /// Found since the last sleep.
    found: usize,
    next: Duration,
}

impl Idle {
    /// The calling thread is the one that waits.
    pub(crate) fn new() -> Self {
        // By default the kernel wakes 50 us late, which is longer than the shortest sleep.
        // SAFETY: it sets a number of the calling thread; where the kernel refuses, sleeps are longer.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
        Self { spins: 0, found: 0, next: SHORTEST }
    }

    /// A look was not in vain.
    pub(crate) fn found(&mut self) {
        self.spins = 0;
        self.found += 1;
    }

    /// Waits a little, after a look in vain; `under_way` requests are still to be completed.
    pub(crate) fn pause(&mut self, under_way: usize) {
        let spins = if under_way == 1 { SPINS_FOR_ONE } else { SPINS };
        if self.spins < spins {
            self.spins += 1;
            std::hint::spin_loop();
        } else {
            thread::sleep(self.sleep(under_way));
        }
    }

    /// How long to sleep: longer after a sleep that brought nothing, shorter after one in which so much was completed
    /// that the device may soon have nothing to do.
    fn sleep(&mut self, under_way: usize) -> Duration {
        let sleep = self.next;
        let found = std::mem::take(&mut self.found);
        let total = under_way + found;
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
    fn sleep_grows_when_idle_and_shrinks_under_load() {
        let mut idle = Idle::new();
        let mut micros = |found, under_way| {
            (0..found).for_each(|_| idle.found());
            idle.sleep(under_way).as_micros()
        };
        assert_eq!([0; 6].map(|found| micros(found, 8)), [20, 40, 80, 160, 320, 400]);
        assert_eq!(micros(1, 15), 400);
        assert_eq!(micros(1, 15), 400, "little was completed: no need to hurry");
        assert_eq!(micros(4, 12), 400);
        assert_eq!(micros(4, 12), 200);
        assert_eq!(micros(1, 0), 100, "the only one");
        assert_eq!([1; 4].map(|found| micros(found, 0)), [50, 25, 20, 20]);
    }
}
