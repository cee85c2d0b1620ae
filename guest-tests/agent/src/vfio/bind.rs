//! Binds a PCI function to vfio-pci through sysfs.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use crate::error::bad_step;
use crate::guest::pci;
use crate::wire::{Bound, DeviceSelector};

const DRIVER: &str = "vfio-pci";

pub(crate) fn select(device: &DeviceSelector) -> Result<String> {
    match device {
        DeviceSelector::Address(address) => Ok(address.clone()),
        DeviceSelector::Socket(_) => bail!("a device behind a socket has no PCI address"),
        DeviceSelector::Ids { vendor, device } => pci::functions()?
            .into_iter()
            .find(|f| (f.vendor, f.device) == (*vendor, *device))
            .map(|f| f.address)
            .ok_or_else(|| bad_step(format!("this guest has no PCI function {vendor:04x}:{device:04x}"))),
    }
}

pub(crate) fn bind(device: &DeviceSelector) -> Result<Bound> {
    let address = select(device)?;
    let node = pci::node(&address);
    if driver(&node).as_deref() != Some(DRIVER) {
        write(&node.join("driver_override"), DRIVER)?;
        if driver(&node).is_some() {
            write(&node.join("driver/unbind"), &address)?;
        }
        write(Path::new("/sys/bus/pci/drivers_probe"), &address)?;
    }
    match driver(&node).as_deref() {
        Some(DRIVER) => {}
        other => bail!("{address} is bound to {other:?}, not to {DRIVER}; load the module vfio-pci"),
    }
    let iommu_group = pci::iommu_group(&node)
        .with_context(|| format!("{address} is not in an IOMMU group; enable the guest's IOMMU"))?;
    Ok(Bound { address, iommu_group })
}

fn driver(node: &Path) -> Option<String> {
    pci::link_name(&node.join("driver"))
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {text:?} to {}", path.display()))
}
