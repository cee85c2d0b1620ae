//! `guest-lab`: boots stock guests on HCAs served by `hcad` and judges what happens.

#[cfg(test)]
mod documented;

use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};
use guest_tests::artifacts::{self, Added, KernelChoice, ModuleBuild};
use guest_tests::lab::{Chance, Lab, Options};
use guest_tests::report::{Counts, Report, line};
use guest_tests::scenario::{self, Scenario};
use guest_tests::testbed::client::{self, SUPERVISE, Supervise, until_signal};
use guest_tests::testbed::name::Target;
use guest_tests::testbed::{progress, supervisor};
use guest_tests::vm;

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
        #[arg(long, conflicts_with = "jobs")]
        keep: bool,
        /// Scenarios at a time; those that measure something run alone, after the others
        #[arg(long, default_value = "1", value_name = "N")]
        jobs: NonZeroUsize,
        /// Longest time for one case
        #[arg(long, default_value_t = 240, value_name = "SECONDS")]
        timeout: u64,
        /// Only cases with this in their names; what others do before them is not done
        #[arg(long, value_name = "TEXT")]
        case: Option<String>,
        #[command(flatten)]
        chance: Chance,
        #[command(flatten)]
        options: Options,
    },
    /// Gives a shell in a guest: NAME:GUEST of those that `up` booted, or one of a scenario, booted for it
    Shell {
        /// NAME:GUEST as `ps` lists them, or a scenario as `list` names it
        #[arg(value_parser = shell_place, value_name = "GUEST|SCENARIO")]
        place: ShellPlace,
        /// Which guest of a scenario
        #[arg(long, default_value = "a", value_parser = ["a", "b"])]
        guest: String,
        #[command(flatten)]
        options: Options,
    },
    #[command(flatten)]
    Testbed(client::Command),
    /// Owns guests; what `up` starts
    #[command(name = SUPERVISE, hide = true)]
    Supervise(Box<Supervise>),
    /// Fetches what guests are made of, so that later commands need no network
    Fetch {
        #[command(flatten)]
        options: Options,
    },
    /// Builds the module in a folder for the guests' kernel, with the compiler of that, both fetched if need be
    Build {
        /// The folder, with a Makefile that says `obj-m := NAME.o`
        #[arg(value_name = "DIR", default_value = ".")]
        folder: PathBuf,
        /// As of `up`
        #[arg(long, value_name = "SUITE|PATH")]
        kernel: Option<KernelChoice>,
        /// Targets and variables for make, such as `clean`, `V=1`, `KCFLAGS=-DDEBUG`
        #[arg(last = true, value_name = "ARGUMENT")]
        arguments: Vec<OsString>,
    },
    /// Runs the lab's QEMU, fetched if need be, with arguments of your own
    Qemu {
        /// Its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
        arguments: Vec<OsString>,
    },
    /// Moves RDMA traffic between two guests and prints a table of it
    Demo {
        #[command(flatten)]
        options: Options,
    },
}

/// Where a shell is wanted.
#[derive(Clone, Debug)]
enum ShellPlace {
    /// In a guest that is up.
    Guest(Target),
    /// In one that is to be booted.
    Scenario(&'static Scenario),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env()
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info")),
        )
        .with_writer(|| progress::Stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .without_time()
        .init();
    match run(cli.command) {
        Ok(code) => code,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the command; but for commands that pass it on, a signal ends it early, and with it all guests, daemons and their
/// sockets.
fn run(command: Command) -> Result<ExitCode> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting the runtime")?;
    let result = runtime.block_on(async {
        match command {
            Command::List => list(),
            Command::Run { scenarios, keep, jobs, timeout, case, chance, options } => {
                let mut report = Report::new(Duration::from_secs(timeout), keep).with_only(case);
                until_signal(run_scenarios(&scenarios, jobs, chance, &options, &mut report)).await
            }
            Command::Shell { place: ShellPlace::Scenario(scenario), guest, options } => {
                until_signal(async {
                    scenario::shell::run(&Lab::prepare(&options).await?, scenario, &guest).await?;
                    Ok(ExitCode::SUCCESS)
                })
                .await
            }
            Command::Shell { place: ShellPlace::Guest(target), .. } => Ok(client::shell(target).await),
            Command::Testbed(command) => client::run(command).await,
            Command::Supervise(supervise) => {
                supervisor::run(supervise.wanted, lease()?).await.map(|()| ExitCode::SUCCESS)
            }
            Command::Fetch { options } => {
                until_signal(async {
                    let lab = Lab::prepare_with(&options, Added::read(&artifacts::cache_dir()?)?).await?;
                    lab.fetch_user_space().await?;
                    Ok(ExitCode::SUCCESS)
                })
                .await
            }
            Command::Build { folder, kernel, arguments } => {
                until_signal(build(folder, kernel.unwrap_or_default(), arguments)).await
            }
            Command::Qemu { arguments } => until_signal(qemu(arguments)).await,
            Command::Demo { options } => {
                until_signal(async {
                    scenario::demo::run(&Lab::prepare(&options).await?).await?;
                    Ok(ExitCode::SUCCESS)
                })
                .await
            }
        }
    });
    // A download under way cannot be cancelled; it need not be waited for either.
    runtime.shutdown_background();
    result
}

fn list() -> Result<ExitCode> {
    for scenario in scenario::ALL {
        line(&format!("{:16} {}", scenario.name, scenario.about))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Success if everything passed.
async fn run_scenarios(
    scenarios: &[&'static Scenario],
    jobs: NonZeroUsize,
    chance: Chance,
    options: &Options,
    report: &mut Report,
) -> Result<ExitCode> {
    let lab = Lab::prepare(options).await?.with_chance(chance);
    scenario::schedule::run(scenarios, jobs, &lab, report).await?;
    match vm::panicked_boots() {
        0 => {}
        count => line(&format!("boots that ended in a kernel panic and were tried again: {count}"))?,
    }
    line(&report.counts().to_string())?;
    ensure!(report.counts() != Counts::default(), "no case ran: none has such a name");
    Ok(if report.counts().failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns only if QEMU does not start: it takes this program's place, with its signals, status and terminal.
async fn qemu(arguments: Vec<OsString>) -> Result<ExitCode> {
    let qemu = tokio::task::spawn_blocking(|| artifacts::fetched_qemu(&artifacts::cache_dir()?)).await??;
    let mut command = std::process::Command::new(&qemu.program);
    let error = command.args(&qemu.leading_args).args(arguments).exec();
    Err(error).with_context(|| format!("starting {}", qemu.program.display()))
}

/// Returns only if make does not start, like [`qemu`].
async fn build(folder: PathBuf, kernel: KernelChoice, arguments: Vec<OsString>) -> Result<ExitCode> {
    let obtain = move || ModuleBuild::obtain(&artifacts::cache_dir()?, &kernel);
    let error = tokio::task::spawn_blocking(obtain).await??.command(&folder)?.args(arguments).exec();
    Err(error).context("starting make")
}

/// The lease, which a supervisor has as its standard input.
fn lease() -> Result<UnixStream> {
    let lease = std::fs::File::from(std::io::stdin().as_fd().try_clone_to_owned().context("the lease")?);
    ensure!(lease.metadata()?.file_type().is_socket(), "this is for 'guest-lab up' to start");
    Ok(UnixStream::from(OwnedFd::from(lease)))
}

fn shell_place(text: &str) -> Result<ShellPlace, String> {
    match text.parse() {
        Ok(target) => Ok(ShellPlace::Guest(target)),
        Err(_) => scenario_named(text)
            .map(ShellPlace::Scenario)
            .map_err(|error| format!("{error}; a guest that is up is written as NAME:GUEST")),
    }
}

fn scenario_named(name: &str) -> Result<&'static Scenario, String> {
    Scenario::named(name).ok_or_else(|| {
        let names: Vec<_> = scenario::ALL.iter().map(|s| s.name).collect();
        format!("there is no scenario {name}; there are {}", names.join(", "))
    })
}
