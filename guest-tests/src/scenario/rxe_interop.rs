//! A JingZhao HCA against Linux's soft-RoCE, unmodified in a stock guest: neither its transport nor its tools are ours.
//!
//! The soft-RoCE guest's virtio NIC is wired straight to the HCA's fabric: each frame is one UDP datagram.

mod cell;
mod matrix;
mod witness;

use std::net::Ipv4Addr;

use agent::wire::Service;
use anyhow::{Context, Result};
use serde_json::json;

use self::matrix::Matrix;
use super::endpoint::jingzhao::Jingzhao;
use super::endpoint::stock::Stock;
use super::endpoint::{Endpoint, Link};
use super::pair::{Node, VFIO_MODULES};
use crate::daemon::{Daemon, HcaSpec};
use crate::lab::{Guest, Lab};
use crate::qemu::Nic;
use crate::report::{Report, line};
use crate::run_dir::RunDir;

/// How much of the matrix is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// Every operation and role, and every size and path MTU with some of them.
    Core,
    /// Everything with everything.
    Full,
}

/// The guests, and where they leave their traces.
struct Bench {
    run: RunDir,
    hca: Jingzhao,
    rxe: Stock,
}

pub(super) async fn run(lab: &Lab, report: &mut Report, extent: Extent) -> Result<()> {
    let run = lab.new_run(match extent {
        Extent::Core => "rxe-interop",
        Extent::Full => "rxe-interop-full",
    })?;
    let mut bench = Bench::start(lab, run).await?;
    let hint = bench.hint();
    report.case("the HCA answers ping", &hint, bench.ping()).await?;

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
        .case("every packet that arrived was whole, its ICRC included", &hint, witness::check(&mut bench))
        .await?;
    report.case("the daemon ends with success on SIGTERM", &hint, bench.stop()).await
}

impl Bench {
    async fn start(lab: &Lab, run: RunDir) -> Result<Self> {
        let (hca, rxe) =
            Self::boot(lab, &run).await.with_context(|| format!("see {}", run.path().display()))?;
        Ok(Self { run, hca, rxe })
    }

    async fn boot(lab: &Lab, run: &RunDir) -> Result<(Jingzhao, Stock)> {
        let [mut hca, rxe] = HcaSpec::pair()?;
        // Verbs programs expect the area in front of datagrams.
        hca.options = json!({ "ud_grh": true });
        let daemon = Daemon::start(&lab.hcad()?, &hca, run).await?;
        let nic = Nic { mac: mac(rxe.id), bind: rxe.bind, peer: hca.bind };
        let (node, rxe_guest) = tokio::try_join!(
            async {
                let image = lab.image(run, VFIO_MODULES)?;
                let mut node = Node::boot(lab, run, &image, "jingzhao", daemon).await?;
                node.open().await?;
                Jingzhao::new(node, ip(hca.id)).await
            },
            async {
                let image = lab.debian_image(run).await?;
                let guest = Guest { name: "rxe", nics: vec![nic], ..Guest::default() };
                let mut vm = lab.boot(run, &image, guest).await?;
                let address = format!("{}/16", ip(rxe.id));
                for command in [
                    &["modprobe", "-a", "virtio_net", "rdma_rxe"][..],
                    // Room for a path MTU of 4096 and its headers.
                    &["ip", "link", "set", "eth0", "mtu", "4200", "up"],
                    &["ip", "address", "add", &address, "dev", "eth0"],
                    &["rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "eth0"],
                ] {
                    vm.run(command).await?;
                }
                Stock::open("rxe", vm, "rxe0", ip(rxe.id)).await
            }
        )?;
        Ok((node, rxe_guest))
    }

    /// Where to look when a case fails.
    fn hint(&self) -> String {
        format!("consoles, logs, captures and command lines: {}", self.run.path().display())
    }

    async fn ping(&mut self) -> Result<()> {
        let address = self.hca.ip().to_string();
        self.rxe.vm.run(&["ping", "-c", "3", "-i", "0.2", "-s", "4000", &address]).await.map(drop)
    }

    /// New queue pairs at both ends, connected to each other.
    async fn connect(&mut self, service: Service, mtu: u16) -> Result<()> {
        let Self { hca, rxe, .. } = self;
        let (hca_qpn, rxe_qpn) = tokio::try_join!(hca.create(service), rxe.create(service))?;
        // PSNs that wrap within the first messages of the connection, one way.
        let (hca_psn, rxe_psn) = (0xff_fff8, 0x12_3456 + u32::from(mtu));
        let qkey = 0x1234_5678;
        let to_rxe =
            Link { peer_qpn: rxe_qpn, peer_ip: rxe.ip(), mtu, psn: hca_psn, peer_psn: rxe_psn, qkey };
        let to_hca =
            Link { peer_qpn: hca_qpn, peer_ip: hca.ip(), mtu, psn: rxe_psn, peer_psn: hca_psn, qkey };
        tokio::try_join!(hca.connect(&to_rxe), rxe.connect(&to_hca))?;
        Ok(())
    }

    async fn stop(self) -> Result<()> {
        let Self { mut hca, mut rxe, .. } = self;
        rxe.vm.kill().await?;
        hca.node.vm.kill().await?;
        hca.node.daemon.stop().await
    }
}

/// Addresses follow from the number, as those of HCAs do.
fn mac(id: u16) -> [u8; 6] {
    let [high, low] = id.to_be_bytes();
    [2, 0, 0, 0, high, low]
}

fn ip(id: u16) -> Ipv4Addr {
    let [high, low] = id.to_be_bytes();
    [10, 77, high, low].into()
}
