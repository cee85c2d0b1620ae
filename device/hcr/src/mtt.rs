//! Copy of the memory translation table (MTT): the bus pages of memory regions.
//!
//! The table itself is in ICM. The copy holds the entries written so far, in one chunk per ICM page. A chunk is created
//! when an entry in its page is first written, and discarded when the page is unmapped.

use std::ops::RangeInclusive;

use card::memory::dma::PAGE_LEN;
use card::memory::keys::Generation;
use card::memory::translate::PageTable;
use card::sparse::{Capacity, SparseTable, TableFull};
use protocol::ids::{IcmAddr, Iova};

use crate::icm::page_of;

pub const ENTRY_LEN: usize = 8;
const CHUNK_LEN: usize = 4096 / ENTRY_LEN;
const _: () = assert!(CHUNK_LEN as u64 * ENTRY_LEN as u64 == PAGE_LEN);

/// Limits the chunks to 128 MiB, which is enough to translate 64 GiB of 4 KiB pages.
const CAPACITY: Capacity = Capacity { entries: 1 << 15, leaves: 1 << 15 };

/// A cached MTT. Entries are numbered from the base of the table.
#[derive(Debug)]
pub struct Mtt {
    base: IcmAddr,
    /// Chunks by ICM page. Pages are counted from the one that contains the base.
    chunks: SparseTable<Box<Chunk>>,
    /// Identifies the contents of `chunks`. Every change goes through [`Mtt::change`], which sets a fresh generation.
    generation: Generation,
}

/// A page's bus address. It is page-aligned, so bit 0 is free to mark a slot that has a page.
#[derive(Clone, Copy, Debug, Default)]
struct Slot(u64);

#[derive(Debug)]
struct Chunk([Slot; CHUNK_LEN]);

impl Mtt {
    /// Creates an empty table whose entry 0 is at `base`.
    pub fn new(base: IcmAddr) -> Self {
        Self { base, chunks: SparseTable::new(CAPACITY), generation: Generation::fresh() }
    }

    /// Returns an entry's ICM address, or `None` if it is beyond the end of ICM.
    pub fn addr(&self, entry: u64) -> Option<IcmAddr> {
        let offset = entry.checked_mul(ENTRY_LEN as u64)?;
        Some(IcmAddr::new(self.base.get().checked_add(offset)?))
    }

    /// Allocates the chunks for entries that are about to be written.
    ///
    /// # Errors
    /// Fails if the entries exceed the capacity of 2^15 ICM pages or are not within 2^32 pages of the base.
    pub fn reserve(&mut self, start: u64, count: usize) -> Result<(), TableFull> {
        let Some(more) = (count as u64).checked_sub(1) else { return Ok(()) };
        let last = start.checked_add(more).ok_or(TableFull)?;
        let ((first, _), (last, _)) = self.locate(start).zip(self.locate(last)).ok_or(TableFull)?;
        for page in first..=last {
            if self.chunks.get(page).is_none() {
                self.change().insert(page, Box::new(Chunk([Slot::default(); CHUNK_LEN])))?;
            }
        }
        Ok(())
    }

    /// Writes an entry that [`Mtt::reserve`] has made room for. `None` marks an entry that has no page.
    pub fn set(&mut self, entry: u64, page: Option<Iova>) {
        if let Some((chunk, slot)) = self.locate(entry)
            && let Some(chunk) = self.change().get_mut(chunk)
        {
            chunk.0[slot] = Slot(page.map_or(0, |page| page.get() & !(PAGE_LEN - 1) | 1));
        }
    }

    /// Discards the entries in the given ICM pages.
    pub fn invalidate(&mut self, icm_pages: RangeInclusive<u64>) {
        let base = page_of(self.base);
        let (first, last) = icm_pages.into_inner();
        let Some(last) = last.checked_sub(base) else { return };
        let Ok(first) = u32::try_from(first.saturating_sub(base)) else { return };
        self.change().remove_range(first, u32::try_from(last).unwrap_or(u32::MAX));
    }

    /// Returns mutable access to the chunks, which invalidates cached translations.
    fn change(&mut self) -> &mut SparseTable<Box<Chunk>> {
        self.generation = Generation::fresh();
        &mut self.chunks
    }

    fn locate(&self, entry: u64) -> Option<(u32, usize)> {
        let addr = self.addr(entry)?;
        let page = u32::try_from(page_of(addr) - page_of(self.base)).ok()?;
        // The remainder is below 4096, so the cast is lossless.
        Some((page, (addr.get() % PAGE_LEN) as usize / ENTRY_LEN))
    }
}

impl PageTable for &Mtt {
    fn page(self, entry: u64) -> Option<Iova> {
        let (page, slot) = self.locate(entry)?;
        let Slot(value) = self.chunks.get(page)?.0[slot];
        (value & 1 != 0).then_some(Iova::new(value & !1))
    }

    fn generation(self) -> Option<Generation> {
        Some(self.generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(base: u64, entries: &[u64]) -> Mtt {
        let mut mtt = Mtt::new(IcmAddr::new(base));
        for &entry in entries {
            mtt.reserve(entry, 1).unwrap();
            mtt.set(entry, Some(Iova::new(entry << 12 | 0xff8)));
        }
        mtt
    }

    #[test]
    fn only_written_entries_translate() {
        let mtt = written(0x180_0000, &[0, 0x10, 511, 512]);
        assert_eq!(mtt.page(0x10), Some(Iova::new(0x1_0000)));
        assert_eq!(mtt.page(0), Some(Iova::new(0)), "bus page 0 must be a valid page");
        assert_eq!((mtt.page(1), mtt.page(513), mtt.page(1024)), (None, None, None));
        assert_eq!(mtt.addr(0x10), Some(IcmAddr::new(0x180_0080)));
    }

    #[test]
    fn every_change_advances_generation() {
        let mut mtt = written(0, &[4]);
        let changes: [fn(&mut Mtt); 4] = [
            |mtt| mtt.set(4, Some(Iova::new(0x1000))),
            |mtt| mtt.set(4, None),
            |mtt| mtt.reserve(600, 1).unwrap(),
            |mtt| mtt.invalidate(0..=0),
        ];
        let mut seen = vec![(&mtt).generation(), (&written(0, &[4])).generation()];
        for change in changes {
            change(&mut mtt);
            assert!(!seen.contains(&(&mtt).generation()));
            seen.push((&mtt).generation());
        }
        assert_eq!((&mtt).generation(), (&mtt).generation());
    }

    #[test]
    fn mtt_entry_marked_not_present_does_not_translate() {
        let mut mtt = written(0, &[4, 5]);
        mtt.set(4, None);
        assert_eq!((mtt.page(4), mtt.page(5)), (None, Some(Iova::new(0x5000))));
    }

    #[test]
    fn unmapping_icm_page_discards_its_entries() {
        let mut mtt = written(0x180_0000, &[0, 511, 512, 1024]);
        mtt.invalidate(0x1801..=0x1801);
        assert_eq!(mtt.page(512), None);
        assert!(mtt.page(511).is_some() && mtt.page(1024).is_some());
        mtt.invalidate(0..=0x17ff);
        assert!(mtt.page(0).is_some(), "unmapping pages before the base must have no effect");
        mtt.invalidate(0..=u64::MAX >> 12);
        assert!(mtt.page(0).is_none() && mtt.page(1024).is_none());
    }

    #[test]
    fn mtt_lookup_works_with_unaligned_table_base() {
        let mtt = written(0x180_0ff4, &[0, 1, 2, 514]);
        for entry in [0, 1, 2, 514] {
            assert_eq!(mtt.page(entry), Some(Iova::new(entry << 12)));
        }
        assert_eq!(mtt.chunks.len(), 3);
    }

    #[test]
    fn entries_beyond_addressable_range_are_rejected() {
        let mut mtt = Mtt::new(IcmAddr::new(0x1000));
        assert_eq!(mtt.reserve(u64::MAX / 8, 1), Err(TableFull));
        assert_eq!(mtt.reserve(1 << 41, 1), Err(TableFull));
        assert_eq!((mtt.page(u64::MAX), mtt.page(1 << 41)), (None, None));
        assert!(mtt.reserve((1 << 41) - 512, 1).is_ok());
    }
}
