//! User commands. Each runs in its own process, which connects to a supervisor.

mod ci;
mod copy;
mod down;
mod exec;
mod gathering;
mod hcactl;
mod here;
mod job;
mod list;
mod logs;
mod node;
mod reload;
mod root;
mod session;
mod task;
mod terminal;
mod unpack;
mod up;

use std::process::ExitCode;
use std::time::Duration;

use agent::wire::ExitStatus;
use agent::wire::exec::{StartError, StartErrorKind};
use anyhow::{Context, Result, bail};
use tokio::io::BufReader;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;

pub use self::ci::Ci;
pub use self::copy::Copy;
pub use self::down::Down;
pub use self::exec::{Exec, shell};
pub use self::hcactl::Hcactl;
pub use self::here::Here;
pub use self::list::List;
pub use self::logs::Logs;
pub use self::node::Node;
pub use self::reload::Reload;
pub use self::root::Root;
pub use self::terminal::RawTerminal;
pub use self::up::{SUPERVISE, Supervise, Up};
use super::name::{GuestName, TestbedName};
use super::protocol::{Description, Reply, Request, receive, send};
use super::state::States;

/// A command line for testbeds.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Command {
    /// Boot guests and keep them running
    Up(Up),
    /// Boot guests, run a command in all of them, and stop them
    ///
    /// First copies a directory into each guest. Exits with the command's status, or with 125 if the lab
    /// itself failed.
    Ci(Ci),
    /// Boot a guest that has this machine's files, run a command in it, and stop it
    ///
    /// The command runs in the current directory, as the current user, with the programs and libraries of this
    /// machine. Its changes to files are discarded. Exits with the command's status, or with 125 if the lab itself
    /// failed.
    Here(Here),
    /// Boot one guest of a testbed that spans several hosts, run a command in the guest, and stop it
    ///
    /// Run this command once per guest, for example as a Slurm job step. The command starts once all guests are ready.
    /// Exits with the command's status, with 143 if another guest failed first, or with 125 if the lab itself failed.
    Node(Node),
    /// Run a command in a guest
    ///
    /// Forwards input, output, signals and the terminal. Exits with the command's status, with 127 if the guest
    /// has no such command, with 126 if the command is not executable, or with 125 if the lab itself failed.
    Exec(Exec),
    /// Run hcactl against a guest's device
    ///
    /// Exits with the status of hcactl.
    Hcactl(Hcactl),
    /// Copy files and directories to or from a guest
    Cp(Copy),
    /// Load a kernel module into running guests, or replace a loaded one
    Reload(Reload),
    /// Collect console output, kernel messages, hcad logs, traces, captures and session records
    Logs(Logs),
    /// Add, remove or list additional Debian packages for new guests
    #[command(subcommand)]
    Root(Root),
    /// List the running guests
    Ps(List),
    /// Stop guests and their daemons
    Down(Down),
}

/// Executes a command line.
///
/// # Errors
/// Fails if the command fails.
pub async fn run(command: Command) -> Result<ExitCode> {
    match command {
        // Signals are forwarded to the command in the guest.
        Command::Exec(exec) => Ok(or_failure_of_lab(exec.run().await)),
        Command::Up(up) => until_signal(up.run()).await.map(success),
        // `ci`, `here` and `node` handle signals themselves. For example, `ci` collects the logs before it ends.
        Command::Ci(ci) => Ok(or_failure_of_lab(ci.run().await)),
        Command::Here(here) => Ok(or_failure_of_lab(here.run().await)),
        Command::Node(node) => Ok(or_failure_of_lab(node.run().await)),
        Command::Hcactl(hcactl) => until_signal(hcactl.run()).await,
        Command::Cp(copy) => until_signal(copy.run()).await.map(success),
        Command::Reload(reload) => until_signal(reload.run()).await.map(success),
        Command::Logs(logs) => until_signal(logs.run()).await.map(success),
        Command::Ps(list) => until_signal(list.run()).await.map(success),
        Command::Root(root) => until_signal(root.run()).await.map(success),
        Command::Down(down) => until_signal(down.run()).await.map(success),
    }
}

const fn success((): ()) -> ExitCode {
    ExitCode::SUCCESS
}

/// Runs a future until it completes or a signal arrives.
///
/// # Errors
/// Returns the future's error, or an error that names the signal.
pub async fn until_signal<T>(command: impl Future<Output = Result<T>>) -> Result<T> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        result = command => result,
        _ = terminate.recv() => bail!("terminated by SIGTERM"),
        _ = interrupt.recv() => bail!("interrupted by SIGINT"),
    }
}

/// Timeout for a supervisor's reply. It exceeds the supervisor's own timeouts for querying a guest.
const REPLY_TIMEOUT: Duration = Duration::from_secs(120);

/// A connection to a testbed's supervisor.
struct Connection {
    reader: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
}

impl Connection {
    async fn open(testbed: &TestbedName) -> Result<Self> {
        let socket = States::open()?.socket(testbed)?;
        let stream = UnixStream::connect(&socket)
            .await
            .with_context(|| format!("cannot connect to testbed {testbed} at {}", socket.display()))?;
        let (reader, writer) = stream.into_split();
        Ok(Self { reader: BufReader::new(reader), writer })
    }

    async fn ask(&mut self, request: &Request) -> Result<Reply> {
        send(&mut self.writer, request).await?;
        let reply = receive::<Reply>(&mut self.reader);
        let reply = match request {
            // Daemons may need minutes to stop.
            Request::Down => reply.await,
            _ => timeout(REPLY_TIMEOUT, reply).await.with_context(|| {
                format!("the testbed's supervisor did not reply within {} s", REPLY_TIMEOUT.as_secs())
            })?,
        };
        match reply?.context("the testbed stopped without replying")? {
            Reply::Refused(reason) => bail!(reason),
            reply => Ok(reply),
        }
    }
}

async fn ask(testbed: &TestbedName, request: &Request) -> Result<Reply> {
    Connection::open(testbed).await?.ask(request).await
}

async fn describe(testbed: &TestbedName) -> Result<Description> {
    match ask(testbed, &Request::Describe).await? {
        Reply::Description(description) => Ok(description),
        other => bail!("unexpected reply from testbed {testbed}: {other:?}"),
    }
}

/// Returns all of a guest's kernel messages.
async fn messages(testbed: &TestbedName, guest: GuestName) -> Result<Vec<String>> {
    match ask(testbed, &Request::Messages { guest }).await? {
        Reply::Messages(lines) => Ok(lines),
        other => bail!("unexpected reply from testbed {testbed}: {other:?}"),
    }
}

/// Exit statuses for errors that prevent a command from running, as in shells, env(1) and similar programs.
const FAILURE_OF_LAB: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

fn or_failure_of_lab(result: Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        tracing::error!("{error:#}");
        ExitCode::from(failure_code(&error))
    })
}

/// Returns the exit status for an error that prevented a command from running.
fn failure_code(error: &anyhow::Error) -> u8 {
    match error.downcast_ref::<StartError>().map(|error| error.kind) {
        Some(StartErrorKind::NotFound) => NOT_FOUND,
        Some(StartErrorKind::NotExecutable) => NOT_EXECUTABLE,
        Some(StartErrorKind::Other) | None => FAILURE_OF_LAB,
    }
}

/// Returns the exit status for a command that has ended. As in shells, it is the command's own status, or 128 plus the
/// signal number.
fn exit_code(status: ExitStatus) -> u8 {
    let (base, number) = match status {
        ExitStatus::Code(code) => (0, code),
        ExitStatus::Signal(signal) => (128, signal),
    };
    u8::try_from(base + number).unwrap_or(u8::MAX)
}

fn print_json(value: &impl serde::Serialize) -> Result<()> {
    crate::report::line(&serde_json::to_string_pretty(value)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_errors_map_to_shell_exit_statuses() {
        let code = |kind| {
            let error = StartError { kind, reason: "cannot start x".into() };
            failure_code(&anyhow::Error::from(error).context("guest a"))
        };
        assert_eq!((code(StartErrorKind::NotFound), code(StartErrorKind::NotExecutable)), (127, 126));
        assert_eq!(code(StartErrorKind::Other), 125);
        assert_eq!(failure_code(&anyhow::anyhow!("testbed lab does not exist")), 125);
    }
}
