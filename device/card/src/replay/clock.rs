//! The clock of a replay's trace. It shows the device's time, so that two replays of a record produce the same trace.

use std::cell::Cell;
use std::time::Duration;

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(0) };
}

/// Sets the clock of this thread, in nanoseconds.
pub(super) fn set(now: u64) {
    NOW.set(now);
}

/// Returns the time of this thread's clock.
pub fn now() -> Duration {
    Duration::from_nanos(NOW.get())
}
