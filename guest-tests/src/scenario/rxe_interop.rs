//! Tests a JingZhao HCA against unmodified soft-RoCE in a stock guest. That guest's transport and tools are not part of
//! this project.
//!
//! The virtio NIC of the soft-RoCE guest is connected directly to the HCA's fabric, with each frame in one UDP
//! datagram.

pub(super) mod loss;
mod matrix;
mod witness;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use agent::wire::Service;
use anyhow::{Context, Result, ensure};
use serde_json::json;

use self::matrix::Matrix;
use super::endpoint::connect;
use super::endpoint::jingzhao::Jingzhao;
use super::endpoint::stock::Stock;
use super::pair::{Node, VFIO_MODULES};
use crate::daemon::{Daemon, HcaSpec};
use crate::lab::{Guest, Lab};
use crate::qemu::{Nic, NicModel};
use crate::report::{Report, line};
use crate::run_dir::RunDir;
use crate::vm::Vm;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// Every operation, role and path MTU, with a few sizes.
    Core,
    /// Every operation, role and path MTU, with all sizes.
    Full,
    /// Only RC operations. Other services do not recover from loss.
    Lossy,
    /// Every operation and role over IPv6 link-local addresses.
    Ipv6,
}

impl Extent {
    const fn scenario(self) -> &'static str {
        match self {
            Self::Core => "rxe-interop",
            Self::Full => "rxe-interop-full",
            Self::Lossy => "rxe-loss",
            Self::Ipv6 => "rxe-ipv6",
        }
    }
}

/// The HCA's number, which determines its addresses.
const HCA: u16 = 1;

struct Bench {
    run: RunDir,
    hca: Jingzhao<Node>,
    rxe: Stock,
}

pub(super) async fn run(lab: &Lab, report: &mut Report, extent: Extent) -> Result<()> {
    let mut bench = Bench::start(lab, extent).await?;
    let hint = bench.hint();
    report.case("the HCA responds to ping over IPv4 and IPv6", &hint, bench.ping()).await?;

    let mut matrix = Matrix::new(extent);
    for (service, mtu) in matrix.connections() {
        bench.connect(service, mtu).await?;
        for row in matrix.rows(service, mtu) {
            let name = row.to_string();
            report.case(&name, &hint, matrix.run(&row, &mut bench.hca, &mut bench.rxe)).await?;
        }
    }
    line(&matrix.to_string())?;
    report
        .case("every received packet was intact, including its ICRC", &hint, witness::check(&mut bench))
        .await?;
    report.case("the daemon exits cleanly on SIGTERM", &hint, bench.stop()).await
}

impl Bench {
    async fn start(lab: &Lab, extent: Extent) -> Result<Self> {
        let run = lab.new_run(extent.scenario())?;
        let (hca, rxe) = Self::boot(lab, &run, extent)
            .await
            .with_context(|| format!("console output and logs are in {}", run.path().display()))?;
        Ok(Self { run, hca, rxe })
    }

    async fn boot(lab: &Lab, run: &RunDir, extent: Extent) -> Result<(Jingzhao<Node>, Stock)> {
        let [mut hca, rxe] = HcaSpec::pair()?;
        hca.prefer_ipv6 = extent == Extent::Ipv6;
        let ip = if hca.prefer_ipv6 { link_local } else { ip };
        // Verbs programs expect the GRH area in front of datagrams.
        hca.options = json!({ "ud_grh": true });
        let daemon = Daemon::start(&lab.hcad()?, &hca, run).await?;
        let nic = Nic { model: NicModel::Virtio, mac: mac(rxe.id), bind: rxe.bind, peer: hca.bind };
        let (node, rxe_guest) = tokio::try_join!(
            async {
                let image = lab.image(run, VFIO_MODULES)?;
                let mut node = Node::boot(lab, run, &image, "jingzhao", daemon).await?;
                node.open().await?;
                Jingzhao::new(node, ip(hca.id), ip(hca.default_peer)).await
            },
            async {
                let vm = rxe_guest(lab, run, rxe.id, nic).await?;
                Stock::open("rxe", vm, "rxe0", ip(rxe.id)).await
            }
        )?;
        Ok((node, rxe_guest))
    }

    /// Returns text that names the files to inspect when a case fails.
    fn hint(&self) -> String {
        format!("console output, logs, captures and command lines: {}", self.run.path().display())
    }

    async fn ping(&mut self) -> Result<()> {
        for address in [ip(HCA).to_string(), format!("{}%eth0", link_local(HCA))] {
            self.rxe.vm.run(&["ping", "-c", "3", "-i", "0.2", "-s", "4000", &address]).await?;
        }
        let echo = self.hca.driver.daemon.counter("/port/echo").await?;
        ensure!(echo == 6, "{echo} of 6 echo requests were answered");
        Ok(())
    }

    /// Connects new queue pairs at both ends. Returns the HCA's and soft-RoCE's QP numbers.
    async fn connect(&mut self, service: Service, mtu: u16) -> Result<[u32; 2]> {
        connect(&mut self.hca, &mut self.rxe, service, mtu).await
    }

    async fn stop(self) -> Result<()> {
        let Self { mut hca, mut rxe, .. } = self;
        rxe.vm.kill().await?;
        hca.driver.vm.kill().await?;
        hca.driver.daemon.stop().await
    }
}

/// Boots a guest with soft-RoCE on the given NIC. The guest's IPv4 address is derived from `id`.
pub(super) async fn boot_rxe(lab: &Lab, run: &RunDir, id: u16, nic: Nic) -> Result<Stock> {
    let vm = rxe_guest(lab, run, id, nic).await?;
    Stock::open("rxe", vm, "rxe0", ip(id)).await
}

async fn rxe_guest(lab: &Lab, run: &RunDir, id: u16, nic: Nic) -> Result<Vm> {
    let image = lab.debian_image(run).await?;
    let guest = Guest { name: "rxe", nics: vec![nic], ..Guest::default() };
    let mut vm = lab.boot(run, &image, guest).await?;
    let address = format!("{}/16", ip(id));
    for command in [
        &["modprobe", "-a", "virtio_net", "rdma_rxe"][..],
        // This MTU leaves room for the headers of a packet with a path MTU of 4096.
        &["ip", "link", "set", "eth0", "mtu", "4200", "up"],
        &["ip", "address", "add", &address, "dev", "eth0"],
        &["rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "eth0"],
    ] {
        vm.run(command).await?;
    }
    Ok(vm)
}

/// Derives a MAC address from a number as the HCAs do.
pub(super) fn mac(id: u16) -> [u8; 6] {
    let [high, low] = id.to_be_bytes();
    [2, 0, 0, 0, high, low]
}

pub(super) fn ip(id: u16) -> IpAddr {
    let [high, low] = id.to_be_bytes();
    Ipv4Addr::from([10, 77, high, low]).into()
}

/// Returns the IPv6 link-local address derived from the MAC address of station `id`.
fn link_local(id: u16) -> IpAddr {
    Ipv6Addr::from([0xfe80, 0, 0, 0, 0, 0xff, 0xfe00, id]).into()
}
