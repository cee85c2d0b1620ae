//! Checks that errors are reported as on real hardware: by a completion status, an asynchronous event, or a kernel
//! message.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::super::failing::{EVENT_LIMIT, event, status};
use super::super::mthca::errors::{Ends, cases, still_works, traffic};
use super::super::stock_pair::StockPair;
use crate::daemon::Explained;
use crate::lab::Lab;
use crate::report::Report;
use crate::testbed::kind::Device;
use crate::tools;

/// Timeout for unloading the drivers. Linux 6.12 creates about 6,100 keys at load and destroys them one by one (mlx5
/// interface, trap M-17).
const UNLOAD_TIMEOUT: Duration = Duration::from_secs(600);

/// Violations that strict mode may report without failing the scenario.
const EXPLAINED: &[Explained] = &[
    Explained { rule: "wqe_key", why: "the programs post requests with wrong keys, on purpose" },
    Explained { rule: "cq_overrun", why: "a program does not read its CQ, on purpose" },
    Explained {
        rule: "doorbell_state",
        why: "when the driver is unloaded, ib_uverbs resets a program's QPs before it unmaps the program's doorbells",
    },
];

pub(in super::super) async fn run(lab: &Lab, report: &mut Report, hca: Device) -> Result<()> {
    let mut pair = super::start_of(hca, lab, &super::scenario(hca, "errors"), EXPLAINED).await?;
    let hint = pair.hint();
    report.case("both ports are active", &hint, pair.load()).await?;
    cases(lab, report, &hint, &mut pair, "CQ error on CQN").await?;
    report.case("the drivers are unloaded during traffic", &hint, unloaded(&mut pair)).await?;
    report.case("no kernel warnings after the removal", &hint, pair.no_warnings()).await?;
    report.case("the daemons exit cleanly on SIGTERM", &hint, pair.stop()).await
}

/// Unloads guest `a`'s drivers during traffic. The program in guest `a` must receive a fatal device event, and its
/// peer's requests must exhaust their retries.
async fn unloaded(pair: &mut StockPair) -> Result<()> {
    let [server, client] = traffic(pair).await?;
    let ends = Ends::open(pair).await?;
    pair.a.vm.run_within(UNLOAD_TIMEOUT, &["modprobe", "-r", "mlx5_ib", "mlx5_core"]).await?;
    let events = ends.a.verbs.events(&mut pair.a.vm, EVENT_LIMIT).await?;
    ensure!(events.contains(&event::DEVICE_FATAL), "events {events:?} without DEVICE_FATAL");
    let vm = &mut pair.b.vm;
    ends.b.post(vm, &[ends.b.send(64), ends.b.send(64)]).await?;
    ends.b.expect(vm, &[status::RETRY_EXC_ERR, status::WR_FLUSH_ERR]).await?;
    tools::stop(&mut pair.a.vm, client).await?;
    tools::stop(&mut pair.b.vm, server).await?;
    ends.close(pair).await?;
    pair.a.load().await?;
    still_works(pair).await
}
