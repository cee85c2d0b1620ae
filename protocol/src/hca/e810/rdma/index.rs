//! Indices of RDMA objects.
//!
//! # Spec
//! E810 interface, sections 11.1, 13.2 and 13.6.

use std::fmt;

use crate::describe::{Field, Value, Visitor};
use crate::ids::id;
use crate::layout;

id! {
    /// Index of a physical buffer list entry (PBLE), 28 bits.
    pub struct PbleIndex(u32, mask 0xfff_ffff, "pble");
}
id! {
    /// Index of an ARP table entry.
    pub struct ArpIndex(u16, mask u16::MAX, "arp");
}
id! {
    /// Index of an address handle, 24 bits.
    pub struct AhIndex(u32, mask 0xff_ffff, "ah");
}

impl PbleIndex {
    /// Returns the index plus `count`, or `None` if the sum exceeds 28 bits.
    pub fn checked_add(self, count: u64) -> Option<Self> {
        let index = u32::try_from(u64::from(self.0).checked_add(count)?).ok()?;
        (Self::new(index).0 == index).then_some(Self(index))
    }
}
