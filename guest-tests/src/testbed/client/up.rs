//! `up` performs checks, fetches missing components, starts a supervisor, and shows the guests' progress.

use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Error, Result, anyhow, bail};
use tokio::io::BufReader;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::here::Place;
use super::{list, print_json};
use crate::artifacts::{Added, cache_dir};
use crate::lab::Lab;
use crate::report::line;
use crate::testbed::name::{GuestName, TestbedName};
use crate::testbed::node::NodeArgs;
use crate::testbed::progress::Line;
use crate::testbed::protocol::{Description, Event, Keep, receive, send};
use crate::testbed::state::States;
use crate::testbed::{LOGS, UpOptions};

/// Hidden command that runs this program as a supervisor.
pub const SUPERVISE: &str = "supervise";

/// Arguments of [`super::Command::Up`].
#[derive(Clone, Debug, clap::Args)]
pub struct Up {
    #[command(flatten)]
    wanted: UpOptions,
    /// Stay in the foreground, and stop the guests when this command exits
    #[arg(long)]
    foreground: bool,
    /// Print a description of the guests as a JSON object
    #[arg(long)]
    json: bool,
}

/// Arguments of the supervisor. It receives the user's whole command line, but uses only the options that define the
/// guests.
#[derive(Clone, Debug, clap::Args)]
pub struct Supervise {
    /// Guests to boot (accepts the same options as `guest-lab up`)
    #[command(flatten)]
    wanted: UpOptions,
    /// Boot guests for `guest-lab here`
    #[arg(long)]
    here: bool,
    #[command(flatten)]
    place: Place,
    /// Boot the guest for `guest-lab node`
    #[arg(long)]
    node: bool,
    #[command(flatten)]
    nodes: NodeArgs,
    #[arg(long)]
    no_check: bool,
    #[arg(long = "env")]
    environment: Vec<String>,
    #[arg(long)]
    foreground: bool,
    #[arg(long)]
    json: bool,
    #[arg(long)]
    folder: Option<PathBuf>,
    #[arg(long)]
    logs: Option<PathBuf>,
    #[arg(long)]
    timeout: Option<u64>,
    #[arg(last = true)]
    command: Vec<String>,
}

impl Supervise {
    /// Returns the guests to boot.
    ///
    /// # Errors
    /// Fails if the working directory of `guest-lab here` or the guest of `guest-lab node` is invalid.
    pub fn wanted(self) -> Result<UpOptions> {
        let mut wanted = self.wanted;
        if self.node {
            wanted.node = Some(self.nodes.node(|name| std::env::var(name).ok())?);
        }
        if self.here { self.place.apply(wanted) } else { Ok(wanted) }
    }
}

impl Up {
    /// Boots the guests.
    ///
    /// # Errors
    /// Fails if a component is missing, an option is invalid, or a guest does not boot. Where possible, problems are
    /// detected before the guests boot.
    pub(super) async fn run(self) -> Result<()> {
        let booted = Leased::boot(&self.wanted, self.wanted.choice.name().parse()?).await;
        let mut leased = booted.map_err(NotUp::into_error)?;
        if self.json {
            print_json(&leased.description)?;
        } else {
            line(&list::table(std::slice::from_ref(&leased.description)))?;
        }
        if self.foreground {
            // No further events are expected. This loop ends when the supervisor exits.
            while leased.supervisor.event().await?.is_some() {}
            bail!("the guests stopped; their logs are in {}", leased.description.folder.display());
        }
        leased.keep().await
    }
}

/// Why the guests did not boot.
#[derive(Debug)]
pub(super) struct NotUp {
    pub(super) error: Error,
    /// Directory with console output and logs, if it exists.
    pub(super) folder: Option<PathBuf>,
}

impl NotUp {
    /// Converts the reason into an error that also names the log directory.
    pub(super) fn into_error(self) -> Error {
        match self.folder {
            Some(folder) => {
                self.error.context(format!("the guests did not boot; their logs are in {}", folder.display()))
            }
            None => self.error,
        }
    }
}

impl From<Error> for NotUp {
    fn from(error: Error) -> Self {
        Self { error, folder: None }
    }
}

/// Booted guests, which are stopped on drop unless they are kept.
pub(super) struct Leased {
    pub(super) description: Description,
    supervisor: Supervisor,
}

impl Leased {
    /// Boots guests in a testbed with the requested name, or with the default name if none was requested.
    pub(super) async fn boot(wanted: &UpOptions, default_name: TestbedName) -> Result<Self, NotUp> {
        let mut supervisor = Self::begin(wanted, default_name).await?;
        let mut lines: BTreeMap<GuestName, Line> = BTreeMap::new();
        loop {
            match supervisor.event().await?.context(
                "the supervisor exited without an error message; see testbeds/supervisor.log in the cache directory",
            )? {
                Event::Guest { name, stage } => {
                    let line = lines.entry(name).or_insert_with(|| Line::begin(format!("guest {name}")));
                    line.show(stage.words());
                    if !std::io::stderr().is_terminal() {
                        let stage = stage.words();
                        tracing::info!("guest {name}: {stage}");
                    }
                }
                Event::Up(description) => {
                    for impairment in &description.impairments {
                        tracing::info!("the network is impaired; to repeat this, use --impair {impairment}");
                    }
                    return Ok(Self { description, supervisor });
                }
                Event::Failed { reason, folder } => return Err(NotUp { error: anyhow!(reason), folder }),
            }
        }
    }

    /// Performs all checks that are possible before booting and starts the supervisor.
    async fn begin(wanted: &UpOptions, default_name: TestbedName) -> Result<Supervisor> {
        wanted.check()?;
        let progress = Line::begin(wanted.choice.name());
        progress.show("locating QEMU and the kernel");
        let name = wanted.name.clone().unwrap_or(default_name);
        if States::open()?.running()?.contains(&name) {
            bail!(
                "testbed {name} is already running; stop it with 'guest-lab down {name}', or choose a different --name"
            );
        }
        let lab = Lab::prepare_with(&wanted.options, Added::read(&cache_dir()?)?).await?;
        if wanted.host_root.is_none() {
            progress.show("locating the root filesystem");
            lab.fetch_user_space().await?;
        }
        lab.hcad()?;
        let marker = match wanted {
            UpOptions { host_root: Some(_), .. } => Some("--here"),
            UpOptions { node: Some(_), .. } => Some("--node"),
            _ => None,
        };
        Supervisor::start(wanted.name.is_none().then_some(&name), marker)
    }

    /// Keeps the guests running after this program has exited.
    async fn keep(mut self) -> Result<()> {
        send(&mut self.supervisor.writer, &Keep::Keep).await?;
        self.supervisor.is_kept = true;
        Ok(())
    }
}

/// How long a supervisor may take to stop its guests and daemons.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
/// Polling interval while waiting for the supervisor to exit.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A supervisor started by this program. On drop, it is stopped together with all its guests, unless `is_kept` is set.
struct Supervisor {
    process: Child,
    reader: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    is_kept: bool,
}

impl Supervisor {
    fn start(name: Option<&TestbedName>, marker: Option<&str>) -> Result<Self> {
        let (process, stream) = start_supervisor(name, marker)?;
        let (reader, writer) = stream.into_split();
        Ok(Self { process, reader: BufReader::new(reader), writer, is_kept: false })
    }

    /// Returns the next event, or `None` once the supervisor has exited.
    async fn event(&mut self) -> Result<Option<Event>> {
        receive(&mut self.reader).await
    }
}

impl Drop for Supervisor {
    /// Closes the socket to the supervisor, which then stops its guests and exits. Waits up to [`STOP_TIMEOUT`] for the
    /// supervisor, so that no guest outlives this program.
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        let lease: &UnixStream = self.writer.as_ref();
        let _ = rustix::net::shutdown(lease, rustix::net::Shutdown::Both);
        let begun = Instant::now();
        while matches!(self.process.try_wait(), Ok(None)) && begun.elapsed() < STOP_TIMEOUT {
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

/// Starts this program as a supervisor with the same command line. It runs in a new session, where neither Ctrl-C nor
/// closing the terminal affects it. If `name` is given, it is added to the command line as the testbed's name. `marker`
/// is an option that is added for `guest-lab here` and `guest-lab node`, whose options differ from those of
/// `guest-lab up`.
fn start_supervisor(name: Option<&TestbedName>, marker: Option<&str>) -> Result<(Child, UnixStream)> {
    let (ours, theirs) = StdUnixStream::pair().context("cannot create a socket pair for the supervisor")?;
    ours.set_nonblocking(true)?;
    let program = std::env::current_exe().context("cannot determine the path to the guest-lab binary")?;
    let mut command = Command::new(program);
    // The arguments have already been validated. Relative paths remain valid, since the supervisor runs in the same
    // directory.
    command.arg(SUPERVISE);
    if let Some(name) = name {
        command.args(["--name", name.as_str()]);
    }
    command.args(marker);
    command.args(std::env::args_os().skip(2));
    command.stdin(Stdio::from(OwnedFd::from(theirs)));
    let log = supervisor_log()?;
    command.stdout(log.try_clone()?).stderr(log);
    // SAFETY: only setsid is called between fork and exec. It is async-signal-safe and does not access memory.
    unsafe {
        command.pre_exec(|| rustix::process::setsid().map(drop).map_err(Into::into));
    }
    let child = command.spawn().context("cannot start the supervisor")?;
    Ok((child, UnixStream::from_std(ours)?))
}

/// Size in bytes above which the supervisors' log is truncated.
const LONGEST_LOG: u64 = 1 << 20;

/// Opens the log shared by all supervisors.
fn supervisor_log() -> Result<std::fs::File> {
    let folder = cache_dir()?.join(LOGS);
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let path = folder.join("supervisor.log");
    let mut file = std::fs::File::options()
        .create(true)
        .append(true)
        .open(&path)
        .with_context(|| format!("cannot open {}", path.display()))?;
    if file.metadata()?.len() > LONGEST_LOG {
        file.set_len(0)?;
    }
    // Ignore errors, since the heading is only informative.
    let _ = writeln!(file, "supervisor of {:?}", std::env::args_os().skip(1).collect::<Vec<_>>());
    Ok(file)
}
