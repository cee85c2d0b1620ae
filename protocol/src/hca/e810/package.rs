//! The package that configures the device's parser, and what says which one is loaded: 0C40, 0C42, 0C43.
//!
//! # Spec
//! E810 interface, section 7.

use crate::layout;

/// Bytes of a name.
pub const NAME_LEN: usize = 28;

layout! {
    /// "Download package" and "update package".
    pub struct Download[16] {
        /// No other piece follows.
        @0[0]  last: bool,
        /// In an answer: where an error is.
        @4     error_offset: u32,
        /// In an answer: what it is.
        @8     error_info: u32,
    }
}

layout! {
    /// Head of a piece of a package.
    pub struct BufferHeader[4] {
        /// Sections in it.
        @0   sections: u16,
        /// Where its data end.
        @2   data_end: u16,
    }
}

layout! {
    /// One of the sections of a piece, behind its head.
    pub struct Section[8] {
        /// What is in it.
        @0   kind: u32 => Hex,
        /// Where it begins in the piece.
        @4   offset: u16,
        /// Bytes of it.
        @6   len: u16,
    }
}

/// Kind of the section that names the package.
pub const METADATA: u32 = 1;

layout! {
    /// The section that names the package.
    pub struct Metadata[36] {
        /// Major, minor, update, draft.
        @0   version: [u8; 4],
        /// Name, padded with NUL.
        @4   name: [u8; NAME_LEN],
        /// Track.
        @32  track_id: u32 => Hex,
    }
}

layout! {
    /// Head of the answer of "get package info".
    pub struct PackageCount[4] {
        /// Entries that follow.
        @0   count: u32,
    }
}

layout! {
    /// One entry of it.
    pub struct PackageInfo[40] {
        /// Major, minor, update, draft.
        @0   version: [u8; 4],
        /// Name, padded with NUL.
        @4   name: [u8; NAME_LEN],
        /// Track.
        @32  track_id: u32 => Hex,
        /// It is in the flash.
        @36[0]  in_nvm: bool,
        /// It holds.
        @37[0]  active: bool,
        /// It held when the device began.
        @38[0]  active_at_boot: bool,
        /// It was changed.
        @39[0]  modified: bool,
    }
}

impl Metadata {
    /// The first section of a piece that names a package; `None` if there is none.
    pub fn find(piece: &[u8]) -> Option<Self> {
        let (_, metadata) = sections(piece).find(|(kind, _)| *kind == METADATA)?;
        Self::parse_prefix(metadata)
    }
}

/// Kinds and contents of the sections of a piece, but for those that are not inside of it.
pub fn sections(piece: &[u8]) -> impl Iterator<Item = (u32, &[u8])> {
    let count = BufferHeader::parse_prefix(piece).map_or(0, |header| header.sections);
    let (table, _) = piece.get(BufferHeader::LEN..).unwrap_or_default().as_chunks();
    table.iter().take(count.into()).map(Section::parse).filter_map(|Section { kind, offset, len }| {
        let first = usize::from(offset);
        Some((kind, piece.get(first..first + usize::from(len))?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 0C40 of `probe-synth-fd.aq.gz`, as far as it is not zero.
    const PIECE: [u8; 48] = [
        1, 0, 0x30, 0, 1, 0, 0, 0, 0x0c, 0, 0x24, 0, 1, 3, 0, 0, //
        0x68, 0x63, 0x61, 0x64, 0x20, 0x73, 0x79, 0x6e, 0x74, 0x68, 0x65, 0x74, 0x69, 0x63, 0, 0, //
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    /// 0C43 of it after that, without the count.
    const ENTRY: [u8; 40] = [
        1, 3, 0, 0, 0x68, 0x63, 0x61, 0x64, 0x20, 0x73, 0x79, 0x6e, 0x74, 0x68, 0x65, 0x74, //
        0x69, 0x63, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x01, 0, 0, 0xc0, 0, 1, 0, 0,
    ];

    #[test]
    fn a_piece_names_its_package() {
        let metadata = Metadata::find(&PIECE).unwrap();
        assert_eq!(metadata.version, [1, 3, 0, 0]);
        assert_eq!(&metadata.name[..15], b"hcad synthetic\0");
    }

    #[test]
    fn a_piece_whose_sections_are_outside_of_it_names_none() {
        for cut in 0..PIECE.len() {
            assert_eq!(Metadata::find(&PIECE[..cut]), None, "{cut}");
        }
        let mut elsewhere = PIECE;
        elsewhere[8] = 13;
        assert_eq!(Metadata::find(&elsewhere), None);
        let mut other = PIECE;
        other[4] = 2;
        assert_eq!(Metadata::find(&other), None);
    }

    #[test]
    fn an_entry_is_as_recorded() {
        let metadata = Metadata::find(&PIECE).unwrap();
        let Metadata { version, name, .. } = metadata;
        let entry =
            PackageInfo { version, name, track_id: 0xc000_0001, active: true, ..PackageInfo::default() };
        assert_eq!(entry.emit(), ENTRY);
    }
}
