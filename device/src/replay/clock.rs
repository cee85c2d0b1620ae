//! The clock of a replay's trace: it shows the device's own time, so that two replays of a record write the same.

use std::cell::Cell;
use std::time::Duration;

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(0) };
}

/// What time it is on this thread from now on, in nanoseconds.
pub(super) fn set(now: u64) {
    NOW.set(now);
}

/// What time it is on this thread.
pub(super) fn now() -> Duration {
    Duration::from_nanos(NOW.get())
}
