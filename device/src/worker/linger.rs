//! Whether to look for work a little longer before sleeping.
//!
//! To fall asleep and to be woken takes ten to thirty microseconds of a virtual machine, on a busy host far more, and
//! most of it from whoever wakes: as long as it takes to send or to receive a batch of full packets. So, as a hypervisor
//! does for a virtual CPU that halts, a thread whose last sleep was short looks again for a while; one whose last sleep
//! was long sleeps at once, and an idle HCA costs nothing.
//!
//! In between it gives way to whoever waits for its processor: its own driver, most often, which is to give it work. Where
//! those others compute without end, as virtual CPUs of an emulated guest do, who gives way has to wait until the scheduler
//! takes the processor from them, while who sleeps and is woken goes before them: with that, a 64-byte WRITE between such
//! guests took 1.9 ms instead of 30 us. So a thread that was not back at once does not give way for a while, twice as
//! long each time; but who gave way well for as long as that only met a host that was busy for once. Until then it looks
//! only while data are moved in bulk, never gives way, and goes on so only as long as it finds something: where what it
//! waits for is another thread that waits for the same processor, there is nothing to be seen before it sleeps.

use std::time::Duration;

use engine::Instant;

/// Bytes moved from one pause to the next, as a decaying sum, that make them many.
const BULK: usize = 32 << 10;

/// A sleep of up to this is short: on a busy host the waking up alone takes some hundred microseconds.
const SHORT: Duration = Duration::from_micros(400);

/// Who gives way and is back within this met nobody who computes without end.
const BACK_AT_ONCE: Duration = Duration::from_micros(300);

/// For how long a thread does not give way after it was not back at once, the first time and at most.
const AVOIDS: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(400)];

/// How many pauses at most go by without looking after it looked in vain and gave way to nobody.
const SKIPS: u32 = 256;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct Linger {
    limit: Duration,
    /// How long the last sleep was.
    slept: Duration,
    /// Bytes of frames, halved at each pause.
    moved: usize,
    /// Until then it gives way to nobody, which the next time is for so long.
    avoids_until: Instant,
    avoids: Duration,
    /// For how long it has given way and was back at once each time.
    well: Duration,
    /// Whether the present look is one that gives way.
    gives_way: bool,
    /// Pauses to come in which it does not look if it cannot give way, and how many those were the last time.
    skip: u32,
    skips: u32,
}

/// How to wait for work before sleeping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pause {
    /// At most.
    pub(super) limit: Duration,
    /// Lets others have the processor between two looks, and tells [`Linger::gave_way`] how long that took.
    pub(super) gives_way: bool,
}

impl Linger {
    /// Looks for up to `limit` before a sleep; not at all if that is zero.
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

    /// Frames of so many bytes came or went.
    pub(super) fn moved(&mut self, bytes: usize) {
        self.moved = self.moved.saturating_add(bytes);
    }

    /// There is nothing to do: how to look before sleeping.
    pub(super) fn pause(&mut self, now: Instant) -> Option<Pause> {
        let bulk = self.moved >= BULK;
        self.moved /= 2;
        self.gives_way = now >= self.avoids_until;
        // What is awaited for longer than the looking lasts is not worth it, but to who would sleep in the middle of a stream.
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

    /// It gave way, and was back after `time`. Whether to go on so.
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

    /// Something came while it looked, and was not there before.
    pub(super) fn found(&mut self) {
        if !self.gives_way {
            self.skips /= 2;
        }
    }

    /// It looked for as long as it may: not again before the next sleep.
    pub(super) fn in_vain(&mut self) {
        self.slept = Duration::MAX;
        if !self.gives_way {
            self.skips = (2 * self.skips).clamp(1, SKIPS);
            self.skip = self.skips;
        }
    }

    /// There is something to do again, after a sleep of `time`.
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

    /// Whether it looks before each of so many sleeps, while small messages come.
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

    /// How many of so many pauses go by without looking, in a stream of bulk data beside others that compute.
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
