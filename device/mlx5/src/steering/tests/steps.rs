//! Counts the steps of flow table evaluation, so that tests can limit the number of steps instead of measuring time.

use std::cell::Cell;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Steps {
    pub(super) lookups: usize,
    /// Number of times a frame's fields were compared with the match values of an entry.
    pub(super) comparisons: usize,
}

thread_local! {
    static STEPS: Cell<Steps> = const { Cell::new(Steps { lookups: 0, comparisons: 0 }) };
}

pub(in crate::steering) fn count_lookup() {
    STEPS.set(Steps { lookups: STEPS.get().lookups + 1, ..STEPS.get() });
}

pub(in crate::steering) fn count_comparison() {
    STEPS.set(Steps { comparisons: STEPS.get().comparisons + 1, ..STEPS.get() });
}

/// Returns the number of steps taken by this thread since the last call.
pub(super) fn take() -> Steps {
    STEPS.take()
}
