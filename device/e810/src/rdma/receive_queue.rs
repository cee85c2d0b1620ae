//! The receive queue of a queue pair. All its WQEs have the same size, and the device fetches one only when a message
//! needs buffers.
//!
//! # Spec
//! E810 interface, section 13.5.

use protocol::hca::e810::rdma::receive_wqe::ReceiveWqe;
use protocol::hca::e810::rdma::send_wqe::{Control, Fragments, MAX_LEN, QUANTUM};

use super::hmc::Pages;
use super::ring::UnreachableError;
use super::work_ring::WorkRing;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    /// Index of the first quantum of the WQE.
    pub(super) index: u16,
    /// Buffers for the message.
    pub(super) fragments: Fragments,
}

#[derive(Debug)]
pub(super) struct ReceiveQueue {
    ring: WorkRing,
    quanta: u32,
    /// Number of WQEs that have been fetched but have not completed successfully yet.
    outstanding: u32,
}

impl ReceiveQueue {
    /// Creates an empty queue whose WQEs have `quanta` quanta each. `quanta` must be a power of two. Returns `None` if
    /// the ring is smaller than one WQE.
    pub(super) fn new(ring: WorkRing, quanta: u32) -> Option<Self> {
        (quanta <= ring.quanta()).then_some(Self { ring, quanta, outstanding: 0 })
    }

    /// Returns the number of WQEs that the ring can hold.
    pub(super) const fn slots(&self) -> u32 {
        self.ring.quanta() / self.quanta
    }

    /// Fetches the next WQE, if one is posted.
    ///
    /// # Errors
    /// Fails if the ring is not in mapped memory.
    pub(super) fn fetch(&mut self, pages: Pages<'_>) -> Result<Option<Slot>, UnreachableError> {
        let Some(word) = self.ring.peek(pages)? else { return Ok(None) };
        let mut copy = [0; MAX_LEN];
        let len = self.quanta as usize * QUANTUM;
        let Some(slot) = copy.get_mut(..len) else { return Err(UnreachableError) };
        self.ring.read(pages, slot)?;
        let wqe = ReceiveWqe::parse(slot, Control::parse(&word).more_fragments);
        let index = self.ring.next();
        self.ring.advance(self.quanta);
        self.outstanding += 1;
        Ok(Some(Slot { index, fragments: wqe.fragments }))
    }

    /// Records that an outstanding WQE has completed successfully.
    pub(super) const fn finish(&mut self) {
        self.outstanding = self.outstanding.saturating_sub(1);
    }

    /// Discards all outstanding and all posted WQEs. Returns the consumer index before the flush, or `None`
    /// if no WQE was discarded.
    pub(super) fn flush(&mut self, pages: Pages<'_>) -> Option<u16> {
        let (begin, outstanding) = (self.ring.next(), std::mem::take(&mut self.outstanding));
        let any_left = outstanding != 0 || matches!(self.ring.peek(pages), Ok(Some(_)));
        self.ring.skip_posted(pages, |_, _| self.quanta);
        any_left.then_some(begin)
    }
}
