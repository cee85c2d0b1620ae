//! The HCA as a stock kernel sees it, before any driver binds to it.

use agent::wire::{BarInfo, DeviceInfo, DeviceSelector, GuestInfo, Info};
use anyhow::{Context, Result, ensure};

use super::pair::Pair;
use crate::lab::Lab;
use crate::report::Report;

pub(super) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    let mut pair = Pair::start(lab, "jingzhao-probe").await?;
    let hint = pair.hint();
    for (name, node) in [("a", &mut pair.a), ("b", &mut pair.b)] {
        let info = node.vm.call(Info {}).await?;
        let hca = hca(&info)?;
        report.case(&format!("guest {name}: identity"), &hint, async { identity(hca) }).await?;
        report.case(&format!("guest {name}: BARs and MSI-X"), &hint, async { resources(hca) }).await?;
        report
            .case(&format!("guest {name}: no kernel warnings"), &hint, async { no_warning(&info, hca) })
            .await?;
    }
    Ok(())
}

fn hca(info: &GuestInfo) -> Result<&DeviceInfo> {
    let DeviceSelector::Ids { vendor, device } = DeviceSelector::default() else { unreachable!() };
    info.devices
        .iter()
        .find(|d| d.vendor == vendor && d.device == device)
        .with_context(|| format!("no {vendor:04x}:{device:04x} among {:#?}", info.devices))
}

/// Checks the PCI identity (JingZhao interface, section 1).
fn identity(hca: &DeviceInfo) -> Result<()> {
    let ids = (hca.class, hca.subsystem_vendor, hca.subsystem_device, hca.revision);
    ensure!(ids == (0x02_0700, 0x10ee, 0x0007, 1), "class, subsystem and revision: {ids:x?}");
    ensure!(hca.iommu_group.is_some(), "the function is not in an IOMMU group");
    Ok(())
}

/// Checks BARs and interrupts (JingZhao interface, section 1).
fn resources(hca: &DeviceInfo) -> Result<()> {
    let shape = |bar: &BarInfo| (bar.index, bar.size, bar.wide, bar.prefetchable);
    let bars: Vec<_> = hca.bars.iter().map(shape).collect();
    ensure!(bars == [(0, 1 << 20, true, false), (2, 8 << 20, true, false)], "BARs: {:x?}", hca.bars);
    ensure!(hca.bars.iter().all(|bar| bar.start != 0), "a BAR has no address: {:x?}", hca.bars);
    ensure!(hca.msix_vectors == 64, "{} MSI-X vectors", hca.msix_vectors);
    Ok(())
}

fn no_warning(info: &GuestInfo, hca: &DeviceInfo) -> Result<()> {
    let about: Vec<_> = info.warnings.iter().filter(|line| line.contains(&hca.address)).collect();
    ensure!(about.is_empty(), "the kernel logged warnings about {}: {about:#?}", hca.address);
    Ok(())
}
