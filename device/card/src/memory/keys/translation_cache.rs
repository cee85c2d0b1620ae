//! The translation cache. A hit saves both the key look-up and the page walk.
//!
//! A hit always equals what a fresh look-up would return. Any change to the [`KeyTable`] invalidates all entries. Each
//! entry also carries the [`Generation`] of the page table that it was derived from. Translations through a page table
//! in guest memory are not cached, since the device cannot detect changes to it. If no single entry covers the
//! requested range and grants the access, the look-up falls back to the tables. The cache itself reports no errors.
//!
//! The translation of an indirect key depends on the keys in its list, and in turn on the keys in their lists if they
//! are indirect too. All these keys are in the same [`KeyTable`], so a change to any of them invalidates the entry.
//!
//! [`KeyTable`]: super::KeyTable

use std::cell::Cell;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::{Access, Rights};
use protocol::ids::{Iova, Lkey, Pdn, Va};

use crate::memory::dma::PAGE_LEN;
use crate::memory::region::{Kind, MemoryRegion, Origin};

/// Number of entries, a power of two. The entries occupy 5 KiB. A busy queue needs one or two entries for itself, and
/// one or two for its buffers.
const ENTRIES: usize = 64;

/// Number of cached list positions, a power of two. Each sequential transfer through a long list of keys needs one.
const LIST_CURSORS: usize = 8;

/// Version number of a page table, unique in the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation(NonZeroU64);

impl Generation {
    pub fn fresh() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // Relaxed ordering suffices, because a number is compared only on the thread that created it. The counter
        // cannot wrap in practice.
        Self(NonZeroU64::new(NEXT.fetch_add(1, Ordering::Relaxed)).unwrap_or(NonZeroU64::MAX))
    }
}

/// A cached translation of a range that is contiguous on the bus.
#[derive(Clone, Copy, Debug)]
pub(in crate::memory) struct TlbEntry {
    key: Lkey,
    pd: Pdn,
    rights: Rights,
    origin: Origin,
    start: Va,
    /// Offset of the range in the region.
    first: u64,
    len: u64,
    bus: Iova,
    /// Version of the page table, or `None` if the translation does not use one.
    pages: Option<Generation>,
}

impl TlbEntry {
    /// Creates an entry for `len` bytes of a region, starting at offset `first`. Returns `None` for windows, which are
    /// not cached because access to them also depends on the QP.
    pub(in crate::memory) fn of(
        region: &MemoryRegion,
        first: u64,
        len: u64,
        bus: Iova,
        pages: Option<Generation>,
    ) -> Option<Self> {
        let MemoryRegion { key, pd, rights, origin, start, .. } = *region;
        let entry = Self { key, pd, rights, origin, start, first, len, bus, pages };
        (!matches!(region.kind, Kind::Window { .. })).then_some(entry)
    }

    /// Returns the bus address of the `len` bytes at `va`, if the entry covers them and grants `access`. The rules are
    /// those of [`MemoryRegion::grant`].
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

/// A position in a list of keys where a search can continue. Used only for lists whose entries can differ in length. In
/// a strided list, this is a position within the pattern and is the same for every repetition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::memory) struct ListCursor {
    /// Key that the list belongs to.
    pub(in crate::memory) key: Lkey,
    /// Index of the entry in the list, from 0, not counting the header of a strided list.
    pub(in crate::memory) entry: u32,
    /// Total length of all earlier entries.
    pub(in crate::memory) start: u64,
}

#[derive(Debug)]
pub(super) struct TranslationCache {
    /// Entries, each with the value of `changes` when the entry was cached.
    slots: [Cell<Option<(u64, TlbEntry)>>; ENTRIES],
    /// List positions, each with the value of `changes` when the position was cached, and with the generation of the
    /// page table that contains the list.
    cursors: [Cell<Option<(u64, Generation, ListCursor)>>; LIST_CURSORS],
    changes: u64,
}

impl Default for TranslationCache {
    fn default() -> Self {
        Self {
            slots: [const { Cell::new(None) }; ENTRIES],
            cursors: [const { Cell::new(None) }; LIST_CURSORS],
            changes: 0,
        }
    }
}

impl TranslationCache {
    pub(super) const fn invalidate(&mut self) {
        // The counter cannot wrap in practice.
        self.changes = self.changes.wrapping_add(1);
    }

    /// Returns the entry in the slot of `index` and `va`, if it is valid and belongs to `key`.
    #[inline]
    pub(super) fn get(&self, key: Lkey, index: u32, va: Va) -> Option<TlbEntry> {
        let (changes, entry) = self.slot(index, va).get()?;
        (changes == self.changes && entry.key == key).then_some(entry)
    }

    pub(super) fn put(&self, index: u32, va: Va, entry: TlbEntry) {
        self.slot(index, va).set(Some((self.changes, entry)));
    }

    pub(super) fn list_cursor(&self, key: Lkey, index: u32, generation: Generation) -> Option<ListCursor> {
        let (changes, of, cursor) = self.cursors[index as usize % LIST_CURSORS].get()?;
        (changes == self.changes && of == generation && cursor.key == key).then_some(cursor)
    }

    pub(super) fn put_list_cursor(&self, index: u32, cursor: ListCursor, generation: Generation) {
        self.cursors[index as usize % LIST_CURSORS].set(Some((self.changes, generation, cursor)));
    }

    /// Returns the slot for a translation. Neighbouring keys and pages use different slots.
    fn slot(&self, index: u32, va: Va) -> &Cell<Option<(u64, TlbEntry)>> {
        let page = usize::try_from(va.get() / PAGE_LEN).unwrap_or_default();
        &self.slots[(index as usize).wrapping_add(page) % ENTRIES]
    }
}
