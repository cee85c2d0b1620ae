//! Guests with a NIC that supports RoCE: an E810 with `irdma`, or a ConnectX with `mlx5_ib`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

use super::station::{Station, load, shape, strict_card, strict_e810};
use crate::daemon::{Daemon, Explained, HcaSpec};
use crate::lab::{Guest, Lab};
use crate::run_dir::RunDir;
use crate::testbed::kind;
use crate::tools::await_text;
use crate::vm::{Image, Vm};

/// Name that the kernel gives to the first `irdma` device.
pub(in crate::scenario) const DEVICE: &str = "irdma0";
/// How long the port may take to become active after the driver starts.
const PORT_TIMEOUT: Duration = Duration::from_secs(240);

/// MTU that is large enough for a path MTU of 4096.
const JUMBO: u32 = 9000;

/// The kind of address that a GID is derived from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Gid {
    V4,
    /// The configured IPv6 address.
    V6,
    /// The link-local address derived from the MAC address.
    LinkLocal,
}

/// Starts two connected stations, each with an E810, without loading `irdma`.
pub(in crate::scenario) async fn pair(lab: &Lab, run: &RunDir, image: &Image) -> Result<[Station; 2]> {
    pair_of(kind::Device::E810, lab, run, image, &[]).await
}

/// Starts two connected stations, each with a card, without loading the RDMA drivers. The violations in `explained` are
/// permitted.
pub(in super::super) async fn pair_of(
    hca: kind::Device,
    lab: &Lab,
    run: &RunDir,
    image: &Image,
    explained: &'static [Explained],
) -> Result<[Station; 2]> {
    pair_with(hca, lab, run, image, explained, &[]).await
}

/// Like [`pair_of`], with additional disks.
pub(in super::super) async fn pair_with(
    hca: kind::Device,
    lab: &Lab,
    run: &RunDir,
    image: &Image,
    explained: &'static [Explained],
    disks: &[PathBuf],
) -> Result<[Station; 2]> {
    let [a, b] = HcaSpec::pair()?.map(|spec| HcaSpec { explained, ..strict_card(hca, lab, spec) });
    let guest = |spec| Guest { disks: disks.to_vec(), ..shape(spec) };
    let (a, b) = tokio::try_join!(
        Station::with_hca(hca, lab, run, image, &a, guest(&a.name)),
        Station::with_hca(hca, lab, run, image, &b, guest(&b.name)),
    )?;
    Ok([a, b])
}

/// Starts a station with additional disks and without a peer.
pub(in crate::scenario) async fn alone(
    lab: &Lab,
    run: &RunDir,
    image: &Image,
    disks: Vec<PathBuf>,
) -> Result<Station> {
    let [spec, _] = HcaSpec::pair()?;
    Station::with_e810(lab, run, image, &strict_e810(lab, spec), disks).await
}

/// Loads the RDMA drivers and waits until the port is active.
pub(in super::super) async fn start(station: &mut Station) -> Result<()> {
    let modules = station.modules();
    load(&mut station.vm, modules).await?;
    port_is_active(station).await
}

pub(in super::super) async fn port_is_active(station: &mut Station) -> Result<()> {
    let path = format!("/sys/class/infiniband/{}/ports/1/state", station.rdma_device()?);
    await_text(&mut station.vm, &[&path], &["4: ACTIVE"], PORT_TIMEOUT).await
}

/// Raises the MTU of both stations to make room for a path MTU of 4096.
pub(in super::super) async fn jumbo(stations: [&mut Station; 2]) -> Result<()> {
    for station in stations {
        let device = station.device.clone();
        station.sh(&format!("ip link set {device} mtu {JUMBO}")).await?;
    }
    Ok(())
}

/// Starts a guest with a card that has the address `ip` and supports the largest path MTU. Returns the guest, its RDMA
/// device's name, and the daemon.
pub(in super::super) async fn guest(
    hca: kind::Device,
    lab: &Lab,
    run: &RunDir,
    spec: &HcaSpec,
    ip: IpAddr,
) -> Result<(Vm, &'static str, Daemon)> {
    let image = lab.debian_image(run).await?;
    let mut station = Station::with_hca(hca, lab, run, &image, spec, shape(&spec.name)).await?;
    start(&mut station).await?;
    let device = station.device.clone();
    station.sh(&format!("ip link set {device} mtu {JUMBO} && ip address add {ip}/16 dev {device}")).await?;
    port_is_active(&mut station).await?;
    let name = station.rdma_device()?;
    let Station { vm, daemon, .. } = station;
    Ok((vm, name, daemon.context("the guest has no daemon")?))
}

/// Starts a [`guest`] with an E810.
pub(in super::super) async fn irdma_guest(
    lab: &Lab,
    run: &RunDir,
    spec: &HcaSpec,
    ip: IpAddr,
) -> Result<(Vm, &'static str, Daemon)> {
    guest(kind::Device::E810, lab, run, spec, ip).await
}

/// Returns the lowest index of a GID of kind `kind` on the station's RDMA device.
pub(in crate::scenario) async fn gid_index(station: &mut Station, kind: Gid) -> Result<usize> {
    let device = station.rdma_device()?;
    gid_index_of(&mut station.vm, device, kind).await
}

/// Returns the lowest index of a RoCEv2 GID of kind `kind` on the given device.
pub(in super::super) async fn gid_index_of(vm: &mut Vm, device: &str, kind: Gid) -> Result<usize> {
    // Use a single program, since an emulated guest can start only about a hundred per second. Ignore errors, as
    // reading the type of an empty entry fails.
    let list =
        format!("cd /sys/class/infiniband/{device}/ports/1 && grep -s . gids/* gid_attrs/types/* || true");
    let table = vm.run(&["sh", "-c", &list]).await?;
    let prefix = match kind {
        Gid::V4 => "0000:0000:0000:0000:0000:ffff:",
        Gid::V6 => "fd81:",
        Gid::LinkLocal => "fe80:",
    };
    let entries = |folder: &'static str| {
        table.lines().filter_map(move |line| line.strip_prefix(folder)?.split_once(':')).collect::<Vec<_>>()
    };
    let types: BTreeMap<_, _> = entries("gid_attrs/types/").into_iter().collect();
    let is_wanted = |&(index, gid): &(&str, &str)| {
        gid.starts_with(prefix) && types.get(index).is_some_and(|kind| *kind == "RoCE v2")
    };
    let indices = entries("gids/").into_iter().filter(is_wanted).filter_map(|(index, _)| index.parse().ok());
    indices.min().with_context(|| format!("no {kind:?} GID in {table}"))
}
