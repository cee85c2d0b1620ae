//! The receive queue of a QP: a ring of slots.
//!
//! Receives have no doorbell. Instead, the device reads the producer counter from the doorbell record whenever it has
//! fetched all known requests.
//!
//! # Spec
//! mthca interface, sections 5.4 and 7.4.

use card::memory::queue::QueueMemory;
use engine::{AccessError, Fetch, RecvRequest, Sge, Status};
use protocol::hca::mthca::wqe::{DataSegment, RecvWqe};
use smallvec::SmallVec;

use super::work_queue::{Counters, WorkQueue};

#[derive(Debug)]
pub struct RecvQueue {
    queue: WorkQueue,
    counters: Counters,
}

impl RecvQueue {
    pub fn new(queue: WorkQueue) -> Self {
        Self { queue, counters: Counters::default() }
    }

    pub fn slots(&self) -> u16 {
        self.queue.slots()
    }

    /// Returns the number of requests fetched, modulo 2^16.
    pub fn taken(&self) -> u16 {
        self.counters.taken
    }

    /// Returns whether a request is pending. `record` reads the doorbell record.
    pub fn is_posted(&mut self, record: impl FnOnce() -> Option<u32>) -> bool {
        if self.counters.waiting() == 0 {
            self.counters.learn(record(), self.queue.slots());
        }
        self.counters.waiting() > 0
    }

    /// Fetches the next WQE, if one is posted. The request's `wr_id` is the WQE's offset. `record` reads the doorbell
    /// record.
    pub fn take(
        &mut self,
        mem: &impl QueueMemory,
        record: impl FnOnce() -> Option<u32>,
    ) -> Fetch<RecvRequest> {
        if !self.is_posted(record) {
            return Fetch::Empty;
        }
        let offset = self.queue.offset(self.counters.taken);
        let Ok(slot) = read(&self.queue, offset, mem) else { return Fetch::Broken };
        self.counters.taken = self.counters.taken.wrapping_add(1);
        request(offset, &slot)
    }
}

/// Copy of a slot. Most slots are 64 to 512 bytes long; the copy of a larger one is allocated on the heap.
pub(super) type Slot = SmallVec<[u8; 512]>;

pub(super) fn read(queue: &WorkQueue, offset: u32, mem: &impl QueueMemory) -> Result<Slot, AccessError> {
    let mut copy = Slot::from_elem(0, queue.slot_len());
    queue.read(mem, offset, &mut copy)?;
    Ok(copy)
}

/// Converts the WQE at `offset` into a request for the engine.
pub(super) fn request(offset: u32, slot: &[u8]) -> Fetch<RecvRequest> {
    let wr_id = offset.into();
    match RecvWqe::parse(slot) {
        Ok(wqe) => Fetch::Ready(RecvRequest { wr_id, sges: wqe.data.iter().map(sge).collect() }),
        Err(_) => Fetch::Refused { wr_id, status: Status::LocalQpOperation },
    }
}

pub(super) fn sge(data: &DataSegment) -> Sge {
    Sge { va: data.va, lkey: data.lkey, len: data.len }
}

#[cfg(test)]
mod tests;
