//! Benchmarks two connected HCAs: bandwidth by message size, latency, message rate, and the CPU time that the device
//! and the driver use per message.

use agent::wire::{MrInfo, SendOp};
use anyhow::{Context as _, Result};

use crate::Cli;
use crate::flows::{self, Buffers, COSTS, Plan, RunResult};
use crate::node::{Node, Qp, Rings, Sizes};
use crate::pair::{self, Place, Wire};
use crate::report::{Figure, Figures, Reference};
use crate::runs::{repeated, runs, size};
use crate::yardstick::{SIZES, Yardstick};

/// Number of bytes in a bandwidth run.
pub(crate) const RUN_BYTES: u32 = 1 << 30;
/// Total number of messages in a rate run, across all queue pairs, and maximum number of messages in a bandwidth run.
pub(crate) const RATE_MESSAGES: u32 = 200_000;
/// Size of each node's region. It holds two of the longest messages, so that one can be in flight while the next one
/// starts.
const REGION_LEN: u64 = 16 << 20;
/// Ring sizes of the queue pairs in this and other measurements.
pub(crate) const RINGS: Rings = Rings { log_slots: 8, log_slot_bytes: 7 };
/// Number of outstanding messages. It is half the ring size, so that the peer can post twice as many receives.
pub(crate) const DEPTH: u32 = 1 << (RINGS.log_slots - 1);
/// Message sizes in the SEND bandwidth measurements.
const SEND_SIZES: [u32; 4] = [4 << 10, 64 << 10, 1 << 20, 8 << 20];
/// Number of queue pairs in the second message-rate measurement.
pub(crate) const MANY: usize = 16;

pub(crate) struct Bench {
    pub(crate) nodes: [Node; 2],
    qps: Vec<[Qp; 2]>,
    regions: [MrInfo; 2],
}

impl Bench {
    pub(crate) fn start(place: Place<'_>) -> Result<Self> {
        let mut nodes = pair::start(place, &Sizes::default())?;
        let qps = pair::connections(&mut nodes, MANY, RINGS)?;
        let regions = [nodes[0].region(REGION_LEN)?, nodes[1].region(REGION_LEN)?];
        Ok(Self { nodes, qps, regions })
    }

    fn one(&mut self, op: SendOp, len: u32, buffers: Buffers) -> Result<RunResult> {
        let count = (RUN_BYTES / len).min(RATE_MESSAGES);
        let plan = Plan { op, len, count, depth: DEPTH, buffers };
        let run = if op == SendOp::Send { flows::send } else { flows::write };
        run(&mut self.nodes, &self.qps[..1], self.regions, plan)
    }

    /// Measures the rate of 64-byte SENDs on the first `qps` queue pairs.
    pub(crate) fn rate(&mut self, qps: usize, count: u32) -> Result<RunResult> {
        let plan = Plan { op: SendOp::Send, len: 64, count, depth: DEPTH, buffers: Buffers::One };
        flows::send(&mut self.nodes, &self.qps[..qps], self.regions, plan)
    }
}

pub(crate) fn measure(cli: &Cli, wire: Wire, yardstick: &Yardstick, figures: &mut Figures) -> Result<()> {
    let prefix = wire.prefix();
    let folder = tempfile::tempdir().context("cannot create a directory for sockets")?;
    let records = cli.record.as_deref();
    let place = Place { folder: folder.path(), wire, records, infix: "", metrics: cli.metrics };
    let mut bench = Bench::start(place)?;
    for len in SIZES {
        let name = format!("{prefix}rc_write_{}_bw", size(len.into()));
        let costs = format!("{prefix}rc_write_{}", size(len.into()));
        // A 4 KiB message is exactly one full packet, so also measure its CPU time.
        if len == 4 << 10 && (cli.wants(&name) || cli.wants(&format!("{costs}_{}", COSTS[0]))) {
            let ran = repeated(cli.runs, || {
                let ran = bench.one(SendOp::Write, len, Buffers::One)?;
                let [_, costs @ ..] = ran.rate_and_costs();
                Ok([ran.bandwidth(), costs[0], costs[1], costs[2]])
            })?;
            figures.add(Figure::new(name, "MB/s", &ran[0], &yardstick.bandwidth));
            // The receiver's driver does nothing for a WRITE, so its CPU time is omitted.
            add_costs(figures, &costs, &ran[1..], &yardstick.datagram[1]);
        } else if cli.wants(&name) {
            let write = runs(cli.runs, || Ok(bench.one(SendOp::Write, len, Buffers::One)?.bandwidth()))?;
            figures.add(Figure::new(name, "MB/s", &write, &yardstick.bandwidth));
        }
    }
    for len in SEND_SIZES {
        let name = format!("{prefix}rc_send_{}_bw", size(len.into()));
        if cli.wants(&name) {
            let send = runs(cli.runs, || Ok(bench.one(SendOp::Send, len, Buffers::One)?.bandwidth()))?;
            figures.add(Figure::new(name, "MB/s", &send, &yardstick.bandwidth));
        }
    }
    for len in [1 << 20, 8 << 20] {
        let name = format!("{prefix}rc_write_{}_spread_bw", size(len.into()));
        if cli.wants(&name) {
            let write = runs(cli.runs, || Ok(bench.one(SendOp::Write, len, Buffers::All)?.bandwidth()))?;
            figures.add(Figure::new(name, "MB/s", &write, &yardstick.bandwidth));
        }
    }
    let name = format!("{prefix}rc_write_64b_latency");
    if cli.wants(&name) {
        let marks = [bench.nodes[0].region(4096)?, bench.nodes[1].region(4096)?];
        let qps = bench.qps[0];
        let one_way = repeated(cli.runs, || flows::write_latency(&mut bench.nodes, qps, marks))?;
        for ((name, runs), reference) in
            [name.clone(), format!("{name}_p99")].into_iter().zip(&one_way).zip(&yardstick.latency)
        {
            figures.add(Figure::new(name, "us", runs, reference));
        }
    }
    for qps in [1, MANY] {
        let name = format!("{prefix}rc_send_64b_rate_{qps}qp");
        let costs = format!("{prefix}rc_send_64b_{qps}qp");
        if cli.wants(&name) || cli.wants(&format!("{costs}_{}", COSTS[0])) {
            let ran = repeated(cli.runs, || Ok(bench.rate(qps, RATE_MESSAGES)?.rate_and_costs()))?;
            figures.add(Figure::new(name, "1/s", &ran[0], &yardstick.rate));
            add_costs(figures, &costs, &ran[1..], &yardstick.datagram[0]);
        }
    }
    Ok(())
}

/// Adds figures for the CPU time that the device and the driver use per message at each end.
pub(crate) fn add_costs(figures: &mut Figures, name: &str, costs: &[Vec<f64>], reference: &Reference) {
    for (cost, runs) in COSTS.iter().zip(costs) {
        figures.add(Figure::new(format!("{name}_{cost}"), "ns", runs, reference));
    }
}
