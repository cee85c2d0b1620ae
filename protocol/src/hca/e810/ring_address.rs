//! Base address of a descriptor ring, as stored in queue contexts.

use crate::describe::{Field, Visitor};
use crate::ids::Iova;

/// Queue contexts store ring addresses in units of 128 bytes.
const UNIT_SHIFT: u32 = 7;

/// Base address of a ring, a multiple of 128 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingAddress(Iova);

impl RingAddress {
    /// Creates a ring address from `first`, rounded down to a multiple of 128 bytes.
    pub const fn new(first: Iova) -> Self {
        Self(Iova::new(first.get() >> UNIT_SHIFT << UNIT_SHIFT))
    }

    /// Returns the address of the first entry.
    pub const fn first(self) -> Iova {
        self.0
    }

    /// Returns the address of entry `index` in a ring of `len`-byte entries. The result wraps around at the end of the
    /// address space.
    pub const fn entry(self, index: u16, len: usize) -> Iova {
        Iova::new(self.0.get().wrapping_add(index as u64 * len as u64))
    }
}

/// Converts a number of 128-byte units to an address.
impl From<u64> for RingAddress {
    fn from(units: u64) -> Self {
        Self(Iova::new(units << UNIT_SHIFT))
    }
}

impl From<RingAddress> for u64 {
    fn from(address: RingAddress) -> Self {
        address.0.get() >> UNIT_SHIFT
    }
}

impl Field for RingAddress {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        self.0.show(name, to);
    }
}
