//! Interoperability of six endpoints on one fabric: `ib_mthca`, a JingZhao HCA, `irdma` on an E810, `mlx5_ib` on a
//! ConnectX with an InfiniBand port, `mlx5_ib` on a ConnectX with an Ethernet port, and soft-RoCE on an ordinary NIC.
//! Each pair communicates over every service that both support, and every byte is checked at both ends.

use agent::wire::Service;
use anyhow::{Context, Result};
use serde_json::json;

use super::cell::{Cell, Operation};
use super::endpoint::jingzhao::Jingzhao;
use super::endpoint::stock::Stock;
use super::endpoint::{Endpoint, connect};
use super::mthca::DOORBELL_RECORD_REMAPS;
use super::nic::roce;
use super::pair::{Node, VFIO_MODULES};
use super::rxe_interop::{boot_rxe, ip, mac};
use super::stock_pair::load;
use crate::daemon::{Daemon, HcaSpec, Interface, Peer, free_udp_ports};
use crate::lab::{Guest, Lab};
use crate::qemu::{Nic, NicModel};
use crate::report::Report;
use crate::run_dir::RunDir;
use crate::testbed::kind::Device;
use crate::vm::Vm;

/// Largest path MTU that `ib_mthca` supports.
const MTU: u16 = 2048;
/// Messages that each pair exchanges, by service. Apart from empty messages and the longest datagram, no length is a
/// multiple of the path MTU.
const CELLS: &[(Service, &[(Operation, u32)])] = &[
    (
        Service::Rc,
        &[
            (Operation::Send, 0),
            (Operation::Send, 20_011),
            (Operation::SendImm, 1),
            (Operation::Write, 100_003),
            (Operation::WriteImm, 2049),
            (Operation::Read, 65_537),
            (Operation::Swap, 8),
            (Operation::NoSwap, 8),
            (Operation::FetchAdd, 8),
        ],
    ),
    (Service::Uc, &[(Operation::Send, 2047), (Operation::SendImm, 5000), (Operation::Write, 2049)]),
    (
        Service::Ud,
        &[(Operation::Send, 0), (Operation::Send, 1), (Operation::SendImm, 1023), (Operation::Send, 2048)],
    ),
];

/// Messages for pairs that include an E810, which supports neither UC nor atomics.
pub(super) const E810_CELLS: &[(Service, &[(Operation, u32)])] = &[
    (
        Service::Rc,
        &[
            (Operation::Send, 0),
            (Operation::Send, 20_011),
            (Operation::SendImm, 1),
            (Operation::Write, 100_003),
            (Operation::WriteImm, 2049),
            (Operation::Read, 65_537),
        ],
    ),
    (
        Service::Ud,
        &[(Operation::Send, 0), (Operation::Send, 1), (Operation::SendImm, 1023), (Operation::Send, 2048)],
    ),
];

struct Fabric {
    mthca: Stock,
    jingzhao: Jingzhao<Node>,
    e810: Stock,
    connectx: Stock,
    /// A ConnectX with an Ethernet port.
    nic: Stock,
    rxe: Stock,
    daemons: [Daemon; 4],
    hint: String,
}

pub(super) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    let run = lab.new_run("mixed-fabric")?;
    let hint = format!("console output, logs, captures and command lines: {}", run.path().display());
    let mut fabric = Fabric::start(lab, &run, hint.clone()).await.context(hint)?;
    let Fabric { mthca, jingzhao, e810, connectx, nic, rxe, hint, .. } = &mut fabric;
    for (number, &(service, cells)) in (1..).zip(CELLS) {
        let name = |pair: &str| format!("{service:?}, {pair}");
        let talk = Talk { service, cells, seed: number << 48 };
        report.case(&name("mthca and JingZhao"), hint, talk.run(mthca, jingzhao)).await?;
        report.case(&name("mthca and soft-RoCE"), hint, talk.run(mthca, rxe)).await?;
        report.case(&name("JingZhao and soft-RoCE"), hint, talk.run(jingzhao, rxe)).await?;
        report.case(&name("ConnectX and mthca"), hint, talk.run(connectx, mthca)).await?;
        report.case(&name("ConnectX and JingZhao"), hint, talk.run(connectx, jingzhao)).await?;
        report.case(&name("ConnectX and soft-RoCE"), hint, talk.run(connectx, rxe)).await?;
        report.case(&name("ConnectX NIC and mthca"), hint, talk.run(nic, mthca)).await?;
        report.case(&name("ConnectX NIC and JingZhao"), hint, talk.run(nic, jingzhao)).await?;
        report.case(&name("ConnectX NIC and soft-RoCE"), hint, talk.run(nic, rxe)).await?;
        report.case(&name("ConnectX NIC and ConnectX"), hint, talk.run(nic, connectx)).await?;
    }
    for (number, &(service, cells)) in (0x11..).zip(E810_CELLS) {
        let name = |pair: &str| format!("{service:?}, {pair}");
        let talk = Talk { service, cells, seed: number << 48 };
        report.case(&name("E810 and mthca"), hint, talk.run(e810, mthca)).await?;
        report.case(&name("E810 and JingZhao"), hint, talk.run(e810, jingzhao)).await?;
        report.case(&name("E810 and soft-RoCE"), hint, talk.run(e810, rxe)).await?;
        report.case(&name("E810 and ConnectX"), hint, talk.run(e810, connectx)).await?;
        report.case(&name("E810 and ConnectX NIC"), hint, talk.run(e810, nic)).await?;
    }
    let hint = hint.clone();
    report.case("the daemons exit cleanly on SIGTERM", &hint, fabric.stop()).await
}

/// All messages that a pair exchanges on one connection.
#[derive(Clone, Copy)]
pub(super) struct Talk {
    pub(super) service: Service,
    pub(super) cells: &'static [(Operation, u32)],
    pub(super) seed: u64,
}

impl Talk {
    pub(super) async fn run<A: Endpoint, B: Endpoint>(self, a: &mut A, b: &mut B) -> Result<()> {
        connect(a, b, self.service, MTU).await?;
        for (n, &(operation, len)) in (0..).step_by(2).zip(self.cells) {
            let cell = |n: u64| Cell { service: self.service, operation, len, seed: self.seed + (n << 32) };
            let what = format!("{} of {len} bytes", operation.name());
            cell(n).run(a, b).await.with_context(|| format!("{what}, forward"))?;
            cell(n + 1).run(b, a).await.with_context(|| format!("{what}, backward"))?;
        }
        Ok(())
    }
}

impl Fabric {
    async fn start(lab: &Lab, run: &RunDir, hint: String) -> Result<Self> {
        let [mut mthca, mut jingzhao, mut e810, mut connectx, mut card] = HcaSpec::mesh()?;
        let [bind] = free_udp_ports()?;
        let rxe_id = 6;
        mthca.interface = Interface::Mthca;
        mthca.strict = true;
        mthca.explained = &DOORBELL_RECORD_REMAPS;
        mthca.trace = lab.trace();
        mthca.peers.push(Peer { addr: bind, leaf: true, id: None });
        // Verbs programs expect the GRH area in front of datagrams.
        jingzhao.options = json!({ "ud_grh": true });
        e810.interface = Interface::E810;
        e810.strict = true;
        connectx.interface = Interface::ConnectxIb;
        connectx.strict = true;
        connectx.trace = lab.trace();
        card.interface = Interface::Connectx;
        card.strict = true;
        card.trace = lab.trace();
        let nic = Nic { model: NicModel::Virtio, mac: mac(rxe_id), bind, peer: mthca.bind };
        let mthca_daemon = Daemon::start(&lab.hcad()?, &mthca, run).await?;
        let jingzhao_daemon = Daemon::start(&lab.hcad()?, &jingzhao, run).await?;
        let connectx_daemon = Daemon::start(&lab.hcad()?, &connectx, run).await?;
        // Boot at most two guests at a time: more would overload a small host.
        let (mthca, jingzhao) = tokio::try_join!(
            async {
                let hcas = vec![mthca_daemon.socket().to_owned()];
                let guest = Guest { name: "mthca", hcas, ..Guest::default() };
                let vm = infiniband_guest(lab, run, Device::Mthca, guest).await?;
                Stock::open_infiniband("mthca", vm, "mthca0", ip(mthca.id)).await
            },
            async {
                let image = lab.image(run, VFIO_MODULES)?;
                let mut node = Node::boot(lab, run, &image, "jingzhao", jingzhao_daemon).await?;
                node.open().await?;
                Jingzhao::new(node, ip(jingzhao.id), ip(jingzhao.default_peer)).await
            }
        )?;
        let ((e810, e810_daemon), rxe) = tokio::try_join!(
            async {
                let ip = ip(e810.id);
                let (vm, device, daemon) = roce::guest(Device::E810, lab, run, &e810, ip).await?;
                Ok((Stock::open("e810", vm, device, ip).await?, daemon))
            },
            boot_rxe(lab, run, rxe_id, nic)
        )?;
        let cards = vec![connectx_daemon.socket().to_owned()];
        let guest = Guest { name: "connectx", cards, ..Guest::default() };
        let vm = infiniband_guest(lab, run, Device::ConnectxIb, guest).await?;
        let connectx = Stock::open_infiniband("connectx", vm, "mlx5_0", ip(connectx.id)).await?;
        let own = ip(card.id);
        let (vm, device, card_daemon) = roce::guest(Device::Connectx, lab, run, &card, own).await?;
        let nic = Stock::open("connectx-nic", vm, device, own).await?;
        let daemons = [mthca_daemon, e810_daemon, connectx_daemon, card_daemon];
        Ok(Self { mthca, jingzhao, e810, connectx, nic, rxe, daemons, hint })
    }

    async fn stop(self) -> Result<()> {
        let Self { mut mthca, mut jingzhao, mut e810, mut connectx, mut nic, mut rxe, daemons, .. } = self;
        mthca.vm.kill().await?;
        e810.vm.kill().await?;
        connectx.vm.kill().await?;
        nic.vm.kill().await?;
        rxe.vm.kill().await?;
        jingzhao.driver.vm.kill().await?;
        jingzhao.driver.daemon.stop().await?;
        for daemon in daemons {
            daemon.stop().await?;
        }
        Ok(())
    }
}

/// Boots a guest with an InfiniBand HCA and loads its drivers.
async fn infiniband_guest(lab: &Lab, run: &RunDir, hca: Device, guest: Guest<'_>) -> Result<Vm> {
    let image = lab.debian_image(run).await?;
    let (least_cpus, least_memory_mib) = hca.least();
    let mut vm = lab.boot(run, &image, Guest { least_cpus, least_memory_mib, ..guest }).await?;
    load(&mut vm, hca).await?;
    Ok(vm)
}
