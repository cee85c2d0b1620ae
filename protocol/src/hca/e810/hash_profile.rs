//! Receive hash profiles. A profile selects which words of a frame are hashed. Profiles come from package sections and
//! "update package" commands (0C42).
//!
//! A frame's packet type selects one group, and its VSI selects another. A lookup table (TCAM) maps the two groups to
//! a profile, a list of words.
//!
//! # Spec
//! E810 interface, section 6.3.

use crate::layout;

/// Section type: the one-byte group of each packet type.
pub const PACKET_GROUPS: u32 = 0x2a;
/// Section type: the two-byte group of each VSI.
pub const VSI_GROUPS: u32 = 0x2b;
/// Section type: entries of the lookup table; see [`TableEntry`].
pub const TABLE: u32 = 0x2c;
/// Section type: the words of each profile.
pub const WORDS: u32 = 0x2e;

/// Number of words in a profile. The last word is hashed first.
pub const PROFILE_WORDS: usize = 24;

layout! {
    /// Header of a section with consecutive table entries, such as [`WORDS`]. In a [`TABLE`] section, the header is
    /// just the 16-bit count.
    pub struct TableHeader[4] {
        @0  count: u16,
        /// Index of the first entry.
        @2  first: u16,
    }
}

layout! {
    /// Entry of the lookup table, which maps a [`LookupKey`] to a profile.
    pub struct TableEntry[13] {
        /// Position in the table. The first matching entry applies.
        @0   place: u16,
        /// Each set bit allows the corresponding key bit to be 0.
        @2   zeros: [u8; 5] => _,
        /// Each set bit allows the corresponding key bit to be 1.
        @7   ones: [u8; 5] => _,
        @12  profile: u8,
    }
}

layout! {
    /// Key that the device looks up in the table.
    pub struct LookupKey[5] {
        /// Parser flags; always 0 on this device.
        @0  flags: u16 => Hex,
        /// Group of the packet type.
        @2  packet_group: u8,
        /// Group of the VSI.
        @3  vsi_group: u16,
    }
}

layout! {
    /// A 16-bit word of a frame.
    pub struct Word[4] {
        /// Header that contains the word; see [`header`].
        @0  header: u8 => Hex,
        /// Offset of the word in the header, in bytes.
        @1  offset: u16,
    }
}

/// Header codes of a [`Word`].
#[allow(missing_docs)]
pub mod header {
    /// IPv4 header, if the frame has only one.
    pub const IPV4: u8 = 0x20;
    /// IPv6 header, if the frame has only one.
    pub const IPV6: u8 = 0x28;
    pub const TCP: u8 = 0x31;
    /// UDP header, if the frame has only one.
    pub const UDP: u8 = 0x35;
    pub const SCTP: u8 = 0x60;
    /// No header: the word is zero.
    pub const NONE: u8 = 0xff;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hca::e810::package::sections;

    /// Uses the buffer of command 0C42 for UDP over IPv6, as recorded in `run73-vlan.aq.gz`.
    #[test]
    fn parses_recorded_profile() {
        let mut buffer = vec![3, 0, 159, 0];
        for (kind, offset, len) in [(WORDS, 28_u16, 100_u16), (TABLE, 128, 15), (TABLE, 143, 15)] {
            buffer.extend(kind.to_le_bytes());
            buffer.extend([offset.to_le_bytes(), len.to_le_bytes()].as_flattened());
        }
        buffer.extend([1, 0, 49, 0]);
        buffer.extend([0xff, 0xff, 0x01, 0x00].repeat(6));
        buffer.extend([0x35, 2, 0, 0, 0x35, 0, 0, 0]);
        buffer.extend((8..=38_u8).rev().step_by(2).flat_map(|offset| [0x28, offset, 0, 0]));
        let entry =
            |place, zeros: [u8; 5], ones: [u8; 5]| [&[1, 0, place, 0][..], &zeros, &ones, &[49]].concat();
        buffer.extend(entry(51, [0xff, 0xff, 0xff, 0xfe, 0xff], [0xff, 0xff, 0x00, 0x01, 0x00]));
        buffer.extend(entry(50, [0xff, 0xff, 0xf8, 0xfe, 0xff], [0xff, 0xff, 0x07, 0x01, 0x00]));

        let found: Vec<_> = sections(&buffer).collect();
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
