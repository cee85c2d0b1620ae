//! Runs Debian's OpenSM in a guest. By default, it must yield to the fabric's subnet manager. If it is configured not
//! to yield, it must not disrupt the fabric.

use std::time::Duration;

use anyhow::{Context, Result};

use super::super::stock_pair::StockPair;
use super::ipoib::{both_up, connected, diagnose, ping};
use crate::lab::Lab;
use crate::report::Report;
use crate::tools::{Ready, await_text, spawn, stop};

/// Timeout for OpenSM's first sweep. OpenSM retries most queries several times before it gives up.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(90);

/// OpenSM's log file, which is searched for the end of a sweep.
const LOG: &str = "/tmp/opensm.log";

/// Test cases: name, OpenSM options, and log messages that mark the end of the first sweep.
const CASES: &[(&str, &str, &[&str])] = &[
    ("opensm with default options enters STANDBY", "", &["Entering STANDBY state"]),
    // With a different SM_Key, OpenSM ignores all other subnet managers.
    (
        "opensm with its own SM_Key becomes master",
        "--smkey 7",
        &["SUBNET UP", "Errors during initialization"],
    ),
];

/// Diagnostic commands that must work while OpenSM is running, with text expected in their output.
const DIAGNOSTICS: &[(&str, &[&str])] = &[
    ("sminfo", &["sm lid 49151", "priority 15", "SMINFO_MASTER"]),
    (
        "smpquery portinfo {lid} 1",
        &["SMLid:...........................49151", "LinkState:.......................Active"],
    ),
    ("saquery -g", &["ff12:401b:ffff::ffff:ffff"]),
    ("ibhosts", &["0x{guid}", "0x{peer_guid}"]),
    ("ibqueryerrors", &["0 bad nodes found"]),
];

pub(in super::super) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    let mut pair = StockPair::start_strict(lab, "mthca-opensm", &[]).await?;
    let hint = pair.hint();
    report.case("both ports are active", &hint, pair.load()).await?;
    report.case("both interfaces have a carrier", &hint, both_up(&mut pair)).await?;
    for &(name, options, ends) in CASES {
        let command = format!("env OSM_CACHE_DIR=/tmp OSM_TMP_DIR=/tmp opensm -f {LOG} {options}");
        pair.a.vm.run(&["rm", "-f", LOG]).await?;
        let opensm = spawn(&mut pair.a.vm, &command).await?;
        report.case(name, &hint, ended(&mut pair, ends)).await?;
        for &(command, expected) in DIAGNOSTICS {
            report
                .case(
                    &format!("{command} while opensm is running"),
                    &hint,
                    diagnose(&mut pair, command, expected),
                )
                .await?;
        }
        report.case("ping while opensm is running", &hint, ping(&mut pair, 56)).await?;
        report.case("rping while opensm is running", &hint, rping(&mut pair)).await?;
        stop(&mut pair.a.vm, opensm).await?;
    }
    report.case("both interfaces recover after the link goes down and up", &hint, bounce(&mut pair)).await?;
    report.case("no kernel warnings", &hint, pair.no_warnings()).await?;
    report.case("the daemons exit cleanly on SIGTERM", &hint, pair.stop()).await
}

async fn ended(pair: &mut StockPair, ends: &[&str]) -> Result<()> {
    let found = await_text(&mut pair.a.vm, &[LOG], ends, DISCOVERY_TIMEOUT).await;
    match found {
        Ok(()) => Ok(()),
        Err(error) => {
            let log = pair.a.vm.run(&["cat", LOG]).await.unwrap_or_default();
            Err(error).with_context(|| format!("OpenSM's log: {log}"))
        }
    }
}

async fn rping(pair: &mut StockPair) -> Result<()> {
    connected(pair, "rping -s -a {b} -C 10 -V", "rping -c -a {b} -C 10 -V", Ready::Cm).await
}

/// Takes the port down and brings it back up. The driver then queries the subnet manager again, and ping must work.
async fn bounce(pair: &mut StockPair) -> Result<()> {
    pair.a.daemon.control(&["port", "down"]).await?;
    await_text(&mut pair.a.vm, &["/sys/class/infiniband/mthca0/ports/1/state"], &["DOWN"], DISCOVERY_TIMEOUT)
        .await?;
    pair.a.daemon.control(&["port", "up"]).await?;
    await_text(&mut pair.a.vm, &["/sys/class/net/ib0/carrier"], &["1"], DISCOVERY_TIMEOUT).await?;
    ping(pair, 56).await
}
