//! Doorbell coalescing: decides whether to let messages accumulate instead of waking up for each message.
//!
//! When CPUs are scarce, the worker thread rarely busy-polls, so almost every doorbell wakes it. It preempts the
//! virtual CPU that rang the doorbell, handles one message and blocks again. That costs two context switches per
//! message, although a driver that does not wait for completions would have rung the next doorbell in the meantime. The
//! thread can instead sleep for a fixed time and then handle all messages that have accumulated, as a NIC does when it
//! coalesces interrupts.
//!
//! Coalescing would only slow down a request-response load, but the thread cannot distinguish such a load from one that
//! benefits. Both kinds of load consist of single messages with short sleeps in between. The thread therefore runs a
//! trial. After many short sleeps with few messages each, the thread coalesces a few times. It ends the trial early if
//! almost nothing accumulates, and otherwise compares the message rates. If coalescing is not faster, the next trial is
//! delayed, and each failed trial doubles the delay. If it is faster, the rates are compared again every second,
//! because the load may change.

use std::time::Duration;

use engine::Instant;

/// Number of sleeps over which the message rate without coalescing is measured.
const PLAIN_SLEEPS: u32 = 256;

/// Longest average sleep for which coalescing is tried. If sleeps are longer, wake-ups are rare enough already.
const SHORT_SLEEP: Duration = Duration::from_micros(100);

/// A thread that handles more messages than this per wake-up, on average, does not need coalescing.
const FEW_MESSAGES: u64 = 8;

/// If more time than this passes between the starts of two sleeps, the measured load is considered to have ended.
const IDLE: Duration = Duration::from_millis(20);

/// Number of sleeps in a trial.
const TRIAL_SLEEPS: u32 = 32;
/// Number of sleeps in a trial after which the thread checks whether messages accumulate at all.
const FIRST_SLEEPS: u32 = 3;

/// Minimum average number of messages per sleep for coalescing to continue.
const MIN_MESSAGES: u64 = 2;

/// Number of sleeps after which [`MIN_MESSAGES`] is checked again, once the trial has succeeded.
const LATER_SLEEPS: u32 = 16;

/// Time after which the rate without coalescing is measured again.
const COMPARE_INTERVAL: Duration = Duration::from_secs(1);

/// Delay of the next trial after a failed one: initial and maximum value.
const TRIAL_BACKOFF: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(2)];

/// Decides before each sleep whether to coalesce.
#[derive(Clone, Copy, Debug)]
pub(super) struct Coalescing {
    sleep: Duration,
    phase: Phase,
    /// Start of the phase.
    since: Instant,
    /// Number of sleeps since the start of the phase.
    sleeps: u32,
    /// Number of messages handled before the start of the phase.
    done: u64,
    last_sleep: Instant,
    next_trial: Instant,
    trial_backoff: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Plain,
    Trial {
        /// Message rate without coalescing.
        per_second: u64,
    },
    Coalescing {
        until: Instant,
    },
}

impl Coalescing {
    /// Creates a policy that coalesces with sleeps of `sleep`. Zero disables coalescing.
    pub(super) const fn new(sleep: Duration) -> Self {
        Self {
            sleep,
            phase: Phase::Plain,
            since: Instant::ZERO,
            sleeps: 0,
            done: 0,
            last_sleep: Instant::ZERO,
            next_trial: Instant::ZERO,
            trial_backoff: TRIAL_BACKOFF[0],
        }
    }

    /// Returns how long to sleep without being woken, or `None` to block as usual. Call this each time before the
    /// thread blocks. `done` is the total number of messages so far, which restarts at zero when the device is
    /// re-created.
    pub(super) fn sleep(&mut self, now: Instant, done: u64) -> Option<Duration> {
        if self.sleep.is_zero() {
            return None;
        }
        if now.saturating_since(self.last_sleep) > IDLE {
            self.trial_backoff = TRIAL_BACKOFF[0];
            self.next_trial = now;
            self.begin(Phase::Plain, now, done);
        }
        self.last_sleep = now;
        let accumulated = done.saturating_sub(self.done);
        match self.phase {
            Phase::Plain if self.sleeps >= PLAIN_SLEEPS => {
                let is_frequent = now.saturating_since(self.since) <= SHORT_SLEEP * self.sleeps;
                let handles_few = accumulated <= FEW_MESSAGES * u64::from(self.sleeps);
                let per_second = self.per_second(now, done);
                let tries = is_frequent && handles_few && now >= self.next_trial;
                self.begin(if tries { Phase::Trial { per_second } } else { Phase::Plain }, now, done);
            }
            Phase::Trial { .. }
                if self.sleeps == FIRST_SLEEPS && accumulated < MIN_MESSAGES * u64::from(FIRST_SLEEPS) =>
            {
                self.give_up(now, done);
            }
            Phase::Trial { per_second } if self.sleeps >= TRIAL_SLEEPS => {
                if self.per_second(now, done) > per_second {
                    self.trial_backoff = TRIAL_BACKOFF[0];
                    self.begin(Phase::Coalescing { until: now + COMPARE_INTERVAL }, now, done);
                } else {
                    self.give_up(now, done);
                }
            }
            Phase::Coalescing { until } if self.sleeps >= LATER_SLEEPS => {
                let pays = accumulated >= MIN_MESSAGES * u64::from(self.sleeps) && now < until;
                self.begin(if pays { self.phase } else { Phase::Plain }, now, done);
            }
            _ => {}
        }
        self.sleeps += 1;
        (self.phase != Phase::Plain).then_some(self.sleep)
    }

    fn begin(&mut self, phase: Phase, now: Instant, done: u64) {
        self.phase = phase;
        self.since = now;
        self.sleeps = 0;
        self.done = done;
    }

    fn give_up(&mut self, now: Instant, done: u64) {
        self.next_trial = now + self.trial_backoff;
        self.trial_backoff = (self.trial_backoff * 2).min(TRIAL_BACKOFF[1]);
        self.begin(Phase::Plain, now, done);
    }

    /// Returns the message rate in this phase, in messages per second.
    fn per_second(&self, now: Instant, done: u64) -> u64 {
        let nanos = u64::try_from(now.saturating_since(self.since).as_nanos()).unwrap_or(u64::MAX);
        done.saturating_sub(self.done).saturating_mul(1_000_000_000) / nanos.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLEEP: Duration = Duration::from_micros(60);

    /// A simulated thread that handles messages between its sleeps.
    struct Load {
        coalescing: Coalescing,
        now: Instant,
        done: u64,
    }

    impl Load {
        fn new(sleep: Duration) -> Self {
            Self { coalescing: Coalescing::new(sleep), now: Instant::ZERO + Duration::from_secs(9), done: 0 }
        }

        /// Sleeps `sleeps` times and returns how many of these sleeps were coalesced. For each kind of sleep, `plain`
        /// and `coalesced` contain its duration in microseconds and the number of messages that follow it.
        fn sleep(&mut self, sleeps: u32, plain: (u64, u64), coalesced: (u64, u64)) -> u32 {
            let mut times = 0;
            for _ in 0..sleeps {
                let is_coalesced = self.coalescing.sleep(self.now, self.done).is_some();
                let (micros, messages) = if is_coalesced { coalesced } else { plain };
                self.now = self.now + Duration::from_micros(micros);
                self.done += messages;
                times += u32::from(is_coalesced);
            }
            times
        }
    }

    #[test]
    fn coalescing_is_reevaluated_every_second() {
        let mut load = Load::new(SLEEP);
        assert_eq!(load.sleep(PLAIN_SLEEPS, (45, 1), (80, 10)), 0);
        assert_eq!(load.sleep(10_000, (45, 1), (80, 10)), 10_000, "these sleeps take less than a second");
        let coalesced = load.sleep(100_000, (45, 1), (80, 10));
        assert_eq!(coalesced, 100_000 - 8 * PLAIN_SLEEPS, "one comparison per second, for eight seconds");
    }

    #[test]
    fn trials_back_off_under_request_response_load() {
        let mut load = Load::new(SLEEP);
        // These sleeps take two seconds. The delays between trials are 50, 100, 200, 400 and 800 ms.
        let coalesced = load.sleep(80_000, (25, 1), (85, 1));
        assert_eq!(coalesced, 6 * FIRST_SLEEPS);
        let coalesced = load.sleep(400_000, (25, 1), (85, 1));
        assert_eq!(coalesced, 5 * FIRST_SLEEPS, "there is one trial every two seconds");
    }

    #[test]
    fn no_coalescing_without_speedup() {
        let mut load = Load::new(SLEEP);
        let coalesced = load.sleep(10_000, (5, 1), (80, 16));
        assert_eq!(coalesced, TRIAL_SLEEPS, "there is one trial in 50 ms");
    }

    #[test]
    fn coalescing_stops_when_messages_no_longer_accumulate() {
        let mut load = Load::new(SLEEP);
        load.sleep(PLAIN_SLEEPS + 100, (45, 1), (80, 10));
        let coalesced = load.sleep(PLAIN_SLEEPS, (25, 1), (85, 1));
        assert!(coalesced <= 2 * LATER_SLEEPS, "{coalesced}");
    }

    #[test]
    fn rare_or_batched_wakeups_are_not_coalesced() {
        let mut load = Load::new(SLEEP);
        assert_eq!(load.sleep(10_000, (150, 1), (80, 10)), 0);
        let mut load = Load::new(SLEEP);
        assert_eq!(load.sleep(10_000, (50, FEW_MESSAGES + 1), (80, 100)), 0);
    }

    #[test]
    fn idle_period_resets_trials() {
        let mut load = Load::new(SLEEP);
        load.sleep(80_000, (25, 1), (85, 1));
        load.now = load.now + IDLE + Duration::from_micros(1);
        assert_eq!(load.sleep(PLAIN_SLEEPS, (45, 1), (80, 10)), 0);
        assert_eq!(load.sleep(100, (45, 1), (80, 10)), 100, "the failed trial does not delay the next one");
    }

    #[test]
    fn device_restart_ends_coalescing_trial() {
        let mut load = Load::new(SLEEP);
        load.sleep(PLAIN_SLEEPS, (45, 1), (80, 10));
        assert_eq!(load.sleep(10, (45, 1), (80, 10)), 10, "the first sleeps of the trial are coalesced");
        load.done = 0;
        assert_eq!(
            load.sleep(100, (45, 1), (80, 1)),
            TRIAL_SLEEPS - 10,
            "the trial ends after its remaining sleeps"
        );
    }

    #[test]
    fn zero_sleep_disables_coalescing() {
        assert_eq!(Load::new(Duration::ZERO).sleep(10_000, (45, 1), (80, 10)), 0);
    }
}
