//! The receive queue of a queue pair: slots of one length, looked at when a message needs one.
//!
//! # Spec
//! E810 interface, section 13.5.

use protocol::hca::e810::rdma::receive_wqe::ReceiveWqe;
use protocol::hca::e810::rdma::send_wqe::{Control, Fragments, MAX_LEN, QUANTUM};

use super::hmc::Pages;
use super::ring::Unreachable;
use super::work_ring::WorkRing;

/// A slot that was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    /// Its first quantum.
    pub(super) index: u16,
    /// Where the message goes.
    pub(super) fragments: Fragments,
}

/// Receive queue of one QP.
#[derive(Debug)]
pub(super) struct ReceiveQueue {
    ring: WorkRing,
    /// Quanta of a slot.
    quanta: u32,
    /// Slots that were taken and did not succeed so far.
    unfinished: u32,
}

impl ReceiveQueue {
    /// A queue of which nothing was taken, with slots of so many quanta, a power of two. `None` if not one slot fits.
    pub(super) fn new(ring: WorkRing, quanta: u32) -> Option<Self> {
        (quanta <= ring.quanta()).then_some(Self { ring, quanta, unfinished: 0 })
    }

    /// Slots of the ring.
    pub(super) const fn slots(&self) -> u32 {
        self.ring.quanta() / self.quanta
    }

    /// Takes the next slot, if software has posted it.
    ///
    /// # Errors
    /// The ring is not there.
    pub(super) fn take(&mut self, pages: Pages<'_>) -> Result<Option<Slot>, Unreachable> {
        let Some(word) = self.ring.peek(pages)? else { return Ok(None) };
        let mut copy = [0; MAX_LEN];
        let len = self.quanta as usize * QUANTUM;
        let Some(slot) = copy.get_mut(..len) else { return Err(Unreachable) };
        self.ring.read(pages, slot)?;
        let wqe = ReceiveWqe::parse(slot, Control::parse(&word).more_fragments);
        let index = self.ring.next();
        self.ring.advance(self.quanta);
        self.unfinished += 1;
        Ok(Some(Slot { index, fragments: wqe.fragments }))
    }

    /// A slot that was taken is done.
    pub(super) const fn finish(&mut self) {
        self.unfinished = self.unfinished.saturating_sub(1);
    }

    /// All that is left is completed in another way: whether there is anything, and where that begins.
    pub(super) fn flush(&mut self, pages: Pages<'_>) -> Option<u16> {
        let (begin, unfinished) = (self.ring.next(), std::mem::take(&mut self.unfinished));
        let anything = unfinished != 0 || matches!(self.ring.peek(pages), Ok(Some(_)));
        self.ring.skip_posted(pages, |_, _| self.quanta);
        anything.then_some(begin)
    }
}
