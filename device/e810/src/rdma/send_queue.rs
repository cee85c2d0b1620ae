//! The send queue of a queue pair: fetches WQEs in order and skips padding.
//!
//! Software does not ring the doorbell for every WQE. It reads the consumer index that the device publishes in the
//! shadow area, and rings the doorbell only if the device has reached the new WQE. Before it goes idle, the device
//! publishes its index and then polls once more.
//!
//! # Spec
//! E810 interface, section 13.4.

use std::sync::atomic::{Ordering, fence};

use bitfield_struct::bitfield;
use protocol::hca::e810::rdma::send_wqe::{
    self, CONTROL_OFFSET, Control, MAX_LEN, QUANTUM, Service, WqeError, opcode,
};
use protocol::ids::Iova;

use super::hmc::Pages;
use super::ring::UnreachableError;
use super::work_ring::{ControlWord, WorkRing};

/// Maximum number of padding quanta before a WQE. Padding keeps WQEs from crossing an offset that is a multiple of the
/// maximum WQE size.
const MAX_PADDING: usize = send_wqe::MAX_QUANTA - 1;

/// Contents of a request's `wr_id`, which the request's completion returns.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub(super) struct SendTag {
    /// Index of the first quantum of the WQE.
    pub(super) index: u16,
    pub(super) opcode: u8,
    pub(super) signaled: bool,
    #[bits(39)]
    __: u64,
}

/// Returns the WQE index that identifies a send request in CQEs and traces.
pub(in super::super) fn work_request(wr_id: u64) -> u64 {
    SendTag::from_bits(wr_id).index().into()
}

/// Result of fetching a WQE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NextWqe {
    /// No WQE is posted.
    Empty,
    Work(Work),
    Invalid(SendTag, WqeError),
    /// The ring is not in mapped memory.
    Broken,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Work {
    /// Tag that becomes the request's `wr_id`.
    pub(super) tag: SendTag,
    pub(super) control: Control,
    pub(super) operation: send_wqe::Operation,
}

#[derive(Debug)]
pub(super) struct SendQueue {
    ring: WorkRing,
    service: Service,
    shadow: Iova,
    /// Consumer index last published in the shadow area.
    published_index: u16,
    /// Number of WQEs that have been fetched but have not completed successfully yet.
    outstanding: u32,
}

impl SendQueue {
    pub(super) const fn new(ring: WorkRing, service: Service, shadow: Iova) -> Self {
        Self { ring, service, shadow, published_index: 0, outstanding: 0 }
    }

    /// Returns the ring size in quanta.
    pub(super) const fn quanta(&self) -> u32 {
        self.ring.quanta()
    }

    pub(super) const fn outstanding(&self) -> u32 {
        self.outstanding
    }

    pub(super) fn fetch(&mut self, pages: Pages<'_>) -> NextWqe {
        self.try_fetch(pages).unwrap_or(NextWqe::Broken)
    }

    /// Counts a WQE that completed successfully.
    pub(super) const fn finish(&mut self) {
        self.outstanding = self.outstanding.saturating_sub(1);
    }

    /// Discards all outstanding and all posted WQEs. Returns the consumer index as it was before the flush, or `None`
    /// if no WQE was discarded.
    pub(super) fn flush(&mut self, pages: Pages<'_>) -> Option<u16> {
        let (begin, outstanding) = (self.ring.next(), std::mem::take(&mut self.outstanding));
        let any_left = outstanding != 0 || matches!(self.ring.peek(pages), Ok(Some(_)));
        self.ring.skip_posted(pages, |ring, word| {
            let quanta = Control::parse(word).quanta();
            // As in `fetch_posted`: a WQE that is too long for its position counts as one quantum.
            if quanta > ring.room() { 1 } else { u32::try_from(quanta).unwrap_or(u32::MAX) }
        });
        any_left.then_some(begin)
    }

    fn try_fetch(&mut self, pages: Pages<'_>) -> Result<NextWqe, UnreachableError> {
        let mut padding = 0;
        loop {
            let Some(word) = self.poll(pages)? else { return Ok(NextWqe::Empty) };
            let control = Control::parse(&word);
            if control.opcode == opcode::NOP && !control.signaled && padding < MAX_PADDING {
                self.ring.advance(1);
                padding += 1;
                continue;
            }
            return self.fetch_posted(pages, &word);
        }
    }

    /// Returns the control word of the next WQE. If none is posted and the consumer index has changed since it was last
    /// published, publishes it and polls once more.
    fn poll(&mut self, pages: Pages<'_>) -> Result<Option<ControlWord>, UnreachableError> {
        let posted = self.ring.peek(pages)?;
        if posted.is_some() || self.published_index == self.ring.next() {
            return Ok(posted);
        }
        self.published_index = self.ring.next();
        pages
            .dma()
            .write(self.shadow, &u64::from(self.published_index).to_le_bytes())
            .map_err(|_| UnreachableError)?;
        // Software writes a WQE and then reads the shadow area. With a full fence on both sides, either the
        // device sees the WQE or software sees the published index.
        fence(Ordering::SeqCst);
        self.ring.peek(pages)
    }

    fn fetch_posted(&mut self, pages: Pages<'_>, word: &ControlWord) -> Result<NextWqe, UnreachableError> {
        let control = Control::parse(word);
        let tag = SendTag::new()
            .with_index(self.ring.next())
            .with_opcode(control.opcode)
            .with_signaled(control.signaled);
        let quanta = control.quanta();
        if quanta > self.ring.room() {
            self.ring.advance(1);
            self.outstanding += 1;
            return Ok(NextWqe::Invalid(tag, WqeError::Quanta(quanta)));
        }
        let mut copy = [0; MAX_LEN];
        let (wqe, _) = copy.split_at_mut(quanta * QUANTUM);
        self.ring.read(pages, wqe)?;
        // Software may have changed the WQE since its control word was validated. Restore the validated
        // control word.
        if let Some(again) = wqe.get_mut(CONTROL_OFFSET..).and_then(<[u8]>::first_chunk_mut) {
            *again = *word;
        }
        self.ring.advance(u32::try_from(quanta).unwrap_or(u32::MAX));
        self.outstanding += 1;
        Ok(match send_wqe::Operation::parse(wqe, self.service) {
            Ok(operation) => NextWqe::Work(Work { tag, control, operation }),
            Err(error) => NextWqe::Invalid(tag, error),
        })
    }
}
