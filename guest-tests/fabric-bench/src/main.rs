//! `fabric-bench`: what HCAs reach over each fabric, against what UDP reaches on the same machine in the same run.
//!
//! No guest is involved, unless asked for: this program is the VMM and the driver of all devices.

mod copy;
mod daemon;
mod fabric;
mod flows;
mod guests;
mod history;
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

    /// Only these parts; all of them without
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    part: Vec<Part>,

    /// Only over these fabrics. Without, over all of them, but for queue pairs and regions by number: these over the ring
    #[arg(long, value_name = "FABRIC", value_delimiter = ',')]
    wire: Vec<Wire>,

    /// Have both ends of RDMA record themselves in this folder, to see what that costs
    #[arg(long, value_name = "FOLDER")]
    record: Option<PathBuf>,

    /// Have the first hcad of a pair serve its metrics on this port of 127.0.0.1, and the second on the next
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..65_535))]
    metrics: Option<u16>,

    /// Say by perf(1) in which stages devices and drivers spend their time for a 64-byte SEND
    #[arg(long)]
    profile: bool,

    /// Measure HCAs and NICs in guests too, by guest-lab, which is to be built; takes six minutes more
    #[arg(long)]
    guests: bool,

    /// Where pictures of the figures are drawn
    #[arg(long, value_name = "FOLDER", default_value = "target/bench")]
    pictures: PathBuf,

    /// The history of ratios, against whose last entry of a machine like this one what has fallen is printed
    #[arg(long, value_name = "FILE", default_value = "guest-tests/fabric-bench/history.jsonl")]
    history: PathBuf,

    /// Add the ratios of this run to the history
    #[arg(long)]
    keep: bool,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Two HCAs: bandwidth, latency, rate, and what a message costs device and driver
    Fabric,
    /// Rates by number of queue pairs
    Qps,
    /// Rates by number of memory regions
    Mrs,
    /// Rates by number of HCAs, and what an idle daemon takes
    Hcas,
}

impl Cli {
    fn has(&self, part: Part) -> bool {
        self.part.is_empty() || self.part.contains(&part)
    }

    fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|text| name.contains(text))
    }

    /// The wires asked for, or these.
    fn wires(&self, without: &[Wire]) -> Vec<Wire> {
        if self.wire.is_empty() { without.to_vec() } else { self.wire.clone() }
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
