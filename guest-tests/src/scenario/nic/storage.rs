//! Storage over RDMA between two guests that run Debian's kernel and tools, each with an E810 or a ConnectX. The tests
//! cover NVMe over RDMA, iSER, SRP, NFS over RDMA, and RDS and SMC sockets. Data is written, read back with caches
//! bypassed, and checked on the other node. This is repeated over a lossy link and after a server outage.

mod fio;
mod kernel;
mod server;
mod sockets;
mod target;

use std::time::Duration;

use anyhow::{Context, Result};

use self::kernel::Config;
use self::server::Place;
use self::target::{Amount, Outage, Target};
use super::station::Station;
use crate::lab::Lab;
use crate::report::Report;
use crate::services::storage::{self as protocol, Protocol};
use crate::testbed::kind::Device;

/// Selects which tests to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Extent {
    /// The most important tests, with little data.
    Core,
    /// One protocol with the full amount of data, which takes many minutes.
    Nvme,
    Iser,
    Srp,
    Nfs,
    /// Only the socket tests.
    Sockets,
    /// All protocols tested on the HCA, and the socket tests, with the full amount of data.
    Full,
}

impl Extent {
    /// Returns the scenario's name for the HCA `hca`.
    fn name(self, hca: Device) -> String {
        let family = match hca {
            Device::Connectx => "connectx-roce",
            Device::ConnectxIb => "connectx",
            _ => "e810",
        };
        let part = match self {
            Self::Core => "",
            Self::Nvme => "-nvme",
            Self::Iser => "-iser",
            Self::Srp => "-srp",
            Self::Nfs => "-nfs",
            Self::Sockets => "-sockets",
            Self::Full => "-full",
        };
        format!("{family}-storage{part}")
    }

    const fn protocols(self, hca: Device) -> &'static [Protocol] {
        match self {
            Self::Core => &[protocol::NVME, protocol::NFS],
            Self::Nvme => &[protocol::NVME],
            Self::Iser => &[protocol::ISER],
            Self::Srp => &[protocol::SRP],
            Self::Nfs => &[protocol::NFS],
            Self::Sockets => &[],
            Self::Full if matches!(hca, Device::ConnectxIb) => {
                &[protocol::NVME, protocol::ISER, protocol::SRP, protocol::NFS]
            }
            Self::Full => &[protocol::NVME, protocol::ISER, protocol::NFS],
        }
    }

    const fn amount(self) -> Amount {
        const CORE: Amount = Amount { parts: 1, part_mib: 16, verify: Duration::from_secs(3) };
        const FULL: Amount = Amount { parts: 8, part_mib: 64, verify: Duration::from_secs(60) };
        match self {
            Self::Core => CORE,
            _ => FULL,
        }
    }
}

#[derive(Debug)]
pub(super) struct Pair {
    pub(super) client: Station,
    pub(super) server: Station,
}

pub(in super::super) async fn run(lab: &Lab, report: &mut Report, hca: Device, extent: Extent) -> Result<()> {
    let run = lab.new_run(&extent.name(hca))?;
    let hint = format!("console output, logs and command lines: {}", run.path().display());
    let image = lab.debian_image(&run).await?;
    let place = Place::new(hca, lab, &run, &image, extent.amount().mib()).context(hint.clone())?;
    let [client, server] = place.pair().await.context(hint.clone())?;
    let mut pair = Pair { client, server };
    let start = async {
        place.start_rdma(&mut pair.client).await?;
        place.start_rdma(&mut pair.server).await
    };
    report.case("both ports are active", &hint, start).await?;
    for &protocol in extent.protocols(hca) {
        let target = Target::new(protocol, extent.amount());
        if connect(report, &hint, &mut pair, target).await? {
            protocol_cases(report, &hint, &mut pair, target).await?;
            if extent != Extent::Core {
                let title = format!("{}: fio resumes after the server was killed", target.name());
                let case = target.survives_outage(&mut pair, Outage::Killed(&place));
                report.case_within(target.limit() * 2, &title, &hint, case).await?;
            }
            let title = format!("{}: the client disconnects", target.name());
            report.case(&title, &hint, target.disconnect(&mut pair)).await?;
        }
    }
    let config = Config::new(lab.kernel_config()?);
    if matches!(extent, Extent::Sockets | Extent::Full) {
        sockets::cases(report, &hint, &mut pair, &config).await?;
    }
    kernel::cases(report, &hint, &config).await?;
    let stop = async {
        pair.client.stop().await?;
        pair.server.stop().await
    };
    report.case("the daemons exit cleanly on SIGTERM", &hint, stop).await
}

/// Connects the client and returns whether the connection succeeded. If not, the server releases its disk.
async fn connect(report: &mut Report, hint: &str, pair: &mut Pair, target: Target) -> Result<bool> {
    let failed = report.counts().failed;
    let title = format!("{}: the client connects", target.name());
    report.case(&title, hint, target.connect(pair)).await?;
    let connected = report.counts().failed == failed;
    if !connected && let Err(error) = target.end(pair).await {
        tracing::warn!("{}: {error:#}", target.name());
    }
    Ok(connected)
}

async fn protocol_cases(report: &mut Report, hint: &str, pair: &mut Pair, target: Target) -> Result<()> {
    let name = target.name();
    let limit = target.limit();
    let title = format!("{name}: both ends read back the written data");
    report.case_within(limit, &title, hint, target.content(pair, 1)).await?;
    report.case_within(limit, &format!("{name}: fio verifies the data"), hint, target.verify(pair)).await?;
    report.case(&format!("{name}: no kernel warnings"), hint, target.no_warnings(pair)).await?;
    let title = format!("{name}: fio verifies the data with 0.1 % frame loss");
    report.case_within(limit * 2, &title, hint, target.lossy(pair)).await?;
    let title = format!("{name}: fio resumes after the server dropped the connection");
    report.case_within(limit * 2, &title, hint, target.survives_outage(pair, Outage::LetGo)).await
}
