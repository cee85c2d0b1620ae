//! `fabric-bench` measures the performance of HCAs over each fabric. It compares the results with the performance of
//! UDP on the same machine in the same run.
//!
//! Guests are used only if requested. Without guests, this program acts as the VMM and the driver for all devices.

mod connectx;
mod copy;
mod daemon;
mod doorbells;
mod endpoint;
mod fabric;
mod flows;
mod guests;
mod history;
mod loopback;
mod many;
mod node;
mod pair;
mod pictures;
mod processors;
mod profile;
mod report;
mod runs;
mod scale;
mod udp;
mod yardstick;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, ValueEnum};

use self::pair::Wire;
use self::report::Figures;
use self::yardstick::Yardstick;

/// Measures hcad's performance on each fabric, relative to raw UDP or to a memory copy.
#[derive(Debug, Parser)]
struct Cli {
    /// Output file, with one line per figure (a JSON object)
    #[arg(long, value_name = "FILE", default_value = "target/bench/results.jsonl")]
    output: PathBuf,

    /// Number of runs per figure; each figure is the median of the runs
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,

    /// Measure only the RDMA figures whose names contain this text
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,

    /// Measure only these parts [default: all]
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    part: Vec<Part>,

    /// Measure only over these fabrics [default: all, but only ring for the qps, mrs and connectx parts]
    #[arg(long, value_name = "FABRIC", value_delimiter = ',')]
    wire: Vec<Wire>,

    /// Record the sessions of both devices in this directory, to measure the cost of recording
    #[arg(long, value_name = "FOLDER")]
    record: Option<PathBuf>,

    /// Serve the metrics of the first hcad of a pair on this port of 127.0.0.1, and the metrics of the second on the
    /// next port
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..65_535))]
    metrics: Option<u16>,

    /// Print the time that devices and drivers spend in each stage of a 64-byte SEND, sampled with perf(1)
    #[arg(long)]
    profile: bool,

    /// Also measure devices in guests; requires guest-lab and takes six more minutes
    #[arg(long)]
    guests: bool,

    /// Directory for charts of the figures
    #[arg(long, value_name = "FOLDER", default_value = "target/bench")]
    pictures: PathBuf,

    /// File with the history of ratios; ratios that are worse than in the last entry from a similar machine are listed
    #[arg(long, value_name = "FILE", default_value = "guest-tests/fabric-bench/history.jsonl")]
    history: PathBuf,

    /// Append the ratios of this run to the history
    #[arg(long)]
    keep: bool,
}

/// The parts of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Two HCAs: bandwidth, latency, rate, and the CPU time that the device and the driver spend per message
    Fabric,
    /// Message rate by number of queue pairs
    Qps,
    /// Message rate by number of memory regions
    Mrs,
    /// Message rate by number of HCAs; CPU time of idle daemons
    Hcas,
    /// One ConnectX card with a queue pair that is connected to itself: rate, latency and bandwidth, with trapped and
    /// with mapped doorbells
    Loopback,
    /// Two ConnectX cards: message rate, CPU time per message and bandwidth, with trapped and with mapped doorbells
    Connectx,
}

impl Cli {
    fn has(&self, part: Part) -> bool {
        self.part.is_empty() || self.part.contains(&part)
    }

    fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|text| name.contains(text))
    }

    /// Returns the selected wires, or `default` if none are selected.
    fn wires(&self, default: &[Wire]) -> Vec<Wire> {
        if self.wire.is_empty() { default.to_vec() } else { self.wire.clone() }
    }
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    let mut figures = Figures::default();
    let yardstick = Yardstick::take(&cli, &mut figures)?;
    if cli.has(Part::Fabric) {
        for wire in cli.wires(Wire::value_variants()) {
            fabric::measure(&cli, wire, &yardstick, &mut figures)?;
        }
    }
    let mut pairs = Vec::new();
    pairs.extend(cli.has(Part::Qps).then_some(scale::queue_pairs as scale::Measure));
    pairs.extend(cli.has(Part::Mrs).then_some(scale::regions as scale::Measure));
    for measure in pairs {
        for wire in cli.wires(&[Wire::Ring]) {
            measure(&cli, wire, &mut figures)?;
        }
    }
    if cli.has(Part::Hcas) {
        for wire in cli.wires(Wire::value_variants()) {
            many::measure(&cli, wire, &mut figures)?;
        }
    }
    if cli.has(Part::Loopback) {
        loopback::measure(&cli, &yardstick, &mut figures)?;
    }
    if cli.has(Part::Connectx) {
        for wire in cli.wires(&[Wire::Ring]) {
            connectx::measure(&cli, wire, &yardstick, &mut figures)?;
        }
    }
    if cli.guests {
        guests::measure(&mut figures)?;
    }
    if cli.profile {
        for wire in cli.wires(Wire::value_variants()) {
            profile::measure(&cli, wire, &mut figures)?;
        }
    }
    report::write(&cli.output, &figures.all)?;
    pictures::draw(&cli.pictures, &figures)?;
    history::compare(&cli.history, &figures.all, cli.keep)
}
