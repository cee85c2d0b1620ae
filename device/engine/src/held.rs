//! What QPs hold beyond what each may always have.

use std::collections::VecDeque;

use crate::limits;

/// Slots for requests and answers, of one QP or of all together.
///
/// Capacities count, not lengths: they are what memory is taken for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) requests: usize,
    pub(crate) replies: usize,
}

impl Held {
    /// One QP, which held `before`, holds `after` now.
    pub(crate) fn update(&mut self, before: Self, after: Self) {
        self.requests = (self.requests + after.requests).saturating_sub(before.requests);
        self.replies = (self.replies + after.replies).saturating_sub(before.replies);
    }

    /// No QP may take more requests than it always may.
    pub(crate) fn no_requests_left(&self) -> bool {
        self.requests >= limits::POOLED_REQUESTS
    }

    /// No QP may owe more answers than it always may.
    pub(crate) fn no_replies_left(&self) -> bool {
        self.replies >= limits::POOLED_REPLIES
    }
}

/// Gives back the memory of a queue that became empty, but for the slots it keeps.
pub(crate) fn shrink_if_empty<T>(queue: &mut VecDeque<T>, kept: usize) {
    if queue.is_empty() && queue.capacity() > kept {
        queue.shrink_to(kept);
    }
}
