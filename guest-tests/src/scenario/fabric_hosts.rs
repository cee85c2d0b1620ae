//! HCAs on three hosts, connected through a VXLAN or WireGuard. The maximum frame length of a VXLAN limits the path
//! MTU. Over WireGuard, packets that exceed the tunnels' MTU are fragmented.
//!
//! The three hosts and the network between them are network namespaces. The network of the machine that runs this
//! scenario is not changed.

mod site;
mod wireguard;

use anyhow::{Context as _, Result, bail, ensure};

use self::site::{HOSTS, Site};
use self::wireguard::Tunnels;
use super::cell::{Cell, Operation};
use super::endpoint::connect;
use super::endpoint::jingzhao::{InProcess, Jingzhao};
use super::rxe_interop::ip;
use crate::daemon::{Daemon, Fabric, HcaSpec, Peer};
use crate::lab::Lab;
use crate::report::{Report, Skip};
use crate::run_dir::RunDir;

use agent::wire::Service;

/// The standard MTU of Ethernet.
const ORDINARY: u16 = 1500;
/// An MTU that leaves room for a path MTU of 4096 in a VXLAN.
const JUMBO: u16 = 4300;

/// Messages exchanged by each pair of endpoints. No length is a multiple of a path MTU.
const WORDS: [(Operation, u32); 4] = [
    (Operation::Send, 20_011),
    (Operation::WriteImm, 100_003),
    (Operation::Read, 65_537),
    (Operation::FetchAdd, 8),
];

pub(super) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    let run = lab.new_run("fabric-hosts")?;
    let hint = format!("see {}", run.path().display());
    let site = match Site::create().await {
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
        spec.peers = others.map(|host| Peer { addr: tunnels.address(host), leaf: false }).collect();
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

struct Host {
    hca: Jingzhao<InProcess>,
    daemon: Daemon,
}

impl Host {
    /// Starts one HCA on each host, with settings modified by `change`.
    async fn start_all(
        lab: &Lab,
        run: &RunDir,
        site: &Site,
        change: impl Fn(&mut HcaSpec),
    ) -> Result<Vec<Self>> {
        let mut hosts = Vec::new();
        for (host, mut spec) in site.hosts().iter().zip(HcaSpec::mesh_of(HOSTS)?) {
            change(&mut spec);
            let command = host.command(lab.hcad()?);
            let daemon = Daemon::start_by(command, std::slice::from_ref(&spec), run).await?;
            let hca = Jingzhao::attach(daemon.socket(), ip(spec.id), ip(spec.default_peer)).await?;
            hosts.push(Self { hca, daemon });
        }
        Ok(hosts)
    }

    async fn stop_all(hosts: Vec<Self>) -> Result<()> {
        for Self { hca, daemon } in hosts {
            drop(hca);
            daemon.stop().await?;
        }
        Ok(())
    }
}

/// Has every pair of hosts exchange all messages in both directions.
async fn talk(hosts: &mut [Host], path_mtu: u16) -> Result<()> {
    let mut seed = u64::from(path_mtu) << 40;
    for first in 0..hosts.len() {
        for second in first + 1..hosts.len() {
            let Ok([a, b]) = hosts.get_disjoint_mut([first, second]) else { bail!("two hosts") };
            connect(&mut a.hca, &mut b.hca, Service::Rc, path_mtu).await?;
            for (operation, len) in WORDS {
                let mut cell = || {
                    seed += 1 << 32;
                    Cell { service: Service::Rc, operation, len, seed }
                };
                let what = || format!("{} between hosts {} and {}", operation.name(), first + 1, second + 1);
                cell().run(&mut a.hca, &mut b.hca).await.with_context(what)?;
                cell().run(&mut b.hca, &mut a.hca).await.with_context(what)?;
            }
        }
    }
    Ok(())
}
