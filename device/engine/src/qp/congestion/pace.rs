//! How fast a flow may send that met congestion: DCQCN's reaction point.

use std::time::Duration;

use crate::Instant;

/// Rate at which a flow counts as unlimited, and from which its first notification counts: 25 Gbit/s, in bytes a second.
/// A flow that in truth was slower needs some notifications more, 50 us each.
const LINE: u64 = 3_125_000_000;

/// No flow is slowed below 100 Mbit/s, whatever its peer says.
const SLOWEST: u64 = 12_500_000;

/// Additive increase: 40 Mbit/s a period.
const STEP: u64 = 5_000_000;

/// Time without notification after which the rate rises.
const PERIOD: Duration = Duration::from_micros(55);

/// Periods in which half of what was lost comes back, before the additive increase.
const FAST_PERIODS: u32 = 5;

/// After so many periods every flow is back at [`LINE`]: from [`SLOWEST`] it takes 623.
const PERIODS: u32 = 1024;

/// Most bytes that may leave in one go. A pause is then long enough for a timer.
const BURST: u64 = 32 * 1024;

/// Microseconds that the bytes of a burst stand for at most, when the rate is low: what waits behind it, be it the answer
/// to a READ, then waits for less than an ACK timeout.
const LONGEST_PAUSE_US: u64 = 250;

/// `1.0` of the congestion estimate.
const ONE: u64 = 1 << 16;

/// The estimate follows new evidence by this part, 1/256.
const GAIN_SHIFT: u32 = 8;

/// The rate of a flow whose data met congestion; a flow without has none.
///
/// It is DCQCN's reaction point without its byte counter and its hyper increase: each notification sets the target to
/// the present rate and cuts the rate by half of the congestion estimate, which rises with notifications and decays
/// without; every 55 us without one, the rate moves half way to the target, and from the sixth time on the target rises
/// by 40 Mbit/s. At 25 Gbit/s it is over.
///
/// # Spec
/// IBTA annex A17, section A17.9.3, demands that the rate is reduced and leaves the algorithm to the implementation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    rate: u64,
    target: u64,
    /// Congestion estimate, in parts of [`ONE`].
    alpha: u64,
    /// Begin of the present period, and how many have passed since the last notification.
    period_from: Instant,
    periods: u32,
    /// Bytes sent since the last pause.
    burst: u64,
    /// When the burst began; then, the end of the pause.
    burst_from: Instant,
    paused: bool,
}

impl Pace {
    /// A flow that was not limited so far.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            rate: LINE,
            target: LINE,
            alpha: ONE,
            period_from: now,
            periods: 0,
            burst: 0,
            burst_from: now,
            paused: false,
        }
    }

    /// The peer says that data met congestion.
    pub(crate) fn on_notification(&mut self, now: Instant) {
        self.refresh(now);
        self.target = self.rate;
        self.rate = (self.rate - self.rate * self.alpha / ONE / 2).max(SLOWEST);
        self.alpha = self.alpha - (self.alpha >> GAIN_SHIFT) + (ONE >> GAIN_SHIFT);
        (self.period_from, self.periods) = (now, 0);
    }

    /// `bytes` more were sent. Whether the flow is limited at all any more.
    pub(crate) fn on_sent(&mut self, now: Instant, bytes: usize) -> bool {
        self.refresh(now);
        if self.rate >= LINE {
            return false;
        }
        if now >= self.due() {
            // Nothing is saved up.
            (self.burst, self.burst_from) = (0, now);
        }
        self.burst += bytes as u64;
        if self.burst >= BURST.min(self.rate * LONGEST_PAUSE_US / 1_000_000) {
            (self.burst_from, self.burst) = (self.due(), 0);
            self.paused = true;
        }
        true
    }

    /// When the flow may go on, if it may not now.
    pub(crate) fn paused_until(&self) -> Option<Instant> {
        self.paused.then_some(self.burst_from)
    }

    /// Time has passed.
    pub(crate) fn on_time(&mut self, now: Instant) {
        self.paused &= now < self.burst_from;
    }

    /// When the bytes of the burst have gone out at the rate.
    fn due(&self) -> Instant {
        self.burst_from + Duration::from_nanos(self.burst * 1_000_000_000 / self.rate)
    }

    fn refresh(&mut self, now: Instant) {
        // Bound: a flow that slept long is back at full rate.
        while now >= self.period_from + PERIOD && self.periods < PERIODS {
            self.period_from = self.period_from + PERIOD;
            self.periods += 1;
            self.alpha -= self.alpha >> GAIN_SHIFT;
            if self.periods > FAST_PERIODS {
                self.target = (self.target + STEP).min(LINE);
            }
            self.rate = if self.target >= LINE && self.periods > FAST_PERIODS && LINE - self.rate <= STEP {
                LINE
            } else {
                self.rate.midpoint(self.target)
            };
        }
        if self.periods >= PERIODS {
            self.rate = LINE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    #[test]
    fn first_notification_halves_the_rate_and_later_ones_go_on() {
        let mut pace = Pace::new(at(0));
        pace.on_notification(at(0));
        assert_eq!(pace.rate, LINE / 2);
        pace.on_notification(at(50));
        assert_eq!(pace.rate, LINE / 4);
        for n in 2..100 {
            pace.on_notification(at(50 * n));
        }
        assert_eq!(pace.rate, SLOWEST);
    }

    #[test]
    fn rate_recovers_half_way_five_times_then_in_steps_to_the_line() {
        let mut pace = Pace::new(at(0));
        pace.on_notification(at(0));
        pace.on_notification(at(50));
        let mut missing = LINE / 2 - pace.rate;
        for n in 1..=5 {
            pace.refresh(at(50 + 55 * n));
            assert!((LINE / 2 - pace.rate).abs_diff(missing / 2) <= 2, "period {n}: {}", pace.rate);
            missing = LINE / 2 - pace.rate;
        }
        pace.refresh(at(50 + 55 * 6));
        assert_eq!(pace.target, LINE / 2 + STEP);
        assert!(pace.on_sent(at(10_000), 1000));
        assert!(!pace.on_sent(at(50_000), 1000), "{}", pace.rate);
    }

    #[test]
    fn bursts_and_pauses_make_the_rate() {
        let mut pace = Pace::new(at(0));
        for _ in 0..8 {
            pace.on_notification(at(0));
        }
        let rate = pace.rate;
        let (mut now, mut sent) = (at(0), 0u64);
        while now < at(50) {
            match pace.paused_until() {
                Some(until) => {
                    now = until;
                    pace.on_time(now);
                }
                None => {
                    pace.on_sent(now, 1000);
                    sent += 1000;
                }
            }
        }
        let allowed = rate * now.as_nanos() / 1_000_000_000;
        assert!(sent.abs_diff(allowed) <= BURST + 1000, "{sent} of {allowed}");
    }
}
