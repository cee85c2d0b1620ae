//! Rings of quanta, written by software. There is no producer index: a quantum is valid if its polarity
//! matches that of the current pass over the ring.
//!
//! # Spec
//! E810 interface, sections 13.4 and 13.5.

use std::sync::atomic::{Ordering, fence};

use protocol::hca::e810::rdma::send_wqe::{CONTROL_OFFSET, Control, MAX_QUANTA, QUANTUM};

use super::hmc::Pages;
use super::ring::{Location, UnreachableError};
use crate::limits::MAX_WORK_QUANTA;

/// The control word of a WQE, in the layout of [`Control`] or of a local operation.
pub(super) type ControlWord = [u8; Control::LEN];

/// A ring of quanta and the device's consumer index.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorkRing {
    location: Location,
    /// Number of quanta in the ring, a power of two.
    quanta: u32,
    next: u32,
    /// Polarity of valid quanta on the current pass; true on the first pass.
    polarity: bool,
}

impl WorkRing {
    /// Creates a ring with the consumer index at 0. Returns `None` if the size is not a power of two or
    /// exceeds the maximum.
    pub(super) fn new(location: Location, quanta: u32) -> Option<Self> {
        let possible = quanta.is_power_of_two() && quanta <= MAX_WORK_QUANTA;
        possible.then_some(Self { location, quanta, next: 0, polarity: true })
    }

    /// Returns the ring size in quanta.
    pub(super) const fn quanta(&self) -> u32 {
        self.quanta
    }

    /// Returns the consumer index.
    #[allow(clippy::cast_possible_truncation, reason = "below MAX_WORK_QUANTA")]
    pub(super) const fn next(&self) -> u16 {
        self.next as u16
    }

    /// Returns the maximum size, in quanta, of a WQE that starts at the consumer index. A WQE must not cross
    /// the end of the ring or a multiple of the maximum WQE size.
    pub(super) const fn room(&self) -> usize {
        let (next, quanta) = (self.next as usize, self.quanta as usize);
        let aligned = MAX_QUANTA - next % MAX_QUANTA;
        if aligned < quanta - next { aligned } else { quanta - next }
    }

    /// Returns the control word of the next WQE, or `None` if no WQE is posted.
    ///
    /// # Errors
    /// Fails if the ring is not in mapped memory.
    pub(super) fn peek(&self, pages: Pages<'_>) -> Result<Option<ControlWord>, UnreachableError> {
        let mut word = [0; Control::LEN];
        self.copy(pages, CONTROL_OFFSET, &mut word)?;
        // Software writes the control word last, so read the rest of the WQE after it.
        fence(Ordering::Acquire);
        Ok((Control::parse(&word).valid == self.polarity).then_some(word))
    }

    /// Fills `wqe` with the first bytes of the next WQE.
    ///
    /// # Errors
    /// Fails if the ring is not in mapped memory.
    pub(super) fn read(&self, pages: Pages<'_>, wqe: &mut [u8]) -> Result<(), UnreachableError> {
        self.copy(pages, 0, wqe)
    }

    /// Advances past a WQE of `quanta` quanta, which must lie within the ring.
    pub(super) const fn advance(&mut self, quanta: u32) {
        let next = self.next + quanta;
        if next >= self.quanta {
            self.polarity = !self.polarity;
        }
        self.next = next % self.quanta;
    }

    /// Advances past all posted WQEs, for at most one pass through the ring. `quanta` returns the size of
    /// each WQE.
    pub(super) fn skip_posted(&mut self, pages: Pages<'_>, quanta: impl Fn(&Self, &ControlWord) -> u32) {
        let mut left = self.quanta;
        while left > 0
            && let Ok(Some(word)) = self.peek(pages)
        {
            let quanta = quanta(self, &word).max(1);
            self.advance(quanta);
            left = left.saturating_sub(quanta);
        }
    }

    /// Copies bytes from the next WQE. A WQE never crosses a page boundary, because the page size is a
    /// multiple of the maximum WQE size.
    fn copy(&self, pages: Pages<'_>, offset: usize, out: &mut [u8]) -> Result<(), UnreachableError> {
        let offset = u64::from(self.next) * QUANTUM as u64 + offset as u64;
        let at = self.location.address_of(pages, offset).ok_or(UnreachableError)?;
        pages.dma().read(at, out).map_err(|_| UnreachableError)
    }
}
