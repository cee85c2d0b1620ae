//! A device's key table.

mod translation_cache;

use engine::AccessError;
use protocol::ids::{Lkey, Pdn, Va};

pub use self::translation_cache::Generation;
use self::translation_cache::TranslationCache;
pub(super) use self::translation_cache::{ListCursor, TlbEntry};
use super::key_op::WindowKind;
use super::region::{Kind, MemoryRegion};
use crate::sparse::{Capacity, SparseTable, TableFull};

/// Purpose of a key that is allocated but not yet valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The key is for fast registration of a region.
    Region {
        /// Maximum length in bytes.
        most: u64,
    },
    /// The key is for binding a memory window.
    Window(WindowKind),
}

/// An allocated key. It does not permit access until a work request makes it valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocated {
    /// The whole key, including the bits that software chose most recently.
    pub key: Lkey,
    pub pd: Pdn,
    pub purpose: Purpose,
}

/// State of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Allocated, but not valid.
    Allocated(Allocated),
    Valid(MemoryRegion),
}

impl Entry {
    pub const fn key(&self) -> Lkey {
        match self {
            Self::Allocated(allocated) => allocated.key,
            Self::Valid(region) => region.key,
        }
    }

    /// Returns the region or window if the key is valid.
    pub const fn valid(&self) -> Option<&MemoryRegion> {
        match self {
            Self::Allocated(_) => None,
            Self::Valid(region) => Some(region),
        }
    }
}

#[derive(Debug)]
struct Slot {
    entry: Entry,
    /// Number of windows that are bound to the region.
    windows: u32,
}

const _: () =
    assert!(size_of::<Option<Slot>>() <= 80, "the documented limits assume at most 80 bytes per entry");

impl Slot {
    const fn new(entry: Entry) -> Self {
        Self { entry, windows: 0 }
    }
}

/// Regions and windows by key. Some bits of a key form its index in the table, but a look-up compares all bits.
#[derive(Debug)]
pub struct KeyTable {
    /// Number of key bits below the index.
    shift: u32,
    mask: u32,
    slots: SparseTable<Slot>,
    /// Cached translations of the regions in `slots`, invalidated by [`KeyTable::change`].
    cache: TranslationCache,
}

impl KeyTable {
    /// Limits on the table: 2^20 entries, in at most 2^14 groups of 64 consecutive indices. Even scattered keys then
    /// use at most 83 MiB.
    const CAPACITY: Capacity = Capacity { entries: 1 << 20, leaves: 1 << 14 };

    /// Creates an empty table with `2^log2_entries` indices, at most 2^32. The index is in the low bits of a key.
    pub fn new(log2_entries: u8) -> Self {
        Self::rotated(log2_entries, 0)
    }

    /// Creates a table for keys whose low `shift` bits are chosen by software. The index is above these bits.
    pub fn rotated(log2_entries: u8, shift: u32) -> Self {
        let mask = u32::MAX.checked_shr(32u32.saturating_sub(u32::from(log2_entries))).unwrap_or(0);
        Self { shift, mask, slots: SparseTable::new(Self::CAPACITY), cache: TranslationCache::default() }
    }

    /// Returns whether `index` is below the table size. The entry need not exist.
    pub fn contains_index(&self, index: u32) -> bool {
        index <= self.mask
    }

    pub fn index(&self, key: Lkey) -> u32 {
        key.get().rotate_right(self.shift) & self.mask
    }

    /// Invalidates all cached translations and returns the slots. Every change to the keys goes through this function.
    fn change(&mut self) -> &mut SparseTable<Slot> {
        self.cache.invalidate();
        &mut self.slots
    }

    /// Returns a cached translation for the key, if any. The caller must check whether the translation covers `va`.
    #[inline]
    pub(super) fn lookup(&self, key: Lkey, va: Va) -> Option<TlbEntry> {
        self.cache.get(key, self.index(key), va)
    }

    pub(super) fn cache(&self, key: Lkey, va: Va, entry: TlbEntry) {
        self.cache.put(self.index(key), va, entry);
    }

    /// Returns the cached position in the list of keys that `key` refers to, if the list is unchanged.
    pub(super) fn list_cursor(&self, key: Lkey, generation: Generation) -> Option<ListCursor> {
        self.cache.list_cursor(key, self.index(key), generation)
    }

    pub(super) fn cache_list_cursor(&self, cursor: ListCursor, generation: Generation) {
        self.cache.put_list_cursor(self.index(cursor.key), cursor, generation);
    }

    /// Returns the region or window of a key.
    ///
    /// # Errors
    /// Fails with [`AccessError::Key`] if the key does not exist, or with [`AccessError::Invalid`] if it is allocated
    /// but not valid.
    pub fn find(&self, key: Lkey) -> Result<&MemoryRegion, AccessError> {
        match self.slots.get(self.index(key)).map(|slot| &slot.entry) {
            Some(Entry::Valid(region)) if region.key == key => Ok(region),
            Some(Entry::Allocated(allocated)) if allocated.key == key => Err(AccessError::Invalid),
            _ => Err(AccessError::Key),
        }
    }

    /// Returns the valid entry at an index.
    pub fn get(&self, index: u32) -> Option<&MemoryRegion> {
        self.entry(index)?.valid()
    }

    pub fn entry(&self, index: u32) -> Option<&Entry> {
        self.slots.get(index).map(|slot| &slot.entry)
    }

    /// Inserts a valid entry for the region's key. Returns the region or window that it replaces, if any.
    ///
    /// # Errors
    /// Fails if the table is full.
    pub fn insert(&mut self, region: MemoryRegion) -> Result<Option<MemoryRegion>, TableFull> {
        let index = self.index(region.key);
        let old = self.change().insert(index, Slot::new(Entry::Valid(region)))?;
        Ok(old.and_then(|slot| slot.entry.valid().copied()))
    }

    /// Allocates an entry for a key that work requests will make valid. Replaces any previous entry.
    ///
    /// # Errors
    /// Fails if the table is full.
    pub fn allocate(&mut self, allocated: Allocated) -> Result<(), TableFull> {
        let index = self.index(allocated.key);
        self.change().insert(index, Slot::new(Entry::Allocated(allocated))).map(drop)
    }

    /// Removes an entry and returns its region or window.
    pub fn remove(&mut self, index: u32) -> Option<MemoryRegion> {
        self.change().remove(index)?.entry.valid().copied()
    }

    /// Removes and returns an entry, which need not be valid.
    ///
    /// # Errors
    /// Fails with [`AccessError::Key`] if the entry does not exist, or with [`AccessError::Bound`] if windows are bound
    /// to it.
    pub fn deregister(&mut self, index: u32) -> Result<Entry, AccessError> {
        let slot = self.slots.get(index).ok_or(AccessError::Key)?;
        if slot.windows > 0 {
            return Err(AccessError::Bound);
        }
        let slot = self.change().remove(index).ok_or(AccessError::Key)?;
        self.release(&slot.entry);
        Ok(slot.entry)
    }

    /// Returns the valid entries at index `first` and above, in ascending order.
    pub fn iter_from(&self, first: u32) -> impl Iterator<Item = (u32, &MemoryRegion)> {
        self.slots.iter_from(first).filter_map(|(index, slot)| Some((index, slot.entry.valid()?)))
    }

    /// Returns the valid entries in ascending order of their indices.
    pub fn iter(&self) -> impl Iterator<Item = &MemoryRegion> {
        self.iter_from(0).map(|(_, region)| region)
    }

    /// Returns the entry whose key equals `key`, apart from the bits chosen by software.
    ///
    /// # Errors
    /// Fails with [`AccessError::Key`] if the entry does not exist.
    pub(super) fn renamed(&self, key: Lkey) -> Result<&Entry, AccessError> {
        let software = 1u32.checked_shl(self.shift).unwrap_or(0).wrapping_sub(1);
        let entry = self.entry(self.index(key)).ok_or(AccessError::Key)?;
        if (entry.key().get() ^ key.get()) & !software == 0 { Ok(entry) } else { Err(AccessError::Key) }
    }

    /// Returns the number of windows bound to the region at an index.
    pub(super) fn windows(&self, index: u32) -> u32 {
        self.slots.get(index).map_or(0, |slot| slot.windows)
    }

    /// Replaces an existing entry and updates the window counts of the affected regions.
    pub(super) fn set(&mut self, entry: Entry) {
        let index = self.index(entry.key());
        if let Entry::Valid(MemoryRegion { kind: Kind::Window { parent, .. }, .. }) = entry
            && let Some(parent) = self.change().get_mut(parent)
        {
            // This cannot overflow: the table has at most 2^20 entries.
            parent.windows += 1;
        }
        let Some(slot) = self.change().get_mut(index) else { return };
        let old = std::mem::replace(&mut slot.entry, entry);
        self.release(&old);
    }

    /// Handles the replacement or removal of entry `old`. If `old` is a window, decrements its region's window count.
    fn release(&mut self, old: &Entry) {
        if let Entry::Valid(MemoryRegion { kind: Kind::Window { parent, .. }, .. }) = *old
            && let Some(parent) = self.change().get_mut(parent)
        {
            parent.windows = parent.windows.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::ids::Va;

    use super::*;
    use crate::memory::region::{Origin, Rights, Translation};

    fn region(key: u32) -> MemoryRegion {
        MemoryRegion { len: 1, ..MemoryRegion::whole_memory(Lkey::new(key), Pdn::new(0), Rights::empty()) }
    }

    #[test]
    fn all_bits_of_key_must_match() {
        let mut table = KeyTable::new(17);
        table.insert(region(0x20005)).unwrap();
        assert!(table.find(Lkey::new(0x20005)).is_ok());
        assert_eq!(table.find(Lkey::new(5)), Err(AccessError::Key));
        assert_eq!(table.find(Lkey::new(0x40005)), Err(AccessError::Key));
        assert_eq!(table.get(5).map(|region| region.key), Some(Lkey::new(0x20005)));
    }

    #[test]
    fn rotated_key_index_is_above_software_bits() {
        let mut table = KeyTable::rotated(17, 8);
        table.insert(region(0x8000_1800)).unwrap();
        assert_eq!(table.get(0x18).map(|region| region.key), Some(Lkey::new(0x8000_1800)));
        assert!(table.find(Lkey::new(0x8000_1800)).is_ok());
        assert_eq!(table.find(Lkey::new(0x1800)), Err(AccessError::Key));
    }

    /// E810 interface, section 13.7: the upper 24 bits of the key are 0x913258. In a table of 16384 regions, only the
    /// low 14 of these bits form the index.
    #[test]
    fn lookup_compares_key_bits_above_index() {
        let mut table = KeyTable::rotated(14, 8);
        table.insert(region(0x9132_5841)).unwrap();
        assert_eq!(table.index(Lkey::new(0x9132_5841)), 0x3258);
        assert!(table.find(Lkey::new(0x9132_5841)).is_ok());
        assert_eq!(table.find(Lkey::new(0x9132_5842)), Err(AccessError::Key));
        assert_eq!(table.find(Lkey::new(0x1132_5841)), Err(AccessError::Key));
        assert!(table.renamed(Lkey::new(0x9132_58ff)).is_ok());
        assert_eq!(table.renamed(Lkey::new(0x1132_5841)), Err(AccessError::Key));
    }

    #[test]
    fn allocated_key_is_not_valid() {
        let mut table = KeyTable::rotated(14, 8);
        let (key, pd) = (Lkey::new(0x700), Pdn::new(0));
        table.allocate(Allocated { key, pd, purpose: Purpose::Region { most: 4096 } }).unwrap();
        assert_eq!(table.find(key), Err(AccessError::Invalid));
        assert_eq!((table.get(7), table.iter().count()), (None, 0));
        assert_eq!(table.entry(7).map(Entry::key), Some(key));
        assert!(matches!(table.deregister(7), Ok(Entry::Allocated(_))));
        assert_eq!(table.find(key), Err(AccessError::Key));
        assert_eq!(table.deregister(7), Err(AccessError::Key));
    }

    #[test]
    fn whole_memory_region_is_identity_mapped() {
        let whole = region(0x100);
        assert_eq!((whole.start, whole.origin), (Va::new(0), Origin::Zero));
        assert_eq!(whole.translation, Translation::Contiguous { bus: protocol::ids::Iova::new(0) });
    }

    #[test]
    fn contains_index_respects_table_size() {
        assert!(KeyTable::new(0).contains_index(0) && !KeyTable::new(0).contains_index(1));
        assert!(!KeyTable::new(17).contains_index(1 << 17));
        assert!(KeyTable::new(32).contains_index(u32::MAX));
    }
}
