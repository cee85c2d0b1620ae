//! Runs rdma-core's ping-pong programs between two guests. The programs check every message.

use std::time::Duration;

use agent::wire::ProgramEnd;
use anyhow::{Result, ensure};

use super::super::extent::Extent;
use super::super::stock_pair::StockPair;
use crate::daemon::Explained;
use crate::lab::Lab;
use crate::report::Report;
use crate::tools::{Exchange, Ready};

/// Command lines, without the options for the device and the content check. They cover every service, with and without
/// events and GIDs, and both single-packet and multi-packet messages.
const CASES: &[&str] = &[
    "ibv_rc_pingpong",
    "ibv_rc_pingpong -s 1 -n 2000 -e",
    "ibv_rc_pingpong -s 4096 -m 256",
    "ibv_rc_pingpong -s 2049 -m 2048",
    "ibv_rc_pingpong -s 4096 -m 1024 -g 0",
    "ibv_rc_pingpong -s 1048576 -m 2048 -n 50 -e",
    "ibv_rc_pingpong -r 1 -n 2000",
    "ibv_uc_pingpong -e",
    "ibv_uc_pingpong -s 4096 -m 512 -g 0",
    "ibv_uc_pingpong -s 65536 -m 2048 -n 200",
    "ibv_ud_pingpong",
    "ibv_ud_pingpong -s 2048 -g 0 -e",
    "ibv_srq_pingpong -e",
    "ibv_srq_pingpong -s 1 -q 1 -n 2000",
    "ibv_srq_pingpong -s 4096 -m 1024 -q 2",
    "ibv_srq_pingpong -s 1048576 -m 2048 -n 32",
];

/// Additional command lines for the full run, with other sizes, path MTUs, GIDs and queue depths.
const MORE_CASES: &[&str] = &[
    "ibv_rc_pingpong -e",
    "ibv_rc_pingpong -s 1 -n 5000",
    "ibv_rc_pingpong -s 2047",
    "ibv_rc_pingpong -s 4096 -m 512",
    "ibv_rc_pingpong -s 4096 -m 2048 -g 0 -e",
    "ibv_rc_pingpong -s 65536 -m 2048 -n 500",
    "ibv_rc_pingpong -s 1048576 -m 256 -n 50",
    "ibv_rc_pingpong -s 1048576 -m 2048 -n 100",
    "ibv_uc_pingpong",
    "ibv_uc_pingpong -s 1 -n 5000",
    "ibv_uc_pingpong -s 4096 -m 256",
    "ibv_uc_pingpong -s 4096 -m 1024 -e",
    "ibv_uc_pingpong -s 1048576 -m 2048 -n 50",
    "ibv_ud_pingpong -e",
    "ibv_ud_pingpong -s 1 -n 5000",
    "ibv_ud_pingpong -s 2048",
    "ibv_srq_pingpong",
    "ibv_srq_pingpong -s 4096 -m 256 -q 4",
    "ibv_srq_pingpong -s 4096 -m 512 -q 2",
    "ibv_srq_pingpong -s 4096 -m 2048 -q 16 -e -g 0",
    "ibv_srq_pingpong -s 65536 -m 2048 -q 8 -n 200",
];

/// TCP port that the servers listen on.
pub(in super::super) const PORT: u16 = 18515;
pub(in super::super) const LIMIT: Duration = Duration::from_secs(60);

/// Violations that strict mode may report without failing the scenario.
const EXPLAINED: &[Explained] = &[];

pub(in super::super) async fn run(lab: &Lab, report: &mut Report, extent: Extent) -> Result<()> {
    let name = extent.select("mthca-pingpong", "mthca-pingpong-full");
    let mut pair = StockPair::start_strict(lab, name, EXPLAINED).await?;
    let hint = pair.hint();
    report.case("both ports are active", &hint, pair.load()).await?;
    for case in extent.select([CASES, &[]], [CASES, MORE_CASES]).iter().copied().flatten() {
        let command = format!("{case} -c -d mthca0");
        report.case(case, &hint, async { ping_pong(&mut pair, &command).await.map(drop) }).await?;
    }
    report.case("no kernel warnings", &hint, pair.no_warnings()).await?;
    report.case("the daemons exit cleanly on SIGTERM", &hint, pair.stop()).await
}

/// Runs a ping-pong program in both guests and returns the client's result.
pub(in super::super) async fn ping_pong(pair: &mut StockPair, command: &str) -> Result<ProgramEnd> {
    let server = command.to_owned();
    let client = format!("{server} {}", pair.b.ip);
    let ends = pair.exchange(&Exchange { server, client, ready: Ready::Tcp(PORT), limit: LIMIT }).await?;
    for end in [&ends.client, &ends.server] {
        // The programs exit with status 0 even after errors.
        ensure!(!end.stdout.contains("invalid data"), "{}", end.stdout);
        ensure!(end.stdout.contains(" iters in "), "no result: {}{}", end.stdout, end.stderr);
    }
    Ok(ends.client)
}
