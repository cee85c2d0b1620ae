//! Multicast group table: its entries, and the hash that selects a group's bucket.
//!
//! # Spec
//! mthca interface, sections 3.5 (MGID_HASH) and 6.7.

use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ids::Qpn;

/// Length of a GID in bytes.
pub const GID_LEN: usize = 16;

const MAX_QPS: usize = 56;

/// An entry in the multicast table, as written by the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mgm([u8; Self::LEN]);

impl Mgm {
    /// Length of an entry in bytes.
    pub const LEN: usize = 0x100;
    /// An entry that the driver has not written.
    pub const EMPTY: Self = Self([0; Self::LEN]);

    /// Creates an entry from the bytes that the driver wrote.
    pub const fn new(bytes: [u8; Self::LEN]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes of the entry.
    pub const fn bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }

    /// Returns the index of the next entry in the hash chain, or `None` at the end of the chain.
    pub fn next(&self) -> Option<u32> {
        Some(self.raw().next.get() >> 6).filter(|index| *index != 0)
    }

    /// Returns the GID of the group, or all zeros for an unused entry.
    pub fn gid(&self) -> [u8; GID_LEN] {
        self.raw().gid
    }

    /// Returns the numbers of the attached QPs.
    pub fn qpns(&self) -> impl Iterator<Item = Qpn> {
        const VALID: u32 = 1 << 31;
        let words = self.raw().qpns;
        words.into_iter().map(U32::get).filter(|word| word & VALID != 0).map(Qpn::new)
    }

    fn raw(&self) -> Raw {
        zerocopy::transmute!(self.0)
    }
}

/// Returns a group's hash bucket: a number below `buckets`, or 0 if `buckets` is 0.
pub fn hash(gid: &[u8; GID_LEN], buckets: u16) -> u16 {
    let words: [U16; GID_LEN / 2] = zerocopy::transmute!(*gid);
    let folded = words.into_iter().fold(0, |folded, word| folded ^ word.get());
    folded.checked_rem(buckets).unwrap_or(0)
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    next: U32,
    reserved_04: [u8; 12],
    gid: [u8; GID_LEN],
    qpns: [U32; MAX_QPS],
}

const _: () = assert!(size_of::<Raw>() == Mgm::LEN);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multicast_entry_contains_link_gid_and_qpns() {
        let mut bytes = [0; Mgm::LEN];
        // With 4096 hash buckets, index 4096 is the first overflow entry.
        bytes[..4].copy_from_slice(&[0x00, 0x04, 0x00, 0x00]);
        bytes[0x10..0x12].copy_from_slice(&[0xff, 0x12]);
        bytes[0x20..0x2c].copy_from_slice(&[0x80, 0, 0, 0x14, 0x80, 1, 0, 0x15, 0x00, 0, 0, 0x16]);
        let entry = Mgm::new(bytes);
        assert_eq!(entry.next(), Some(4096));
        assert_eq!(entry.gid()[..2], [0xff, 0x12]);
        assert_eq!(entry.qpns().collect::<Vec<_>>(), [Qpn::new(0x14), Qpn::new(0x1_0015)]);
        assert_eq!((Mgm::EMPTY.next(), Mgm::EMPTY.qpns().count()), (None, 0));
    }

    #[test]
    fn multicast_hash_is_below_bucket_count() {
        let broadcast = [0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];
        let folded = 0xff12 ^ 0x401b ^ 0xffff ^ 0xffff ^ 0xffff;
        assert_eq!(hash(&broadcast, 4096), folded & 0xfff);
        assert_eq!(hash(&broadcast, 0), 0);
        assert_eq!(hash(&[0; 16], 4096), 0);
    }
}
