//! Limits the CPU time that a client can make its device spend on anything but data.
//!
//! Connecting, mapping memory, rejected messages and commands cost the device far more than the client that requests
//! them. If CPUs are scarce, a client that repeats them without a pause would take CPU time from the devices of its
//! neighbours. All devices of a process therefore share a tenth of the CPUs for such work. The share is divided
//! equally among the devices that have used up their allowance. Such a device leaves the messages of its client
//! waiting until the allowance has grown again, as slow firmware would. It still serves packets and timers.
//!
//! A guest that boots or runs applications does not notice: each device can save up [`SAVINGS`], and time spent on
//! moving data is added to its allowance.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use engine::Instant;

/// Fraction of all CPUs that the devices of a process may spend on control work in the long run.
const SHARE: f64 = 0.1;

/// Allowance that a device can save up. Booting Linux and its driver takes a third of it.
const SAVINGS: Duration = Duration::from_millis(500);

/// Accounting interval, because reading the thread's CPU time is a system call.
const INTERVAL: Duration = Duration::from_millis(5);

/// Allowance at which a pause ends.
const RESUME: Duration = Duration::from_millis(1);

/// The longest pause. VMMs wait 5 s for a reply before they give up.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Devices of this process that have used up their allowance. Their threads share the CPUs of the process.
static EXHAUSTED: AtomicU32 = AtomicU32::new(0);

/// The allowance of one device.
#[derive(Debug)]
pub(super) struct ControlBudget {
    exhausted: &'static AtomicU32,
    /// Seconds of CPU time per second for all devices.
    share: f64,
    /// Seconds of CPU time left; negative after overspending.
    left: f64,
    is_exhausted: bool,
    /// Start of the interval, and the thread's CPU time at that point.
    since: Instant,
    spent: Duration,
    /// Elapsed time of turns in this interval that moved data, and of all others.
    data: Duration,
    control: Duration,
    /// Client messages wait until then.
    paused_until: Option<Instant>,
}

impl ControlBudget {
    /// The budget of a device that has spent nothing yet.
    ///
    /// * `processors`: number of CPUs that the process may use.
    pub(super) fn new(processors: usize) -> Self {
        Self::sharing(&EXHAUSTED, processors)
    }

    fn sharing(exhausted: &'static AtomicU32, processors: usize) -> Self {
        Self {
            exhausted,
            share: SHARE * processors as f64,
            left: SAVINGS.as_secs_f64(),
            is_exhausted: false,
            since: Instant::ZERO,
            spent: Duration::ZERO,
            data: Duration::ZERO,
            control: Duration::ZERO,
            paused_until: None,
        }
    }

    /// Adds a turn that took `elapsed`. `processor_time` reads the thread's CPU time; it is called once per interval.
    pub(super) fn add_turn(
        &mut self,
        now: Instant,
        elapsed: Duration,
        moved_data: bool,
        processor_time: impl FnOnce() -> Duration,
    ) {
        let kind = if moved_data { &mut self.data } else { &mut self.control };
        *kind = kind.saturating_add(elapsed);
        let is_over = self.paused_until.is_some_and(|until| until <= now);
        if is_over || now.saturating_since(self.since) >= INTERVAL {
            self.account(now, processor_time());
            // However far the allowance is overdrawn, the client is served after the longest pause.
            self.paused_until = self.paused_until.filter(|_| !is_over);
        }
    }

    /// Returns until when client messages have to wait, if they do.
    pub(super) fn paused_until(&self) -> Option<Instant> {
        self.paused_until
    }

    fn account(&mut self, now: Instant, spent: Duration) {
        let interval = now.saturating_since(self.since).as_secs_f64();
        // Turns may have been preempted, so their elapsed times only say how the CPU time is divided.
        let processor = spent.saturating_sub(self.spent).as_secs_f64();
        let (data, control) = (self.data.as_secs_f64(), self.control.as_secs_f64());
        let turns = (data + control).max(f64::MIN_POSITIVE);
        // Polling and operator calls are outside of turns.
        let processor = processor.min(turns);
        let earned = self.rate() * interval + processor * data / turns;
        self.left = (self.left + earned).min(SAVINGS.as_secs_f64()) - processor * control / turns;
        (self.since, self.spent) = (now, spent);
        (self.data, self.control) = (Duration::ZERO, Duration::ZERO);
        self.set_exhausted(self.left < 0.0);
        if !self.is_exhausted {
            self.paused_until = None;
        } else if self.paused_until.is_none() {
            let pause = (RESUME.as_secs_f64() - self.left) / self.rate();
            self.paused_until = Some(now + Duration::from_secs_f64(pause.min(LONGEST_PAUSE.as_secs_f64())));
        }
    }

    /// Seconds of CPU time that this device gets per second.
    fn rate(&self) -> f64 {
        let others = self.exhausted.load(Ordering::Relaxed) - u32::from(self.is_exhausted);
        self.share / f64::from(others + 1)
    }

    fn set_exhausted(&mut self, is_exhausted: bool) {
        match (self.is_exhausted, is_exhausted) {
            (false, true) => _ = self.exhausted.fetch_add(1, Ordering::Relaxed),
            (true, false) => _ = self.exhausted.fetch_sub(1, Ordering::Relaxed),
            _ => {}
        }
        self.is_exhausted = is_exhausted;
    }
}

impl Drop for ControlBudget {
    fn drop(&mut self) {
        self.set_exhausted(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device that is busy for `busy` in each 10 ms.
    struct Busy {
        budget: ControlBudget,
        now: Instant,
        processor: Duration,
        paused: Duration,
    }

    const PERIOD: Duration = Duration::from_millis(10);

    impl Busy {
        fn new(processors: usize) -> Self {
            Self::sharing(Box::leak(Box::default()), processors)
        }

        fn sharing(exhausted: &'static AtomicU32, processors: usize) -> Self {
            let budget = ControlBudget::sharing(exhausted, processors);
            Self { budget, now: Instant::ZERO, processor: Duration::ZERO, paused: Duration::ZERO }
        }

        fn run(&mut self, time: Duration, busy: Duration, moves_data: bool) {
            let end = self.now + time;
            while self.now < end {
                self.now = self.now + PERIOD;
                let is_paused = self.budget.paused_until().is_some();
                let elapsed = if is_paused { Duration::ZERO } else { busy };
                if is_paused {
                    self.paused += PERIOD;
                }
                self.processor += elapsed;
                let processor = self.processor;
                self.budget.add_turn(self.now, elapsed, moves_data, || processor);
            }
        }
    }

    #[test]
    fn boot_is_never_paused() {
        let mut device = Busy::new(2);
        device.run(Duration::from_millis(490), PERIOD, false);
        assert_eq!(device.paused, Duration::ZERO);
    }

    #[test]
    fn endless_control_work_gets_its_share() {
        let mut device = Busy::new(2);
        device.run(Duration::from_secs(100), PERIOD, false);
        let spent = device.processor.as_secs_f64();
        assert!((20.0..22.0).contains(&spent), "{spent} s");
    }

    #[test]
    fn moving_data_is_never_paused() {
        let mut device = Busy::new(2);
        device.run(Duration::from_secs(100), PERIOD, true);
        assert_eq!(device.paused, Duration::ZERO);
    }

    #[test]
    fn control_work_beside_as_much_data_is_never_paused() {
        let mut device = Busy::new(2);
        for _ in 0..1000 {
            device.run(PERIOD, PERIOD / 2, true);
            device.run(PERIOD, PERIOD / 2, false);
        }
        assert_eq!(device.paused, Duration::ZERO);
    }

    #[test]
    fn exhausted_devices_share_equally() {
        let exhausted: &'static AtomicU32 = Box::leak(Box::default());
        let mut devices: Vec<Busy> = (0..16).map(|_| Busy::sharing(exhausted, 2)).collect();
        for _ in 0..10_000 {
            for device in &mut devices {
                device.run(PERIOD, PERIOD, false);
            }
        }
        let spent: Vec<f64> = devices.iter().map(|device| device.processor.as_secs_f64()).collect();
        // 20 s in 100 s, and the savings of each.
        let all: f64 = spent.iter().sum();
        assert!((25.0..32.0).contains(&all), "{spent:?}");
        let (least, most) =
            (spent.iter().copied().fold(f64::MAX, f64::min), spent.iter().copied().fold(0.0, f64::max));
        assert!(most < 1.5 * least, "{spent:?}");
        drop(devices);
        assert_eq!(exhausted.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn overdrawn_device_is_served_each_second() {
        let mut device = Busy::new(1);
        let hour = Duration::from_secs(3600);
        device.processor = hour;
        device.now = Instant::ZERO + hour;
        let processor = device.processor;
        device.budget.add_turn(device.now, hour, false, || processor);
        device.run(Duration::from_secs(10), Duration::from_millis(1), false);
        assert!(
            device.paused <= Duration::from_secs(10) && device.processor > processor,
            "{:?}",
            device.paused
        );
    }

    #[test]
    fn preempted_turns_cost_only_cpu_time() {
        let mut device = Busy::new(2);
        for n in 1..=1000_u32 {
            device.now = device.now + PERIOD;
            device.budget.add_turn(device.now, PERIOD, false, || Duration::from_micros(100) * n);
            assert_eq!(device.budget.paused_until(), None);
        }
    }
}
