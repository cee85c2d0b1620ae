//! Limits the processor time that a client can make its device spend on work other than moving data.
//!
//! Connections, memory mappings, commands and rejected messages cost the device far more than they cost the client. If
//! processors are scarce, a client that repeats such requests endlessly takes processor time away from other devices.
//! All devices in a process therefore share an allowance for this control work, which accrues as a small fraction of
//! the total processor time. When the allowance is used up, each device is limited to an equal share of the time that
//! accrues. A device that has used up its share makes its client's messages wait, like a device with slow firmware, but
//! still processes packets and timers.
//!
//! Guests that boot or run applications are not affected, because unused time is saved up and time spent on moving data
//! is added to the device's share. No device is limited unless another one is moving data and would benefit. Boot
//! loaders, whose drivers poll registers, are therefore not slowed down on an otherwise idle host.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use engine::Instant;

/// Fraction of the total processor time that a process's devices may spend on control work in the long run.
const SHARE: f64 = 0.05;

/// Seconds of processor time that all devices can save up together.
const SHARED_SAVINGS: f64 = 2.0;
/// Seconds of processor time that each device can save up for itself.
const OWN_SAVINGS: f64 = 0.25;

/// Length of an accounting interval. Reading the thread's processor time takes a system call, so turns are not
/// accounted for individually.
const INTERVAL: Duration = Duration::from_millis(5);

/// Interval at which a paused device checks whether it may continue.
const RECHECK: Duration = Duration::from_millis(50);

/// Length of the longest pause. VMMs give up if they receive no reply within 5 s.
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// How long a device still counts as moving data after an interval in which it moved data.
const RECENT: Duration = Duration::from_millis(200);

static SHARED: Mutex<Shared> = Mutex::new(Shared::new());

/// The remaining allowance that all devices in a process share.
#[derive(Debug)]
struct Shared {
    devices: u32,
    /// Seconds of processor time left. Negative after overspending, but at least `-SHARED_SAVINGS`.
    left: f64,
    since: Instant,
    /// Number of the next device.
    next: u64,
    /// The two devices that moved data most recently, and when.
    movers: [Option<(u64, Instant)>; 2],
}

impl Shared {
    const fn new() -> Self {
        Self { devices: 0, left: SHARED_SAVINGS, since: Instant::ZERO, next: 0, movers: [None; 2] }
    }

    fn add_mover(&mut self, device: u64, now: Instant) {
        let [latest, other] = self.movers;
        let is_latest = latest.is_some_and(|(mover, _)| mover == device);
        self.movers = [Some((device, now)), if is_latest { other } else { latest }];
    }

    fn has_other_mover(&self, device: u64, now: Instant) -> bool {
        let mut movers = self.movers.iter().flatten();
        movers.any(|&(mover, at)| mover != device && now.saturating_since(at) < RECENT)
    }

    /// Adds the time earned until `now` and subtracts the time spent by a device.
    fn spend(&mut self, now: Instant, rate: f64, spent: f64) {
        let earned = rate * now.saturating_since(self.since).as_secs_f64();
        self.since = self.since.max(now);
        self.left = ((self.left + earned).min(SHARED_SAVINGS) - spent).max(-SHARED_SAVINGS);
    }
}

/// The control work allowance of one device.
#[derive(Debug)]
pub(super) struct ControlBudget {
    shared: &'static Mutex<Shared>,
    /// Number that identifies the device in this process.
    device: u64,
    /// Rate at which the shared allowance accrues, in seconds of processor time per second.
    rate: f64,
    /// Seconds of processor time left in the device's own share. Negative after overspending.
    left: f64,
    /// Start of the current interval.
    since: Instant,
    /// Processor time of the thread at the start of the interval.
    spent: Duration,
    /// Elapsed time of turns in this interval that moved data.
    data: Duration,
    /// Elapsed time of turns in this interval that did not move data.
    control: Duration,
    /// Start of the pause and time of the next check.
    paused: Option<(Instant, Instant)>,
}

impl ControlBudget {
    /// Creates the budget of a new device. `processors` is the number of processors that the process may use.
    pub(super) fn new(processors: usize) -> Self {
        Self::sharing(&SHARED, processors)
    }

    fn sharing(shared: &'static Mutex<Shared>, processors: usize) -> Self {
        let mut all = shared.lock().unwrap_or_else(PoisonError::into_inner);
        all.devices += 1;
        let device = all.next;
        all.next += 1;
        drop(all);
        Self {
            shared,
            device,
            rate: SHARE * processors as f64,
            left: OWN_SAVINGS,
            since: Instant::ZERO,
            spent: Duration::ZERO,
            data: Duration::ZERO,
            control: Duration::ZERO,
            paused: None,
        }
    }

    /// Adds a turn that took `elapsed`. `processor_time` reads the thread's processor time and is called only at the
    /// end of an interval.
    pub(super) fn add_turn(
        &mut self,
        now: Instant,
        elapsed: Duration,
        moved_data: bool,
        processor_time: impl FnOnce() -> Duration,
    ) {
        let kind = if moved_data { &mut self.data } else { &mut self.control };
        *kind = kind.saturating_add(elapsed);
        let is_due = match self.paused {
            Some((_, check)) => check <= now,
            None => now.saturating_since(self.since) >= INTERVAL,
        };
        if is_due {
            self.account(now, processor_time());
        }
    }

    /// Returns the earliest time at which the client's messages can be served, if they must wait.
    pub(super) fn paused_until(&self) -> Option<Instant> {
        self.paused.map(|(_, check)| check)
    }

    fn account(&mut self, now: Instant, spent: Duration) {
        let interval = now.saturating_since(self.since).as_secs_f64();
        let (data, control) = (self.data.as_secs_f64(), self.control.as_secs_f64());
        let turns = (data + control).max(f64::MIN_POSITIVE);
        // Turns may have been preempted, so their elapsed times determine only how the processor time is divided
        // between data and control work. The processor time is capped at the duration of the turns, because the thread
        // also polls and answers operator calls outside turns.
        let processor = spent.saturating_sub(self.spent).as_secs_f64().min(turns);
        let (on_data, on_control) = (processor * data / turns, processor * control / turns);
        // Control work draws on the shared allowance only to the extent that it takes more time than moving data.
        let beyond = (on_control - on_data).max(0.0);
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        shared.spend(now, self.rate, beyond);
        if data > 0.0 {
            shared.add_mover(self.device, now);
        }
        let earned = self.rate / f64::from(shared.devices.max(1)) * interval + on_data;
        // While the shared allowance lasts, overspending does not become a debt. Otherwise, a guest that polls
        // registers would later wait for seconds until its own share had repaid the debt.
        let debt = if shared.left > 0.0 { 0.0 } else { f64::INFINITY };
        self.left = ((self.left + earned).min(OWN_SAVINGS) - on_control).max(-debt);
        (self.since, self.spent) = (now, spent);
        (self.data, self.control) = (Duration::ZERO, Duration::ZERO);

        let paused_since = self.paused.map_or(now, |(paused_since, _)| paused_since);
        let is_exhausted = self.left < 0.0 && shared.left <= 0.0 && shared.has_other_mover(self.device, now);
        // No matter how far the allowance is overdrawn, the client is served after the longest pause.
        let is_paused = is_exhausted && now.saturating_since(paused_since) < LONGEST_PAUSE;
        self.paused = is_paused.then(|| (paused_since, now + RECHECK));
    }
}

impl Drop for ControlBudget {
    fn drop(&mut self) {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner).devices -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A simulated device whose thread is busy for all or part of each period.
    struct Device {
        budget: ControlBudget,
        now: Instant,
        processor: Duration,
        paused: Duration,
    }

    const PERIOD: Duration = Duration::from_millis(10);
    const HUNDRED_SECONDS: u32 = 10_000;

    /// Returns the shared allowance of a process in which another device continuously moves data.
    fn shared() -> &'static Mutex<Shared> {
        let mover = Some((u64::MAX, Instant::from_nanos(u64::MAX)));
        Box::leak(Box::new(Mutex::new(Shared { movers: [mover, mover], ..Shared::new() })))
    }

    impl Device {
        /// Creates a device alongside one that continuously moves data.
        fn beside_mover() -> Self {
            Self::sharing(shared())
        }

        /// Creates a device on a machine with two processors.
        fn sharing(shared: &'static Mutex<Shared>) -> Self {
            let budget = ControlBudget::sharing(shared, 2);
            Self { budget, now: Instant::ZERO, processor: Duration::ZERO, paused: Duration::ZERO }
        }

        fn run(&mut self, periods: u32, busy: Duration, moves_data: bool) {
            for _ in 0..periods {
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
    fn two_second_boot_is_not_paused() {
        let mut device = Device::beside_mover();
        device.run(200, PERIOD, false);
        assert_eq!(device.paused, Duration::ZERO);
    }

    #[test]
    fn endless_control_work_is_capped_at_its_share() {
        let mut device = Device::beside_mover();
        device.run(HUNDRED_SECONDS, PERIOD, false);
        let spent = device.processor.as_secs_f64();
        assert!((9.0..16.0).contains(&spent), "{spent} s");
    }

    #[test]
    fn device_is_paused_only_while_another_moves_data() {
        let shared = Box::leak(Box::new(Mutex::new(Shared::new())));
        let mut devices = [Device::sharing(shared), Device::sharing(shared)];
        for _ in 0..HUNDRED_SECONDS {
            devices.iter_mut().for_each(|device| device.run(1, PERIOD, false));
        }
        assert_eq!(devices.each_ref().map(|device| device.paused), [Duration::ZERO; 2]);
        let [mover, other] = &mut devices;
        for _ in 0..HUNDRED_SECONDS {
            mover.run(1, PERIOD, true);
            other.run(1, PERIOD, false);
        }
        assert!(mover.paused.is_zero() && !other.paused.is_zero(), "{:?}", other.paused);
        // The data transfer ends.
        other.paused = Duration::ZERO;
        other.run(HUNDRED_SECONDS, PERIOD, false);
        assert!(other.paused <= RECENT + RECHECK, "{:?}", other.paused);
    }

    #[test]
    fn device_that_only_moves_data_is_never_paused() {
        let mut device = Device::beside_mover();
        device.run(HUNDRED_SECONDS, PERIOD, true);
        assert_eq!(device.paused, Duration::ZERO);
    }

    #[test]
    fn balanced_control_work_is_not_paused() {
        let mut device = Device::beside_mover();
        for _ in 0..HUNDRED_SECONDS / 2 {
            device.run(1, PERIOD, true);
            device.run(1, PERIOD / 2, false);
        }
        assert_eq!(device.paused, Duration::ZERO);
    }

    #[test]
    fn busy_devices_share_equally() {
        let shared = shared();
        let mut devices: Vec<Device> = (0..16).map(|_| Device::sharing(shared)).collect();
        for _ in 0..HUNDRED_SECONDS {
            for device in &mut devices {
                device.run(1, PERIOD / 5, false);
            }
        }
        let spent: Vec<f64> = devices.iter().map(|device| device.processor.as_secs_f64()).collect();
        // The devices may spend 10 s in 100 s, plus all savings.
        let all: f64 = spent.iter().sum();
        assert!((10.0..20.0).contains(&all), "{spent:?}");
        let least = spent.iter().copied().fold(f64::MAX, f64::min);
        let most = spent.iter().copied().fold(0.0, f64::max);
        assert!(most < 1.5 * least, "{spent:?}");
        drop(devices);
        assert_eq!(shared.lock().unwrap().devices, 0);
    }

    #[test]
    fn idle_device_keeps_its_savings() {
        let shared = shared();
        let mut greedy: Vec<Device> = (0..15).map(|_| Device::sharing(shared)).collect();
        let mut booting = Device::sharing(shared);
        for _ in 0..HUNDRED_SECONDS {
            greedy.iter_mut().for_each(|device| device.run(1, PERIOD / 5, false));
        }
        booting.now = greedy[0].now;
        booting.run(20, PERIOD, false);
        assert_eq!(booting.paused, Duration::ZERO);
    }

    #[test]
    fn overspending_device_is_paused_then_resumed() {
        let mut device = Device::beside_mover();
        let hour = Duration::from_secs(3600);
        (device.processor, device.now) = (hour, Instant::ZERO + hour);
        device.budget.add_turn(device.now, hour, false, || hour);
        device.run(500, Duration::from_millis(1), false);
        assert!(device.processor > hour && device.paused >= LONGEST_PAUSE, "{:?}", device.paused);
    }

    #[test]
    fn polling_guest_never_waits_long() {
        let mut device = Device::beside_mover();
        let mut longest = Duration::ZERO;
        for _ in 0..HUNDRED_SECONDS {
            device.run(1, PERIOD, false);
            let now = device.now;
            longest = device
                .budget
                .paused
                .map_or(longest, |(paused_since, _)| longest.max(now.saturating_since(paused_since)));
        }
        // The device may use one tenth of the time, so a 10 ms period causes a pause of at most 100 ms.
        assert!((PERIOD..=PERIOD * 10).contains(&longest), "{longest:?}");
    }

    #[test]
    fn time_lost_to_preemption_is_not_charged() {
        let mut device = Device::beside_mover();
        for n in 1..=1000_u32 {
            device.now = device.now + PERIOD;
            device.budget.add_turn(device.now, PERIOD, false, || Duration::from_micros(100) * n);
            assert_eq!(device.budget.paused_until(), None);
        }
    }
}
