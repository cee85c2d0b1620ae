//! NIC features beyond plain traffic: `ethtool` settings, XDP, AF_XDP and tunnels. Packet counts show whether each
//! takes effect.

use anyhow::{Context as _, Result};

use super::roce;
use super::{ethtool, flows, tunnels, xdp};
use crate::lab::Lab;
use crate::report::Report;
use crate::testbed::kind::Device;

pub(in super::super) async fn run(lab: &Lab, report: &mut Report, hca: Device) -> Result<()> {
    let run = lab.new_run(&format!("{}-features", hca.name()))?;
    let hint = format!("console output, logs and command lines: {}", run.path().display());
    let image = lab.dpdk_image(&run).await?;
    let [mut a, mut b] = roce::pair_of(hca, lab, &run, &image, &[]).await.context(hint.clone())?;
    let (from, to) = (&mut a, &mut b);
    report.case("ethtool -t", &hint, ethtool::self_test(to)).await?;
    for &(feature, case) in ethtool::OFFLOADS {
        report.case(&format!("ethtool -K, {case}"), &hint, ethtool::without(from, to, feature)).await?;
    }
    report.case("ethtool -N: rules for UDP ports", &hint, ethtool::rules(from, to)).await?;
    report.case("ethtool -N: fields of the hash", &hint, ethtool::hash_fields(from, to)).await?;
    report.case("ethtool -X: tables, keys and functions", &hint, ethtool::indirection(from, to)).await?;
    report.case("ethtool -G", &hint, ethtool::rings(from, to)).await?;
    report.case("ethtool -L", &hint, ethtool::channels(from, to)).await?;
    report.case("ethtool -C", &hint, ethtool::moderation(from, to)).await?;
    report.case("ethtool -S", &hint, flows::counted(to)).await?;
    for tunnel in tunnels::ALL {
        report.case(tunnel.name, &hint, tunnel.carries(from, to)).await?;
    }
    report.case("the BPF file system is mounted", &hint, xdp::prepare(to)).await?;
    for program in xdp::PROGRAMS {
        report.case(program.name, &hint, program.counts(from, to)).await?;
    }
    for mode in xdp::SOCKETS {
        report.case_within(xdp::SOCKET_LIMIT, mode.name, &hint, mode.answers(from, to)).await?;
    }
    let warnings = async {
        from.no_warnings().await?;
        to.no_warnings().await
    };
    report.case("no kernel warnings", &hint, warnings).await?;
    let stop = async {
        a.stop().await?;
        b.stop().await
    };
    report.case("the daemons exit cleanly on SIGTERM", &hint, stop).await
}
