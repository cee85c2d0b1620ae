//! Measures each HCA's performance in guests and compares it with soft-RoCE's. perftest runs on an E810, an mthca HCA,
//! a ConnectX and soft-RoCE in the same guests. The lab's own driver then transfers the same messages on JingZhao HCAs
//! in two other guests. `ci/bench --guests` runs this scenario. `ci/test` does not check performance, which depends on
//! the host's load.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use agent::wire::{
    CreateCq, CreateMr, CreateQp, Flow, MrInfo, PingPong, ReceiveFlow, SendFlow, SendOp, Traffic,
};
use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::connection::{Attributes, End};
use super::e810::perftest::Bench;
use super::pair::{Node, VFIO_MODULES};
use super::perftest::{Bound, FIGURES, Figure};
use crate::daemon::{Daemon, HcaSpec};
use crate::lab::Lab;
use crate::report::{Report, line};
use crate::run_dir::RunDir;

const NAME: &str = "speed-guests";
/// Number of runs per benchmark and device. The median is reported.
const ROUNDS: usize = 5;
/// Columns of the table. The last one is the reference for the others.
const DEVICES: [&str; 5] = ["mthca", "jingzhao", "e810", "connectx", "soft-roce"];
/// Indices of the columns in [`DEVICES`].
const MTHCA: usize = 0;
const JINGZHAO: usize = 1;
const E810: usize = 2;
const CONNECTX: usize = 3;
const SOFT_ROCE: usize = 4;
/// Minimum ratio of the E810's bandwidth to the mthca HCA's. For latencies, the inverse is the maximum ratio.
const E810_OF_MTHCA: f64 = 0.7;
/// Minimum ratio of the ConnectX's bandwidth to the E810's or the mthca HCA's, whichever is higher. For latencies, the
/// inverse is the maximum ratio.
const CONNECTX_OF_BEST: f64 = 0.9;
const LIMIT: Duration = Duration::from_secs(120);
/// Number of outstanding messages, as in perftest.
const DEPTH: u32 = 128;
const LOG_SLOTS: u8 = 8;
/// Bytes per run, enough for a transfer to take a sizeable fraction of a second.
const RUN_BYTES: u32 = 256 << 20;
const MESSAGES: u32 = 30_000;
const ROUND_TRIPS: u32 = 1000;

/// A benchmark's results on each device. A device that does not support the benchmark has no results.
struct Row {
    figure: &'static Figure,
    values: [Vec<f64>; DEVICES.len()],
}

impl Row {
    fn median(&self, device: usize) -> Option<f64> {
        let mut sorted = self.values.get(device)?.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied()
    }

    /// Returns the required bounds. Each consists of two indices into [`DEVICES`] and the bound on the ratio of the
    /// first device's result to the second's.
    fn bounds(&self) -> Vec<(usize, usize, Bound)> {
        let at_least = |ratio| match self.figure.is_latency() {
            true => Bound::AtMost(1.0 / ratio),
            false => Bound::AtLeast(ratio),
        };
        let is_e810_better = match (self.median(MTHCA), self.median(E810)) {
            (Some(mthca), Some(e810)) => (e810 < mthca) == self.figure.is_latency(),
            _ => false,
        };
        let best = if is_e810_better { E810 } else { MTHCA };
        let of_soft_roce = self.figure.bound.into_iter();
        of_soft_roce
            .flat_map(|bound| [MTHCA, E810, CONNECTX].map(|device| (device, SOFT_ROCE, bound)))
            .chain([(E810, MTHCA, at_least(E810_OF_MTHCA)), (CONNECTX, best, at_least(CONNECTX_OF_BEST))])
            .collect()
    }

    fn judge(&self, device: usize, of: usize, bound: Bound) -> Result<()> {
        let (value, reference) = (self.median(device), self.median(of));
        bound.judge(value.context("not measured")?, reference.context("not measured")?)
    }
}

pub(super) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    lab.require_release_build()?;
    let run = lab.new_run(NAME)?;
    let hint = format!("console output, logs and command lines: {}", run.path().display());
    let mut rows: Vec<_> =
        FIGURES.iter().map(|figure| Row { figure, values: [const { Vec::new() }; DEVICES.len()] }).collect();

    let mut bench = Bench::start(lab, &run).await.context(hint.clone())?;
    let e810 = bench.e810().await.context(hint.clone())?;
    let [mthca, connectx, soft] = bench.others().await.context(hint.clone())?;
    let devices = [(MTHCA, &mthca), (E810, &e810), (CONNECTX, &connectx), (SOFT_ROCE, &soft)];
    for row in &mut rows {
        let name = format!("{}, {ROUNDS} runs each", row.figure.name());
        let measure = async {
            for _ in 0..ROUNDS {
                for (i, device) in devices {
                    let value = row.figure.take(&mut bench.ends(), device).await.context(device.title)?;
                    row.values[i].push(value);
                }
            }
            Ok(())
        };
        report.case(&name, &hint, measure).await?;
    }
    report.case("these guests stop", &hint, bench.stop()).await?;

    let mut pair = Pair::start(lab, &run).await.context(hint.clone())?;
    for row in &mut rows {
        let name = format!("{} on JingZhao HCAs, {ROUNDS} runs", row.figure.name());
        let measure = async {
            for _ in 0..ROUNDS {
                row.values[JINGZHAO].extend(pair.take(row.figure).await?);
            }
            Ok(())
        };
        report.case(&name, &hint, measure).await?;
    }
    report.case("the JingZhao guests stop", &hint, pair.stop()).await?;
    line(&table(&rows))?;
    for row in &rows {
        for (device, of, bound) in row.bounds() {
            let name = format!(
                "{} on {}: {} that on {}",
                row.figure.name(),
                DEVICES[device],
                bound.text(),
                DEVICES[of]
            );
            report.case(&name, &hint, async { row.judge(device, of, bound) }).await?;
        }
    }
    report.case("the results are written", &hint, async { keep(&rows, run.file("speed.jsonl")) }).await
}

struct Pair {
    a: Node,
    b: Node,
    ends: [End; 2],
    regions: [MrInfo; 2],
}

impl Pair {
    async fn start(lab: &Lab, run: &RunDir) -> Result<Self> {
        let image = lab.image(run, VFIO_MODULES)?;
        let [a, b] = HcaSpec::pair()?;
        // The names `a` and `b` are already taken by the other guests.
        let specs = [HcaSpec { name: "c".into(), ..a }, HcaSpec { name: "d".into(), ..b }]
            .map(|spec| HcaSpec { capture: false, ..spec });
        let hcad = lab.hcad()?;
        let daemons =
            [Daemon::start(&hcad, &specs[0], run).await?, Daemon::start(&hcad, &specs[1], run).await?];
        let [of_a, of_b] = daemons;
        let (mut a, mut b) = tokio::try_join!(
            Node::boot(lab, run, &image, "c", of_a),
            Node::boot(lab, run, &image, "d", of_b),
        )?;
        tokio::try_join!(a.open(), b.open())?;
        let shape = CreateQp {
            log_sq_slots: LOG_SLOTS,
            log_sq_slot_bytes: 7,
            log_rq_slots: LOG_SLOTS,
            log_rq_slot_bytes: 7,
            ..CreateQp::default()
        };
        let cq = CreateCq { log_entries: LOG_SLOTS + 1, ..CreateCq::default() };
        let ends = [End::create(&mut a.vm, shape, cq).await?, End::create(&mut b.vm, shape, cq).await?];
        let attributes = Attributes::default();
        for (own, node) in [&mut a, &mut b].into_iter().enumerate() {
            ends[own].ready_to_receive(&mut node.vm, &ends[1 - own], &attributes, own).await?;
        }
        for (own, node) in [&mut a, &mut b].into_iter().enumerate() {
            ends[own].ready_to_send(&mut node.vm, &attributes, own).await?;
        }
        let region = CreateMr { len: 1 << 20, scattered: false, ..CreateMr::default() };
        let regions = [a.vm.call(region.clone()).await?, b.vm.call(region).await?];
        Ok(Self { a, b, ends, regions })
    }

    /// Runs a benchmark and returns its result in perftest's unit, or `None` if the lab's driver does not support it.
    async fn take(&mut self, figure: &Figure) -> Result<Option<f64>> {
        let (op, is_latency, len) = (figure.operation(), figure.is_latency(), figure.size());
        Ok(match (op, is_latency) {
            ("write", true) => Some(self.ping_pong(len).await?),
            ("read", true) => {
                let nanos = self.flow(SendOp::Read, len, ROUND_TRIPS, 1).await?;
                Some(nanos / f64::from(ROUND_TRIPS) / 1e3)
            }
            ("write" | "read" | "send", false) => {
                let op = match op {
                    "write" => SendOp::Write,
                    "read" => SendOp::Read,
                    _ => SendOp::Send,
                };
                let count = (RUN_BYTES / len).min(MESSAGES);
                let nanos = self.flow(op, len, count, DEPTH).await?;
                Some(f64::from(count) * f64::from(len) / f64::from(1 << 20) / nanos * 1e9)
            }
            _ => None,
        })
    }

    /// Returns the transfer time in nanoseconds. All messages use the same buffer, as in perftest.
    #[expect(clippy::cast_precision_loss, reason = "the time is only displayed")]
    async fn flow(&mut self, op: SendOp, len: u32, count: u32, depth: u32) -> Result<f64> {
        let send = SendFlow {
            qp: self.ends[0].qp.id,
            op,
            count,
            len,
            depth,
            slots: depth,
            mr: self.regions[0].id,
            remote: (op != SendOp::Send).then(|| self.regions[1].remote(0)),
            verify: false,
            ..SendFlow::default()
        };
        let timeout_ms = u32::try_from(LIMIT.as_millis())?;
        let sending =
            self.a.vm.call_within(LIMIT, Traffic { flows: vec![Flow::Send(send.clone())], timeout_ms });
        if op != SendOp::Send {
            return Ok(sending.await?.elapsed_ns as f64);
        }
        let receive = ReceiveFlow {
            qp: self.ends[1].qp.id,
            count,
            len,
            depth: 2 * depth,
            slots: 2 * depth,
            mr: self.regions[1].id,
            verify: false,
            ..ReceiveFlow::default()
        };
        let receiving =
            self.b.vm.call_within(LIMIT, Traffic { flows: vec![Flow::Receive(receive)], timeout_ms });
        let (sent, _) = tokio::try_join!(sending, receiving)?;
        Ok(sent.elapsed_ns as f64)
    }

    /// Returns the one-way latency of a WRITE in microseconds.
    #[expect(clippy::cast_precision_loss, reason = "the time is only displayed")]
    async fn ping_pong(&mut self, len: u32) -> Result<f64> {
        let [a, b] = self.regions;
        let ping = |own: usize, mr: &MrInfo, peer: &MrInfo| PingPong {
            qp: self.ends[own].qp.id,
            mr: mr.id,
            remote: peer.remote(0),
            len,
            rounds: ROUND_TRIPS,
            first: own == 0,
            ..PingPong::default()
        };
        let (first, second) = (ping(0, &a, &b), ping(1, &b, &a));
        let (round_trips, _) =
            tokio::try_join!(self.a.vm.call_within(LIMIT, first), self.b.vm.call_within(LIMIT, second))?;
        Ok(round_trips.median_ns as f64 / 2e3)
    }

    async fn stop(mut self) -> Result<()> {
        self.a.vm.kill().await?;
        self.b.vm.kill().await?;
        self.a.daemon.stop().await?;
        self.b.daemon.stop().await
    }
}

/// Returns one line per benchmark, with each device's result and its ratio to soft-RoCE's.
fn table(rows: &[Row]) -> String {
    let mut text = format!("\n{:34}", "");
    for device in DEVICES {
        write!(text, "{device:>20}").expect("writing to a String cannot fail");
    }
    for row in rows {
        write!(text, "\n{}", row.figure.row()).expect("writing to a String cannot fail");
        let reference = row.median(DEVICES.len() - 1);
        for device in 0..DEVICES.len() {
            let cell = match (row.median(device), reference) {
                (None, _) => "-".into(),
                (Some(value), Some(of)) if device + 1 < DEVICES.len() => {
                    format!("{value:.1} x{:.2}", value / of)
                }
                (Some(value), _) => format!("{value:.1}"),
            };
            write!(text, "{cell:>20}").expect("writing to a String cannot fail");
        }
    }
    text + "\nxN: N times as much as soft-RoCE"
}

/// Writes the ratios to a file in the format of `ci/bench`.
fn keep(rows: &[Row], file: PathBuf) -> Result<()> {
    let mut lines = String::new();
    for row in rows {
        let (of, reference) = (DEVICES.len() - 1, row.median(DEVICES.len() - 1));
        for (device, title) in DEVICES.iter().enumerate().take(of) {
            let (Some(value), Some(reference)) = (row.median(device), reference) else { continue };
            let result = json!({
                "name": format!("guest_{title}_{}", row.figure.key()),
                "value": value,
                "unit": row.figure.unit(),
                "against": DEVICES[of],
                "reference": reference,
                "ratio": value / reference,
                "runs": row.values[device],
            });
            writeln!(lines, "{result}")?;
        }
    }
    ensure!(!lines.is_empty(), "nothing was measured");
    fs::write(&file, lines).with_context(|| format!("cannot write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_shows_ratio_to_soft_roce() {
        let figure = &FIGURES[0];
        let values = [vec![90.0, 100.0, 300.0], Vec::new(), vec![50.0], vec![20.0], vec![10.0, 11.0, 9.0]];
        let rows = [Row { figure, values }];
        let text = table(&rows);
        let cells: Vec<_> = text.lines().nth(2).unwrap().split_whitespace().skip(4).collect();
        assert_eq!(cells, ["100.0", "x10.00", "-", "50.0", "x5.00", "20.0", "x2.00", "10.0"], "{text}");

        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("speed.jsonl");
        keep(&rows, file.clone()).unwrap();
        let lines = fs::read_to_string(file).unwrap();
        let names: Vec<_> = lines
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["name"].to_string())
            .collect();
        let expected =
            ["mthca", "e810", "connectx"].map(|device| format!("\"guest_{device}_rc_write_64k_bw\""));
        assert_eq!(names, expected);
    }
}
