//! Adaptive busy-polling before the thread blocks.
//!
//! Blocking and waking up takes 10 to 30 us of a virtual machine, and far more on a busy host. The waking thread pays
//! most of it: as much as sending or receiving a batch of full packets. So, like a hypervisor that polls before it
//! blocks a halted virtual CPU, a thread whose last sleep was short polls for a while. A thread whose last sleep was
//! long blocks at once, so an idle HCA costs nothing.
//!
//! Between polls the thread yields the CPU, usually to its own driver, which is about to give it work. Beside
//! CPU-bound threads, such as the virtual CPUs of an emulated guest, yielding is slow: the scheduler returns only
//! when it preempts them, whereas a thread that blocks and is woken runs first. A 64-byte WRITE between such guests
//! took 1.9 ms instead of 30 us. So after a slow yield the thread stops yielding for a while, and each slow yield
//! doubles that time. If yields were fast for at least that long before, the host was only busy for a moment, and the
//! time starts over.
//!
//! While it does not yield, the thread polls only during bulk transfers, and less and less often while polling finds
//! nothing. If the awaited thread needs the same CPU, polling cannot find anything.

use std::time::Duration;

use engine::Instant;

/// Bytes moved that count as a bulk transfer, as a sum that is halved at each pause.
const BULK: usize = 32 << 10;

/// Longest sleep that counts as short during a bulk transfer. On a busy host, waking up alone takes some hundred
/// microseconds.
const SHORT: Duration = Duration::from_micros(400);

/// A yield that returns within this time met no CPU-bound thread.
const BACK_AT_ONCE: Duration = Duration::from_micros(300);

/// How long the thread does not yield after a slow yield: the first time, and at most.
const AVOIDS: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(400)];

/// Maximum number of pauses without polling after polls without yielding found nothing.
const SKIPS: u32 = 256;

/// Decides before each sleep whether to busy-poll.
#[derive(Clone, Copy, Debug)]
pub(super) struct Linger {
    limit: Duration,
    /// Duration of the last sleep.
    slept: Duration,
    /// Bytes of frames, halved at each pause.
    moved: usize,
    /// No yields until then.
    avoids_until: Instant,
    /// Length of the next period without yields.
    avoids: Duration,
    /// Time spent in fast yields since the last slow one.
    well: Duration,
    /// Whether the current poll yields.
    gives_way: bool,
    /// Pauses left in which polling without yielding is skipped, and the number of the last series.
    skip: u32,
    skips: u32,
}

/// How to busy-poll before blocking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pause {
    /// Maximum time to poll.
    pub(super) limit: Duration,
    /// Whether to yield between two polls and report each yield to [`Linger::gave_way`].
    pub(super) gives_way: bool,
}

impl Linger {
    /// Polls for up to `limit` before blocking. Zero disables polling.
    pub(super) const fn new(limit: Duration) -> Self {
        Self {
            limit,
            slept: Duration::MAX,
            moved: 0,
            avoids_until: Instant::ZERO,
            avoids: AVOIDS[0],
            well: Duration::ZERO,
            gives_way: false,
            skip: 0,
            skips: 0,
        }
    }

    /// Records frames sent or received, in bytes.
    pub(super) fn moved(&mut self, bytes: usize) {
        self.moved = self.moved.saturating_add(bytes);
    }

    /// Returns how to poll before blocking, or `None` to block at once.
    pub(super) fn pause(&mut self, now: Instant) -> Option<Pause> {
        let bulk = self.moved >= BULK;
        self.moved /= 2;
        self.gives_way = now >= self.avoids_until;
        // A sleep longer than the poll limit makes polling futile, except between the bursts of a bulk transfer.
        let short = if bulk { SHORT } else { self.limit };
        if self.limit.is_zero() || self.slept > short || !(bulk || self.gives_way) {
            return None;
        }
        if !self.gives_way && self.skip > 0 {
            self.skip -= 1;
            return None;
        }
        Some(Pause { limit: self.limit, gives_way: self.gives_way })
    }

    /// Records a yield that took `time`. Returns whether to yield again.
    pub(super) fn gave_way(&mut self, now: Instant, time: Duration) -> bool {
        let is_back_at_once = time <= BACK_AT_ONCE;
        if is_back_at_once {
            self.well = self.well.saturating_add(time);
        } else {
            if std::mem::take(&mut self.well) >= self.avoids {
                self.avoids = AVOIDS[0];
            }
            self.avoids_until = now + self.avoids;
            self.avoids = (self.avoids * 2).min(AVOIDS[1]);
        }
        is_back_at_once
    }

    /// Records that work arrived during the poll, not before it.
    pub(super) fn found(&mut self) {
        if !self.gives_way {
            self.skips /= 2;
        }
    }

    /// Records that polling found nothing. The next poll is after the next sleep.
    pub(super) fn in_vain(&mut self) {
        self.slept = Duration::MAX;
        if !self.gives_way {
            self.skips = (2 * self.skips).clamp(1, SKIPS);
            self.skip = self.skips;
        }
    }

    /// Records a sleep of `time`.
    pub(super) fn slept(&mut self, time: Duration) {
        self.slept = time;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_micros(50);
    const GIVING_WAY: Option<Pause> = Some(Pause { limit: LIMIT, gives_way: true });
    const KEEPING: Option<Pause> = Some(Pause { limit: LIMIT, gives_way: false });

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    fn after(bytes: usize, sleep: Duration) -> Linger {
        let mut linger = Linger::new(LIMIT);
        linger.slept(sleep);
        linger.moved(bytes);
        linger
    }

    /// Returns whether it polls before each of `pauses` sleeps, while small messages arrive.
    fn looks(linger: &mut Linger, pauses: usize) -> usize {
        let look = |_: &usize| {
            linger.moved(64);
            linger.pause(at(0)).is_some()
        };
        (0..pauses).take_while(look).count()
    }

    #[test]
    fn only_short_sleeps_are_followed_by_looking() {
        let mut linger = Linger::new(LIMIT);
        linger.moved(BULK);
        assert_eq!(linger.pause(at(0)), None, "nothing is known yet");
        assert_eq!(after(BULK, SHORT).pause(at(0)), GIVING_WAY);
        assert_eq!(after(BULK, Duration::from_millis(1)).pause(at(0)), None);
        assert_eq!(after(64, LIMIT).pause(at(0)), GIVING_WAY);
        assert_eq!(after(64, SHORT).pause(at(0)), None, "small messages are rarer than looking lasts");
    }

    #[test]
    fn where_others_compute_without_end_only_bulk_data_are_looked_for() {
        let mut linger = after(8 * BULK, Duration::ZERO);
        assert_eq!(looks(&mut linger, 100), 100);
        assert!(linger.gave_way(at(0), BACK_AT_ONCE));
        assert!(!linger.gave_way(at(0), Duration::from_millis(3)));
        linger.moved(8 * BULK);
        assert_eq!(linger.pause(at(0)), KEEPING);
        assert_eq!(looks(&mut linger, 100), 3, "what was moved long ago does not count");
    }

    #[test]
    fn giving_way_is_tried_again_ever_more_rarely() {
        let mut linger = after(64, Duration::ZERO);
        let mut now = 0;
        let mut tries = Vec::new();
        for _ in 0..10 {
            assert!(!linger.gave_way(at(now), Duration::from_millis(3)));
            let began = now;
            while linger.pause(at(now)).is_none() {
                now += 10;
            }
            tries.push(now - began);
        }
        assert_eq!(tries, [100, 200, 400, 400, 400, 400, 400, 400, 400, 400]);
    }

    /// Returns how many of `pauses` pauses pass without polling, in a bulk transfer beside CPU-bound threads.
    fn skipped(linger: &mut Linger, pauses: usize) -> usize {
        let skips = |_: &usize| {
            linger.slept(Duration::ZERO);
            linger.moved(8 * BULK);
            linger.pause(at(0)).is_none()
        };
        (0..pauses).filter(skips).count()
    }

    #[test]
    fn beside_others_that_compute_it_looks_ever_more_rarely_for_what_does_not_come() {
        let mut linger = after(8 * BULK, Duration::ZERO);
        assert!(!linger.gave_way(at(0), Duration::from_millis(3)));
        assert_eq!(skipped(&mut linger, 10), 0);
        for skips in [1, 2, 4, 8, 16, 32, 64, 128, 256, 256] {
            linger.in_vain();
            assert_eq!(skipped(&mut linger, skips + 1), skips, "it looks once, after as many");
        }
        for skips in [128, 64, 32] {
            linger.found();
            linger.found();
            linger.in_vain();
            assert_eq!(skipped(&mut linger, skips + 1), skips, "what came while it looked counts too");
        }
        (0..10).for_each(|_| linger.found());
        linger.in_vain();
        assert_eq!(skipped(&mut linger, 100), 1);
    }

    #[test]
    fn a_look_in_vain_that_gives_way_is_not_counted() {
        let mut linger = after(8 * BULK, Duration::ZERO);
        assert_eq!(linger.pause(at(0)), GIVING_WAY);
        (0..10).for_each(|_| linger.in_vain());
        assert!(!linger.gave_way(at(0), Duration::from_millis(3)));
        assert_eq!(skipped(&mut linger, 100), 0);
    }

    #[test]
    fn a_host_that_is_busy_for_once_is_not_held_against_others() {
        let mut linger = after(64, Duration::ZERO);
        for _ in 0..20 {
            assert!(!linger.gave_way(at(0), Duration::from_millis(3)));
            assert_eq!(linger.pause(at(99)), None);
            assert_eq!(linger.pause(at(100)), GIVING_WAY, "as after the first time");
            (0..1000).for_each(|_| assert!(linger.gave_way(at(100), Duration::from_micros(200))));
        }
        assert!(!linger.gave_way(at(0), Duration::from_millis(3)));
        assert!(!linger.gave_way(at(100), Duration::from_millis(3)));
        assert_eq!(linger.pause(at(299)), None, "nothing went well since");
    }

    #[test]
    fn who_looked_in_vain_sleeps_before_it_looks_again() {
        let mut linger = after(64, Duration::ZERO);
        linger.in_vain();
        assert_eq!(linger.pause(at(0)), None);
        linger.slept(LIMIT);
        assert_eq!(linger.pause(at(0)), GIVING_WAY);
    }

    #[test]
    fn a_limit_of_zero_always_sleeps() {
        let mut linger = Linger::new(Duration::ZERO);
        linger.slept(Duration::ZERO);
        linger.moved(BULK);
        assert_eq!(linger.pause(at(0)), None);
    }
}
