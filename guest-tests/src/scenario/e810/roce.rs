//! Guests whose E810 has its RDMA half, and `irdma` that drives it.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;

use super::station::{Station, load};
use crate::daemon::{HcaSpec, Interface};
use crate::lab::Lab;
use crate::run_dir::RunDir;
use crate::tools::await_text;
use crate::vm::Image;

/// What programs of verbs need besides the driver.
const MODULES: &[&str] = &["irdma", "ib_uverbs", "rdma_ucm"];
/// Name that the kernel gives the first device of this driver.
pub(super) const DEVICE: &str = "irdma0";
/// From the driver's start until its port is active.
const PORT_TIMEOUT: Duration = Duration::from_secs(30);

/// What a GID stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gid {
    /// The IPv4 address.
    V4,
    /// The IPv6 address that was given.
    V6,
    /// The link-local address of the MAC.
    LinkLocal,
}

/// The E810 of a station of a pair: with RDMA, without a capture, since these tests move gigabytes.
pub(super) fn with_rdma(lab: &Lab, spec: HcaSpec) -> HcaSpec {
    HcaSpec {
        interface: Interface::E810,
        options: json!({ "rdma": true }),
        capture: false,
        trace: lab.trace(),
        ..spec
    }
}

/// Two stations wired to each other. `irdma` is not loaded yet.
pub(super) async fn pair(lab: &Lab, run: &RunDir, image: &Image) -> Result<[Station; 2]> {
    let [a, b] = HcaSpec::pair()?.map(|spec| with_rdma(lab, spec));
    let (a, b) = tokio::try_join!(
        Station::with_e810(lab, run, image, &a, Vec::new()),
        Station::with_e810(lab, run, image, &b, Vec::new()),
    )?;
    Ok([a, b])
}

/// A station with nobody to talk to, and with further disks.
pub(super) async fn alone(lab: &Lab, run: &RunDir, image: &Image, disks: Vec<PathBuf>) -> Result<Station> {
    let [spec, _] = HcaSpec::pair()?;
    Station::with_e810(lab, run, image, &with_rdma(lab, spec), disks).await
}

/// Loads `irdma` and waits until its port is active.
pub(super) async fn start(station: &mut Station) -> Result<()> {
    load(&mut station.vm, MODULES).await?;
    port_is_active(station).await
}

/// Waits until the port is active.
pub(super) async fn port_is_active(station: &mut Station) -> Result<()> {
    let path = format!("/sys/class/infiniband/{DEVICE}/ports/1/state");
    await_text(&mut station.vm, &[&path], &["4: ACTIVE"], PORT_TIMEOUT).await
}

/// Index of a GID of this kind.
pub(super) async fn gid_index(station: &mut Station, kind: Gid) -> Result<usize> {
    let gids = station
        .sh(&format!(
            "cd /sys/class/infiniband/{DEVICE}/ports/1/gids && for i in $(seq 0 31); do cat $i; done"
        ))
        .await?;
    let prefix = match kind {
        Gid::V4 => "0000:0000:0000:0000:0000:ffff:",
        Gid::V6 => "fd81:",
        Gid::LinkLocal => "fe80:",
    };
    gids.lines().position(|gid| gid.starts_with(prefix)).with_context(|| format!("no {kind:?} GID in {gids}"))
}
