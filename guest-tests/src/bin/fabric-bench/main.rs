//! `fabric-bench`: what two hcad processes reach over the `udp` fabric, against what UDP reaches on the same machine
//! in the same run.
//!
//! No guest is involved: this program is the VMM and the driver of both devices.

mod pair;
mod report;
mod udp;

use std::path::PathBuf;
use std::time::Duration;

use agent::wire::{Flow, MrInfo, ReceiveFlow, SendFlow, SendOp};
use anyhow::{Context as _, Result};
use clap::Parser;
use pair::{Node, Qp};
use report::Figure;

/// Measures hcad over the udp fabric against raw UDP.
#[derive(Debug, Parser)]
struct Cli {
    /// Results, one JSON object a line
    #[arg(long, value_name = "FILE", default_value = "target/bench/results.jsonl")]
    output: PathBuf,

    /// Runs of each figure
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
}

/// Bytes of a full MIDDLE packet's frame at path MTU 4096: Ethernet, IPv4, UDP, BTH, payload, ICRC.
const FRAME_LEN: usize = 14 + 20 + 8 + 12 + 4096 + 4;
/// Time of one bandwidth run.
const RUN_TIME: Duration = Duration::from_millis(500);

/// What one bandwidth run moves.
const RUN_BYTES: u32 = 256 << 20;
/// Bytes of the region each node lends: two of the longest messages, so that one is under way while another starts.
const REGION_LEN: u32 = 16 << 20;
/// Round trips of one latency run.
const PINGS: u32 = 5_000;

fn main() -> Result<()> {
    let cli = Cli::parse();
    let mut figures = Vec::new();
    let mut add = |figure: Figure| {
        print(&figure.line());
        figures.push(figure);
    };

    let gso = runs(cli.runs, || Ok(udp::bandwidth(FRAME_LEN, true, RUN_TIME)? / 1e6))?;
    let plain = runs(cli.runs, || Ok(udp::bandwidth(FRAME_LEN, false, RUN_TIME)? / 1e6))?;
    let one_way = runs(cli.runs, || micros(udp::latencies(UDP_SMALL, PINGS as usize)?[PINGS as usize / 2]))?;
    let (udp_bw, udp_latency) = (report::median(&gso), report::median(&one_way));
    add(Figure::new("udp_4k_bw", "MB/s", &gso, "udp_4k_bw", udp_bw));
    add(Figure::new("udp_4k_nogso_bw", "MB/s", &plain, "udp_4k_bw", udp_bw));
    add(Figure::new("udp_64b_latency", "us", &one_way, "udp_64b_latency", udp_latency));

    let folder = std::env::temp_dir().join(format!("fabric-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let mut nodes = Node::pair(&folder)?;
    let qps = pair::connection(&mut nodes, 8)?;
    let regions = [nodes[0].region(REGION_LEN.into())?, nodes[1].region(REGION_LEN.into())?];
    for (name, len) in [("4k", 4 << 10), ("64k", 64 << 10), ("1m", 1 << 20), ("8m", 8 << 20)] {
        let write = runs(cli.runs, || write_bandwidth(&mut nodes, qps[0], regions, len))?;
        add(Figure::new(format!("rc_write_{name}_bw"), "MB/s", &write, "udp_4k_bw", udp_bw));
    }
    for (name, len) in [("64k", 64 << 10), ("1m", 1 << 20)] {
        let send = runs(cli.runs, || send_bandwidth(&mut nodes, qps, regions, len))?;
        add(Figure::new(format!("rc_send_{name}_bw"), "MB/s", &send, "udp_4k_bw", udp_bw));
    }
    let round_trip = runs(cli.runs, || write_round_trip(&mut nodes, qps[0], regions))?;
    add(Figure::new("rc_write_64b_completion", "us", &round_trip, "udp_64b_latency", udp_latency));
    std::fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    report::write(&cli.output, &figures)
}

/// Bytes of the smallest datagram that carries 64 bytes in a RoCE frame.
const UDP_SMALL: usize = 14 + 20 + 8 + 12 + 16 + 64 + 4;

/// Payload of RDMA WRITEs of `len` bytes, MB a second, from the first post to the last completion.
fn write_bandwidth(nodes: &mut [Node; 2], qp: Qp, regions: [MrInfo; 2], len: u32) -> Result<f64> {
    let flow = SendFlow {
        qp: qp.id,
        op: SendOp::Write,
        count: RUN_BYTES / len,
        len,
        depth: slots(len),
        slots: slots(len),
        stride: len.into(),
        batch: slots(len) / 2,
        mr: regions[0].id,
        remote: Some(regions[1].remote(0)),
        remote_stride: len.into(),
        verify: false,
        ..SendFlow::default()
    };
    rate(&nodes[0].run(vec![Flow::Send(flow)])?[0])
}

/// The same of SENDs.
fn send_bandwidth(nodes: &mut [Node; 2], qps: [Qp; 2], regions: [MrInfo; 2], len: u32) -> Result<f64> {
    let count = RUN_BYTES / len;
    let send = SendFlow {
        qp: qps[0].id,
        count,
        len,
        depth: slots(len),
        slots: slots(len),
        stride: len.into(),
        batch: slots(len) / 2,
        mr: regions[0].id,
        verify: false,
        ..SendFlow::default()
    };
    let receive = ReceiveFlow {
        qp: qps[1].id,
        count,
        len,
        depth: slots(len),
        slots: slots(len),
        stride: len.into(),
        mr: regions[1].id,
        verify: false,
        ..ReceiveFlow::default()
    };
    let [near, _] = pair::run_both(nodes, vec![Flow::Send(send)], vec![Flow::Receive(receive)])?;
    rate(&near[0])
}

/// Messages of `len` bytes that are under way at once.
fn slots(len: u32) -> u32 {
    (REGION_LEN / len).min(32)
}

/// From the doorbell of a 64-byte WRITE to its completion, microseconds: there and back.
fn write_round_trip(nodes: &mut [Node; 2], qp: Qp, regions: [MrInfo; 2]) -> Result<f64> {
    let flow = SendFlow {
        qp: qp.id,
        op: SendOp::Write,
        count: PINGS,
        len: 64,
        mr: regions[0].id,
        remote: Some(regions[1].remote(0)),
        verify: false,
        ..SendFlow::default()
    };
    let report = nodes[0].run(vec![Flow::Send(flow)])?[0];
    micros(Duration::from_nanos(report.elapsed_ns - report.content_ns) / PINGS)
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn rate(report: &agent::wire::FlowReport) -> Result<f64> {
    Ok(report.bytes as f64 / (report.elapsed_ns - report.content_ns) as f64 * 1e3)
}

fn micros(time: Duration) -> Result<f64> {
    Ok(time.as_secs_f64() * 1e6)
}

fn runs(count: u16, mut measure: impl FnMut() -> Result<f64>) -> Result<Vec<f64>> {
    (0..count).map(|_| measure()).collect()
}

#[expect(clippy::print_stdout, reason = "the table")]
fn print(line: &str) {
    println!("{line}");
}
