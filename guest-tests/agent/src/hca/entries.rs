//! Rings of entries that the device writes: completions and events. The owner byte of an entry hands it over.

use super::mr::Region;
use crate::vfio::Arena;

/// Bytes of an entry.
pub(crate) const ENTRY: usize = 32;
/// Offset of the owner byte.
const OWNER: usize = 0x1f;
const OWNED_BY_DEVICE: u8 = 0x80;

/// A ring, and how far it has been read.
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

    /// Gives all entries of a region to the device.
    pub(crate) fn hand_over(region: &Region, arena: &Arena) {
        for entry in (0..region.len()).step_by(ENTRY) {
            region.set(arena, entry..entry + ENTRY, OWNED_BY_DEVICE);
        }
    }

    /// Takes the next entry, if the device has written it, and gives its place back.
    pub(crate) fn take(&mut self, arena: &Arena) -> Option<[u8; ENTRY]> {
        let slot = self.consumed & ((1 << self.log_entries) - 1);
        // Entries never cross a page: both are powers of two and the ring starts at a page.
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
