//! Rings written by the device. Software recognises new entries by their polarity, the top bit of each entry.
//!
//! # Spec
//! E810 interface, sections 12.2, 12.4 and 12.6.

use card::memory::dma::PAGE_LEN;
use protocol::hca::e810::rdma::error::CqpError;
use protocol::hca::e810::rdma::index::PbleIndex;
use protocol::hca::e810::rdma::page_list::ListLevel;
use protocol::ids::Iova;

use super::hmc::Pages;

/// Location of a queue in guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Location {
    /// The ring is physically contiguous.
    Contiguous(Iova),
    /// The ring is made up of 4 KiB pages listed by PBLEs.
    Listed(PbleIndex),
    /// The ring is made up of 4 KiB pages listed by two levels of PBLEs.
    Nested(PbleIndex),
}

impl Location {
    /// Converts a create operation's location fields.
    ///
    /// # Errors
    /// Fails if the page list level is invalid.
    pub(super) fn new(
        in_pages: bool,
        level: ListLevel,
        ring: Iova,
        first: PbleIndex,
    ) -> Result<Self, CqpError> {
        match level {
            _ if !in_pages => Ok(Self::Contiguous(ring)),
            ListLevel::One => Ok(Self::Listed(first)),
            ListLevel::Two => Ok(Self::Nested(first)),
            ListLevel::Contiguous | ListLevel::Reserved => {
                Err(CqpError::invalid("page list levels", u8::from(level).into()))
            }
        }
    }

    /// Converts a QP context's ring field. It contains the index of the first PBLE if `in_pages` is set, and an address
    /// otherwise.
    ///
    /// # Errors
    /// Fails if the PBLE index is out of range.
    pub(super) fn from_qp_context(in_pages: bool, ring: u64) -> Result<Self, CqpError> {
        if !in_pages {
            return Ok(Self::Contiguous(Iova::new(ring)));
        }
        let wrong = CqpError::invalid("first page of the queue", ring);
        let first = u32::try_from(ring).map_err(|_| wrong)?;
        let index = PbleIndex::new(first);
        if index.get() == first { Ok(Self::Listed(index)) } else { Err(wrong) }
    }

    /// Returns the bus address of the byte at `offset`, or `None` if its page is not mapped. The result is
    /// valid up to the end of the 4 KiB page.
    pub(super) fn address_of(self, pages: Pages<'_>, offset: u64) -> Option<Iova> {
        let (page, within) = (offset / PAGE_LEN, offset % PAGE_LEN);
        let first = match self {
            Self::Contiguous(first) => return Some(Iova::new(first.get().checked_add(offset)?)),
            Self::Listed(first) => pages.listed(first, page)?,
            Self::Nested(first) => pages.nested(first, page)?,
        };
        Some(Iova::new(first.get() + within))
    }
}

/// A ring of `LEN`-byte entries. `LEN` divides the page size. Bit 7 of an entry's last byte is its polarity. The
/// polarity is 1 on the first pass over the ring and is inverted on each later pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EntryRing<const LEN: usize> {
    location: Location,
    entries: u32,
    /// Index of the next entry to write.
    next: u32,
    polarity: bool,
    /// Number of entries written since creation, modulo 2^32.
    written: u32,
}

/// The ring is not in mapped memory, so an entry could not be read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnreachableError;

impl<const LEN: usize> EntryRing<LEN> {
    /// Creates an empty ring.
    ///
    /// # Errors
    /// Fails if the ring has no entries, or if its address is not a multiple of the entry length, because entries would
    /// then cross page boundaries.
    pub(super) fn new(location: Location, entries: u32) -> Result<Self, CqpError> {
        if entries == 0 {
            return Err(CqpError::invalid("ring entries", 0));
        }
        if let Location::Contiguous(first) = location
            && !first.get().is_multiple_of(LEN as u64)
        {
            return Err(CqpError::invalid("ring address", first.get()));
        }
        Ok(Self { location, entries, next: 0, polarity: true, written: 0 })
    }

    pub(super) const fn location(&self) -> Location {
        self.location
    }

    pub(super) const fn entries(&self) -> u32 {
        self.entries
    }

    /// Returns the number of entries written, modulo 2^32.
    pub(super) const fn written(&self) -> u32 {
        self.written
    }

    /// Returns the index of the next entry to write.
    pub(super) const fn next(&self) -> u32 {
        self.next
    }

    /// Writes the next entry with the current polarity.
    ///
    /// # Errors
    /// Fails if the ring is not in mapped memory.
    pub(super) fn push(&mut self, pages: Pages<'_>, entry: [u8; LEN]) -> Result<(), UnreachableError> {
        let at = self.position();
        self.advance();
        self.put(pages, at, entry)
    }

    /// Writes the next two entries. The second entry is written first, so that software can read both as soon as
    /// it sees the first.
    ///
    /// # Errors
    /// The same as for [`EntryRing::push`].
    pub(super) fn push_pair(
        &mut self,
        pages: Pages<'_>,
        entry: [u8; LEN],
        extension: [u8; LEN],
    ) -> Result<(), UnreachableError> {
        let first = self.position();
        self.advance();
        let second = self.position();
        self.advance();
        self.put(pages, second, extension)?;
        self.put(pages, first, entry)
    }

    const fn position(&self) -> (u32, bool) {
        (self.next, self.polarity)
    }

    const fn advance(&mut self) {
        self.written = self.written.wrapping_add(1);
        self.next += 1;
        if self.next == self.entries {
            self.next = 0;
            self.polarity = !self.polarity;
        }
    }

    fn put(
        &self,
        pages: Pages<'_>,
        (index, polarity): (u32, bool),
        mut entry: [u8; LEN],
    ) -> Result<(), UnreachableError> {
        /// Polarity bit in the last byte of an entry.
        const VALID: u8 = 1 << 7;
        if let Some(last) = entry.last_mut() {
            *last = *last & !VALID | if polarity { VALID } else { 0 };
        }
        let at = self.location.address_of(pages, u64::from(index) * LEN as u64).ok_or(UnreachableError)?;
        pages.dma().publish(at, &entry).map_err(|_| UnreachableError)
    }
}
