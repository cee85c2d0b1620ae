//! HCAs on three hosts, connected over VXLAN or WireGuard. The maximum frame length of the VXLAN limits the path MTU.
//! Over WireGuard, packets that exceed the tunnels' MTU are fragmented.

mod wireguard;

use anyhow::{Result, ensure};

use self::wireguard::Tunnels;
use super::site::host::{Host, talk};
use super::site::{self, HOSTS, Site};
use crate::daemon::{Fabric, Peer};
use crate::lab::Lab;
use crate::report::{Report, Skip};
use crate::run_dir::RunDir;

/// Ethernet's standard MTU in bytes.
const ORDINARY: u16 = 1500;
/// An MTU that leaves room for a path MTU of 4096 in a VXLAN.
const JUMBO: u16 = 4300;

pub(super) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    let run = lab.new_run("fabric-hosts")?;
    let hint = format!("see {}", run.path().display());
    let site = async {
        let site = Site::create("fabric").await?;
        site.add_taps().await?;
        anyhow::Ok(site)
    };
    let site = match site.await {
        Ok(site) => site,
        Err(error) => {
            let why = format!("{error:#}");
            return report.case("HCAs on three hosts", &hint, async { Err(Skip(why).into()) }).await;
        }
    };
    report
        .case("a VXLAN over jumbo frames supports path MTU 4096", &hint, vxlan(lab, &run, &site, JUMBO, 4096))
        .await?;
    report
        .case(
            "a VXLAN over standard frames limits ports to path MTU 1024",
            &hint,
            vxlan(lab, &run, &site, ORDINARY, 1024),
        )
        .await?;
    let tunnels = match Tunnels::start(&site, &run).await {
        Ok(tunnels) => tunnels,
        Err(error) if error.is::<Skip>() => {
            return report.case("WireGuard", &hint, async { Err(error) }).await;
        }
        Err(error) => return Err(error.context(hint)),
    };
    report
        .case(
            "WireGuard carries path MTU 1024 without fragmentation",
            &hint,
            tunnelled(lab, &run, &site, &tunnels, 1024),
        )
        .await?;
    report
        .case(
            "WireGuard carries path MTU 4096 in fragments",
            &hint,
            tunnelled(lab, &run, &site, &tunnels, 4096),
        )
        .await
}

/// Tests HCAs on tap interfaces that are connected through a VXLAN.
async fn vxlan(lab: &Lab, run: &RunDir, site: &Site, frames: u16, path_mtu: u16) -> Result<()> {
    site.join_by_vxlan(frames).await?;
    let mut hosts = Host::start_all(lab, run, site, |spec| {
        spec.name = format!("vxlan{frames}-{}", spec.id);
        spec.fabric = Fabric::Tap(site::TAP.to_owned());
    })
    .await?;
    for host in &mut hosts {
        let log = std::fs::read_to_string(host.daemon.process().log())?;
        let says = format!("path_mtu={path_mtu}");
        ensure!(log.contains(&says), "the log does not contain '{says}' for each port:\n{log}");
    }
    talk(&mut hosts, path_mtu).await?;
    Host::stop_all(hosts).await
}

/// Tests HCAs that send to each other's addresses on the WireGuard network.
async fn tunnelled(lab: &Lab, run: &RunDir, site: &Site, tunnels: &Tunnels, path_mtu: u16) -> Result<()> {
    let mut hosts = Host::start_all(lab, run, site, |spec| {
        spec.name = format!("wireguard{path_mtu}-{}", spec.id);
        let own = usize::from(spec.id) - 1;
        spec.bind = tunnels.address(own);
        let others = (0..HOSTS).filter(|host| *host != own);
        spec.peers = others.map(|host| Peer { addr: tunnels.address(host), leaf: false, id: None }).collect();
    })
    .await?;
    let before = site.fragments().await?;
    talk(&mut hosts, path_mtu).await?;
    let made = site.fragments().await? - before;
    // Packets must be fragmented if and only if the path MTU exceeds the tunnels' MTU.
    let is_cut = path_mtu > tunnels.mtu();
    ensure!(
        (made > 0) == is_cut,
        "path MTU {path_mtu} caused {made} fragments in frames of {}",
        tunnels.mtu()
    );
    Host::stop_all(hosts).await
}
