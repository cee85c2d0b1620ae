//! The key table of one device.

use engine::AccessError;
use protocol::ids::Lkey;

use super::region::MemoryRegion;
use crate::sparse::{Capacity, SparseTable, TableFull};

/// Regions by key: some of the key's bits are the index, and the whole key must match.
#[derive(Debug)]
pub struct KeyTable {
    /// Bits above which the index begins.
    shift: u32,
    mask: u32,
    regions: SparseTable<MemoryRegion>,
}

impl KeyTable {
    /// Bound: dense tables of 2^20 entries always fit; keys spread over a larger table may use 2^14 groups of 64,
    /// which is 75 MiB of regions at the most.
    const CAPACITY: Capacity = Capacity { entries: 1 << 20, leaves: 1 << 14 };

    /// A table of `2^log2_entries` entries, at most 2^32, all invalid. Its keys' low bits are the index.
    pub fn new(log2_entries: u8) -> Self {
        Self::rotated(log2_entries, 0)
    }

    /// The same for keys that are rotated to the left by `shift` bits, so that the index begins there.
    pub fn rotated(log2_entries: u8, shift: u32) -> Self {
        let mask = u32::MAX.checked_shr(32u32.saturating_sub(u32::from(log2_entries))).unwrap_or(0);
        Self { shift, mask, regions: SparseTable::new(Self::CAPACITY) }
    }

    /// Whether the table has such an entry, valid or not.
    pub fn contains_index(&self, index: u32) -> bool {
        index <= self.mask
    }

    /// Index of a key.
    pub fn index(&self, key: Lkey) -> u32 {
        key.get().rotate_right(self.shift) & self.mask
    }

    /// The region of a key.
    ///
    /// # Errors
    /// [`AccessError::Key`]: no valid entry has it.
    pub fn find(&self, key: Lkey) -> Result<&MemoryRegion, AccessError> {
        self.regions.get(self.index(key)).filter(|region| region.key == key).ok_or(AccessError::Key)
    }

    /// The valid entry at an index.
    pub fn get(&self, index: u32) -> Option<&MemoryRegion> {
        self.regions.get(index)
    }

    /// Makes the entry of the region's key valid, replacing what was there.
    ///
    /// # Errors
    /// The table is at its capacity.
    pub fn insert(&mut self, region: MemoryRegion) -> Result<Option<MemoryRegion>, TableFull> {
        self.regions.insert(self.index(region.key), region)
    }

    /// Invalidates an entry and returns what it was.
    pub fn remove(&mut self, index: u32) -> Option<MemoryRegion> {
        self.regions.remove(index)
    }

    /// Valid entries by ascending index, from one on.
    pub fn iter_from(&self, first: u32) -> impl Iterator<Item = (u32, &MemoryRegion)> {
        self.regions.iter_from(first)
    }

    /// Valid entries, by ascending index.
    pub fn iter(&self) -> impl Iterator<Item = &MemoryRegion> {
        self.regions.iter().map(|(_, region)| region)
    }
}

#[cfg(test)]
mod tests {
    use protocol::ids::{Pdn, Va};

    use super::*;
    use crate::memory::region::{Origin, Rights, Translation};

    fn region(key: u32) -> MemoryRegion {
        MemoryRegion {
            key: Lkey::new(key),
            pd: Pdn::new(0),
            start: Va::new(0),
            len: 1,
            origin: Origin::Zero,
            rights: Rights::empty(),
            translation: Translation::Physical,
        }
    }

    #[test]
    fn all_bits_of_a_key_must_match() {
        let mut table = KeyTable::new(17);
        table.insert(region(0x20005)).unwrap();
        assert!(table.find(Lkey::new(0x20005)).is_ok());
        assert_eq!(table.find(Lkey::new(5)), Err(AccessError::Key));
        assert_eq!(table.find(Lkey::new(0x40005)), Err(AccessError::Key));
        assert_eq!(table.get(5).map(|region| region.key), Some(Lkey::new(0x20005)));
    }

    #[test]
    fn the_index_of_a_rotated_key_is_above_its_generation() {
        let mut table = KeyTable::rotated(17, 8);
        table.insert(region(0x8000_1800)).unwrap();
        assert_eq!(table.get(0x18).map(|region| region.key), Some(Lkey::new(0x8000_1800)));
        assert!(table.find(Lkey::new(0x8000_1800)).is_ok());
        assert_eq!(table.find(Lkey::new(0x1800)), Err(AccessError::Key));
    }

    #[test]
    fn table_sizes_reach_from_one_entry_to_all_of_32_bits() {
        assert!(KeyTable::new(0).contains_index(0) && !KeyTable::new(0).contains_index(1));
        assert!(!KeyTable::new(17).contains_index(1 << 17));
        assert!(KeyTable::new(32).contains_index(u32::MAX));
    }
}
