//! Connections set up by `rdma_cm` on NICs. Debian's programs run between two E810s or two ConnectX cards, and in both
//! directions between one of these cards and soft-RoCE. A ConnectX is also paired with an E810. All pairs use IPv4,
//! IPv6 and a VLAN.

mod bench;
mod programs;

use anyhow::{Context, Result};

use self::bench::{Bench, Network, Side};
use self::programs::{ALL, FEW, OverIpv6, Program};
use crate::lab::Lab;
use crate::report::Report;
use crate::scenario::extent::Extent;
use crate::testbed::kind::Device;

/// Returns the programs to run between a client and a server. The full run uses all programs. The core run uses all
/// programs if the network is untagged IPv4 and `few` is not set. Otherwise, it uses only a few programs.
const fn programs(extent: Extent, network: Network, few: bool) -> &'static [Program] {
    match (extent, network, few) {
        (Extent::Full, ..) | (Extent::Core, Network::V4, false) => ALL,
        (Extent::Core, ..) => FEW,
    }
}

/// Pairs of client and server: name, client, server, and whether the core run uses only a few programs.
type Pairs = &'static [(&'static str, Side, Side, bool)];

/// Two E810s, and an E810 paired with soft-RoCE as either client or server.
const E810_PAIRS: Pairs = &[
    ("E810 to E810", Side::A, Side::B, false),
    ("E810 to soft-RoCE", Side::A, Side::C, false),
    ("soft-RoCE to E810", Side::C, Side::A, true),
];
/// The same pairs with ConnectX cards in place of the E810s, and pairs of a ConnectX and an E810.
const CONNECTX_PAIRS: Pairs = &[
    ("ConnectX to ConnectX", Side::A, Side::B, false),
    ("ConnectX to soft-RoCE", Side::A, Side::C, false),
    ("soft-RoCE to ConnectX", Side::C, Side::A, true),
    ("ConnectX to E810", Side::A, Side::D, true),
    ("E810 to ConnectX", Side::D, Side::A, true),
];

pub(in super::super) async fn run(lab: &Lab, report: &mut Report, hca: Device, extent: Extent) -> Result<()> {
    let (part, (family, pairs)) = (
        extent.select("cm", "cm-full"),
        match hca {
            Device::Connectx => ("connectx-roce", CONNECTX_PAIRS),
            _ => ("e810", E810_PAIRS),
        },
    );
    let run = lab.new_run(&format!("{family}-{part}"))?;
    let hint = format!("console output, logs, captures and command lines: {}", run.path().display());
    let mut bench = Bench::start(lab, &run, hca).await.context(hint.clone())?;
    bench.capture(true).await?;
    for &(pair, client, server, few) in pairs {
        for network in Network::ALL {
            for program in programs(extent, network, few) {
                // Skip programs in which soft-RoCE sends to a multicast group, because only three of the 200 datagrams
                // that it reports as sent reach the fabric.
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
