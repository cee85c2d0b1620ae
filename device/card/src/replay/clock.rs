//! The clock for the trace of a replay. It returns the recorded times, so that all replays of a record produce the same
//! trace.

use std::cell::Cell;
use std::time::Duration;

thread_local! {
    static NOW: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Sets the clock of this thread to a time since 1970.
pub(super) fn set(since_1970: Duration) {
    NOW.set(since_1970);
}

/// Returns the time of this thread's clock.
pub fn now() -> Duration {
    NOW.get()
}
