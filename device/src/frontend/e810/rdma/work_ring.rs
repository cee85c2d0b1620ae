//! Rings of quanta, which software writes and never says how far: a quantum is new when its polarity is that of the lap.
//!
//! # Spec
//! E810 interface, sections 13.4 and 13.5.

use std::sync::atomic::{Ordering, fence};

use protocol::hca::e810::rdma::send_wqe::{CONTROL_OFFSET, Control, MAX_QUANTA, QUANTUM};

use super::hmc::Pages;
use super::ring::{Location, Unreachable};

/// Quanta of the longest ring: completions have 15 bits for an index.
const MAX_RING: u32 = 1 << 15;

/// The word that says what a WQE is, as [`Control`] or as a local operation's.
pub(super) type ControlWord = [u8; Control::LEN];

/// A ring of quanta, and how far the device is in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorkRing {
    location: Location,
    /// A power of two.
    quanta: u32,
    next: u32,
    /// Of what is new in this lap. True in the first.
    polarity: bool,
}

impl WorkRing {
    /// A ring of which nothing was taken. `None` for a length that no ring has.
    pub(super) fn new(location: Location, quanta: u32) -> Option<Self> {
        let possible = quanta.is_power_of_two() && quanta <= MAX_RING;
        possible.then_some(Self { location, quanta, next: 0, polarity: true })
    }

    /// Quanta of the ring.
    pub(super) const fn quanta(&self) -> u32 {
        self.quanta
    }

    /// The quantum that is taken next.
    #[allow(clippy::cast_possible_truncation, reason = "below MAX_RING")]
    pub(super) const fn next(&self) -> u16 {
        self.next as u16
    }

    /// Quanta that a WQE may have that begins here: it ends with the ring, and at the next multiple of the most there are.
    pub(super) const fn room(&self) -> usize {
        let (next, quanta) = (self.next as usize, self.quanta as usize);
        let aligned = MAX_QUANTA - next % MAX_QUANTA;
        if aligned < quanta - next { aligned } else { quanta - next }
    }

    /// The control word of the next WQE; `None` if it was not posted yet.
    ///
    /// # Errors
    /// Its memory is not there.
    pub(super) fn peek(&self, pages: Pages<'_>) -> Result<Option<ControlWord>, Unreachable> {
        let mut word = [0; Control::LEN];
        self.copy(pages, CONTROL_OFFSET, &mut word)?;
        // Software writes the control word last, so what is read after it is whole.
        fence(Ordering::Acquire);
        Ok((Control::parse(&word).valid == self.polarity).then_some(word))
    }

    /// Copies the next WQE's first quanta.
    ///
    /// # Errors
    /// Its memory is not there.
    pub(super) fn read(&self, pages: Pages<'_>, wqe: &mut [u8]) -> Result<(), Unreachable> {
        self.copy(pages, 0, wqe)
    }

    /// Goes on behind a WQE of so many quanta, which is in the ring.
    pub(super) const fn advance(&mut self, quanta: u32) {
        let next = self.next + quanta;
        if next >= self.quanta {
            self.polarity = !self.polarity;
        }
        self.next = next % self.quanta;
    }

    /// Goes on behind all WQEs that are posted, each of so many quanta as `quanta` says.
    ///
    /// Bound: the ring, of which each quantum is looked at once in a lap.
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

    /// No WQE crosses a page: pages are multiples of what WQEs do not cross.
    fn copy(&self, pages: Pages<'_>, offset: usize, out: &mut [u8]) -> Result<(), Unreachable> {
        let offset = u64::from(self.next) * QUANTUM as u64 + offset as u64;
        let at = self.location.byte(pages, offset).ok_or(Unreachable)?;
        pages.dma().read(at, out).map_err(|_| Unreachable)
    }
}
