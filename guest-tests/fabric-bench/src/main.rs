//! `fabric-bench`: what two HCAs reach over each fabric, against what UDP reaches on the same machine in the same run.
//!
//! No guest is involved: this program is the VMM and the driver of both devices.

mod copy;
mod pair;
mod processors;
mod report;
mod udp;

use std::path::PathBuf;
use std::time::Duration;

use agent::wire::{Flow, MrInfo, PingPong, ReceiveFlow, SendFlow, SendOp, TrafficReport};
use anyhow::{Context as _, Result};
use clap::{Parser, ValueEnum as _};
use pair::{Node, Place, Qp, Wire};
use report::{Figure, Reference};

/// Measures hcad over its fabrics against raw UDP.
#[derive(Debug, Parser)]
struct Cli {
    /// Results, one JSON object a line
    #[arg(long, value_name = "FILE", default_value = "target/bench/results.jsonl")]
    output: PathBuf,

    /// Runs of each figure
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,

    /// Of the figures of RDMA, only those with this in their name
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,

    /// Only over these fabrics; over all of them without
    #[arg(long, value_name = "FABRIC", value_delimiter = ',')]
    wire: Vec<Wire>,

    /// Have both ends of RDMA record themselves in this folder, to see what that costs
    #[arg(long, value_name = "FOLDER")]
    record: Option<PathBuf>,

    /// Have the first hcad of a pair serve its metrics on this port of 127.0.0.1, and the second on the next
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..65_535))]
    metrics: Option<u16>,
}

/// Bytes of a full MIDDLE packet's frame at path MTU 4096: Ethernet, IPv4, UDP, BTH, payload, ICRC.
const FRAME_LEN: usize = 14 + 20 + 8 + 12 + 4096 + 4;
/// Bytes of the frame of a 64-byte RDMA WRITE: the same headers and a RETH.
const SMALL_FRAME_LEN: usize = 14 + 20 + 8 + 12 + 16 + 64 + 4;
/// Time of one run of raw UDP.
const RUN_TIME: Duration = Duration::from_millis(500);

/// What one bandwidth run moves.
const RUN_BYTES: u32 = 1 << 30;
/// Bytes of the region each node lends: two of the longest messages, so that one is under way while another starts.
const REGION_LEN: u32 = 16 << 20;
/// Round trips of one latency run.
const PINGS: u32 = 5_000;
/// Messages of one rate run, on all queue pairs together.
const RATE_MESSAGES: u32 = 200_000;
/// Send slots of a queue pair, log2.
const LOG_SLOTS: u8 = 8;

/// Where the messages of a flow are.
#[derive(Clone, Copy)]
enum Buffers {
    /// All in one place, as perftest has them and the yardstick too.
    One,
    /// Spread over the whole region, so that processor caches hold little of them.
    All,
}

impl Buffers {
    fn stride(self, len: u32) -> u64 {
        match self {
            Self::One => 0,
            Self::All => len.into(),
        }
    }
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    let mut figures = Vec::new();
    let mut add = |figure: Figure| {
        print(&figure.line());
        figures.push(figure);
    };

    let mega = |rate: f64| rate / 1e6;
    let gso = runs(cli.runs, || Ok(mega(udp::bandwidth(FRAME_LEN, true, RUN_TIME)?)))?;
    let plain = runs(cli.runs, || Ok(mega(udp::bandwidth(FRAME_LEN, false, RUN_TIME)?)))?;
    let rate = runs(cli.runs, || datagram_rate(true))?;
    let plain_rate = runs(cli.runs, || datagram_rate(false))?;
    let one_way = repeated(cli.runs, udp_latency)?;
    let reference = |name, runs: &[f64]| Reference { name, value: report::median(runs) };
    let (udp_bw, udp_rate) = (reference("udp_4k_bw", &gso), reference("udp_64b_rate", &rate));
    let udp_latency =
        [reference("udp_64b_latency", &one_way[0]), reference("udp_64b_latency_p99", &one_way[1])];
    add(Figure::new("udp_4k_bw", "MB/s", &gso, udp_bw));
    add(Figure::new("udp_4k_nogso_bw", "MB/s", &plain, udp_bw));
    add(Figure::new("udp_64b_rate", "1/s", &rate, udp_rate));
    add(Figure::new("udp_64b_nogso_rate", "1/s", &plain_rate, udp_rate));
    for (runs, reference) in one_way.iter().zip(udp_latency) {
        add(Figure::new(reference.name, "us", runs, reference));
    }

    for (name, len) in [("memcpy_4k_bw", FRAME_LEN), ("memcpy_16m_bw", copy::LONG)] {
        let copied = runs(cli.runs, || Ok(mega(copy::bandwidth(len, RUN_TIME))))?;
        add(Figure::new(name, "MB/s", &copied, udp_bw));
    }
    let references = References { bandwidth: udp_bw, rate: udp_rate, latency: udp_latency };
    let is_wanted = |wire: &&Wire| cli.wire.is_empty() || cli.wire.contains(wire);
    for &wire in Wire::value_variants().iter().filter(is_wanted) {
        measure(&cli, wire, references, &mut add)?;
    }
    report::write(&cli.output, &figures)
}

/// What raw UDP reaches in this run.
#[derive(Clone, Copy)]
struct References {
    bandwidth: Reference,
    rate: Reference,
    /// Median and 99th percentile.
    latency: [Reference; 2],
}

/// Measures two HCAs on a wire.
fn measure(cli: &Cli, wire: Wire, references: References, add: &mut impl FnMut(Figure)) -> Result<()> {
    let prefix = wire.prefix();
    let folder = tempfile::tempdir().context("cannot make a folder for sockets")?;
    let place = Place { folder: folder.path(), wire, records: cli.record.as_deref(), metrics: cli.metrics };
    let mut nodes = Node::pair(place)?;
    let qps = pair::connections(&mut nodes, 16, LOG_SLOTS)?;
    let regions = [nodes[0].region(REGION_LEN.into())?, nodes[1].region(REGION_LEN.into())?];
    let one = &qps[..1];
    let wanted = |name: &str| cli.only.as_ref().is_none_or(|part| name.contains(part));
    for (size, len) in [("4k", 4 << 10), ("64k", 64 << 10), ("1m", 1 << 20), ("8m", 8 << 20)] {
        let name = format!("{prefix}rc_write_{size}_bw");
        if wanted(&name) {
            let write = runs(cli.runs, || write_bandwidth(&mut nodes, one, regions, len, Buffers::One))?;
            add(Figure::new(name, "MB/s", &write, references.bandwidth));
        }
        let name = format!("{prefix}rc_send_{size}_bw");
        if wanted(&name) {
            let send = runs(cli.runs, || send_bandwidth(&mut nodes, one, regions, len))?;
            add(Figure::new(name, "MB/s", &send, references.bandwidth));
        }
    }
    for (size, len) in [("1m", 1 << 20), ("8m", 8 << 20)] {
        let name = format!("{prefix}rc_write_{size}_spread_bw");
        if wanted(&name) {
            let write = runs(cli.runs, || write_bandwidth(&mut nodes, one, regions, len, Buffers::All))?;
            add(Figure::new(name, "MB/s", &write, references.bandwidth));
        }
    }
    if wanted(&format!("{prefix}rc_write_64b_latency")) {
        let marks = [nodes[0].region(4096)?, nodes[1].region(4096)?];
        let one_way = repeated(cli.runs, || write_latency(&mut nodes, qps[0], marks))?;
        for ((name, runs), reference) in ["rc_write_64b_latency", "rc_write_64b_latency_p99"]
            .into_iter()
            .zip(&one_way)
            .zip(references.latency)
        {
            add(Figure::new(format!("{prefix}{name}"), "us", runs, reference));
        }
    }
    for (name, qps) in [("rc_send_64b_rate_1qp", one), ("rc_send_64b_rate_16qp", &qps)] {
        let name = format!("{prefix}{name}");
        if wanted(&name) {
            let rate = runs(cli.runs, || send_rate(&mut nodes, qps, regions))?;
            add(Figure::new(name, "1/s", &rate, references.rate));
        }
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn datagram_rate(gso: bool) -> Result<f64> {
    Ok(udp::bandwidth(SMALL_FRAME_LEN, gso, RUN_TIME)? / SMALL_FRAME_LEN as f64)
}

/// Median and 99th percentile of UDP's one-way latency, microseconds.
fn udp_latency() -> Result<[f64; 2]> {
    let sorted = udp::latencies(SMALL_FRAME_LEN, PINGS as usize)?;
    Ok([50, 99].map(|part| micros(sorted[sorted.len() * part / 100])))
}

/// Payload of RDMA WRITEs of `len` bytes, MB a second, from the first post to the last completion.
fn write_bandwidth(
    nodes: &mut [Node; 2],
    qps: &[[Qp; 2]],
    regions: [MrInfo; 2],
    len: u32,
    buffers: Buffers,
) -> Result<f64> {
    let mut run = sends(qps, regions[0], SendOp::Write, len, RUN_BYTES / len, buffers);
    for flow in &mut run {
        flow.remote = Some(regions[1].remote(0));
        flow.remote_stride = buffers.stride(len);
    }
    let report = nodes[0].run(run.into_iter().map(Flow::Send).collect())?;
    Ok(bandwidth(&report))
}

/// The same of SENDs.
fn send_bandwidth(nodes: &mut [Node; 2], qps: &[[Qp; 2]], regions: [MrInfo; 2], len: u32) -> Result<f64> {
    Ok(bandwidth(&run_sends(nodes, qps, regions, len, RUN_BYTES / len)?))
}

/// SENDs of 64 bytes a second, on all queue pairs together.
#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn send_rate(nodes: &mut [Node; 2], qps: &[[Qp; 2]], regions: [MrInfo; 2]) -> Result<f64> {
    let report = run_sends(nodes, qps, regions, 64, RATE_MESSAGES)?;
    let messages: u64 = report.flows.iter().map(|flow| flow.messages).sum();
    Ok(messages as f64 / report.elapsed_ns as f64 * 1e9)
}

fn run_sends(
    nodes: &mut [Node; 2],
    qps: &[[Qp; 2]],
    regions: [MrInfo; 2],
    len: u32,
    count: u32,
) -> Result<TrafficReport> {
    let sends = sends(qps, regions[0], SendOp::Send, len, count, Buffers::One);
    let receives = qps.iter().zip(&sends).map(|(qp, send)| ReceiveFlow {
        qp: qp[1].id,
        count: send.count,
        len,
        depth: send.depth,
        slots: send.slots,
        stride: send.stride,
        mr: regions[1].id,
        verify: false,
        ..ReceiveFlow::default()
    });
    let receives = receives.map(Flow::Receive).collect();
    let [near, _] = pair::run_both(nodes, sends.into_iter().map(Flow::Send).collect(), receives)?;
    Ok(near)
}

/// Flows that share `count` messages among queue pairs.
fn sends(
    qps: &[[Qp; 2]],
    region: MrInfo,
    op: SendOp,
    len: u32,
    count: u32,
    buffers: Buffers,
) -> Vec<SendFlow> {
    let share = count / u32::try_from(qps.len()).unwrap_or(1);
    // Messages that are under way at once, posted by halves.
    let slots = (REGION_LEN / len).min(1 << (LOG_SLOTS - 1));
    let flow = |qp: &[Qp; 2]| SendFlow {
        qp: qp[0].id,
        op,
        count: share,
        len,
        depth: slots,
        slots,
        stride: buffers.stride(len),
        batch: (slots / 2).max(1),
        mr: region.id,
        verify: false,
        ..SendFlow::default()
    };
    qps.iter().map(flow).collect()
}

/// Median and 99th percentile of the time from the doorbell of a 64-byte WRITE until its bytes are seen in the peer's
/// memory, microseconds: half of the way there and back.
fn write_latency(nodes: &mut [Node; 2], qps: [Qp; 2], regions: [MrInfo; 2]) -> Result<[f64; 2]> {
    let ping = |own: usize| PingPong {
        qp: qps[own].id,
        mr: regions[own].id,
        remote: regions[1 - own].remote(0),
        rounds: PINGS,
        first: own == 0,
        ..PingPong::default()
    };
    let [round_trips, _] = pair::both(nodes, [ping(0), ping(1)], |node, step| node.ping_pong(step))?;
    Ok([round_trips.median_ns, round_trips.p99_ns].map(|nanos| micros(Duration::from_nanos(nanos)) / 2.0))
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn bandwidth(report: &TrafficReport) -> f64 {
    let bytes: u64 = report.flows.iter().map(|flow| flow.bytes).sum();
    bytes as f64 / report.elapsed_ns as f64 * 1e3
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn runs(count: u16, mut measure: impl FnMut() -> Result<f64>) -> Result<Vec<f64>> {
    (0..count).map(|_| measure()).collect()
}

/// Runs that give two figures each, by figure.
fn repeated(count: u16, mut measure: impl FnMut() -> Result<[f64; 2]>) -> Result<[Vec<f64>; 2]> {
    let mut figures = [Vec::new(), Vec::new()];
    for _ in 0..count {
        for (runs, value) in figures.iter_mut().zip(measure()?) {
            runs.push(value);
        }
    }
    Ok(figures)
}

#[expect(clippy::print_stdout, reason = "the table")]
fn print(line: &str) {
    println!("{line}");
}
