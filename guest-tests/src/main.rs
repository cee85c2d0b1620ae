//! `guest-lab`: boots stock guests on HCAs served by `hcad` and judges what happens.

use std::io::IsTerminal as _;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use guest_tests::lab::{Lab, Options};
use guest_tests::report::{Report, line};
use guest_tests::scenario::{self, Scenario};

/// Boots stock guests on HCAs served by hcad and judges what happens.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Names the scenarios
    List,
    /// Runs scenarios; prints a line a case and the counts at the end
    Run {
        /// Scenarios, as `list` names them
        #[arg(required = true, value_parser = scenario_named)]
        scenarios: Vec<&'static Scenario>,
        #[command(flatten)]
        options: Options,
    },
    /// Moves RDMA traffic between two guests and prints a table of it
    Demo {
        #[command(flatten)]
        options: Options,
    },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env()
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info")),
        )
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .without_time()
        .init();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let result =
        runtime.context("starting the runtime").and_then(|runtime| runtime.block_on(run(cli.command)));
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether everything passed.
async fn run(command: Command) -> Result<bool> {
    match command {
        Command::List => {
            for scenario in scenario::ALL {
                line(&format!("{:16} {}", scenario.name, scenario.about))?;
            }
            Ok(true)
        }
        Command::Run { scenarios, options } => {
            let lab = Lab::prepare(&options).await?;
            let mut report = Report::default();
            for scenario in scenarios {
                scenario.run(&lab, &mut report).await?;
            }
            line(&report.counts().to_string())?;
            Ok(report.counts().failed == 0)
        }
        Command::Demo { options } => {
            scenario::demo::run(&Lab::prepare(&options).await?).await?;
            Ok(true)
        }
    }
}

fn scenario_named(name: &str) -> Result<&'static Scenario, String> {
    Scenario::named(name).ok_or_else(|| {
        let names: Vec<_> = scenario::ALL.iter().map(|s| s.name).collect();
        format!("there is no scenario {name}; there are {}", names.join(", "))
    })
}
