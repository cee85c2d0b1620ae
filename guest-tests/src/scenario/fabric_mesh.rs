//! Many HCAs on one fabric, each connected to all the others. They either communicate over UDP, with a NIC as an
//! additional station, or share one process.
//!
//! The HCAs are driven over their vfio-user sockets, without guests. The NIC belongs to a guest with soft-RoCE and is
//! connected to only one HCA, which forwards the NIC's frames.

mod churn;
mod congestion;
mod rounds;

use std::path::Path;

use anyhow::{Context as _, Result};

use self::rounds::Station;
pub(super) use self::rounds::rounds;
use super::endpoint::jingzhao::{InProcess, Jingzhao};
use super::rxe_interop::{boot_rxe, ip, mac};
use crate::daemon::{Daemon, Fabric, HcaSpec, Peer, free_udp_ports};
use crate::lab::Lab;
use crate::qemu::{Nic, NicModel};
use crate::report::Report;
use crate::run_dir::RunDir;

/// Number of HCAs that communicate over UDP. The NIC is not included.
const HCAS: usize = 7;
/// Number of HCAs that share one process.
const LOCAL_HCAS: u16 = 8;

pub(super) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    let run = lab.new_run("fabric-mesh")?;
    let hint = format!("see {}", run.path().display());
    let mut mesh = Mesh::start(lab, &run).await.context(hint.clone())?;
    rounds::run("UDP", &mut mesh.stations, report, &hint).await?;
    report.case("a peer leaves and returns while others communicate", &hint, churn::run(&mut mesh)).await?;
    report.case("ECN-marked data arrives and slows its sender", &hint, congestion::run(&mut mesh)).await?;
    report.case("the daemons exit cleanly on SIGTERM", &hint, mesh.stop()).await?;

    let specs = local_hcas()?;
    let daemon = Daemon::start_by(tokio::process::Command::new(lab.hcad()?), &specs, &run).await?;
    let mut stations = Vec::new();
    for (spec, socket) in specs.iter().zip(daemon.sockets()) {
        stations.push(Station::Hca(attach(socket, spec).await?));
    }
    rounds::run("one process", &mut stations, report, &hint).await?;
    drop(stations);
    report.case("the process with eight HCAs exits cleanly on SIGTERM", &hint, daemon.stop()).await
}

/// All stations on the fabric and their daemons. The last station is the NIC.
struct Mesh {
    stations: Vec<Station>,
    specs: [HcaSpec; HCAS],
    daemons: Vec<Daemon>,
}

impl Mesh {
    async fn start(lab: &Lab, run: &RunDir) -> Result<Self> {
        let mut specs: [HcaSpec; HCAS] = HcaSpec::mesh()?;
        let [bind] = free_udp_ports()?;
        specs[0].peers.push(Peer { addr: bind, leaf: true, id: None });
        let id = u16::try_from(HCAS)? + 1;
        let nic = Nic { model: NicModel::Virtio, mac: mac(id), bind, peer: specs[0].bind };
        let (mut daemons, mut stations) = (Vec::new(), Vec::new());
        for spec in &specs {
            let daemon = Daemon::start(&lab.hcad()?, spec, run).await?;
            stations.push(Station::Hca(attach(daemon.socket(), spec).await?));
            daemons.push(daemon);
        }
        stations.push(Station::Rxe(Box::new(boot_rxe(lab, run, id, nic).await?)));
        Ok(Self { stations, specs, daemons })
    }

    async fn stop(self) -> Result<()> {
        for station in self.stations {
            if let Station::Rxe(mut rxe) = station {
                rxe.vm.kill().await?;
            }
        }
        for daemon in self.daemons {
            daemon.stop().await?;
        }
        Ok(())
    }
}

async fn attach(socket: &Path, spec: &HcaSpec) -> Result<Jingzhao<InProcess>> {
    Jingzhao::attach(socket, ip(spec.id), ip(spec.default_peer))
        .await
        .with_context(|| format!("HCA {}", spec.id))
}

fn local_hcas() -> Result<Vec<HcaSpec>> {
    let [example, _] = HcaSpec::pair()?;
    let hca = |id: u16| HcaSpec {
        name: format!("local-{id}"),
        id,
        default_peer: 1 + u16::from(id == 1),
        fabric: Fabric::Local,
        ..example.clone()
    };
    Ok((1..=LOCAL_HCAS).map(hca).collect())
}
