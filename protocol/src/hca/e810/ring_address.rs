//! Where a ring of descriptors is, as the contexts of its queue say it.

use crate::describe::{Field, Visitor};
use crate::ids::Iova;

/// Units in which contexts count, bytes as a power of two.
const UNIT_SHIFT: u32 = 7;

/// Where a ring begins: a multiple of 128 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingAddress(Iova);

impl RingAddress {
    /// The last such place that is not behind `first`.
    pub const fn new(first: Iova) -> Self {
        Self(Iova::new(first.get() >> UNIT_SHIFT << UNIT_SHIFT))
    }

    /// First byte of the ring.
    pub const fn first(self) -> Iova {
        self.0
    }

    /// Address of an entry of `len` bytes. The address space may end before the ring does.
    pub const fn entry(self, index: u16, len: usize) -> Iova {
        Iova::new(self.0.get().wrapping_add(index as u64 * len as u64))
    }
}

/// From units of 128 bytes.
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
