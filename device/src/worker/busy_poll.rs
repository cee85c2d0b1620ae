//! Adaptive busy-polling before the thread blocks.
//!
//! Blocking and waking up takes 10 to 30 us in a virtual machine, and far more on a busy host. Most of this cost falls
//! on the thread that performs the wake-up. That thread could send a batch of full packets in the same time. After a
//! short sleep, the HCA's thread therefore polls for a while before it blocks again, as hypervisors do for halted
//! virtual CPUs. After a long sleep, it blocks immediately, so an idle HCA costs nothing.
//!
//! Between polls, the thread yields the CPU, usually to its own driver, which is about to submit work. Yielding to
//! CPU-bound threads, such as the virtual CPUs of an emulated guest, is slow. The yielding thread runs again only when
//! the scheduler preempts them, whereas a thread that is woken after blocking runs before them. A 64-byte WRITE between
//! emulated guests takes 1.9 ms if the thread yields, and 30 us if it does not. So after a slow yield, the thread stops
//! yielding for a backoff period. Each slow yield doubles the period, up to a limit. However, if the total time of the
//! fast yields between two slow yields is at least the next period, that period has the initial length instead.
//!
//! While the thread does not yield, it polls only during bulk transfers, and less and less often if polling finds
//! nothing, since the thread that will submit work may need the same CPU.

use std::time::Duration;

use engine::Instant;

/// A transfer counts as bulk if at least this many bytes have been moved recently. The count is halved at each pause.
const BULK: usize = 32 << 10;

/// Longest sleep that counts as short during a bulk transfer. On a busy host, the wake-up alone takes several hundred
/// microseconds.
const SHORT_SLEEP: Duration = Duration::from_micros(400);

/// A yield that returns within this time was not delayed by a CPU-bound thread.
const FAST_YIELD: Duration = Duration::from_micros(300);

/// Initial and maximum time for which the thread stops yielding after a slow yield.
const YIELD_BACKOFF: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(400)];

/// Maximum number of pauses skipped after an unproductive poll without yielding.
const MAX_SKIPS: u32 = 256;

/// Decides at each pause, when the thread has no work, whether to busy-poll before blocking.
#[derive(Clone, Copy, Debug)]
pub(super) struct BusyPoll {
    limit: Duration,
    /// Duration of the last sleep.
    slept: Duration,
    /// Size of recently moved frames in bytes, halved at each pause.
    moved: usize,
    /// The thread does not yield before this time.
    no_yield_until: Instant,
    /// Length of the next period without yielding.
    yield_backoff: Duration,
    /// Time spent in fast yields since the last slow yield.
    fast_yields: Duration,
    /// Whether the thread yields in this pause.
    yields: bool,
    /// Number of pauses left before the thread polls again without yielding.
    skip: u32,
    /// Number of pauses skipped after the last unproductive poll, halved whenever polling without yielding finds work.
    skips: u32,
}

/// How to busy-poll before blocking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PollWindow {
    /// Maximum time to poll.
    pub(super) limit: Duration,
    /// Whether to yield between two polls and report each yield to [`BusyPoll::yielded`].
    pub(super) yields: bool,
}

impl BusyPoll {
    /// Creates a policy that polls for up to `limit` before blocking. Zero disables polling.
    pub(super) const fn new(limit: Duration) -> Self {
        Self {
            limit,
            slept: Duration::MAX,
            moved: 0,
            no_yield_until: Instant::ZERO,
            yield_backoff: YIELD_BACKOFF[0],
            fast_yields: Duration::ZERO,
            yields: false,
            skip: 0,
            skips: 0,
        }
    }

    pub(super) fn moved(&mut self, bytes: usize) {
        self.moved = self.moved.saturating_add(bytes);
    }

    /// Returns how to poll before blocking, or `None` to block immediately.
    pub(super) fn pause(&mut self, now: Instant) -> Option<PollWindow> {
        let bulk = self.moved >= BULK;
        self.moved /= 2;
        self.yields = now >= self.no_yield_until;
        // After a sleep longer than the poll limit, polling would probably find nothing, except between the bursts of a
        // bulk transfer.
        let short = if bulk { SHORT_SLEEP } else { self.limit };
        if self.limit.is_zero() || self.slept > short || !(bulk || self.yields) {
            return None;
        }
        if !self.yields && self.skip > 0 {
            self.skip -= 1;
            return None;
        }
        Some(PollWindow { limit: self.limit, yields: self.yields })
    }

    /// Records a yield that took `time`. Returns whether to yield again.
    pub(super) fn yielded(&mut self, now: Instant, time: Duration) -> bool {
        let is_fast = time <= FAST_YIELD;
        if is_fast {
            self.fast_yields = self.fast_yields.saturating_add(time);
        } else {
            if std::mem::take(&mut self.fast_yields) >= self.yield_backoff {
                self.yield_backoff = YIELD_BACKOFF[0];
            }
            self.no_yield_until = now + self.yield_backoff;
            self.yield_backoff = (self.yield_backoff * 2).min(YIELD_BACKOFF[1]);
        }
        is_fast
    }

    /// Records that work arrived during polling.
    pub(super) fn found(&mut self) {
        if !self.yields {
            self.skips /= 2;
        }
    }

    /// Records that polling found nothing. The thread does not poll again before its next sleep.
    pub(super) fn found_nothing(&mut self) {
        self.slept = Duration::MAX;
        if !self.yields {
            self.skips = (2 * self.skips).clamp(1, MAX_SKIPS);
            self.skip = self.skips;
        }
    }

    pub(super) fn slept(&mut self, time: Duration) {
        self.slept = time;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_micros(50);
    const YIELDING: Option<PollWindow> = Some(PollWindow { limit: LIMIT, yields: true });
    const SPINNING: Option<PollWindow> = Some(PollWindow { limit: LIMIT, yields: false });

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    fn after(bytes: usize, sleep: Duration) -> BusyPoll {
        let mut busy_poll = BusyPoll::new(LIMIT);
        busy_poll.slept(sleep);
        busy_poll.moved(bytes);
        busy_poll
    }

    /// Simulates up to `pauses` pauses between small messages and stops at the first pause without polling. Returns the
    /// number of pauses with polling.
    fn polls(busy_poll: &mut BusyPoll, pauses: usize) -> usize {
        let polls = |_: &usize| {
            busy_poll.moved(64);
            busy_poll.pause(at(0)).is_some()
        };
        (0..pauses).take_while(polls).count()
    }

    #[test]
    fn busy_polling_starts_only_after_short_sleep() {
        let mut busy_poll = BusyPoll::new(LIMIT);
        busy_poll.moved(BULK);
        assert_eq!(busy_poll.pause(at(0)), None, "no sleep has been measured yet");
        assert_eq!(after(BULK, SHORT_SLEEP).pause(at(0)), YIELDING);
        assert_eq!(after(BULK, Duration::from_millis(1)).pause(at(0)), None);
        assert_eq!(after(64, LIMIT).pause(at(0)), YIELDING);
        assert_eq!(after(64, SHORT_SLEEP).pause(at(0)), None, "this sleep is short only in a bulk transfer");
    }

    #[test]
    fn slow_yield_limits_polling_to_bulk_transfers() {
        let mut busy_poll = after(8 * BULK, Duration::ZERO);
        assert_eq!(polls(&mut busy_poll, 100), 100);
        assert!(busy_poll.yielded(at(0), FAST_YIELD));
        assert!(!busy_poll.yielded(at(0), Duration::from_millis(3)));
        busy_poll.moved(8 * BULK);
        assert_eq!(busy_poll.pause(at(0)), SPINNING);
        assert_eq!(polls(&mut busy_poll, 100), 3, "the count of moved bytes is halved at each pause");
    }

    #[test]
    fn yielding_is_retried_with_backoff() {
        let mut busy_poll = after(64, Duration::ZERO);
        let mut now = 0;
        let mut tries = Vec::new();
        for _ in 0..10 {
            assert!(!busy_poll.yielded(at(now), Duration::from_millis(3)));
            let began = now;
            while busy_poll.pause(at(now)).is_none() {
                now += 10;
            }
            tries.push(now - began);
        }
        assert_eq!(tries, [100, 200, 400, 400, 400, 400, 400, 400, 400, 400]);
    }

    /// Simulates `pauses` pauses in a bulk transfer. Returns the number of pauses without polling.
    fn skipped(busy_poll: &mut BusyPoll, pauses: usize) -> usize {
        let skips = |_: &usize| {
            busy_poll.slept(Duration::ZERO);
            busy_poll.moved(8 * BULK);
            busy_poll.pause(at(0)).is_none()
        };
        (0..pauses).filter(skips).count()
    }

    #[test]
    fn unproductive_polling_without_yield_backs_off() {
        let mut busy_poll = after(8 * BULK, Duration::ZERO);
        assert!(!busy_poll.yielded(at(0), Duration::from_millis(3)));
        assert_eq!(skipped(&mut busy_poll, 10), 0);
        for skips in [1, 2, 4, 8, 16, 32, 64, 128, 256, 256] {
            busy_poll.found_nothing();
            assert_eq!(
                skipped(&mut busy_poll, skips + 1),
                skips,
                "the thread polls after the skipped pauses"
            );
        }
        for skips in [128, 64, 32] {
            busy_poll.found();
            busy_poll.found();
            busy_poll.found_nothing();
            assert_eq!(skipped(&mut busy_poll, skips + 1), skips, "successful polls reduce the backoff");
        }
        (0..10).for_each(|_| busy_poll.found());
        busy_poll.found_nothing();
        assert_eq!(skipped(&mut busy_poll, 100), 1);
    }

    #[test]
    fn unproductive_yielding_polls_do_not_cause_skips() {
        let mut busy_poll = after(8 * BULK, Duration::ZERO);
        assert_eq!(busy_poll.pause(at(0)), YIELDING);
        (0..10).for_each(|_| busy_poll.found_nothing());
        assert!(!busy_poll.yielded(at(0), Duration::from_millis(3)));
        assert_eq!(skipped(&mut busy_poll, 100), 0);
    }

    #[test]
    fn fast_yields_reset_slow_yield_backoff() {
        let mut busy_poll = after(64, Duration::ZERO);
        for _ in 0..20 {
            assert!(!busy_poll.yielded(at(0), Duration::from_millis(3)));
            assert_eq!(busy_poll.pause(at(99)), None);
            assert_eq!(busy_poll.pause(at(100)), YIELDING, "the backoff was reset");
            (0..1000).for_each(|_| assert!(busy_poll.yielded(at(100), Duration::from_micros(200))));
        }
        assert!(!busy_poll.yielded(at(0), Duration::from_millis(3)));
        assert!(!busy_poll.yielded(at(100), Duration::from_millis(3)));
        assert_eq!(busy_poll.pause(at(299)), None, "without fast yields, the backoff is not reset");
    }

    #[test]
    fn thread_blocks_after_unproductive_poll() {
        let mut busy_poll = after(64, Duration::ZERO);
        busy_poll.found_nothing();
        assert_eq!(busy_poll.pause(at(0)), None);
        busy_poll.slept(LIMIT);
        assert_eq!(busy_poll.pause(at(0)), YIELDING);
    }

    #[test]
    fn zero_limit_disables_polling() {
        let mut busy_poll = BusyPoll::new(Duration::ZERO);
        busy_poll.slept(Duration::ZERO);
        busy_poll.moved(BULK);
        assert_eq!(busy_poll.pause(at(0)), None);
    }
}
