//! IP over InfiniBand in both modes, and connections set up by `rdma_cm`.

use anyhow::Result;

use super::super::mthca::ipoib::{both_up, cases, diagnose, perftests};
use crate::lab::Lab;
use crate::report::Report;

/// Subnet diagnostic programs, each with substrings of its expected output.
const DIAGNOSTICS: &[(&str, &[&str])] = &[
    (
        "ibstat",
        &[
            "CA type: MT4119",
            "Firmware version: 16.35.3006",
            "State: Active",
            "Physical state: LinkUp",
            "Base lid: {lid}",
            "Node GUID: 0x{guid}",
        ],
    ),
    ("ibstatus", &["mlx5_0", "4: ACTIVE", "InfiniBand"]),
    ("sminfo", &["sm lid 49151", "SMINFO_MASTER"]),
    ("smpquery nodeinfo {lid}", &["NodeType:........................Channel Adapter", "{guid}"]),
    ("smpquery nodeinfo {peer}", &["Channel Adapter", "{peer_guid}"]),
    ("perfquery -x", &["PortXmitPkts:", "PortUnicastRcvPkts:"]),
    ("saquery -p --sgid-to-dgid {gid}-{peer_gid}", &["dlid....................{peer}"]),
    ("ibhosts", &["0x{guid}", "0x{peer_guid}"]),
];

pub(in super::super) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    let mut pair = super::start(lab, "connectx-cm", &[]).await?;
    let hint = pair.hint();
    report.case("both ports are active", &hint, pair.load()).await?;
    report.case("both interfaces have a carrier", &hint, both_up(&mut pair)).await?;
    cases(report, &hint, &mut pair).await?;
    perftests(report, &hint, &mut pair).await?;
    for &(command, expected) in DIAGNOSTICS {
        report.case(command, &hint, diagnose(&mut pair, command, expected)).await?;
    }
    report.case("no kernel warnings", &hint, pair.no_warnings()).await?;
    report.case("the daemons exit cleanly on SIGTERM", &hint, pair.stop()).await
}
