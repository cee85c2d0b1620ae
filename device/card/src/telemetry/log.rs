//! Limits the rate of log lines that a guest or a peer can trigger. The limits apply to lines per device and call site,
//! and to bytes per device.
//!
//! `limited!(warn, "…")` takes the arguments of `tracing::warn!`. A site may write [`BURST`] lines per [`WINDOW_MS`],
//! as long as its device has not used up its byte allowance. The first line after a suppression reports how many lines
//! were suppressed. Each device has its own thread, and each thread has its own allowances, including those per site. A
//! noisy guest therefore cannot suppress other devices' log lines.

use std::cell::Cell;
use std::sync::LazyLock;
use std::time::Instant;

#[doc(hidden)]
pub use tracing;

/// Number of lines that a site may write in one window.
pub const BURST: u64 = 8;

/// Length of a window in milliseconds.
pub const WINDOW_MS: u64 = 5_000;

/// Number of bytes that a device may log per day, in addition to [`BURST_LEN`].
pub const LEN_PER_DAY: u64 = 16 << 20;

/// Number of bytes that a device may log in one burst.
pub const BURST_LEN: u64 = 1 << 20;

const DAY_MS: u64 = 86_400_000;

/// Returns the time of the process clock in milliseconds.
fn now_ms() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(START.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// The allowance of one call site on one thread.
#[derive(Debug, Default)]
pub struct Site {
    /// Start of the current window.
    window_start: Cell<u64>,
    /// Number of lines written in the current window.
    written: Cell<u64>,
    /// Number of lines suppressed since the last line was written.
    left_out: Cell<u64>,
}

impl Site {
    pub const fn new() -> Self {
        Self { window_start: Cell::new(0), written: Cell::new(0), left_out: Cell::new(0) }
    }

    /// Returns the number of lines suppressed before this one, or `None` if this line must be suppressed.
    pub fn admit(&self) -> Option<u64> {
        let now = now_ms();
        self.admit_at(now, ALLOWANCE.with(|allowance| allowance.is_left_at(now)))
    }

    fn admit_at(&self, now_ms: u64, is_allowed: bool) -> Option<u64> {
        if now_ms.saturating_sub(self.window_start.get()) >= WINDOW_MS {
            self.window_start.set(now_ms);
            self.written.set(0);
        }
        if !is_allowed || self.written.get() >= BURST {
            self.left_out.set(self.left_out.get() + 1);
            return None;
        }
        self.written.set(self.written.get() + 1);
        Some(self.left_out.take())
    }
}

std::thread_local! {
    static ALLOWANCE: Allowance = const { Allowance::new() };
}

/// Deducts a line of `len` bytes from this thread's allowance.
pub(super) fn count(len: usize) {
    ALLOWANCE.with(|allowance| allowance.spend_at(now_ms(), len as u64));
}

/// Number of bytes that a thread may still write. Negative if the last line was longer than the remaining
/// allowance.
#[derive(Debug)]
struct Allowance {
    left: Cell<i64>,
    /// Time of the last refill.
    counted: Cell<u64>,
}

impl Allowance {
    const fn new() -> Self {
        Self { left: Cell::new(BURST_LEN.cast_signed()), counted: Cell::new(0) }
    }

    fn is_left_at(&self, now_ms: u64) -> bool {
        let passed = now_ms.saturating_sub(self.counted.get()).min(DAY_MS);
        let gained = passed * LEN_PER_DAY / DAY_MS;
        if gained > 0 {
            self.counted.set(now_ms);
            let left = self.left.get().saturating_add_unsigned(gained);
            self.left.set(left.min(BURST_LEN.cast_signed()));
        }
        self.left.get() > 0
    }

    fn spend_at(&self, now_ms: u64, len: u64) {
        let _ = self.is_left_at(now_ms);
        self.left.set(self.left.get().saturating_sub_unsigned(len));
    }
}

/// `limited!(level, …)` is a rate-limited [`log_line!`](crate::log_line), for lines that a guest or a peer can trigger.
#[macro_export]
macro_rules! limited {
    ($level:ident, $($arg:tt)+) => {{
        std::thread_local! {
            static SITE: $crate::telemetry::log::Site = const { $crate::telemetry::log::Site::new() };
        }
        match SITE.with($crate::telemetry::log::Site::admit) {
            Some(0) => $crate::log_line!($level, $($arg)+),
            Some(suppressed) => {
                $crate::log_line!($level, suppressed, "lines similar to the next one were suppressed");
                $crate::log_line!($level, $($arg)+);
            }
            None => {}
        }
    }};
}

/// `log_line!(level, …)` is `tracing::level!(…)` with the [target](crate::log_target) of its module.
#[macro_export]
macro_rules! log_line {
    ($level:ident, $($arg:tt)+) => {{
        const TARGET: &str = $crate::log_target!();
        $crate::telemetry::log::tracing::$level!(target: TARGET, $($arg)+)
    }};
}

/// Expands to the log target of the calling module, as a constant.
///
/// Users rely on targets, for example in log filters. Targets therefore do not depend on how the code is divided into
/// crates. For example, `card::vfio` logs as `device::vfio` and the interface `mthca` as `device::frontend::mthca`.
#[macro_export]
macro_rules! log_target {
    () => {{
        const LEN: usize = $crate::telemetry::log::target_len(module_path!());
        const BYTES: [u8; LEN] = $crate::telemetry::log::target(module_path!());
        match std::str::from_utf8(&BYTES) {
            Ok(target) => target,
            Err(_) => panic!("a module path is text"),
        }
    }};
}

/// Returns the prefix of a module's log target, and the part of the module path to append to that prefix.
const fn split_target(module: &str) -> (&[u8], &[u8]) {
    const CRATES: [&[u8]; 2] = [b"card", b"device"];
    let path = module.as_bytes();
    let mut index = 0;
    while index < CRATES.len() {
        let name = CRATES[index];
        if let Some((first, rest)) = path.split_at_checked(name.len())
            && is_equal(first, name)
            && (rest.is_empty() || rest[0] == b':')
        {
            return (b"device", rest);
        }
        index += 1;
    }
    (b"device::frontend::", path)
}

const fn is_equal(a: &[u8], b: &[u8]) -> bool {
    let mut index = 0;
    while index < a.len() && index < b.len() && a[index] == b[index] {
        index += 1;
    }
    index == a.len() && index == b.len()
}

/// Returns the length of a module's log target.
pub const fn target_len(module: &str) -> usize {
    let (prefix, rest) = split_target(module);
    prefix.len() + rest.len()
}

/// Returns a module's log target. `LEN` is its [length](target_len).
pub const fn target<const LEN: usize>(module: &str) -> [u8; LEN] {
    let (prefix, rest) = split_target(module);
    let mut target = [0; LEN];
    let (start, end) = target.split_at_mut(prefix.len());
    start.copy_from_slice(prefix);
    end.copy_from_slice(rest);
    target
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};
    use std::thread;

    use super::*;

    #[test]
    fn messages_beyond_burst_are_suppressed_and_counted() {
        let site = Site::new();
        let admitted = (0..20).filter(|_| site.admit_at(10, true).is_some()).count();
        assert_eq!(admitted as u64, BURST);
        assert_eq!(site.admit_at(WINDOW_MS - 1, true), None);
        assert_eq!(site.admit_at(WINDOW_MS + 10, true), Some(21 - BURST));
        assert_eq!(site.admit_at(WINDOW_MS + 11, true), Some(0));
        assert_eq!(site.admit_at(3 * WINDOW_MS, false), None);
        assert_eq!(site.admit_at(4 * WINDOW_MS, true), Some(1));
    }

    #[test]
    fn bytes_logged_per_day_stay_within_allowance() {
        const LINE: u64 = 2048;
        let (allowance, site) = (Allowance::new(), Site::new());
        let mut written = 0;
        for now in (0..DAY_MS).step_by(100) {
            if site.admit_at(now, allowance.is_left_at(now)).is_some() {
                allowance.spend_at(now, LINE);
                written += LINE;
            }
        }
        let most = LEN_PER_DAY + BURST_LEN + LINE;
        assert!((most / 2..=most).contains(&written), "{written}");
    }

    #[test]
    fn log_targets_do_not_depend_on_crate_names() {
        for (module, expected) in [
            ("card", "device"),
            ("card::vfio::server", "device::vfio::server"),
            ("device::fleet", "device::fleet"),
            ("mthca::cmd", "device::frontend::mthca::cmd"),
            ("cards::x", "device::frontend::cards::x"),
        ] {
            let (prefix, rest) = split_target(module);
            assert_eq!([prefix, rest].concat(), expected.as_bytes());
            assert_eq!(target_len(module), expected.len());
        }
        assert_eq!(log_target!(), "device::telemetry::log::tests");
    }

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn threads_have_separate_log_limits() {
        fn line(device: &str) {
            limited!(warn, device, "refused");
        }
        let written = Written::default();
        let to = written.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || to.clone()).finish();
        let dispatch = tracing::Dispatch::new(subscriber);
        let run = |device: &'static str, lines: usize| {
            let dispatch = dispatch.clone();
            let thread = thread::spawn(move || {
                tracing::dispatcher::with_default(&dispatch, || (0..lines).for_each(|_| line(device)));
            });
            thread.join().unwrap();
        };
        run("noisy", 1000);
        run("quiet", 1);
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        let count = |device: &str| text.lines().filter(|line| line.contains(device)).count() as u64;
        assert_eq!((count("noisy"), count("quiet")), (BURST, 1), "{text}");
    }
}
