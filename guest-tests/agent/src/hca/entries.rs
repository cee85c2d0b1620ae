//! Rings of entries that the device writes: completions and events. An entry's owner byte shows whether the device or
//! software owns it.

use super::mr::Region;
use crate::vfio::Arena;

/// Size of an entry in bytes.
pub(crate) const ENTRY: usize = 32;
/// Offset of the owner byte within an entry.
const OWNER: usize = 0x1f;
const OWNED_BY_DEVICE: u8 = 0x80;

#[derive(Debug)]
pub(crate) struct EntryRing {
    pub(crate) region: Region,
    log_entries: u8,
    consumed: u32,
}

impl EntryRing {
    pub(crate) const fn new(region: Region, log_entries: u8) -> Self {
        Self { region, log_entries, consumed: 0 }
    }

    /// Passes ownership of all entries in a region to the device.
    pub(crate) fn hand_over(region: &Region, arena: &Arena) {
        for entry in (0..region.len()).step_by(ENTRY) {
            region.set(arena, entry..entry + ENTRY, OWNED_BY_DEVICE);
        }
    }

    /// Reads the next entry if the device has written it, and gives its slot back to the device.
    pub(crate) fn take(&mut self, arena: &Arena) -> Option<[u8; ENTRY]> {
        let slot = self.consumed & ((1 << self.log_entries) - 1);
        // One `locate` is enough: the entry size divides the page size, and the ring starts at a page boundary.
        let at = self.region.locate(slot as usize * ENTRY);
        if arena.observe_byte(at + OWNER) & OWNED_BY_DEVICE != 0 {
            return None;
        }
        let mut raw = [0; ENTRY];
        arena.read(at, &mut raw);
        arena.publish_byte(at + OWNER, OWNED_BY_DEVICE);
        self.consumed = self.consumed.wrapping_add(1);
        Some(raw)
    }
}
