//! Connections set up by `rdma_cm` on an E810. Debian's programs run between two E810s, and between an E810 and
//! soft-RoCE in both directions, over IPv4, IPv6 and a VLAN.

mod bench;
mod programs;

use anyhow::{Context, Result};

use self::bench::{Bench, Network, Side};
use self::programs::{ALL, FEW, OverIpv6, Program};
use crate::lab::Lab;
use crate::report::Report;
use crate::scenario::extent::Extent;

/// Returns the programs to run between a client and a server. The core extent runs all programs only over untagged IPv4
/// with an E810 as the client, and a few otherwise.
const fn programs(extent: Extent, network: Network, back: bool) -> &'static [Program] {
    match (extent, network, back) {
        (Extent::Full, ..) | (Extent::Core, Network::V4, false) => ALL,
        (Extent::Core, ..) => FEW,
    }
}

/// Pairs of client and server: two E810s, and an E810 with soft-RoCE as either the client or the server.
const PAIRS: &[(&str, Side, Side, bool)] = &[
    ("E810 to E810", Side::A, Side::B, false),
    ("E810 to soft-RoCE", Side::A, Side::C, false),
    ("soft-RoCE to E810", Side::C, Side::A, true),
];

pub(in super::super) async fn run(lab: &Lab, report: &mut Report, extent: Extent) -> Result<()> {
    let run = lab.new_run(extent.select("e810-cm", "e810-cm-full"))?;
    let hint = format!("console output, logs, captures and command lines: {}", run.path().display());
    let mut bench = Bench::start(lab, &run).await.context(hint.clone())?;
    bench.capture(true).await?;
    for &(pair, client, server, back) in PAIRS {
        for network in Network::ALL {
            for program in programs(extent, network, back) {
                // Soft-RoCE reports that it sent 200 datagrams to a group, but only three reach the fabric.
                if client == Side::C && program.is_of_group() {
                    continue;
                }
                let name = format!("{}, {pair}, {network}", program.name(network));
                match program.over_ipv6 {
                    OverIpv6::Unknown if network.is_ipv6() => {}
                    OverIpv6::Refused(reason) if network.is_ipv6() => {
                        let case = bench.refuse(program, network, server, reason);
                        report.case(&format!("{name}: the kernel rejects it"), &hint, case).await?;
                    }
                    _ => {
                        let case = bench.connect(program, network, (client, server));
                        report.case(&name, &hint, case).await?;
                    }
                }
            }
        }
    }
    bench.capture(false).await?;
    report.case("no kernel warnings", &hint, bench.no_warnings()).await?;
    report.case("the daemons exit cleanly on SIGTERM", &hint, bench.stop()).await
}
