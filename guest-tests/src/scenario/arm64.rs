//! Tests arm64 guests: reruns other scenarios in them and exchanges messages with an x86-64 guest.
//!
//! JingZhao HCAs are not tested, because Linux does not have a driver for them and arm64 guests lack the IOMMU that the
//! lab's own driver needs.

mod interop;
mod probe;

use anyhow::Result;

use crate::arch::Arch;
use crate::artifacts::Pages;
use crate::lab::Lab;
use crate::report::Report;

/// Scenarios that also run in arm64 guests. They cover every stock driver, and storage over one of them.
const PARTS: &[&str] = &[
    "mthca-pingpong",
    "connectx-pingpong",
    "connectx-roce-pingpong",
    "e810-pingpong",
    "mthca-perftest",
    "connectx-perftest",
    "connectx-roce-perftest",
    "e810-perftest",
    "connectx-roce-storage",
];

/// Runs only the probe.
pub(super) async fn probe(lab: &Lab, report: &mut Report) -> Result<()> {
    probe::run(&lab.for_guests(Arch::Arm64, Pages::Usual).await?, report, "4096").await
}

/// Runs the probe with both page sizes, the message exchange with an x86-64 guest, and the scenarios in [`PARTS`].
pub(super) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    let arm = lab.for_guests(Arch::Arm64, Pages::Usual).await?;
    probe::run(&arm, report, "4096").await?;
    let large_pages = lab.for_guests(Arch::Arm64, Pages::Of16KiB).await?;
    probe::run(&large_pages, report, "16384").await?;
    let other = lab.for_guests(Arch::Amd64, Pages::Usual).await?;
    interop::run(&arm, &other, report).await?;
    for scenario in super::ALL.iter().filter(|scenario| PARTS.contains(&scenario.name)) {
        scenario.run_as(&format!("arm64, {}", scenario.name), &arm, report).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::Scenario;
    use super::*;

    #[test]
    fn every_arm64_part_names_a_scenario() {
        for name in PARTS {
            assert!(Scenario::named(name).is_some(), "{name}");
        }
    }
}
