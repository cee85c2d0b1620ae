//! The send queue of a queue pair: one WQE after the other, past those that only fill.
//!
//! Software does not always ring. It looks at the shadow area, where the device says which quantum it takes next, and rings
//! if the device has come to what is new. So the device says where it is before it rests, and then looks once more.
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
use super::ring::Unreachable;
use super::work_ring::{ControlWord, WorkRing};

/// Quanta that software may have to skip, so that no WQE crosses a multiple of one more.
const MAX_PADDING: usize = send_wqe::MAX_QUANTA - 1;

/// What a request's `wr_id` holds for its completion.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub(super) struct SendTag {
    /// First quantum of the WQE.
    pub(super) index: u16,
    /// Its operation.
    pub(super) opcode: u8,
    /// Software asked for a completion.
    pub(super) signaled: bool,
    #[bits(39)]
    __: u64,
}

/// The index by which completions and a trace name a request of a send queue.
pub(in super::super) fn work_request(wr_id: u64) -> u64 {
    SendTag::from_bits(wr_id).index().into()
}

/// What came of looking for a WQE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// None was posted.
    Empty,
    /// One that can be executed.
    Work(Work),
    /// One that cannot.
    Wrong(SendTag, WqeError),
    /// The ring is not there.
    Broken,
}

/// A WQE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Work {
    /// For its completion.
    pub(super) tag: SendTag,
    /// Its control word.
    pub(super) control: Control,
    /// What it asks for.
    pub(super) operation: send_wqe::Operation,
}

/// Send queue of one QP.
#[derive(Debug)]
pub(super) struct SendQueue {
    ring: WorkRing,
    service: Service,
    /// Where software looks how far the device is.
    shadow: Iova,
    /// What it finds there.
    told: u16,
    /// WQEs that were taken and did not succeed so far.
    unfinished: u32,
}

impl SendQueue {
    /// A queue of which nothing was taken.
    pub(super) const fn new(ring: WorkRing, service: Service, shadow: Iova) -> Self {
        Self { ring, service, shadow, told: 0, unfinished: 0 }
    }

    /// Quanta of the ring.
    pub(super) const fn quanta(&self) -> u32 {
        self.ring.quanta()
    }

    /// WQEs that were taken and did not succeed so far.
    pub(super) const fn unfinished(&self) -> u32 {
        self.unfinished
    }

    /// Takes the next WQE.
    pub(super) fn take(&mut self, pages: Pages<'_>) -> Taken {
        self.try_take(pages).unwrap_or(Taken::Broken)
    }

    /// A WQE that was taken is done.
    pub(super) const fn finish(&mut self) {
        self.unfinished = self.unfinished.saturating_sub(1);
    }

    /// All that is left is completed in another way: whether there is anything, and where that begins.
    pub(super) fn flush(&mut self, pages: Pages<'_>) -> Option<u16> {
        let (begin, unfinished) = (self.ring.next(), std::mem::take(&mut self.unfinished));
        let anything = unfinished != 0 || matches!(self.ring.peek(pages), Ok(Some(_)));
        self.ring.skip_posted(pages, |ring, word| {
            let quanta = Control::parse(word).quanta();
            // As one that is taken: a WQE that is too long for its place counts as one quantum.
            if quanta > ring.room() { 1 } else { u32::try_from(quanta).unwrap_or(u32::MAX) }
        });
        anything.then_some(begin)
    }

    fn try_take(&mut self, pages: Pages<'_>) -> Result<Taken, Unreachable> {
        let mut padding = 0;
        loop {
            let Some(word) = self.look(pages)? else { return Ok(Taken::Empty) };
            let control = Control::parse(&word);
            if control.opcode == opcode::NOP && !control.signaled && padding < MAX_PADDING {
                self.ring.advance(1);
                padding += 1;
                continue;
            }
            return self.take_posted(pages, &word);
        }
    }

    /// The control word of the next WQE. If there is none, software knows that the device waits for it.
    fn look(&mut self, pages: Pages<'_>) -> Result<Option<ControlWord>, Unreachable> {
        let posted = self.ring.peek(pages)?;
        if posted.is_some() || self.told == self.ring.next() {
            return Ok(posted);
        }
        self.told = self.ring.next();
        pages.dma().write(self.shadow, &u64::from(self.told).to_le_bytes()).map_err(|_| Unreachable)?;
        // Software writes a WQE and then looks at the shadow area; of the two of us one sees what the other wrote.
        fence(Ordering::SeqCst);
        self.ring.peek(pages)
    }

    fn take_posted(&mut self, pages: Pages<'_>, word: &ControlWord) -> Result<Taken, Unreachable> {
        let control = Control::parse(word);
        let tag = SendTag::new()
            .with_index(self.ring.next())
            .with_opcode(control.opcode)
            .with_signaled(control.signaled);
        let quanta = control.quanta();
        if quanta > self.ring.room() {
            self.ring.advance(1);
            self.unfinished += 1;
            return Ok(Taken::Wrong(tag, WqeError::Quanta(quanta)));
        }
        let mut copy = [0; MAX_LEN];
        let (wqe, _) = copy.split_at_mut(quanta * QUANTUM);
        self.ring.read(pages, wqe)?;
        // What was looked at is what counts, whatever software has made of it since.
        if let Some(again) = wqe.get_mut(CONTROL_OFFSET..).and_then(<[u8]>::first_chunk_mut) {
            *again = *word;
        }
        self.ring.advance(u32::try_from(quanta).unwrap_or(u32::MAX));
        self.unfinished += 1;
        Ok(match send_wqe::Operation::parse(wqe, self.service) {
            Ok(operation) => Taken::Work(Work { tag, control, operation }),
            Err(error) => Taken::Wrong(tag, error),
        })
    }
}
