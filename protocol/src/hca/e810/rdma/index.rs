//! Numbers by which one object of the RDMA half names another.
//!
//! # Spec
//! E810 interface, sections 11.1, 13.2 and 13.6.

use std::fmt;

use crate::describe::{Field, Value, Visitor};
use crate::ids::id;
use crate::layout;

id! {
    /// Entry of the array of PBLEs, 28 bits.
    pub struct PbleIndex(u32, mask 0xfff_ffff, "pble");
}
id! {
    /// Entry of the ARP table.
    pub struct ArpIndex(u16, mask u16::MAX, "arp");
}
id! {
    /// Number of an address handle, 24 bits.
    pub struct AhIndex(u32, mask 0xff_ffff, "ah");
}

impl PbleIndex {
    /// The entry `count` further on; `None` past the last that can be named.
    pub fn checked_add(self, count: u64) -> Option<Self> {
        let index = u32::try_from(u64::from(self.0).checked_add(count)?).ok()?;
        (Self::new(index).0 == index).then_some(Self(index))
    }
}
