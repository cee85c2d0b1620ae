//! The send queue of a QP.
//!
//! A WQE does not contain its own opcode, size or fence bit. When software posts a WQE, it stores them and the WQE's
//! address in the preceding slot, as a link to the WQE. A doorbell repeats the link to the first WQE that it posts.
//! Each WQE is read from guest memory only once, together with the link to the next WQE if the next WQE has already
//! been posted.
//!
//! # Spec
//! mthca interface, sections 5.2 and 7.3.

use card::memory::queue::QueueMemory;
use engine::{AccessError, Fetch, Status};
use hcr::verbs::WorkTag;
use protocol::hca::mthca::doorbell::SendDoorbell;
use protocol::hca::mthca::qpc::QpKind;
use protocol::hca::mthca::wqe::{GRANULE, Link, MAX_SIZE, MlxWqe, NextSegment, SendWqe, WqeError};
use thiserror::Error;

use super::work_queue::{Advance, Counters, WorkQueue};

/// Error for a doorbell that covers more requests than the queue has slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("too many posted requests for a send queue with {0} slots")]
pub struct SqOverflowError(u16);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    Ordinary(SendWqe),
    /// WQE of a management QP. It contains a datagram with its headers.
    Management(MlxWqe),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchedWqe {
    pub tag: WorkTag,
    /// Whether the WQE waits for earlier READs and atomics.
    pub fence: bool,
    pub work: Work,
}

#[derive(Debug)]
pub struct SendQueue {
    queue: WorkQueue,
    kind: QpKind,
    signal_all: bool,
    counters: Counters,
    /// The link to the next WQE, if it is known.
    next: Option<Link>,
}

impl SendQueue {
    pub fn new(queue: WorkQueue, kind: QpKind, signal_all: bool) -> Self {
        Self { queue, kind, signal_all, counters: Counters::default(), next: None }
    }

    pub fn slots(&self) -> u16 {
        self.queue.slots()
    }

    pub fn waiting(&self) -> u16 {
        self.counters.waiting()
    }

    /// Returns the number of requests fetched, modulo 2^16.
    pub fn taken(&self) -> u16 {
        self.counters.taken
    }

    pub fn kind(&self) -> QpKind {
        self.kind
    }

    /// Returns the slot size in bytes.
    pub fn slot_len(&self) -> usize {
        self.queue.slot_len()
    }

    /// Returns the offset of the slot with free-running index `count`.
    pub fn offset(&self, count: u16) -> u32 {
        self.queue.offset(count)
    }

    /// Returns the offset of the next WQE and the link to it, without consuming it. Returns `None` if no WQE is pending
    /// or the link cannot be read.
    pub fn upcoming(&self, mem: &impl QueueMemory) -> Option<(u32, Link)> {
        let count = self.counters.taken;
        let link = || self.next.or_else(|| self.read_link(count, mem).ok());
        (self.waiting() != 0).then(link)?.map(|link| (self.queue.offset(count), link))
    }

    /// Copies bytes out of the queue.
    ///
    /// # Errors
    /// Fails if the queue's memory is not accessible.
    pub fn read(&self, offset: u32, out: &mut [u8], mem: &impl QueueMemory) -> Result<(), AccessError> {
        self.queue.read(mem, offset, out)
    }

    /// Handles a doorbell, together with the current contents of the doorbell record. Returns whether either of them
    /// makes new requests visible. Section 5.2: the record is often ahead of the doorbell, as stores to UAR pages are
    /// posted writes and can arrive late.
    ///
    /// # Errors
    /// Fails if the doorbell covers more requests than the queue has slots, unless the record makes new requests
    /// visible.
    pub fn accept_doorbell(
        &mut self,
        doorbell: &SendDoorbell,
        record: Option<u32>,
    ) -> Result<bool, SqOverflowError> {
        let slots = self.slots();
        // Section 5.2: the doorbell describes the first WQE that it posts. Each later WQE is described in the slot
        // before it.
        if self.waiting() == 0 && doorbell.first == self.counters.taken {
            let SendDoorbell { opcode, size, fence, .. } = *doorbell;
            self.next = Some(Link { address: self.queue.offset(doorbell.first), opcode, size, fence });
        }
        let announced = self.counters.advance(doorbell.producer(), slots);
        let recorded = self.counters.learn(record, slots);
        match (announced, recorded) {
            (Advance::More, _) | (_, Advance::More) => Ok(true),
            (Advance::TooMany, _) => Err(SqOverflowError(slots)),
            (Advance::Nothing, _) => Ok(false),
        }
    }

    pub fn learn(&mut self, record: u32) -> Advance {
        let slots = self.slots();
        self.counters.learn(Some(record), slots)
    }

    pub fn take(&mut self, mem: &impl QueueMemory) -> Fetch<FetchedWqe> {
        if self.waiting() == 0 {
            return Fetch::Empty;
        }
        let count = self.counters.taken;
        let Ok(link) = self.next.take().map_or_else(|| self.read_link(count, mem), Ok) else {
            return Fetch::Broken;
        };
        self.counters.taken = count.wrapping_add(1);
        let offset = self.queue.offset(count);
        let mut tag =
            WorkTag::new().with_wqe(offset).with_opcode(link.opcode).with_signalled(self.signal_all);
        let refused =
            |tag: WorkTag| Fetch::Refused { wr_id: tag.into_bits(), status: Status::LocalQpOperation };
        let len = usize::from(link.size) * GRANULE;
        if link.size == 0 || link.size > MAX_SIZE || len > self.queue.slot_len() {
            return refused(tag);
        }
        let mut copy = [0; MAX_SIZE as usize * GRANULE];
        let (bytes, _) = copy.split_at_mut(len);
        if self.queue.read(mem, offset, bytes).is_err() {
            return Fetch::Broken;
        }
        if self.waiting() != 0 {
            self.next = bytes.first_chunk().map(|segment| NextSegment::parse(segment).link);
        }
        match self.parse(bytes, link.opcode) {
            Ok((work, signalled)) => {
                tag.set_signalled(self.signal_all || signalled);
                Fetch::Ready(FetchedWqe { tag, fence: link.fence, work })
            }
            Err(_) => refused(tag),
        }
    }

    /// Reads the link to a WQE from the preceding slot.
    ///
    /// # Errors
    /// Fails if the queue's memory is not accessible.
    pub fn read_link(&self, count: u16, mem: &impl QueueMemory) -> Result<Link, AccessError> {
        let mut segment = [0; GRANULE];
        self.queue.read(mem, self.queue.offset(count.wrapping_sub(1)), &mut segment)?;
        Ok(NextSegment::parse(&segment).link)
    }

    /// Parses a WQE. Also returns whether it is signalled.
    fn parse(&self, bytes: &[u8], opcode: u8) -> Result<(Work, bool), WqeError> {
        match self.kind {
            QpKind::Service(service) => SendWqe::parse(bytes, opcode, service).map(|wqe| {
                let signalled = wqe.next.signalled;
                (Work::Ordinary(wqe), signalled)
            }),
            QpKind::Mlx => MlxWqe::parse(bytes).map(|wqe| {
                let signalled = wqe.signalled;
                (Work::Management(wqe), signalled)
            }),
        }
    }
}

#[cfg(test)]
mod tests;
