//! Strided translation lists: repetitions of a pattern of ranges. libmlx5 calls them interleaved layouts.
//!
//! A KLM list is strided if the key of its first entry is [`REPEAT_KEY`]. This entry is then a [`RepeatBlock`], and the
//! entries after it are [`StridedEntry`]s:
//!
//! ```text
//! | repeat block | entry | entry | ... |
//! ```
//!
//! The region consists of all ranges in order, then all ranges again, each advanced by its stride, and so on. For
//! example, two ranges of 8 bytes with strides of 10 bytes describe the first 8 of every 10 bytes at two addresses,
//! alternating between the two.
//!
//! # Spec
//! mlx5 interface, section 13.2.

use super::mkey::{Klm, UNIT};
use crate::describe::{Describe, Field as _, Visitor};
use crate::ids::Va;
use crate::layout;

/// Value of [`RepeatBlock::key`]. The device reserves the lowest key indices, so this is never a region's key.
pub const REPEAT_KEY: u32 = 0x400;

layout! {
    /// Header of a strided list. It occupies the first entry of a KLM list.
    pub struct RepeatBlock[16] big_endian {
        /// Number of bytes in one repetition: the sum of all entries' byte counts.
        @0x00        byte_count: u32,
        /// [`REPEAT_KEY`] in every strided list. In a KLM, this offset holds the key.
        @0x04        key: u32 => Hex,
        @0x08        repetitions: u32,
        /// Number of entries that follow the header.
        @0x0c[15:0]  entries: u16,
    }
}

layout! {
    /// Entry of a strided list: a range in the address space of another key.
    pub struct StridedEntry[16] big_endian {
        /// Distance in bytes between successive repetitions of the range.
        @0x00[31:16]  stride: u16,
        /// Length of the range in bytes. Unlike in a KLM, 0 means an empty range.
        @0x00[15:0]   byte_count: u16,
        /// Key whose address space contains the range.
        @0x04         key: u32 => Hex,
        /// First address of the range in the first repetition.
        @0x08         va: Va,
    }
}

impl RepeatBlock {
    /// Interprets the first entry of a KLM list. Returns `None` if the list is not strided.
    pub fn of(first: &Klm) -> Option<Self> {
        (first.key == REPEAT_KEY).then(|| Self::parse(&first.emit()))
    }
}

impl StridedEntry {
    /// Interprets an entry that follows a [`RepeatBlock`] in a KLM list.
    pub fn of(entry: &Klm) -> Self {
        Self::parse(&entry.emit())
    }
}

/// A strided list in wire format. It can be shorter than its header states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StridedList<'a> {
    /// First entry of the list.
    pub header: RepeatBlock,
    rest: &'a [u8],
}

impl<'a> StridedList<'a> {
    /// Interprets a translation list. Returns `None` if the list is not strided. In a list of page addresses, the
    /// key's position holds the low half of a page address. Page addresses are aligned and [`REPEAT_KEY`] is not, so
    /// such a list is never mistaken for a strided list.
    pub fn parse(list: &'a [u8]) -> Option<Self> {
        let (header, rest) = list.split_first_chunk()?;
        let header = RepeatBlock::parse(header);
        (header.key == REPEAT_KEY).then_some(Self { header, rest })
    }

    /// Returns the entries after the header. A truncated list yields fewer than the header states.
    pub fn entries(&self) -> impl Iterator<Item = StridedEntry> + use<'a> {
        let (units, _) = self.rest.as_chunks::<UNIT>();
        units.iter().take(self.header.entries.into()).map(StridedEntry::parse)
    }
}

impl Describe for StridedList<'_> {
    fn describe(&self, to: &mut dyn Visitor) {
        self.header.byte_count.show("byte_count", to);
        self.header.repetitions.show("repetitions", to);
        let entries: Vec<StridedEntry> = self.entries().collect();
        to.objects("entries", &mut entries.iter().map(|entry| entry as &dyn Describe));
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::words;
    use super::*;

    /// Header and entries that libmlx5 writes for three repetitions of two 8-byte ranges, each followed by a 2-byte
    /// gap.
    fn list() -> Vec<u8> {
        let header: [u8; 16] = words(&[(0x0, 16), (0x4, 0x400), (0x8, 3), (0xc, 2)]);
        let entry = |va| -> [u8; 16] { words(&[(0x0, 0x000a_0008), (0x4, 0xb04), (0x8, 0x5567), (0xc, va)]) };
        [header, entry(0xbe5f_6000), entry(0xbe5f_6040), [0; 16]].concat()
    }

    #[test]
    fn strided_list_fields_are_at_specified_offsets() {
        let bytes = list();
        let strided = StridedList::parse(&bytes).unwrap();
        let header = RepeatBlock { byte_count: 16, key: REPEAT_KEY, repetitions: 3, entries: 2 };
        assert_eq!(strided.header, header);
        assert_eq!(header.emit(), bytes[..16]);
        let entry = StridedEntry { stride: 10, byte_count: 8, key: 0xb04, va: Va::new(0x5567_be5f_6000) };
        let second = StridedEntry { va: Va::new(0x5567_be5f_6040), ..entry };
        assert_eq!(strided.entries().collect::<Vec<_>>(), [entry, second]);
        assert_eq!(entry.emit(), bytes[16..32]);
    }

    #[test]
    fn first_key_determines_whether_list_is_strided() {
        let bytes = list();
        let (units, _) = bytes.as_chunks::<UNIT>();
        let klms: Vec<Klm> = units.iter().map(Klm::parse).collect();
        assert_eq!(RepeatBlock::of(&klms[0]).map(|header| header.repetitions), Some(3));
        assert_eq!(RepeatBlock::of(&klms[1]), None);
        assert_eq!(StridedEntry::of(&klms[1]).stride, 10);
        assert_eq!(StridedList::parse(&bytes[16..]), None);
        assert_eq!(StridedList::parse(&bytes[..15]), None);
    }

    #[test]
    fn truncated_strided_list_has_fewer_entries() {
        let bytes = list();
        let entries = |len: usize| StridedList::parse(&bytes[..len]).unwrap().entries().count();
        assert_eq!([entries(64), entries(48), entries(47), entries(16)], [2, 2, 1, 0]);
    }
}
