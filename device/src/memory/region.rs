//! Memory regions: what a key stands for, and what it permits.

use engine::{Access, AccessError};
pub use engine::{PageShift, Rights};
use protocol::ids::{Lkey, Pdn, Va};

/// How a region's bytes are found on the bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Translation {
    /// The region's addresses are bus addresses.
    Physical,
    /// Page after page through a page table.
    Paged {
        /// Size of every page.
        page_shift: PageShift,
        /// Page table entry of the page that contains the region's start.
        first_entry: u64,
    },
}

/// What the address of an access counts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Address 0: addresses run from the region's `start`.
    Zero,
    /// The region's first byte.
    Start,
}

/// A range of memory under a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRegion {
    /// The whole key; its low bits are the index in the key table.
    pub key: Lkey,
    /// Protection domain.
    pub pd: Pdn,
    /// First address. Need not be page aligned.
    pub start: Va,
    /// Bytes.
    pub len: u64,
    /// What addresses in requests count from.
    pub origin: Origin,
    /// What is permitted.
    pub rights: Rights,
    /// Where the bytes are.
    pub translation: Translation,
}

impl MemoryRegion {
    /// Offset of `va` in the region if an accessor of `pd` may do `access` to `len` bytes there. The checks come in
    /// the order PD, right, bounds; `len` 0 needs the first two only.
    ///
    /// # Errors
    /// The first check that fails.
    pub fn grant(
        &self,
        pd: Pdn,
        va: Va,
        origin: Origin,
        len: u64,
        access: Access,
    ) -> Result<u64, AccessError> {
        if self.pd != pd {
            return Err(AccessError::Pd);
        }
        if !self.rights.permit(access) {
            return Err(AccessError::Right);
        }
        self.offset(va, origin, len)
    }

    fn offset(&self, va: Va, origin: Origin, len: u64) -> Result<u64, AccessError> {
        let offset = match (origin, self.origin) {
            (Origin::Start, _) | (_, Origin::Start) => Some(va.get()),
            (Origin::Zero, Origin::Zero) => va.get().checked_sub(self.start.get()),
        };
        match offset {
            Some(offset) if offset <= self.len && len <= self.len - offset => Ok(offset),
            _ => Err(AccessError::Bounds),
        }
    }
}
