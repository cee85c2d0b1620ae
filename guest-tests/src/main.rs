//! `guest-lab` boots guests with RDMA devices served by `hcad`, runs commands in them, and tests the project.

#[cfg(test)]
mod documented;
mod overview;

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
use clap::{FromArgMatches as _, Parser, Subcommand};
use guest_tests::arch::Arch;
use guest_tests::artifacts::{self, Added, KernelChoice, ModuleBuild};
use guest_tests::doctor::Doctor;
use guest_tests::lab::{Chance, Lab, Options};
use guest_tests::report::{Counts, Report, line};
use guest_tests::scenario::{self, Scenario};
use guest_tests::testbed::client::{self, SUPERVISE, Supervise, until_signal};
use guest_tests::testbed::name::Target;
use guest_tests::testbed::{progress, supervisor};
use guest_tests::vm;

/// Boots virtual machines with RDMA devices served by hcad, and runs commands and tests in them.
#[derive(Debug, Parser)]
#[command(name = "guest-lab", version)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the scenarios, which are the project's own tests
    List,
    /// Run scenarios and print one line per case
    ///
    /// The last line is a summary: N passed, N failed, N skipped. The exit status is 0 if no case failed.
    Run {
        /// Scenarios to run, as printed by `guest-lab list`
        #[arg(required = true, value_parser = scenario_named, value_name = "SCENARIO")]
        scenarios: Vec<&'static Scenario>,
        /// If a case fails, keep guests and daemons running until Enter is pressed
        #[arg(long, conflicts_with = "jobs")]
        keep: bool,
        /// Number of scenarios to run in parallel; timing-sensitive scenarios run afterwards, one at a time
        #[arg(long, default_value = "1", value_name = "N")]
        jobs: NonZeroUsize,
        /// Time limit per case, in seconds
        #[arg(long, default_value_t = 600, value_name = "SECONDS")]
        timeout: u64,
        /// Run only the cases whose names contain this text
        #[arg(long, value_name = "TEXT")]
        case: Option<String>,
        /// Run the lab's own user-space driver on the host instead of in guests
        ///
        /// This option affects only scenarios that use no other driver, such as `jingzhao-rc`. They run much
        /// faster without booting guests, but still test the same device.
        #[arg(long)]
        without_guests: bool,
        #[command(flatten)]
        chance: Chance,
        #[command(flatten)]
        options: Options,
    },
    /// Open a shell in a running guest, or boot the guests of a scenario and open a shell in one of them
    Shell {
        /// A running guest (NAME:GUEST, as printed by `guest-lab ps`), or the name of a scenario to boot
        #[arg(value_parser = shell_place, value_name = "GUEST|SCENARIO")]
        place: ShellPlace,
        /// Guest in which to open the shell (used only with SCENARIO)
        #[arg(long, default_value = "a", value_parser = ["a", "b"])]
        guest: String,
        #[command(flatten)]
        options: Options,
    },
    #[command(flatten)]
    Testbed(client::Command),
    /// Run the guest agent on the host (for internal use by `run --without-guests`)
    #[command(name = vm::AGENT_COMMAND, hide = true)]
    Agent {
        /// Socket to connect to
        socket: PathBuf,
    },
    /// Supervise guests (for internal use by `guest-lab up`)
    #[command(name = SUPERVISE, hide = true)]
    Supervise(Box<Supervise>),
    /// Download QEMU, a kernel and a root filesystem, so that guests boot without network access
    Fetch {
        #[command(flatten)]
        options: Options,
    },
    /// Build a module for the guest kernel
    ///
    /// The first build for a kernel downloads the compiler that the kernel was built with.
    Build {
        /// Directory that contains the module's source code and a Makefile with the line `obj-m := NAME.o`
        #[arg(value_name = "DIR", default_value = ".")]
        folder: PathBuf,
        /// Kernel to build the module for (accepts the same values as `guest-lab up --kernel`)
        #[arg(long, value_name = "SUITE|PATH")]
        kernel: Option<KernelChoice>,
        /// Targets and variables to pass to make, such as `clean`, `V=1` or `KCFLAGS=-DDEBUG`
        #[arg(last = true, value_name = "ARGUMENT")]
        arguments: Vec<OsString>,
    },
    /// Run the lab's QEMU with the given arguments
    Qemu {
        /// Arguments to pass to QEMU
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
        arguments: Vec<OsString>,
    },
    /// Run RDMA traffic between two guests and print a table of results
    Demo {
        #[command(flatten)]
        options: Options,
    },
    /// Check whether guests can be booted on this machine, and suggest remedies
    ///
    /// Prints one line per check. Each line begins with `ok`, `limited`, `missing` or `skipped`. `limited` means that
    /// guests boot, but are slower or cannot run some scenarios. `missing` means that no guest can boot. `skipped`
    /// means that `--offline` disabled the check. The exit status is 0 if no line begins with `missing`, and 1
    /// otherwise.
    Doctor(Doctor),
}

/// The guest in which to open a shell.
#[derive(Clone, Debug)]
enum ShellPlace {
    /// The guest belongs to a running testbed.
    Guest(Target),
    /// The guest belongs to a scenario and has not been booted yet.
    Scenario(&'static Scenario),
}

fn main() -> ExitCode {
    let cli = Cli::from_arg_matches(&overview::command().get_matches()).unwrap_or_else(|error| error.exit());
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
    let result = match cli.command {
        Some(command) => run(command),
        None => overview::command().print_help().map(|()| ExitCode::SUCCESS).map_err(Into::into),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the command. Some commands forward signals to a program in a guest. All other commands stop on a signal, and
/// clean up their guests, daemons and sockets.
fn run(command: Command) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the tokio runtime")?;
    let result = runtime.block_on(async {
        match command {
            Command::List => list(),
            Command::Run { scenarios, keep, jobs, timeout, case, without_guests, chance, options } => {
                let mut report = Report::new(Duration::from_secs(timeout), keep).with_only(case);
                let lab = async |options: &Options| {
                    let lab = Lab::prepare(options).await?.with_chance(chance);
                    Ok::<_, anyhow::Error>(if without_guests { lab.without_guests() } else { lab })
                };
                until_signal(async {
                    run_scenarios(&scenarios, jobs, &lab(&options).await?, &mut report).await
                })
                .await
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
            Command::Agent { socket } => {
                let stream = UnixStream::connect(&socket)
                    .with_context(|| format!("cannot connect to {}", socket.display()))?;
                let input = std::io::BufReader::new(stream.try_clone()?);
                agent::serve::Agent::default().serve(input, stream).map(|()| ExitCode::SUCCESS)
            }
            Command::Supervise(supervise) => {
                supervisor::run(supervise.wanted()?, lease()?).await.map(|()| ExitCode::SUCCESS)
            }
            Command::Fetch { options } => {
                until_signal(async {
                    let lab = Lab::prepare_with(&options, Added::read(&artifacts::cache_dir()?)?).await?;
                    lab.fetch_user_space().await?;
                    let cache = artifacts::cache_dir()?;
                    let qemu = artifacts::CachedParts::read(&cache, lab.kernel().arch).qemu;
                    let qemu = qemu.map(|version| format!("QEMU {version}, ")).unwrap_or_default();
                    let kernel = lab.kernel().release();
                    line(&format!(
                        "ready in {}: {qemu}kernel {kernel} and root filesystem",
                        cache.display()
                    ))?;
                    Ok(ExitCode::SUCCESS)
                })
                .await
            }
            Command::Build { folder, kernel, arguments } => {
                until_signal(build(folder, kernel.unwrap_or_default(), arguments)).await
            }
            Command::Doctor(doctor) => {
                let bootable = doctor.run()?;
                Ok(if bootable { ExitCode::SUCCESS } else { ExitCode::FAILURE })
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
    // Do not wait for a download, which cannot be cancelled and whose result is no longer needed.
    runtime.shutdown_background();
    result
}

fn list() -> Result<ExitCode> {
    for scenario in scenario::ALL {
        line(&format!("{:20} {}", scenario.name, scenario.about))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs scenarios. Returns success if no case failed.
async fn run_scenarios(
    scenarios: &[&'static Scenario],
    jobs: NonZeroUsize,
    lab: &Lab,
    report: &mut Report,
) -> Result<ExitCode> {
    scenario::schedule::run(scenarios, jobs, lab, report).await?;
    match vm::panicked_boots() {
        0 => {}
        count => line(&format!("guests that were booted again because the kernel panicked: {count}"))?,
    }
    line(&report.counts().to_string())?;
    ensure!(report.counts() != Counts::default(), "no cases ran: no case in these scenarios matches --case");
    Ok(if report.counts().failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Replaces this process with QEMU. QEMU then receives this process's signals, uses its terminal and determines its
/// exit status. Returns only if QEMU cannot be started.
async fn qemu(arguments: Vec<OsString>) -> Result<ExitCode> {
    let qemu = tokio::task::spawn_blocking(|| artifacts::fetched_qemu(&artifacts::cache_dir()?, Arch::HOST))
        .await??;
    let mut command = std::process::Command::new(&qemu.program);
    let error = command.args(&qemu.leading_args).args(arguments).exec();
    Err(error).with_context(|| format!("cannot start {}", qemu.program.display()))
}

/// Replaces this process with make, as [`qemu`] does with QEMU. Returns only if make cannot be started.
async fn build(folder: PathBuf, kernel: KernelChoice, arguments: Vec<OsString>) -> Result<ExitCode> {
    let command = move || ModuleBuild::command(&artifacts::cache_dir()?, &kernel, &folder);
    let error = tokio::task::spawn_blocking(command).await??.args(arguments).exec();
    Err(error).context("cannot start make")
}

/// Returns the lease, which is the supervisor's connection to `up`. It is passed as standard input.
fn lease() -> Result<UnixStream> {
    let lease = std::fs::File::from(
        std::io::stdin()
            .as_fd()
            .try_clone_to_owned()
            .context("cannot duplicate the socket on standard input")?,
    );
    ensure!(
        lease.metadata()?.file_type().is_socket(),
        "standard input is not a socket; only 'guest-lab up' can run this command"
    );
    Ok(UnixStream::from(OwnedFd::from(lease)))
}

fn shell_place(text: &str) -> Result<ShellPlace, String> {
    match text.parse() {
        Ok(target) => Ok(ShellPlace::Guest(target)),
        Err(_) => scenario_named(text)
            .map(ShellPlace::Scenario)
            .map_err(|error| format!("{error}. To select a running guest, use NAME:GUEST, such as lab:a")),
    }
}

fn scenario_named(name: &str) -> Result<&'static Scenario, String> {
    Scenario::named(name).ok_or_else(|| {
        format!("unknown scenario '{name}'; 'guest-lab list' prints the names of all scenarios")
    })
}
