//! Which words of a frame the receive hash covers: sections of a package and of "update package" (0C42).
//!
//! The packet type of a frame and the VSI that takes it give a group each; a table of ternary keys makes a profile of both;
//! a profile is a list of words.
//!
//! # Spec
//! E810 interface, section 6.3.

use crate::layout;

/// Kind of the section with the groups of packet types, a byte each.
pub const PACKET_GROUPS: u32 = 0x2a;
/// Kind of the section with the groups of VSIs, two bytes each.
pub const VSI_GROUPS: u32 = 0x2b;
/// Kind of the section with [`TableEntry`]s.
pub const TABLE: u32 = 0x2c;
/// Kind of the section with the words of profiles.
pub const WORDS: u32 = 0x2e;

/// Words of a profile. The last is the first to be hashed.
pub const PROFILE_WORDS: usize = 24;

layout! {
    /// In front of entries that follow each other in their table.
    pub struct TableHeader[4] {
        /// Entries that follow.
        @0  count: u16,
        /// Number of the first of them.
        @2  first: u16,
    }
}

layout! {
    /// An entry of the table that chooses a profile, behind their count.
    pub struct TableEntry[13] {
        /// Its place; the first that matches holds.
        @0   place: u16,
        /// Bits that may be zero.
        @2   zeros: [u8; 5] => _,
        /// Bits that may be one.
        @7   ones: [u8; 5] => _,
        /// The profile.
        @12  profile: u8,
    }
}

layout! {
    /// What a [`TableEntry`] is compared with.
    pub struct LookupKey[5] {
        /// Flags of the parser; this device has none.
        @0  flags: u16 => Hex,
        /// Group of the packet type.
        @2  packet_group: u8,
        /// Group of the VSI.
        @3  vsi_group: u16,
    }
}

layout! {
    /// A word of a frame.
    pub struct Word[4] {
        /// Header that it is in.
        @0  header: u8 => Hex,
        /// Its place there, bytes.
        @1  offset: u16,
    }
}

/// Headers of a [`Word`].
pub mod header {
    /// IPv4, if there is but one.
    pub const IPV4: u8 = 0x20;
    /// IPv6, if there is but one.
    pub const IPV6: u8 = 0x28;
    /// TCP.
    pub const TCP: u8 = 0x31;
    /// UDP, if there is but one.
    pub const UDP: u8 = 0x35;
    /// SCTP.
    pub const SCTP: u8 = 0x60;
    /// None: the word counts as zero.
    pub const NONE: u8 = 0xff;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hca::e810::package::sections;

    /// 0C42 of `run73-vlan.aq.gz` for UDP over IPv6, with the words that mean nothing left out of the middle.
    #[test]
    fn a_profile_is_read_as_recorded() {
        let mut piece = vec![3, 0, 159, 0];
        for (kind, offset, len) in [(WORDS, 28_u16, 100_u16), (TABLE, 128, 15), (TABLE, 143, 15)] {
            piece.extend(kind.to_le_bytes());
            piece.extend([offset.to_le_bytes(), len.to_le_bytes()].as_flattened());
        }
        piece.extend([1, 0, 49, 0]);
        piece.extend([0xff, 0xff, 0x01, 0x00].repeat(6));
        piece.extend([0x35, 2, 0, 0, 0x35, 0, 0, 0]);
        piece.extend((8..=38_u8).rev().step_by(2).flat_map(|offset| [0x28, offset, 0, 0]));
        let entry =
            |place, zeros: [u8; 5], ones: [u8; 5]| [&[1, 0, place, 0][..], &zeros, &ones, &[49]].concat();
        piece.extend(entry(51, [0xff, 0xff, 0xff, 0xfe, 0xff], [0xff, 0xff, 0x00, 0x01, 0x00]));
        piece.extend(entry(50, [0xff, 0xff, 0xf8, 0xfe, 0xff], [0xff, 0xff, 0x07, 0x01, 0x00]));

        let found: Vec<_> = sections(&piece).collect();
        assert_eq!(found.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), [WORDS, TABLE, TABLE]);
        let header = TableHeader::parse_prefix(found[0].1).unwrap();
        assert_eq!(header, TableHeader { count: 1, first: 49 });
        let (words, _) = found[0].1[TableHeader::LEN..].as_chunks();
        assert_eq!(words.len(), PROFILE_WORDS);
        assert_eq!(Word::parse(&words[0]).header, header::NONE);
        assert_eq!(Word::parse(&words[23]), Word { header: header::IPV6, offset: 8 });
        assert_eq!(Word::parse(&words[7]), Word { header: header::UDP, offset: 0 });
        let entry = TableEntry::parse_prefix(&found[2].1[2..]).unwrap();
        assert_eq!((entry.place, entry.profile), (50, 49));
        let key = LookupKey { flags: 0, packet_group: 7, vsi_group: 1 }.emit();
        for ((bits, zeros), ones) in key.into_iter().zip(entry.zeros).zip(entry.ones) {
            assert_eq!((bits | zeros, !bits | ones), (0xff, 0xff));
        }
    }
}
