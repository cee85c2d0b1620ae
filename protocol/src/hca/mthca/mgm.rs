//! The multicast table: entries, and the hash that finds the first of a group.
//!
//! # Spec
//! mthca interface, sections 3.5 (MGID_HASH) and 6.7.

use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ids::Qpn;

/// Bytes of a GID.
pub const GID_LEN: usize = 16;

/// QPs of an entry.
const MAX_QPS: usize = 56;

/// An entry of the multicast table, as software wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mgm([u8; Self::LEN]);

impl Mgm {
    /// Bytes of an entry.
    pub const LEN: usize = 0x100;
    /// An entry that was never written.
    pub const EMPTY: Self = Self([0; Self::LEN]);

    /// Takes what software writes.
    pub const fn new(bytes: [u8; Self::LEN]) -> Self {
        Self(bytes)
    }

    /// What software reads back.
    pub const fn bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }

    /// Index of the next entry of the hash chain; `None` at its end.
    pub fn next(&self) -> Option<u32> {
        Some(self.raw().next.get() >> 6).filter(|index| *index != 0)
    }

    /// The group; all zero in an entry without one.
    pub fn gid(&self) -> [u8; GID_LEN] {
        self.raw().gid
    }

    /// The QPs attached.
    pub fn qpns(&self) -> impl Iterator<Item = Qpn> {
        const VALID: u32 = 1 << 31;
        let words = self.raw().qpns;
        words.into_iter().map(U32::get).filter(|word| word & VALID != 0).map(Qpn::new)
    }

    fn raw(&self) -> Raw {
        zerocopy::transmute!(self.0)
    }
}

/// Number of a group's hash bucket.
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
    fn an_entry_names_its_successor_its_group_and_its_qps() {
        let mut bytes = [0; Mgm::LEN];
        // Index 4096, the first that is no bucket.
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
    fn buckets_are_inside_the_table() {
        let broadcast = [0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];
        let folded = 0xff12 ^ 0x401b ^ 0xffff ^ 0xffff ^ 0xffff;
        assert_eq!(hash(&broadcast, 4096), folded & 0xfff);
        assert_eq!(hash(&broadcast, 0), 0);
        assert_eq!(hash(&[0; 16], 4096), 0);
    }
}
