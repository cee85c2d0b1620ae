//! Dynamic device personalization (DDP) packages, and the admin commands that download (0C40), update (0C42) and query
//! (0C43) them.
//!
//! # Spec
//! E810 interface, section 7.

use crate::layout;

/// Length of a package name in bytes.
pub const NAME_LEN: usize = 28;

layout! {
    /// Parameters of "download package" and "update package".
    pub struct Download[16] {
        /// Set for the last buffer of the package.
        @0[0]  last: bool,
        /// Response: offset of the error.
        @4     error_offset: u32,
        /// Response: type of the error.
        @8     error_info: u32,
    }
}

layout! {
    /// Header of a package buffer.
    pub struct BufferHeader[4] {
        @0   sections: u16,
        /// End offset of the data.
        @2   data_end: u16,
    }
}

layout! {
    /// Descriptor of a section. The descriptors follow the buffer header.
    pub struct Section[8] {
        @0   kind: u32 => Hex,
        /// Offset of the section in the buffer.
        @4   offset: u16,
        /// Length of the section in bytes.
        @6   len: u16,
    }
}

/// Type of the metadata section.
pub const METADATA: u32 = 1;

layout! {
    /// Metadata section, which contains the package name.
    pub struct Metadata[36] {
        /// Version: major, minor, update, draft.
        @0   version: [u8; 4],
        /// Package name, padded with NUL.
        @4   name: [u8; NAME_LEN],
        @32  track_id: u32 => Hex,
    }
}

layout! {
    /// Header of the "get package info" response.
    pub struct PackageCount[4] {
        /// Number of [`PackageInfo`] entries.
        @0   count: u32,
    }
}

layout! {
    /// Entry in the "get package info" response.
    pub struct PackageInfo[40] {
        /// Version: major, minor, update, draft.
        @0   version: [u8; 4],
        /// Package name, padded with NUL.
        @4   name: [u8; NAME_LEN],
        @32  track_id: u32 => Hex,
        /// Whether the package is stored in the NVM.
        @36[0]  in_nvm: bool,
        /// Whether the package is active.
        @37[0]  active: bool,
        /// Whether the package was active at boot.
        @38[0]  active_at_boot: bool,
        /// Whether the package has been modified.
        @39[0]  modified: bool,
    }
}

impl Metadata {
    /// Returns the first metadata section of a buffer.
    pub fn find(buffer: &[u8]) -> Option<Self> {
        let (_, metadata) = sections(buffer).find(|(kind, _)| *kind == METADATA)?;
        Self::parse_prefix(metadata)
    }
}

/// Returns the type and data of each section in a buffer. Skips sections that extend past the buffer.
pub fn sections(buffer: &[u8]) -> impl Iterator<Item = (u32, &[u8])> {
    let count = BufferHeader::parse_prefix(buffer).map_or(0, |header| header.sections);
    let (table, _) = buffer.get(BufferHeader::LEN..).unwrap_or_default().as_chunks();
    table.iter().take(count.into()).map(Section::parse).filter_map(|Section { kind, offset, len }| {
        let first = usize::from(offset);
        Some((kind, buffer.get(first..first + usize::from(len))?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Start of the 0C40 buffer recorded in `probe-synth-fd.aq.gz`. The rest of the buffer is zero.
    const BUFFER: [u8; 48] = [
        1, 0, 0x30, 0, 1, 0, 0, 0, 0x0c, 0, 0x24, 0, 1, 3, 0, 0, //
        0x68, 0x63, 0x61, 0x64, 0x20, 0x73, 0x79, 0x6e, 0x74, 0x68, 0x65, 0x74, 0x69, 0x63, 0, 0, //
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    /// Entry from the next 0C43 response in the same recording.
    const ENTRY: [u8; 40] = [
        1, 3, 0, 0, 0x68, 0x63, 0x61, 0x64, 0x20, 0x73, 0x79, 0x6e, 0x74, 0x68, 0x65, 0x74, //
        0x69, 0x63, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x01, 0, 0, 0xc0, 0, 1, 0, 0,
    ];

    #[test]
    fn find_returns_package_name_and_version() {
        let metadata = Metadata::find(&BUFFER).unwrap();
        assert_eq!(metadata.version, [1, 3, 0, 0]);
        assert_eq!(&metadata.name[..15], b"hcad synthetic\0");
    }

    #[test]
    fn find_ignores_sections_outside_buffer() {
        for cut in 0..BUFFER.len() {
            assert_eq!(Metadata::find(&BUFFER[..cut]), None, "{cut}");
        }
        let mut elsewhere = BUFFER;
        elsewhere[8] = 13;
        assert_eq!(Metadata::find(&elsewhere), None);
        let mut other = BUFFER;
        other[4] = 2;
        assert_eq!(Metadata::find(&other), None);
    }

    #[test]
    fn package_info_matches_recorded_bytes() {
        let metadata = Metadata::find(&BUFFER).unwrap();
        let Metadata { version, name, .. } = metadata;
        let entry =
            PackageInfo { version, name, track_id: 0xc000_0001, active: true, ..PackageInfo::default() };
        assert_eq!(entry.emit(), ENTRY);
    }
}
