//! Storage over RDMA between two guests with an E810 each, by nothing but Debian's kernel and tools: NVMe over RDMA, iSER,
//! NFS over RDMA, and sockets of RDS and SMC. What is written comes back, cold and at the other end, also from a wire that
//! loses frames, and after the server has gone and come again.

mod kernel;
mod protocol;
mod sockets;
mod target;

use std::time::Duration;

use anyhow::{Context, Result};

use self::kernel::Config;
use self::protocol::Protocol;
use self::target::{Amount, Target};
use super::roce;
use super::station::Station;
use crate::lab::Lab;
use crate::report::Report;

/// How much of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Extent {
    /// What says most, with little data.
    Core,
    /// All of it; takes many minutes.
    Full,
}

impl Extent {
    const fn name(self) -> &'static str {
        match self {
            Self::Core => "e810-storage",
            Self::Full => "e810-storage-full",
        }
    }

    const fn protocols(self) -> &'static [Protocol] {
        match self {
            Self::Core => &[protocol::NVME, protocol::NFS],
            Self::Full => &[protocol::NVME, protocol::ISER, protocol::NFS],
        }
    }

    const fn amount(self) -> Amount {
        const CORE: Amount = Amount { parts: 1, part_mib: 16, verify: Duration::from_secs(3) };
        const FULL: Amount = Amount { parts: 8, part_mib: 64, verify: Duration::from_secs(60) };
        match self {
            Self::Core => CORE,
            Self::Full => FULL,
        }
    }
}

/// Who serves, and who uses it.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) client: Station,
    pub(super) server: Station,
}

pub(in super::super) async fn run(lab: &Lab, report: &mut Report, extent: Extent) -> Result<()> {
    let run = lab.new_run(extent.name())?;
    let hint = format!("consoles, logs and command lines: {}", run.path().display());
    let image = lab.debian_image(&run).await?;
    let [client, server] = roce::pair(lab, &run, &image).await.context(hint.clone())?;
    let mut pair = Pair { client, server };
    let start = async {
        roce::start(&mut pair.client).await?;
        roce::start(&mut pair.server).await
    };
    report.case("both ports are active", &hint, start).await?;
    for &protocol in extent.protocols() {
        protocol_cases(report, &hint, &mut pair, Target::new(protocol, extent.amount())).await?;
    }
    let config = Config::new(lab.kernel_config()?);
    if extent == Extent::Full {
        sockets::cases(report, &hint, &mut pair, &config).await?;
    }
    kernel::cases(report, &hint, &config).await?;
    let stop = async {
        pair.client.stop().await?;
        pair.server.stop().await
    };
    report.case("the daemons end with success on SIGTERM", &hint, stop).await
}

async fn protocol_cases(report: &mut Report, hint: &str, pair: &mut Pair, target: Target) -> Result<()> {
    let name = target.name();
    let limit = target.limit();
    report.case(&format!("{name}: the client connects"), hint, target.connect(pair)).await?;
    let title = format!("{name}: what is written comes back, here and there");
    report.case_within(limit, &title, hint, target.content(pair, 1)).await?;
    report.case_within(limit, &format!("{name}: fio verifies"), hint, target.verify(pair)).await?;
    report.case(&format!("{name}: no kernel warned of anything"), hint, target.no_warnings(pair)).await?;
    let title = format!("{name}: the same where one frame in a thousand is lost");
    report.case_within(limit * 2, &title, hint, target.lossy(pair)).await?;
    let title = format!("{name}: fio goes on when the server has been gone");
    report.case_within(limit, &title, hint, target.interrupted(pair)).await?;
    report.case(&format!("{name}: the client leaves"), hint, target.disconnect(pair)).await
}
