//! Log lines a guest or a peer can cause, limited at each place that writes one.
//!
//! `limited!(warn, "…")` takes what `tracing::warn!` takes. A place may write [`BURST`] lines in [`WINDOW_MS`]; the
//! first line of a later window says how many were left out.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Lines a place may write in one window.
pub const BURST: u64 = 8;

/// Length of a window, milliseconds.
pub const WINDOW_MS: u64 = 5_000;

/// The allowance of one place.
#[derive(Debug, Default)]
pub struct Site {
    /// When the current window began, milliseconds of the process's clock.
    window_start: AtomicU64,
    /// Lines asked for in the current window.
    asked: AtomicU64,
}

impl Site {
    /// A place that has not written yet.
    pub const fn new() -> Self {
        Self { window_start: AtomicU64::new(0), asked: AtomicU64::new(0) }
    }

    /// Whether a line may be written now, and how many were not since the last one that was.
    pub fn admit(&self) -> Option<u64> {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        self.admit_at(u64::try_from(START.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// Two threads that open a window together may both be admitted or lose a count: the figures are for people.
    fn admit_at(&self, now_ms: u64) -> Option<u64> {
        let start = self.window_start.load(Ordering::Relaxed);
        if now_ms.saturating_sub(start) >= WINDOW_MS {
            self.window_start.store(now_ms, Ordering::Relaxed);
            let asked = self.asked.swap(1, Ordering::Relaxed);
            return Some(asked.saturating_sub(BURST));
        }
        (self.asked.fetch_add(1, Ordering::Relaxed) < BURST).then_some(0)
    }
}

/// `limited!(level, …)` is `tracing::level!(…)` for lines that a guest or a peer can cause.
#[macro_export]
macro_rules! limited {
    ($level:ident, $($arg:tt)+) => {{
        static SITE: $crate::telemetry::log::Site = $crate::telemetry::log::Site::new();
        match SITE.admit() {
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
}
