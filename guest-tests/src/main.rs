//! `guest-lab`: boots stock guests on HCAs served by `hcad` and judges what happens.

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use guest_tests::lab::{Chance, Lab, Options};
use guest_tests::report::{Report, line};
use guest_tests::scenario::{self, Scenario};
use tokio::signal::unix::{SignalKind, signal};

/// Boots stock guests on HCAs served by hcad and judges what happens.
#[derive(Debug, Parser)]
#[command(name = "guest-lab", version)]
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
        /// Leave guests and daemons as a failed case left them until Enter is pressed
        #[arg(long)]
        keep: bool,
        /// Longest time for one case
        #[arg(long, default_value_t = 240, value_name = "SECONDS")]
        timeout: u64,
        #[command(flatten)]
        chance: Chance,
        #[command(flatten)]
        options: Options,
    },
    /// Boots a scenario's guests and gives a shell in one of them
    Shell {
        /// Scenario, as `list` names it
        #[arg(value_parser = scenario_named)]
        scenario: &'static Scenario,
        /// Which guest
        #[arg(long, default_value = "a", value_parser = ["a", "b"])]
        guest: String,
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
    match run_until_signal(cli.command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the command; a signal ends it early, and with it all guests, daemons and their sockets.
fn run_until_signal(command: Command) -> Result<bool> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting the runtime")?;
    let result = runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        tokio::select! {
            result = run(command) => result,
            _ = terminate.recv() => bail!("ended by SIGTERM"),
            _ = interrupt.recv() => bail!("ended by SIGINT"),
        }
    });
    // A download under way cannot be cancelled; it need not be waited for either.
    runtime.shutdown_background();
    result
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
        Command::Run { scenarios, keep, timeout, chance, options } => {
            let lab = Lab::prepare(&options).await?.with_chance(chance);
            let mut report = Report::new(Duration::from_secs(timeout), keep);
            for scenario in scenarios {
                scenario.run(&lab, &mut report).await?;
            }
            line(&report.counts().to_string())?;
            Ok(report.counts().failed == 0)
        }
        Command::Shell { scenario, guest, options } => {
            let lab = Lab::prepare(&options).await?;
            scenario::shell::run(&lab, scenario, &guest).await?;
            Ok(true)
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
