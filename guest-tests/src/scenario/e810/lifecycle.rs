//! The lifecycle of a NIC: link changes, resets, driver reloads and ring size changes.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::time::{sleep, timeout};

use super::package::Package;
use super::probe::Probe;
use crate::scenario::leak::Cycles;

/// Cycles that load the driver for one function and unload it again.
pub(super) const CYCLES: Cycles<'static> = Cycles {
    commands: "modprobe ice && ip link set eth0 up && modprobe -r ice",
    batches: 7,
    batch: 7,
    timeout: Duration::from_secs(180),
};
/// Timeout for all cycles, including the checks before and after them.
pub(super) const CYCLES_TIMEOUT: Duration = Duration::from_secs(600);
/// Timeout for a reset or a reload, during which the driver takes its device down and brings it back up.
const RESET_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval between polls for the start of the reset.
const POLL: Duration = Duration::from_millis(100);

/// Takes the port down and brings it back up, as an operator would. An event notifies the driver.
pub(super) async fn link_flap(probe: &mut Probe) -> Result<()> {
    for _ in 0..3 {
        probe.daemon.control(&["port", "down"]).await?;
        probe.carrier(false).await?;
        probe.daemon.control(&["port", "up"]).await?;
        probe.carrier(true).await?;
        probe.talk().await?;
    }
    probe.no_warnings(Package::Synthetic).await
}

/// Takes the guest's interface down and brings it back up.
pub(super) async fn interface_flap(probe: &mut Probe) -> Result<()> {
    let device = probe.device.clone();
    for _ in 0..3 {
        // Make the interface keep its IPv6 addresses.
        let line = format!(
            "echo 1 > /proc/sys/net/ipv6/conf/{device}/keep_addr_on_down; \
             ip link set {device} down && ip link set {device} up"
        );
        probe.sh(&line).await?;
        probe.carrier(true).await?;
        probe.talk().await?;
    }
    probe.no_warnings(Package::Synthetic).await
}

/// Reinitialises the device through devlink, without unloading the driver.
pub(super) async fn devlink_reload(probe: &mut Probe) -> Result<()> {
    let line = format!("devlink dev reload pci/{}", probe.function);
    probe.vm.run_within(RESET_TIMEOUT, &["sh", "-c", &line]).await?;
    // The reload has created a new network device.
    probe.refind().await?;
    probe.talk().await?;
    probe.no_warnings(Package::Synthetic).await
}

/// Resets the function without involving the driver. The driver must recover.
pub(super) async fn function_reset(probe: &mut Probe) -> Result<()> {
    let line = format!("echo 1 > /sys/bus/pci/devices/{}/reset", probe.function);
    probe.vm.run_within(RESET_TIMEOUT, &["sh", "-c", &line]).await?;
    probe.carrier(true).await?;
    probe.talk().await?;
    probe.no_warnings(Package::Synthetic).await
}

/// Makes the driver reset the function, the core and the whole device in turn, and checks that it recovers each time.
/// Returns early if the driver does not support such resets, as in kernel 6.12.
pub(super) async fn driver_resets(probe: &mut Probe) -> Result<()> {
    /// Components shared by a card's functions, as named by `ethtool`.
    const CORE: &str = "irq-shared dma-shared filter-shared offload-shared ram-shared";
    let device = probe.device.clone();
    let resets = [
        ("/frontend/e810/function_resets", "irq dma filter offload".to_owned()),
        ("/frontend/e810/device_resets", CORE.to_owned()),
        ("/frontend/e810/device_resets", format!("{CORE} mac-shared phy-shared")),
    ];
    for (counter, parts) in resets {
        let line = format!("ethtool --reset {device} {parts}");
        let before = probe.daemon.counter(counter).await?;
        let said = probe.sh(&format!("{line} 2>&1; true")).await?;
        if said.contains("Operation not supported") {
            return Ok(());
        }
        // The driver performs the reset and the recovery asynchronously.
        let again = async {
            while probe.daemon.counter(counter).await? == before {
                sleep(POLL).await;
            }
            while probe.talk().await.is_err() {}
            anyhow::Ok(())
        };
        timeout(RESET_TIMEOUT, again)
            .await
            .with_context(|| format!("waited {RESET_TIMEOUT:?} for: {line}"))??;
    }
    probe.no_warnings(Package::Synthetic).await
}

/// Tests different numbers of queues, and the smallest and largest ring sizes.
pub(super) async fn rings(probe: &mut Probe) -> Result<()> {
    let device = probe.device.clone();
    for change in ["-L {} combined 1", "-L {} combined 2", "-G {} rx 64 tx 64", "-G {} rx 8160 tx 8160"] {
        let line = format!("ethtool {}", change.replace("{}", &device));
        probe.sh(&line).await.with_context(|| line.clone())?;
        probe.carrier(true).await?;
        probe.talk().await.with_context(|| line.clone())?;
    }
    probe.sh(&format!("ethtool -G {device} rx 2048 tx 256")).await?;
    probe.carrier(true).await?;
    probe.no_warnings(Package::Synthetic).await
}

/// Unloads and loads the driver repeatedly and checks that the link comes up each time. The guest's other function is
/// left out to save time.
pub(super) async fn cycles(probe: &mut Probe, repeated: Cycles<'_>) -> Result<()> {
    let function = probe.function.clone();
    let others = |driver: &str| {
        format!(
            "for f in $(grep -l 0x1592 /sys/bus/pci/devices/*/device); do f=${{f%/device}}; \
             [ ${{f##*/}} = {function} ] || echo {driver} > $f/driver_override; done"
        )
    };
    probe.unload().await?;
    probe.sh(&others("nobody")).await?;
    repeated.run(&mut probe.vm).await?;
    probe.sh(&others("")).await?;
    probe.load().await?;
    probe.talk().await?;
    probe.no_warnings(Package::Synthetic).await
}
