//! Counts the queue slots that QPs use in addition to their reserved slots.

use std::collections::VecDeque;

use crate::limits;

/// Number of request and reply slots taken from the shared pool, by one QP or by all QPs.
///
/// Counts capacities, not lengths, because the capacity of a queue determines how much memory it occupies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PooledSlots {
    /// Number of request slots in use by requesters.
    pub requests: usize,
    /// Number of reply slots in use by responders.
    pub replies: usize,
}

impl PooledSlots {
    /// Updates the total after the slots of one QP changed from `before` to `after`.
    pub(crate) fn update(&mut self, before: Self, after: Self) {
        self.requests = (self.requests + after.requests).saturating_sub(before.requests);
        self.replies = (self.replies + after.replies).saturating_sub(before.replies);
    }

    /// Returns whether the request pool is exhausted. If so, each QP can use only its reserved slots.
    pub(crate) fn no_requests_left(&self) -> bool {
        self.requests >= limits::POOLED_REQUESTS
    }

    /// Returns whether the reply pool is exhausted. If so, each QP can use only its reserved slots.
    pub(crate) fn no_replies_left(&self) -> bool {
        self.replies >= limits::POOLED_REPLIES
    }
}

/// Factor by which a full queue grows. It is high because a burst of messages often fills a queue that has just been
/// shrunk, and because each growth moves all elements.
const GROWTH: usize = 8;

/// Appends an element to a queue. If the queue is full, it grows to at least `kept` and at most `most` slots.
pub(crate) fn push_back<T>(queue: &mut VecDeque<T>, element: T, [kept, most]: [usize; 2]) {
    let len = queue.len();
    if len == queue.capacity() {
        let slots = (len * GROWTH).clamp(kept, most.max(kept)).max(len + 1);
        queue.reserve_exact(slots - len);
    }
    queue.push_back(element);
}

/// Shrinks an empty queue to `kept` slots to release its memory.
pub(crate) fn shrink_if_empty<T>(queue: &mut VecDeque<T>, kept: usize) {
    if queue.is_empty() && queue.capacity() > kept {
        queue.shrink_to(kept);
    }
}
