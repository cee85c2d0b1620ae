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
/// Version that the driver reports for the package.
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
/// A section of the parser's entries for tunnels, and bytes of one.
const SECTION_TUNNELS: u32 = 56;
const TUNNEL_LEN: usize = 88;
/// A section of names, which stays with the driver, and bytes of one.
const SECTION_LABELS: u32 = 0x8000_0018;
const LABEL_LEN: usize = 64;
/// Names by which the driver knows entries of physical function 0, and their places.
const TUNNELS: [(&str, u16); 2] = [("TNL_VXLAN_PF0", 1), ("TNL_GENEVE_PF0", 2)];
/// Number of the vendor's tracking; the driver shows it to nobody.
const TRACK_ID: u32 = 0xc000_0001;

/// The lab's own package: one segment of two buffers (section 7.3). The first is for the device; it has, beside the
/// metadata, an entry for each kind of tunnel that the driver may put a port into. The second is the driver's, and says by
/// names which these are: without any, the driver asks the kernel for something to do with tunnels that it cannot have, and
/// no module of tunnels loads.
pub fn synthetic() -> Vec<u8> {
    let mut metadata = Vec::new();
    metadata.extend(VERSION);
    metadata.extend(text::<NAME_LEN>(NAME));
    metadata.extend(TRACK_ID.to_le_bytes());
    let mut places = Vec::new();
    let mut labels = Vec::new();
    let count = u16::try_from(TUNNELS.len()).expect("two");
    places.extend(count.to_le_bytes());
    places.extend([0; 2]);
    labels.extend(count.to_le_bytes());
    for (name, place) in TUNNELS {
        let mut entry = place.to_le_bytes().to_vec();
        entry.resize(TUNNEL_LEN, 0);
        places.extend(entry);
        labels.extend(place.to_le_bytes());
        labels.extend(text::<LABEL_LEN>(name));
    }
    let buffers = [
        buffer(&[(SECTION_METADATA, &metadata), (SECTION_TUNNELS, &places)]),
        buffer(&[(SECTION_LABELS, &labels)]),
    ];

    /// Type, format, size and name of a segment, then the lengths of its three tables.
    const SEGMENT: usize = 12 + SEGMENT_ID_LEN + 12;
    let segment_len = u32::try_from(SEGMENT + buffers.len() * BUFFER_LEN).expect("a package is some KiB");
    let mut package = Vec::new();
    package.extend(FORMAT);
    let (segments, first_segment) = (1_u32, 12_u32);
    package.extend(segments.to_le_bytes());
    package.extend(first_segment.to_le_bytes());
    package.extend(SEGMENT_E810.to_le_bytes());
    package.extend(SEGMENT_FORMAT);
    package.extend(segment_len.to_le_bytes());
    package.extend(text::<SEGMENT_ID_LEN>(SEGMENT_ID));
    let (devices, nvm_versions, count) = (0_u32, 0_u32, 2_u32);
    for count in [devices, nvm_versions, count] {
        package.extend(count.to_le_bytes());
    }
    package.extend(buffers.concat());
    package
}

/// A buffer of sections: their number, where data end, of each its type, place and size, and then all of them.
fn buffer(sections: &[(u32, &[u8])]) -> Vec<u8> {
    let short = |number: usize| u16::try_from(number).expect("a buffer has 4 KiB");
    let mut at = 4 + 8 * sections.len();
    let (mut table, mut data) = (Vec::new(), Vec::new());
    for (kind, bytes) in sections {
        table.extend(kind.to_le_bytes());
        table.extend(short(at).to_le_bytes());
        table.extend(short(bytes.len()).to_le_bytes());
        data.extend_from_slice(bytes);
        at += bytes.len();
    }
    let mut buffer = [short(sections.len()).to_le_bytes(), short(at).to_le_bytes()].concat();
    buffer.extend(table);
    buffer.extend(data);
    buffer.resize(BUFFER_LEN, 0);
    buffer
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
            name: "E810 firmware",
            install: &["firmware-intel-misc"],
            suite: Suite::Trixie,
            component: Component::NonFreeFirmware,
            wanted: &|package| package.name == "firmware-intel-misc",
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
    fn synthetic_package_matches_accepted_one() {
        let package = synthetic();
        assert_eq!(package.len(), 68 + 2 * 4096);
        let u32_at = |at: usize| u32::from_le_bytes(package[at..at + 4].try_into().unwrap());
        let u16_at = |at: usize| u16::from_le_bytes(package[at..at + 2].try_into().unwrap());
        assert_eq!(package[..4], [1, 0, 0, 0]);
        assert_eq!([u32_at(4), u32_at(8)], [1, 12]);
        assert_eq!(u32_at(12), 0x10);
        assert_eq!(package[16..20], [1, 3, 0, 0]);
        assert_eq!(u32_at(20), 8248);
        assert_eq!([u32_at(56), u32_at(60), u32_at(64)], [0, 0, 2]);
        assert_eq!([u16_at(68), u16_at(70)], [2, 236]);
        assert_eq!([u32_at(72), u32::from(u16_at(76)), u32::from(u16_at(78))], [1, 20, 36]);
        assert_eq!([u32_at(80), u32::from(u16_at(84)), u32::from(u16_at(86))], [56, 56, 180]);
        assert_eq!(package[88..92], [1, 3, 0, 0]);
        assert_eq!(package[92..120], *b"hcad synthetic package\0\0\0\0\0\0");
        assert_eq!([u16_at(124), u16_at(128), u16_at(216)], [2, 1, 2]);
        assert!(package[218..4164].iter().all(|&byte| byte == 0));
        assert_eq!([u16_at(4164), u16_at(4166)], [1, 146]);
        assert_eq!([u32_at(4168), u32::from(u16_at(4172)), u32::from(u16_at(4174))], [0x8000_0018, 12, 134]);
        assert_eq!([u16_at(4176), u16_at(4178)], [2, 1]);
        assert_eq!(package[4180..4194], *b"TNL_VXLAN_PF0\0");
        assert_eq!(u16_at(4244), 2);
        assert_eq!(package[4246..4261], *b"TNL_GENEVE_PF0\0");
    }
}
