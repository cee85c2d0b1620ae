//! PCI functions as sysfs shows them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::wire::{BarInfo, DeviceInfo};

const DEVICES: &str = "/sys/bus/pci/devices";

/// The folder of a function.
pub(crate) fn node(address: &str) -> PathBuf {
    Path::new(DEVICES).join(address)
}

/// The IOMMU group of a function.
pub(crate) fn iommu_group(node: &Path) -> Option<u32> {
    link_name(&node.join("iommu_group"))?.parse().ok()
}

/// The last part of what a link points to.
pub(crate) fn link_name(link: &Path) -> Option<String> {
    Some(fs::read_link(link).ok()?.file_name()?.to_string_lossy().into_owned())
}

/// Every function, in address order.
pub(crate) fn functions() -> Result<Vec<DeviceInfo>> {
    let mut addresses = fs::read_dir(DEVICES)
        .with_context(|| format!("listing {DEVICES}"))?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<Vec<_>>>()?;
    addresses.sort_unstable();
    addresses.into_iter().map(|address| describe(address).context("reading sysfs")).collect()
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
        msix_vectors: msix_vectors(&config),
        driver: link_name(&node.join("driver")),
        iommu_group: iommu_group(&node),
        address,
    })
}

/// The first six lines of `resource`: start, end and flags of each BAR.
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

/// The table size of the MSI-X capability in a configuration space, 0 without one.
fn msix_vectors(config: &[u8]) -> u32 {
    const CAPABILITY_LIST: usize = 0x34;
    const MSIX: u8 = 0x11;
    let byte = |offset: usize| config.get(offset).copied().unwrap_or(0);
    let mut at = usize::from(byte(CAPABILITY_LIST));
    // Bound: the list has room for 48 capabilities; a loop in it ends here.
    for _ in 0..48 {
        if at == 0 {
            return 0;
        }
        if byte(at) == MSIX {
            return u32::from(u16::from_le_bytes([byte(at + 2), byte(at + 3)]) & 0x7ff) + 1;
        }
        at = usize::from(byte(at + 1));
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_in_use_are_listed_with_their_kind() {
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
    fn the_msix_capability_is_found_behind_others() {
        let mut config = [0u8; 256];
        config[0x34] = 0x40;
        config[0x40..0x42].copy_from_slice(&[0x10, 0x80]);
        config[0x80..0x84].copy_from_slice(&[0x11, 0x00, 63, 0x80]);
        assert_eq!(msix_vectors(&config), 64);
        config[0x80] = 0x05;
        config[0x81] = 0x40;
        assert_eq!(msix_vectors(&config), 0);
    }
}
