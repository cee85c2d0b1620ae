//! `hcad`: parses the command line, runs, reports the outcome.

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;
use device::cli::{self, Cli};
use device::config::Config;
use device::vfio::server::Source;
use device::{daemon, telemetry};

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&format!("hcad: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> anyhow::Result<()> {
    if cli.print_capabilities {
        print(&cli::capabilities());
        return Ok(());
    }
    // Before anything else here opens a descriptor.
    let inherited = cli.fd.map(Source::from_inherited).transpose().context("--fd")?;
    let path = cli.config.as_deref().context("--config is missing")?;
    let mut config = Config::load(path)?;
    cli.apply(&mut config)?;
    if cli.check {
        print(&format!("{}: ok", path.display()));
        return Ok(());
    }
    telemetry::subscriber::init(&config.log).map_err(anyhow::Error::msg)?;
    Ok(daemon::run(&config, inherited)?)
}

#[expect(clippy::print_stdout, reason = "the answer that was asked for")]
fn print(line: &str) {
    println!("{line}");
}

#[expect(clippy::print_stderr, reason = "the one line that says why we end")]
fn report(line: &str) {
    eprintln!("{line}");
}
