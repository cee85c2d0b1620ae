//! `fabric-bench`: what two hcad processes reach over the `udp` fabric, against what UDP reaches on the same machine
//! in the same run.
//!
//! No guest is involved: this program is the VMM and the driver of both devices.

mod report;
mod udp;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Parser;
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

fn main() -> Result<()> {
    let cli = Cli::parse();
    let mut figures = Vec::new();
    let plain = runs(cli.runs, || Ok(udp::bandwidth(FRAME_LEN, false, RUN_TIME)? / 1e6))?;
    let gso = runs(cli.runs, || Ok(udp::bandwidth(FRAME_LEN, true, RUN_TIME)? / 1e6))?;
    let gso_median = report::median(&gso);
    figures.push(Figure::new("udp_4k_bw", "MB/s", &gso, "udp_4k_bw", gso_median));
    figures.push(Figure::new("udp_4k_nogso_bw", "MB/s", &plain, "udp_4k_bw", gso_median));
    for figure in &figures {
        print(&figure.line());
    }
    report::write(&cli.output, &figures)
}

fn runs(count: u16, mut measure: impl FnMut() -> Result<f64>) -> Result<Vec<f64>> {
    (0..count).map(|_| measure()).collect()
}

#[expect(clippy::print_stdout, reason = "the table")]
fn print(line: &str) {
    println!("{line}");
}
