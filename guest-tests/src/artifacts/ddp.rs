//! DDP packages, which the driver `ice` loads into an E810 (E810 interface, section 7): without one it runs in safe mode,
//! with one queue.
//!
//! Debian's is not free, so it is fetched where the machine's archive has it, and nothing depends on it. The lab makes
//! one of its own, which has all that the driver asks of a package and programs no parser.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::apt::{Component, Suite};
use super::cache;
use super::debian::{IMAGE, debian, make_image};
use super::packages::Set;

/// Where the driver looks, below `/lib/firmware`.
pub const FOLDER: &str = "intel/ice/ddp";
/// Name and version of the lab's own, as the driver reports them.
pub const NAME: &str = "hcad synthetic package";
/// The same.
pub const VERSION: [u8; 4] = [1, 3, 0, 0];

/// Version of the file's format.
const FORMAT: [u8; 4] = [1, 0, 0, 0];
/// Version of a segment's format.
const SEGMENT_FORMAT: [u8; 4] = [1, 3, 0, 0];
/// A segment for the E810.
const SEGMENT_E810: u32 = 0x10;
/// What the segment calls itself.
const SEGMENT_ID: &str = "hcad";
/// Bytes of that field, and of a package's name.
const SEGMENT_ID_LEN: usize = 32;
const NAME_LEN: usize = 28;
/// A buffer, which the driver downloads as one.
const BUFFER_LEN: usize = 4096;
/// A section that tells version and name.
const SECTION_METADATA: u32 = 1;
/// Number of the vendor's tracking; the driver shows it to nobody.
const TRACK_ID: u32 = 0xc000_0001;

/// The lab's own package: one segment of one buffer of one section (section 7.3).
pub fn synthetic() -> Vec<u8> {
    let mut metadata = Vec::new();
    metadata.extend(VERSION);
    metadata.extend(text::<NAME_LEN>(NAME));
    metadata.extend(TRACK_ID.to_le_bytes());

    /// Section count, data end, and one entry of type, offset and size.
    const SECTIONS: u16 = 12;
    let metadata_len = u16::try_from(metadata.len()).expect("version, name and number are 36 bytes");
    let mut buffer = Vec::new();
    buffer.extend(1_u16.to_le_bytes());
    buffer.extend((SECTIONS + metadata_len).to_le_bytes());
    buffer.extend(SECTION_METADATA.to_le_bytes());
    buffer.extend(SECTIONS.to_le_bytes());
    buffer.extend(metadata_len.to_le_bytes());
    buffer.extend(metadata);
    buffer.resize(BUFFER_LEN, 0);

    /// Type, format, size and name of a segment, then the lengths of its three tables.
    const SEGMENT: usize = 12 + SEGMENT_ID_LEN + 12;
    let segment_len = u32::try_from(SEGMENT + BUFFER_LEN).expect("a package is some KiB");
    let mut package = Vec::new();
    package.extend(FORMAT);
    let (segments, first_segment) = (1_u32, 12_u32);
    package.extend(segments.to_le_bytes());
    package.extend(first_segment.to_le_bytes());
    package.extend(SEGMENT_E810.to_le_bytes());
    package.extend(SEGMENT_FORMAT);
    package.extend(segment_len.to_le_bytes());
    package.extend(text::<SEGMENT_ID_LEN>(SEGMENT_ID));
    let (devices, nvm_versions, buffers) = (0_u32, 0_u32, 1_u32);
    for count in [devices, nvm_versions, buffers] {
        package.extend(count.to_le_bytes());
    }
    package.extend(buffer);
    package
}

/// Text in a field that zeros fill.
fn text<const LEN: usize>(text: &str) -> [u8; LEN] {
    let mut field = [0; LEN];
    field[..text.len()].copy_from_slice(text.as_bytes());
    field
}

/// A disk with Debian's package as `ice.pkg`, made if it is not in the cache.
pub(super) fn of_debian(cache: &Path) -> Result<PathBuf> {
    let tools = debian(cache)?.join("root");
    let entry = cache::entry(cache, "ice-ddp-1", |work| {
        let set = Set {
            install: &["firmware-intel-misc"],
            suite: Suite::Trixie,
            component: Component::NonFreeFirmware,
            wanted: |name| name == "firmware-intel-misc",
        };
        let folder = set.fetch(work)?.join("usr/lib/firmware").join(FOLDER);
        let tree = work.scratch.join("tree");
        fs::create_dir_all(&tree)?;
        fs::copy(folder.join("ice.pkg"), tree.join("ice.pkg"))?;
        make_image(&tools, &tree, &work.entry.join(IMAGE))
    })?;
    Ok(entry.join(IMAGE))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Section 7.3, offset by offset.
    #[test]
    fn the_synthetic_package_is_as_the_driver_was_seen_to_take_it() {
        let package = synthetic();
        assert_eq!(package.len(), 4164);
        let u32_at = |at: usize| u32::from_le_bytes(package[at..at + 4].try_into().unwrap());
        let u16_at = |at: usize| u16::from_le_bytes(package[at..at + 2].try_into().unwrap());
        assert_eq!(package[..4], [1, 0, 0, 0]);
        assert_eq!([u32_at(4), u32_at(8)], [1, 12]);
        assert_eq!(u32_at(12), 0x10);
        assert_eq!(package[16..20], [1, 3, 0, 0]);
        assert_eq!(u32_at(20), 4152);
        assert_eq!([u32_at(56), u32_at(60), u32_at(64)], [0, 0, 1]);
        assert_eq!([u16_at(68), u16_at(70)], [1, 48]);
        assert_eq!([u32_at(72), u32::from(u16_at(76)), u32::from(u16_at(78))], [1, 12, 36]);
        assert_eq!(package[80..84], [1, 3, 0, 0]);
        assert_eq!(package[84..112], *b"hcad synthetic package\0\0\0\0\0\0");
        assert!(package[116..].iter().all(|&byte| byte == 0));
    }
}
