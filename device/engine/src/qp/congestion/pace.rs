//! Rate control of a congested flow: the reaction point (RP) of DCQCN.

use std::time::Duration;

use crate::Instant;

/// Rate of an unlimited flow, in bytes per second (25 Gbit/s). The first notification reduces the rate from this value,
/// and a flow that reaches it again is no longer limited. On a slower link, a few more notifications (one per 50 us)
/// are needed to reduce the rate to the link's.
const LINE_RATE: u64 = 3_125_000_000;

/// Minimum rate in bytes per second (100 Mbit/s), regardless of how many notifications the peer sends.
const MIN_RATE: u64 = 12_500_000;

/// Additive increase per period, in bytes per second (40 Mbit/s).
const RATE_STEP: u64 = 5_000_000;

/// Time without a notification after which the rate increases.
const PERIOD: Duration = Duration::from_micros(55);

/// Number of fast-recovery periods before the additive increase. Each period halves the distance to the target rate.
const FAST_PERIODS: u32 = 5;

/// Number of periods after which every flow is back at [`LINE_RATE`]. From [`MIN_RATE`], 623 periods are enough.
const PERIODS: u32 = 1024;

/// Maximum burst in bytes, large enough that the pause after it exceeds the timer resolution.
const BURST: u64 = 32 * 1024;

/// Longest pause after a burst, in microseconds. Pauses also delay READ responses. Without this limit, a low rate could
/// delay them beyond the peer's ACK timeout.
const LONGEST_PAUSE_US: u64 = 250;

/// A congestion estimate of 1.0 in fixed point.
const ONE: u64 = 1 << 16;

/// Gain of the congestion estimate (1/256), as a right shift.
const GAIN_SHIFT: u32 = 8;

/// Rate limiter for a flow that has received a congestion notification. Other flows have none.
///
/// Implements the DCQCN reaction point without its byte counter and hyper increase. Each notification sets the target
/// to the current rate and cuts the rate by half the congestion estimate. The estimate grows with notifications and
/// decays without them. After every 55 us without a notification, the rate moves halfway to the target. From the sixth
/// such period on, the target also rises by 40 Mbit/s per period. At 25 Gbit/s, the limiter is removed.
///
/// # Spec
/// IBTA annex A17, section A17.9.3, requires a rate reduction and leaves the algorithm to the implementation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    rate: u64,
    target: u64,
    /// Congestion estimate, as a fraction of [`ONE`].
    alpha: u64,
    period_from: Instant,
    /// Number of periods since the last notification.
    periods: u32,
    /// Bytes sent since the last pause.
    burst: u64,
    /// Start of the burst or, during a pause, the end of the pause.
    burst_from: Instant,
    paused: bool,
}

impl Pace {
    /// Creates the limiter for a flow that has been unlimited so far.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            rate: LINE_RATE,
            target: LINE_RATE,
            alpha: ONE,
            period_from: now,
            periods: 0,
            burst: 0,
            burst_from: now,
            paused: false,
        }
    }

    pub(crate) fn on_notification(&mut self, now: Instant) {
        self.refresh(now);
        self.target = self.rate;
        self.rate = (self.rate - self.rate * self.alpha / ONE / 2).max(MIN_RATE);
        self.alpha = self.alpha - (self.alpha >> GAIN_SHIFT) + (ONE >> GAIN_SHIFT);
        (self.period_from, self.periods) = (now, 0);
    }

    /// Accounts for `bytes` sent. Returns whether the flow is still limited.
    pub(crate) fn on_sent(&mut self, now: Instant, bytes: usize) -> bool {
        self.refresh(now);
        if self.rate >= LINE_RATE {
            return false;
        }
        if now >= self.due() {
            // Unused allowance does not accumulate.
            (self.burst, self.burst_from) = (0, now);
        }
        self.burst += bytes as u64;
        if self.burst >= BURST.min(self.rate * LONGEST_PAUSE_US / 1_000_000) {
            (self.burst_from, self.burst) = (self.due(), 0);
            self.paused = true;
        }
        true
    }

    pub(crate) fn paused_until(&self) -> Option<Instant> {
        self.paused.then_some(self.burst_from)
    }

    /// Clears `paused` once the end of the pause has been reached.
    pub(crate) fn advance_to(&mut self, now: Instant) {
        self.paused &= now < self.burst_from;
    }

    /// Returns the time at which a link with the current rate would finish sending the burst.
    fn due(&self) -> Instant {
        self.burst_from + Duration::from_nanos(self.burst * 1_000_000_000 / self.rate)
    }

    fn refresh(&mut self, now: Instant) {
        // Stop after `PERIODS` periods. The flow is then back at full rate.
        while now >= self.period_from + PERIOD && self.periods < PERIODS {
            self.period_from = self.period_from + PERIOD;
            self.periods += 1;
            self.alpha -= self.alpha >> GAIN_SHIFT;
            if self.periods > FAST_PERIODS {
                self.target = (self.target + RATE_STEP).min(LINE_RATE);
            }
            self.rate = if self.target >= LINE_RATE
                && self.periods > FAST_PERIODS
                && LINE_RATE - self.rate <= RATE_STEP
            {
                LINE_RATE
            } else {
                self.rate.midpoint(self.target)
            };
        }
        if self.periods >= PERIODS {
            self.rate = LINE_RATE;
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
    fn each_cnp_halves_rate_down_to_minimum() {
        let mut pace = Pace::new(at(0));
        pace.on_notification(at(0));
        assert_eq!(pace.rate, LINE_RATE / 2);
        pace.on_notification(at(50));
        assert_eq!(pace.rate, LINE_RATE / 4);
        for n in 2..100 {
            pace.on_notification(at(50 * n));
        }
        assert_eq!(pace.rate, MIN_RATE);
    }

    #[test]
    fn rate_recovers_fast_then_by_additive_increase() {
        let mut pace = Pace::new(at(0));
        pace.on_notification(at(0));
        pace.on_notification(at(50));
        let mut missing = LINE_RATE / 2 - pace.rate;
        for n in 1..=5 {
            pace.refresh(at(50 + 55 * n));
            assert!((LINE_RATE / 2 - pace.rate).abs_diff(missing / 2) <= 2, "period {n}: {}", pace.rate);
            missing = LINE_RATE / 2 - pace.rate;
        }
        pace.refresh(at(50 + 55 * 6));
        assert_eq!(pace.target, LINE_RATE / 2 + RATE_STEP);
        assert!(pace.on_sent(at(10_000), 1000));
        assert!(!pace.on_sent(at(50_000), 1000), "{}", pace.rate);
    }

    #[test]
    fn paced_sending_averages_allowed_rate() {
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
                    pace.advance_to(now);
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
