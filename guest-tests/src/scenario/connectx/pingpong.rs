//! Runs rdma-core's ping-pong programs between two guests. All but the XRC program check the content of every message.

use anyhow::Result;

use super::super::mthca::pingpong::{LIMIT, PORT, ping_pong};
use super::super::stock_pair::StockPair;
use crate::lab::Lab;
use crate::report::Report;
use crate::testbed::kind::Device;
use crate::tools::{Exchange, Ready};

/// Command lines, without the options for the device and the content check.
const CASES: &[&str] = &[
    "ibv_rc_pingpong",
    "ibv_rc_pingpong -e",
    "ibv_rc_pingpong -s 1 -n 2000 -e",
    "ibv_rc_pingpong -s 4096 -m 256",
    "ibv_rc_pingpong -s 4097 -m 4096 -g 0",
    "ibv_rc_pingpong -s 65537 -m 1024 -n 200",
    "ibv_rc_pingpong -s 3145728 -m 4096 -n 20",
    "ibv_rc_pingpong -r 1 -n 300",
    "ibv_uc_pingpong",
    "ibv_uc_pingpong -s 4096 -m 512 -g 0 -e",
    "ibv_uc_pingpong -s 65536 -m 4096 -n 100",
    "ibv_ud_pingpong",
    "ibv_ud_pingpong -s 4096 -g 0 -e",
    "ibv_srq_pingpong",
    "ibv_srq_pingpong -s 1 -q 1 -n 300",
    "ibv_srq_pingpong -s 4096 -m 4096 -q 16 -e -g 0",
    "ibv_srq_pingpong -s 1048576 -m 2048 -n 32",
];
/// Command lines to run again with packet capture, one for each service.
const CAPTURED: &[&str] = &["ibv_rc_pingpong -s 4097", "ibv_uc_pingpong -g 0", "ibv_ud_pingpong -g 0"];
/// Command lines of the XRC program. It reports failed requests but does not check content, and its server serves a
/// single client.
const XRC: &[&str] = &[
    "ibv_xsrq_pingpong",
    "ibv_xsrq_pingpong -n 500 -e",
    "ibv_xsrq_pingpong -s 65537 -m 4096 -n 100",
    "ibv_xsrq_pingpong -s 1 -m 256 -n 500 -g 0",
];

pub(in super::super) async fn run(lab: &Lab, report: &mut Report, hca: Device) -> Result<()> {
    let mut pair = super::start_of(hca, lab, &super::scenario(hca, "pingpong"), &[]).await?;
    let hint = pair.hint();
    report.case("both ports are active", &hint, pair.load()).await?;
    for case in CASES {
        let command = format!("{} -c", line(&pair, case));
        report.case(case, &hint, async { ping_pong(&mut pair, &command).await.map(drop) }).await?;
    }
    // ci/test checks the captured packets.
    pair.capture_on().await?;
    for case in XRC {
        report.case(case, &hint, xrc(&mut pair, case)).await?;
    }
    for case in CAPTURED {
        let command = format!("{} -c", line(&pair, case));
        let title = format!("{case}, captured");
        report.case(&title, &hint, async { ping_pong(&mut pair, &command).await.map(drop) }).await?;
    }
    pair.capture_off().await?;
    report.case("no kernel warnings", &hint, pair.no_warnings()).await?;
    report.case("the daemons exit cleanly on SIGTERM", &hint, pair.stop()).await
}

/// Returns a case's command line with the options for the device added. An Ethernet port has no LID, so all its cases
/// use the IPv4 GID.
fn line(pair: &StockPair, case: &str) -> String {
    let device = pair.a.selected("-g");
    let is_infiniband = device == pair.a.rdma_device();
    let case = if is_infiniband { case.to_owned() } else { case.replace(" -g 0", "") };
    format!("{case} -d {device}")
}

async fn xrc(pair: &mut StockPair, case: &str) -> Result<()> {
    let server = line(pair, case);
    let client = format!("{server} {}", pair.b.ip);
    pair.exchange(&Exchange { server, client, ready: Ready::Tcp(PORT), limit: LIMIT }).await.map(drop)
}
