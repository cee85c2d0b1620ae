//! Pieces of regions that were met last, so that most accesses look up neither a key nor a page.
//!
//! A piece says what the tables would say again: it is worth nothing once the [`KeyTable`] was borrowed to be changed,
//! whatever for, and carries the [`Generation`] of the page table that its page is from. A page table whose
//! entries may change unseen, in memory of the guest, has none, and nothing of it is kept. What is not in one piece, or
//! is not granted by it, is looked up, so that an error is always the tables' own.
//!
//! [`KeyTable`]: super::KeyTable

use std::cell::Cell;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::{Access, Rights};
use protocol::ids::{Iova, Lkey, Pdn, Va};

use crate::memory::dma::PAGE_LEN;
use crate::memory::region::{Kind, MemoryRegion, Origin};

/// Places for pieces; a power of two. They take 5 KiB: each busy queue needs one or two, and so do its buffers.
const REMEMBERED: usize = 64;

/// A state of a page table, of all that there are in the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation(NonZeroU64);

impl Generation {
    /// One that there was not yet.
    pub fn fresh() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // Whoever meets the number is on the thread that drew it. 2^64 changes take longer than anybody waits.
        Self(NonZeroU64::new(NEXT.fetch_add(1, Ordering::Relaxed)).unwrap_or(NonZeroU64::MAX))
    }
}

/// Bytes of a region that follow each other on the bus.
#[derive(Clone, Copy, Debug)]
pub(in crate::memory) struct Piece {
    key: Lkey,
    pd: Pdn,
    rights: Rights,
    origin: Origin,
    start: Va,
    /// Offset in the region.
    first: u64,
    len: u64,
    bus: Iova,
    /// `None`: no page table has to do with it.
    pages: Option<Generation>,
}

impl Piece {
    /// `len` bytes of a region from an offset on. `None` for those that are always looked up: windows, which have
    /// owners.
    pub(in crate::memory) fn of(
        region: &MemoryRegion,
        first: u64,
        len: u64,
        bus: Iova,
        pages: Option<Generation>,
    ) -> Option<Self> {
        let MemoryRegion { key, pd, rights, origin, start, .. } = *region;
        let piece = Self { key, pd, rights, origin, start, first, len, bus, pages };
        (!matches!(region.kind, Kind::Window { .. })).then_some(piece)
    }

    /// Bus address of `len` bytes at `va`, if they are all here and the domain may do `access`, as
    /// [`MemoryRegion::grant`] would say.
    pub(in crate::memory) fn find(
        &self,
        pd: Pdn,
        va: Va,
        origin: Origin,
        len: usize,
        access: Access,
        pages: Option<Generation>,
    ) -> Option<Iova> {
        let valid = self.pages.is_none() || self.pages == pages;
        if !valid || self.pd != pd || !self.rights.permit(access) {
            return None;
        }
        let offset = match (origin, self.origin) {
            (Origin::Start, _) | (_, Origin::Start) => va.get(),
            (Origin::Zero, Origin::Zero) => va.get().checked_sub(self.start.get())?,
        };
        let within = offset.checked_sub(self.first)?;
        if len as u64 > self.len.checked_sub(within)? {
            return None;
        }
        Some(Iova::new(self.bus.get().wrapping_add(within)))
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct RecentPieces {
    /// Each with the number of changes there had been.
    places: [Cell<Option<(u64, Piece)>>; REMEMBERED],
    changes: u64,
}

impl Default for RecentPieces {
    fn default() -> Self {
        Self { places: [const { Cell::new(None) }; REMEMBERED], changes: 0 }
    }
}

impl RecentPieces {
    /// The table changes.
    pub(super) const fn forget(&mut self) {
        // 2^64 changes take longer than anybody waits.
        self.changes = self.changes.wrapping_add(1);
    }

    /// The piece that was met last of those that share the place of `va` in the region with this key and index.
    #[inline]
    pub(super) fn get(&self, key: Lkey, index: u32, va: Va) -> Option<Piece> {
        let (changes, piece) = self.place(index, va).get()?;
        (changes == self.changes && piece.key == key).then_some(piece)
    }

    pub(super) fn put(&self, index: u32, va: Va, piece: Piece) {
        self.place(index, va).set(Some((self.changes, piece)));
    }

    /// Neighbouring keys and pages have places of their own.
    fn place(&self, index: u32, va: Va) -> &Cell<Option<(u64, Piece)>> {
        let page = usize::try_from(va.get() / PAGE_LEN).unwrap_or_default();
        &self.places[(index as usize).wrapping_add(page) % REMEMBERED]
    }
}
