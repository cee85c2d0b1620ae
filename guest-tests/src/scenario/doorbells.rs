//! Doorbells in UAR pages that are mapped into guests. A pair of guests with mapped doorbells must pass the same tests
//! as other pairs. Two more pairs, one with mapped and one with trapped doorbells, are then measured without strict
//! mode. All pairs use the ring fabric, which adds the least latency to small messages.

use anyhow::Result;

use super::DOORBELL_RECORD_REMAPS;
use super::mthca::pingpong::ping_pong;
use super::perftest::{self, FIGURES};
use super::stock_pair::StockPair;
use crate::daemon::{Explained, Fabric, HcaSpec};
use crate::lab::Lab;
use crate::report::{Report, line};
use crate::testbed::kind::Device;

/// Command lines to run in strict mode. The programs check message content. They use both polling and events, so the
/// device must detect every request to arm a CQ.
const PING_PONGS: &[&str] = &[
    "ibv_rc_pingpong",
    "ibv_rc_pingpong -e",
    "ibv_rc_pingpong -s 1 -n 2000 -e",
    "ibv_rc_pingpong -s 1048576 -m 2048 -n 50",
    "ibv_uc_pingpong -s 1 -n 2000",
    "ibv_ud_pingpong -e",
    "ibv_srq_pingpong",
    "ibv_srq_pingpong -s 4096 -m 2048 -q 16 -e -g 0",
];

/// perftest command lines, each with the number of message sizes in its results. Some use several queue pairs, whose
/// doorbells overwrite each other.
const PERFTESTS: &[(&str, usize)] = &[
    ("ib_write_bw -a -n 20", 23),
    ("ib_send_bw -s 64 -n 2000 -q 16", 1),
    ("ib_send_bw -s 4096 -n 1000 -q 4 -b", 1),
    ("ib_send_bw -s 4096 -n 1000 -e", 1),
    ("ib_send_bw -c UD -s 2048 -n 500 -q 2", 1),
    ("ib_atomic_bw -A FETCH_AND_ADD -n 1000", 1),
    ("ib_write_lat -a -n 20", 23),
    ("ib_send_lat -s 64 -n 500", 1),
];

/// A kind of device to test.
#[derive(Debug)]
pub(super) struct Subject {
    scenario: &'static str,
    device: Device,
    /// Violations that strict mode may report without failing the scenario.
    explained: &'static [Explained],
}

pub(super) const MTHCA: Subject =
    Subject { scenario: "mthca-doorbells", device: Device::Mthca, explained: &DOORBELL_RECORD_REMAPS };
pub(super) const CONNECTX: Subject =
    Subject { scenario: "connectx-doorbells", device: Device::ConnectxIb, explained: &[] };

pub(super) async fn run(lab: &Lab, report: &mut Report, subject: &Subject) -> Result<()> {
    let Subject { scenario, device, explained } = *subject;
    let strict = |spec| HcaSpec { strict: true, explained, ..spec };
    let mut pair = start(lab, scenario, device, true, strict).await?;
    let hint = pair.hint();
    report.case("both ports are active, doorbells mapped", &hint, pair.load()).await?;
    for case in PING_PONGS {
        let command = format!("{case} -c -d {}", pair.a.rdma_device());
        report.case(case, &hint, async { ping_pong(&mut pair, &command).await.map(drop) }).await?;
    }
    let named = pair.perftest_device();
    for &(case, sizes) in PERFTESTS {
        report.case(case, &hint, perftest::complete(&mut pair.ends(), case, sizes, &named)).await?;
    }
    report.case("no kernel warnings", &hint, pair.no_warnings()).await?;
    report.case("the daemons exit cleanly on SIGTERM", &hint, pair.stop()).await?;

    let mut taken = Vec::new();
    let mut devices = Vec::new();
    for (mapped, title) in [(true, "mapped"), (false, "trapped")] {
        let mut pair = start(lab, &format!("{scenario}-{title}"), device, mapped, |spec| spec).await?;
        let hint = pair.hint();
        report.case(&format!("both ports are active, doorbells {title}"), &hint, pair.load()).await?;
        let mut figures = Vec::new();
        let name = format!("measurements with doorbells {title}");
        report.case(&name, &hint, take(&mut pair, &mut figures)).await?;
        taken.push(figures);
        devices.push(perftest::Device { title, ..pair.perftest_device() });
        report.case("the daemons exit cleanly on SIGTERM", &hint, pair.stop()).await?;
    }
    let mut table = perftest::heading(&devices.iter().collect::<Vec<_>>());
    if let [mapped, trapped] = taken.as_slice() {
        for (figure, (mapped, trapped)) in FIGURES.iter().zip(mapped.iter().zip(trapped)) {
            table.push_str(&perftest::table_line(figure, &[*mapped, *trapped]));
        }
    }
    line(&table)
}

/// Starts two guests on a ring.
async fn start(
    lab: &Lab,
    name: &str,
    device: Device,
    mapped: bool,
    change: impl Fn(HcaSpec) -> HcaSpec,
) -> Result<StockPair> {
    let run = lab.new_run(name)?;
    let fabric = Fabric::Ring(run.socket("ring"));
    let change = |spec| change(HcaSpec { fabric: fabric.clone(), mapped, ..spec });
    StockPair::start_of(device, lab, run, change).await
}

/// Runs all benchmarks and appends the result of each to `figures`.
async fn take(pair: &mut StockPair, figures: &mut Vec<f64>) -> Result<()> {
    let device = pair.perftest_device();
    for figure in FIGURES {
        figures.extend(figure.in_turns(&mut pair.ends(), &[&device]).await?);
    }
    Ok(())
}
