//! The clock for replay traces. It returns the recorded times so that all replays of a recording produce the same
//! trace.

use std::cell::Cell;
use std::time::Duration;

thread_local! {
    static NOW: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Sets this thread's clock to the given time since the Unix epoch.
pub(super) fn set(since_1970: Duration) {
    NOW.set(since_1970);
}

/// Returns the time of this thread's clock.
pub fn now() -> Duration {
    NOW.get()
}
