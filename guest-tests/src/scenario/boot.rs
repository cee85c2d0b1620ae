//! Tests the lab itself: its kernel, initramfs, agent, modules and root file system.

use agent::wire::Info;
use anyhow::{Result, ensure};
use tokio::time::Instant;

use super::pair::VFIO_MODULES;
use crate::lab::{Guest, Lab};
use crate::report::{Report, line};
use crate::run_dir::RunDir;

pub(super) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    let run = lab.new_run("boot")?;
    let image = lab.image(&run, VFIO_MODULES)?;
    let hint = format!("console output and command lines: {}", run.path().display());
    let boot = async |name: &str| {
        let mut vm = lab.boot(&run, &image, Guest { name, ..Guest::default() }).await?;
        let info = vm.call(Info {}).await?;
        ensure!(info.cmdline.contains("intel_iommu=on"), "kernel command line: {}", info.cmdline);
        line(&format!("      guest {name}: {} booted in {:.1} s", info.kernel, vm.boot_time().as_secs_f64()))
    };
    report.case("one guest", &hint, boot("alone")).await?;
    report
        .case("two guests at the same time", &hint, async {
            tokio::try_join!(boot("left"), boot("right"))?;
            Ok(())
        })
        .await?;
    report.case("one guest with a Debian root filesystem", &hint, debian(lab, &run)).await
}

/// Checks that modules load with their dependencies, that the tools used by the scenarios are installed, and that
/// pyverbs can be imported.
async fn debian(lab: &Lab, run: &RunDir) -> Result<()> {
    let image = lab.debian_image(run).await?;
    let begun = Instant::now();
    let mut vm = lab.boot(run, &image, Guest { name: "debian", ..Guest::default() }).await?;
    let release = vm.run(&["cat", "/etc/debian_version"]).await?;
    let up = begun.elapsed();
    for module in ["rdma_rxe", "ib_mthca", "rdma_ucm"] {
        vm.run(&["modprobe", module]).await?;
    }
    for tool in ["ibv_devinfo", "rping", "ib_write_bw", "ibstat", "iperf3", "ethtool", "ping"] {
        vm.run(&["sh", "-c", &format!("command -v {tool}")]).await?;
    }
    let devices =
        vm.run(&["python3", "-c", "import pyverbs.device as d; print(d.get_device_list())"]).await?;
    ensure!(devices.trim() == "[]", "pyverbs lists devices, but the guest has no device: {devices}");
    line(&format!(
        "      guest debian: {} ran its first program after {:.1} s",
        release.trim(),
        up.as_secs_f64()
    ))
}
