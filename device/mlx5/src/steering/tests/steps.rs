//! Counts the look-ups of the evaluation, so that its bounds can be tested without a clock.

use std::cell::Cell;

thread_local! {
    static LOOKUPS: Cell<usize> = const { Cell::new(0) };
}

/// Counts a look-up in a group.
pub(in crate::steering) fn count() {
    LOOKUPS.set(LOOKUPS.get() + 1);
}

/// Returns the number of look-ups of this thread since the last call.
pub(super) fn take() -> usize {
    LOOKUPS.take()
}
