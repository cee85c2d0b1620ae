//! Counts the queue slots allocated to QPs in addition to their reserved slots.

use std::collections::VecDeque;

use crate::limits;

/// The numbers of request and reply slots from the shared pools that are allocated to one QP, or to all QPs together.
///
/// Counts capacities rather than lengths, because a queue's capacity determines how much memory it occupies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PooledSlots {
    /// Number of request slots allocated to requesters.
    pub requests: usize,
    /// Number of reply slots allocated to responders.
    pub replies: usize,
}

impl PooledSlots {
    /// Updates the total after the slot counts of one QP have changed from `before` to `after`.
    pub(crate) fn update(&mut self, before: Self, after: Self) {
        self.requests = (self.requests + after.requests).saturating_sub(before.requests);
        self.replies = (self.replies + after.replies).saturating_sub(before.replies);
    }

    /// Returns the number of pooled slots in a request queue of the given capacity.
    pub(crate) fn requests_of(capacity: usize) -> usize {
        capacity.saturating_sub(limits::KEPT_REQUESTS)
    }

    /// Returns whether the request pool is exhausted. If so, each QP can use only its reserved slots.
    pub(crate) fn no_requests_left(&self) -> bool {
        self.requests >= limits::POOLED_REQUESTS
    }

    /// Returns the growth factor for a full request queue. The factor is high while more than half of the pool is
    /// free, because each growth step moves all queued requests, and a burst of messages often fills a queue that has
    /// just been shrunk.
    fn growth_of_requests(self) -> usize {
        if self.requests < limits::POOLED_REQUESTS / 2 { 8 } else { 2 }
    }

    /// Returns whether the reply pool is exhausted. If so, each QP can use only its reserved slots.
    pub(crate) fn no_replies_left(&self) -> bool {
        self.replies >= limits::POOLED_REPLIES
    }
}

/// Buffers that request queues have released, to be reused when another queue grows. Without them, each burst of
/// messages would allocate and free memory.
#[derive(Debug)]
pub(crate) struct SpareBuffers<T>(Vec<VecDeque<T>>);

impl<T> Default for SpareBuffers<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> SpareBuffers<T> {
    /// Appends a request to a QP's queue. If the queue is full, grows it and adds its new slots to `pooled`.
    pub(crate) fn push_request(&mut self, queue: &mut VecDeque<T>, request: T, pooled: &mut PooledSlots) {
        let len = queue.len();
        if len == queue.capacity() {
            let slots = len * pooled.growth_of_requests();
            self.grow(queue, slots.clamp(limits::KEPT_REQUESTS, limits::OUTSTANDING_REQUESTS).max(len + 1));
            pooled.requests += PooledSlots::requests_of(queue.capacity()) - PooledSlots::requests_of(len);
        }
        queue.push_back(request);
    }

    /// Releases the pooled slots of a request queue if it is empty.
    pub(crate) fn shrink_if_empty(&mut self, queue: &mut VecDeque<T>) {
        if queue.is_empty() && queue.capacity() > limits::KEPT_REQUESTS {
            self.keep(std::mem::take(queue));
        }
    }

    fn grow(&mut self, queue: &mut VecDeque<T>, slots: usize) {
        let Some(spare) = self.0.iter().rposition(|spare| spare.capacity() == slots) else {
            return queue.reserve_exact(slots - queue.len());
        };
        let mut larger = self.0.swap_remove(spare);
        larger.append(queue);
        self.keep(std::mem::replace(queue, larger));
    }

    /// Keeps the buffer of an empty queue, or frees it if enough buffers are kept.
    fn keep(&mut self, empty: VecDeque<T>) {
        if self.0.len() < limits::SPARE_BUFFERS && empty.capacity() > 0 {
            self.0.push(empty);
        }
    }
}

/// Shrinks an empty queue to `kept` slots to release its memory.
pub(crate) fn shrink_if_empty<T>(queue: &mut VecDeque<T>, kept: usize) {
    if queue.is_empty() && queue.capacity() > kept {
        queue.shrink_to(kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_queue_that_grows_reuses_released_buffer() {
        let mut spares = SpareBuffers::default();
        let [mut first, mut second] = [(); 2].map(|()| VecDeque::new());
        let mut fill = |queue: &mut VecDeque<u32>| {
            (0..40).for_each(|request| spares.push_request(queue, request, &mut PooledSlots::default()));
            let buffer = queue.as_slices().0.as_ptr();
            assert!(queue.drain(..).eq(0..40));
            spares.shrink_if_empty(queue);
            assert_eq!(queue.capacity(), 0);
            buffer
        };
        assert_eq!(fill(&mut first), fill(&mut second));
    }
}
