//! DDP packages, which the `ice` driver loads into an E810 (E810 interface, section 7). Without a package, the driver
//! runs in safe mode with one queue.
//!
//! Debian's DDP package is non-free. The lab fetches it only if this machine's archive has it, and no required test
//! depends on it. The lab also generates its own package, which passes the driver's checks but does not program the
//! parser.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::apt::{Component, Release, Suite};
use super::cache;
use super::debian::{IMAGE, make_image, tools};
use super::packages::Set;
use crate::arch::Arch;

/// Directory below `/lib/firmware` that the driver searches for packages.
pub const FOLDER: &str = "intel/ice/ddp";
/// Name of the lab's own package, as reported by the driver.
pub const NAME: &str = "hcad synthetic package";
/// Version of the lab's own package, as reported by the driver.
pub const VERSION: [u8; 4] = [1, 3, 0, 0];

/// Version of the file format.
const FORMAT: [u8; 4] = [1, 0, 0, 0];
/// Version of the segment format.
const SEGMENT_FORMAT: [u8; 4] = [1, 3, 0, 0];
/// Segment type of the E810.
const SEGMENT_E810: u32 = 0x10;
const SEGMENT_ID: &str = "hcad";
/// Length of the field for the segment's name.
const SEGMENT_ID_LEN: usize = 32;
/// Length of the field for the package's name.
const NAME_LEN: usize = 28;
/// Size of a buffer in bytes. The driver downloads each buffer as a unit.
const BUFFER_LEN: usize = 4096;
/// Type of the section that contains the package's version and name.
const SECTION_METADATA: u32 = 1;
/// Type of the section with the parser's tunnel entries.
const SECTION_TUNNELS: u32 = 56;
/// Length of a tunnel entry.
const TUNNEL_LEN: usize = 88;
/// Type of the section with labels. The driver does not pass this section to the device.
const SECTION_LABELS: u32 = 0x8000_0018;
/// Length of the field for a label.
const LABEL_LEN: usize = 64;
/// Labels of the tunnel entries for physical function 0, each with the index of its entry.
const TUNNELS: [(&str, u16); 2] = [("TNL_VXLAN_PF0", 1), ("TNL_GENEVE_PF0", 2)];
/// The vendor's tracking number, which the driver does not display.
const TRACK_ID: u32 = 0xc000_0001;

/// Returns the lab's own package, which has one segment with two buffers (section 7.3). The first buffer is for the
/// device. It contains metadata and an entry for each tunnel type whose UDP port can be set by the driver. The second
/// buffer is for the driver and contains the labels of these entries. Without labels, the driver makes an invalid
/// request to the kernel's tunnel code, and tunnel modules cannot be loaded.
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

    /// Length of a segment header: type, format, size, name, and the entry counts of three tables.
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

/// Returns a buffer of sections. It contains the number of sections, the end offset of the data, the type, offset and
/// size of each section, and then the sections' data.
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

/// Returns text as a fixed-length field padded with zeros.
fn text<const LEN: usize>(text: &str) -> [u8; LEN] {
    let mut field = [0; LEN];
    field[..text.len()].copy_from_slice(text.as_bytes());
    field
}

/// Returns the path of a disk image that contains Debian's package as `ice.pkg`. Creates the image if it is not cached.
pub(super) fn of_debian(cache: &Path) -> Result<PathBuf> {
    let tools = tools(cache, Arch::HOST)?;
    let entry = cache::entry(cache, "ice-ddp-1", |work| {
        let set = Set {
            name: "E810 firmware",
            install: &["firmware-intel-misc"],
            arch: Arch::HOST,
            release: Release::Stable(Suite::Trixie),
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

    /// Checks the package against the bytes that section 7.3 specifies, offset by offset.
    #[test]
    fn synthetic_package_matches_specified_bytes() {
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
