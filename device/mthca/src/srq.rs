//! Shared receive queues: a chain of WQEs that several QPs consume.
//!
//! # Spec
//! mthca interface, sections 3.5 (ARM_SRQ), 5.4, 6.6 and 7.4.

use card::memory::queue::QueueMemory;
use engine::{Fetch, RecvRequest};
use protocol::hca::mthca::qpc::Geometry;
use protocol::hca::mthca::srqc::Srqc;
use protocol::hca::mthca::wqe::RecvWqe;
use protocol::ids::{Lkey, Srqn};

use super::recv_queue::{read, request};
use super::work_queue::{Counters, WorkQueue};

#[derive(Debug)]
pub struct SharedReceiveQueue {
    context: Srqc,
    queue: WorkQueue,
    counters: Counters,
    next: u32,
    pub reported_broken: bool,
}

impl SharedReceiveQueue {
    pub fn new(context: Srqc) -> Self {
        let geometry = Geometry { log_slots: context.log_slots, log_slot: context.log_slot };
        let queue = WorkQueue { pd: context.pd, lkey: context.lkey, base: 0, geometry };
        Self { context, queue, counters: Counters::default(), next: 0, reported_broken: false }
    }

    pub fn srqn(&self) -> Srqn {
        self.context.srqn
    }

    /// Returns the UAR page and index of the queue's doorbell record.
    pub fn record(&self) -> (u32, u32) {
        (self.context.page, self.context.record)
    }

    pub fn lkey(&self) -> Lkey {
        self.context.lkey
    }

    /// Returns the number of slots, including the one that software always leaves unused.
    pub fn slots(&self) -> u16 {
        self.queue.slots()
    }

    /// Returns the slot size in bytes.
    pub fn slot_len(&self) -> u32 {
        1 << self.queue.geometry.log_slot.min(Geometry::MAX_LOG_SLOT)
    }

    /// Returns the number of requests fetched, modulo 2^16.
    pub fn taken(&self) -> u16 {
        self.counters.taken
    }

    pub fn next_offset(&self) -> u32 {
        self.next
    }

    /// Fetches the next WQE, if one is posted. The request's `wr_id` is the WQE's offset. `record` reads the doorbell
    /// record.
    pub fn take(
        &mut self,
        mem: &impl QueueMemory,
        record: impl FnOnce() -> Option<u32>,
    ) -> Fetch<RecvRequest> {
        // Requests may have been posted since the record was last read. Read it again before concluding that the limit
        // is reached or that the queue is empty.
        if self.counters.waiting() <= self.context.limit {
            self.counters.learn(record(), self.queue.slots());
        }
        if self.counters.waiting() == 0 {
            return Fetch::Empty;
        }
        let offset = self.next;
        let Ok(slot) = read(&self.queue, offset, mem) else { return Fetch::Broken };
        self.counters.taken = self.counters.taken.wrapping_add(1);
        // A rejected request is consumed as well.
        self.next = RecvWqe::successor_of(&slot);
        request(offset, &slot)
    }

    /// Sets the limit. An event is raised once, when fewer requests than the limit are pending. A limit of 0 disables
    /// the event.
    pub fn arm(&mut self, limit: u16) {
        self.context.limit = limit;
    }

    /// Returns whether the number of pending requests is below the limit. If so, disarms the limit, so that the event
    /// is raised only once.
    pub fn passes_limit(&mut self, record: impl FnOnce() -> Option<u32>) -> bool {
        let limit = self.context.limit;
        if self.counters.waiting() < limit {
            self.counters.learn(record(), self.queue.slots());
        }
        let passes = self.counters.waiting() < limit;
        if passes {
            self.context.limit = 0;
        }
        passes
    }

    pub fn query(&mut self, record: Option<u32>) -> [u8; Srqc::QUERY_LEN] {
        self.counters.learn(record, self.queue.slots());
        self.context.emit(self.counters.waiting(), self.counters.taken)
    }
}

#[cfg(test)]
mod tests;
