//! `hcad`: parses the command line, runs, reports the outcome.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;
use device::blueprint::MakeError;
use device::cli::{self, Cli};
use device::config::{self, Config};
use device::confinement;
use device::daemon::{self, DaemonError};
use device::telemetry::{outlet, subscriber};
use device::vfio::server::Source;

/// How long lines that wait for standard error hold up the end.
const FAREWELL: Duration = Duration::from_millis(500);

fn main() -> ExitCode {
    let code = match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&format!("hcad: {error:#}\n"));
            ExitCode::FAILURE
        }
    };
    if let Ok(outlet) = outlet::standard_error() {
        outlet.finish(FAREWELL);
    }
    code
}

fn run(cli: &Cli) -> anyhow::Result<()> {
    if cli.print_capabilities {
        return print(&cli::capabilities());
    }
    // Before anything else here opens a descriptor.
    let inherited = cli.fd.map(Source::from_inherited).transpose().context("--fd")?;
    let path = cli.config.as_deref().context("--config is missing")?;
    let mut config = Config::load(path)?;
    cli.apply(&mut config).map_err(|error| error.in_file(path))?;
    if cli.check {
        config.check_host().map_err(|error| error.in_file(path))?;
        return print(&format!("{}: ok", config::shown(path)));
    }
    // Before the log has its thread.
    confinement::begin(&config).map_err(|error| error.in_file(path))?;
    subscriber::init(&config.log).map_err(anyhow::Error::msg)?;
    match daemon::run(&config, inherited) {
        Err(
            error @ DaemonError::Make(
                MakeError::Listen { .. } | MakeError::Fabric { .. } | MakeError::File { .. },
            ),
        ) => Err(anyhow::Error::new(error).context(config::shown(path).to_string())),
        ended => Ok(ended?),
    }
}

/// The answer that was asked for.
fn print(line: &str) -> anyhow::Result<()> {
    writeln!(io::stdout(), "{line}").context("standard output")
}

/// The one line that says why we end.
fn report(line: &str) {
    match outlet::standard_error() {
        Ok(outlet) => outlet.push(line.as_bytes()),
        Err(_) => {
            let _ = io::stderr().write_all(line.as_bytes());
        }
    }
}
