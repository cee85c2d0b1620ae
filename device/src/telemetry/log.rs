//! Log lines a guest or a peer can cause, limited for each device at each place that writes one.
//!
//! `limited!(warn, "…")` takes what `tracing::warn!` takes. A place may write [`BURST`] lines in [`WINDOW_MS`]; the
//! first line of a later window says how many were left out. Every device has a thread of its own, and every thread its
//! own allowance at each place: a guest that makes noise hides nothing of what others cause.

use std::cell::Cell;
use std::sync::LazyLock;
use std::time::Instant;

/// Lines a place may write in one window.
pub const BURST: u64 = 8;

/// Length of a window, milliseconds.
pub const WINDOW_MS: u64 = 5_000;

/// The allowance of one place on one thread.
#[derive(Debug, Default)]
pub struct Site {
    /// When the current window began, milliseconds of the process's clock.
    window_start: Cell<u64>,
    /// Lines asked for in the current window.
    asked: Cell<u64>,
}

impl Site {
    /// A place that has not written yet.
    pub const fn new() -> Self {
        Self { window_start: Cell::new(0), asked: Cell::new(0) }
    }

    /// Whether a line may be written now, and how many were not since the last one that was.
    pub fn admit(&self) -> Option<u64> {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        self.admit_at(u64::try_from(START.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    fn admit_at(&self, now_ms: u64) -> Option<u64> {
        if now_ms.saturating_sub(self.window_start.get()) >= WINDOW_MS {
            self.window_start.set(now_ms);
            return Some(self.asked.replace(1).saturating_sub(BURST));
        }
        let asked = self.asked.get();
        self.asked.set(asked + 1);
        (asked < BURST).then_some(0)
    }
}

/// `limited!(level, …)` is `tracing::level!(…)` for lines that a guest or a peer can cause.
#[macro_export]
macro_rules! limited {
    ($level:ident, $($arg:tt)+) => {{
        std::thread_local! {
            static SITE: $crate::telemetry::log::Site = const { $crate::telemetry::log::Site::new() };
        }
        match SITE.with($crate::telemetry::log::Site::admit) {
            Some(0) => tracing::$level!($($arg)+),
            Some(suppressed) => {
                tracing::$level!(suppressed, "earlier lines like the next were left out");
                tracing::$level!($($arg)+);
            }
            None => {}
        }
    }};
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};
    use std::thread;

    use super::*;

    #[test]
    fn a_burst_is_cut_and_counted_in_the_next_window() {
        let site = Site::new();
        let admitted = (0..20).filter(|_| site.admit_at(10).is_some()).count();
        assert_eq!(admitted as u64, BURST);
        assert_eq!(site.admit_at(WINDOW_MS - 1), None);
        assert_eq!(site.admit_at(WINDOW_MS + 10), Some(21 - BURST));
        assert_eq!(site.admit_at(WINDOW_MS + 11), Some(0));
        assert_eq!(site.admit_at(3 * WINDOW_MS), Some(0));
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
    fn a_noisy_thread_hides_nothing_of_another_at_the_same_place() {
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
