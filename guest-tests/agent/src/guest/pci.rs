//! Information about PCI functions from sysfs.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::wire::{BarInfo, DeviceInfo};

const DEVICES: &str = "/sys/bus/pci/devices";

/// Returns the sysfs directory of a PCI function.
pub(crate) fn node(address: &str) -> PathBuf {
    Path::new(DEVICES).join(address)
}

pub(crate) fn iommu_group(node: &Path) -> Option<u32> {
    link_name(&node.join("iommu_group"))?.parse().ok()
}

/// Returns the last component of a symbolic link's target.
pub(crate) fn link_name(link: &Path) -> Option<String> {
    Some(fs::read_link(link).ok()?.file_name()?.to_string_lossy().into_owned())
}

/// Lists all PCI functions in address order.
pub(crate) fn functions() -> Result<Vec<DeviceInfo>> {
    let mut addresses = fs::read_dir(DEVICES)
        .with_context(|| format!("cannot list {DEVICES}"))?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<Vec<_>>>()?;
    addresses.sort_unstable();
    addresses.into_iter().map(|address| describe(address).context("cannot read sysfs")).collect()
}

fn describe(address: String) -> Result<DeviceInfo> {
    let node = node(&address);
    let number = |name: &str| -> Result<u32> {
        let path = node.join(name);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let digits = text.trim().trim_start_matches("0x");
        u32::from_str_radix(digits, 16).with_context(|| format!("{}: {text:?}", path.display()))
    };
    let id = |name| Ok::<_, anyhow::Error>(u16::try_from(number(name)?)?);
    let resources = fs::read_to_string(node.join("resource"))?;
    let config = fs::read(node.join("config"))?;
    Ok(DeviceInfo {
        vendor: id("vendor")?,
        device: id("device")?,
        subsystem_vendor: id("subsystem_vendor")?,
        subsystem_device: id("subsystem_device")?,
        class: number("class")?,
        revision: u8::try_from(number("revision")?)?,
        bars: bars(&resources),
        msix_vectors: Msix::find(&config).map_or(0, |msix| msix.vectors.into()),
        driver: link_name(&node.join("driver")),
        iommu_group: iommu_group(&node),
        address,
    })
}

/// Parses the first six lines of `resource`. Each line contains the start, end and flags of one BAR.
fn bars(resources: &str) -> Vec<BarInfo> {
    const PREFETCHABLE: u64 = 0x2000;
    const WIDE: u64 = 0x10_0000;
    resources
        .lines()
        .zip(0..6)
        .filter_map(|(line, index)| {
            let mut numbers = line
                .split_whitespace()
                .map(|n| u64::from_str_radix(n.trim_start_matches("0x"), 16).unwrap_or(0));
            let (start, end, flags) = (numbers.next()?, numbers.next()?, numbers.next()?);
            (flags != 0 && end > start).then(|| BarInfo {
                index,
                start,
                size: end - start + 1,
                wide: flags & WIDE != 0,
                prefetchable: flags & PREFETCHABLE != 0,
            })
        })
        .collect()
}

/// An MSI-X capability whose vector table and pending bits are in BAR0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Msix {
    /// Offset of the Message Control word in configuration space.
    pub(crate) control: u64,
    pub(crate) vectors: u16,
    /// Offset of the vector table in BAR0.
    table: u64,
    /// Offset of the pending bit array in BAR0.
    pub(crate) pending: u64,
}

impl Msix {
    /// The MSI-X Enable bit of Message Control.
    #[cfg(feature = "vfio-user")]
    pub(crate) const ENABLE: u16 = 1 << 15;
    /// The Function Mask bit of Message Control.
    pub(crate) const FUNCTION_MASK: u16 = 1 << 14;

    pub(crate) fn find(config: &[u8]) -> Option<Self> {
        const CAPABILITY_LIST: usize = 0x34;
        const MSIX: u8 = 0x11;
        let byte = |offset: usize| config.get(offset).copied().unwrap_or(0);
        let word = |at: usize| u32::from_le_bytes([byte(at), byte(at + 1), byte(at + 2), byte(at + 3)]);
        let mut at = usize::from(byte(CAPABILITY_LIST));
        // Configuration space has room for 48 capabilities, so a longer list must contain a loop.
        for _ in 0..48 {
            if at == 0 {
                return None;
            }
            if byte(at) == MSIX {
                let (table, pending) = (word(at + 4), word(at + 8));
                // The low three bits select the BAR.
                let offset = |place: u32| (place & 7 == 0).then_some(u64::from(place));
                return Some(Self {
                    control: at as u64 + 2,
                    vectors: (u16::from_le_bytes([byte(at + 2), byte(at + 3)]) & 0x7ff) + 1,
                    table: offset(table)?,
                    pending: offset(pending)?,
                });
            }
            at = usize::from(byte(at + 1));
        }
        None
    }

    /// Returns the BAR0 offset of a vector's Vector Control word.
    pub(crate) fn vector_control(self, vector: u16) -> Option<u64> {
        (vector < self.vectors).then(|| self.table + u64::from(vector) * 16 + 12)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn implemented_bars_are_listed_with_flags() {
        let text = "0x00000000fea00000 0x00000000feafffff 0x0000000000140204\n\
                    0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
                    0x00000000fe000000 0x00000000fe7fffff 0x000000000014220c\n";
        assert_eq!(
            bars(text),
            [
                BarInfo { index: 0, start: 0xfea0_0000, size: 1 << 20, wide: true, prefetchable: false },
                BarInfo { index: 2, start: 0xfe00_0000, size: 8 << 20, wide: true, prefetchable: true },
            ]
        );
    }

    #[test]
    fn msix_capability_is_found_after_other_capabilities() {
        let mut config = [0u8; 256];
        config[0x34] = 0x40;
        config[0x40..0x42].copy_from_slice(&[0x10, 0x80]);
        config[0x80..0x8c].copy_from_slice(&[0x11, 0x00, 63, 0x80, 0, 0, 2, 0, 0, 0, 3, 0]);
        let msix = Msix { control: 0x82, vectors: 64, table: 0x2_0000, pending: 0x3_0000 };
        assert_eq!(Msix::find(&config), Some(msix));
        assert_eq!((msix.vector_control(63), msix.vector_control(64)), (Some(0x2_03fc), None));
        config[0x80] = 0x05;
        config[0x81] = 0x40;
        assert_eq!(Msix::find(&config), None);
    }
}
