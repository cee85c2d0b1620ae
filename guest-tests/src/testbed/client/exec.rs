//! `exec` runs a command in a guest as if it were local.

use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::process::ExitCode;

use agent::wire::ExitStatus;
use agent::wire::exec::{MAX_PAYLOAD, Start, ToGuest};
use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::session::{Pipes, Printed, Session, channel};
use super::terminal::{self, RawTerminal};
use super::{exit_code, or_failure_of_lab};
use crate::testbed::name::Target;

/// Terminal type used if the environment does not specify one.
const TERM: &str = "xterm-256color";
/// Signals to forward to the command. If the command has a terminal, Ctrl-C and Ctrl-\ generate SIGINT and SIGQUIT in
/// the guest, and SIGHUP is not forwarded. When the user's terminal closes, this program exits and the command is
/// terminated.
const SIGNALS: [i32; 6] =
    [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGUSR1, libc::SIGUSR2, libc::SIGHUP];

/// Arguments of [`super::Command::Exec`].
#[derive(Clone, Debug, clap::Args)]
pub struct Exec {
    /// Guest in which to run the command, as NAME:GUEST
    #[arg(value_name = "NAME:GUEST")]
    target: Target,
    /// Command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<String>,
    /// Whether to run the command in a terminal [default: true if both standard input and output are terminals]
    #[arg(long, value_name = "BOOL")]
    tty: Option<bool>,
    /// Environment variable to set, in addition to those that describe the testbed (repeatable)
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = variable)]
    environment: Vec<(String, String)>,
    /// Working directory for the command, inside the guest
    #[arg(long, value_name = "DIR")]
    folder: Option<String>,
}

fn variable(text: &str) -> Result<(String, String), String> {
    let (name, value) =
        text.split_once('=').ok_or_else(|| format!("'{text}' is not of the form NAME=VALUE"))?;
    if name.is_empty() || text.contains('\0') {
        return Err(format!("'{text}' is not of the form NAME=VALUE or contains a NUL byte"));
    }
    Ok((name.to_owned(), value.to_owned()))
}

/// Runs an interactive shell in a guest and returns its exit status.
pub async fn shell(target: Target) -> ExitCode {
    let command = ["sh", "-c", "if command -v bash >/dev/null; then exec bash -l; else exec sh -l; fi"];
    let command = command.map(str::to_owned).to_vec();
    let exec = Exec { target, command, tty: None, environment: Vec::new(), folder: None };
    or_failure_of_lab(exec.run().await)
}

impl Exec {
    /// Runs the command. Returns its exit status, or 128 plus the number of the signal that ended it.
    ///
    /// # Errors
    /// Fails if the command could not be started, or its exit status is unknown.
    pub async fn run(self) -> Result<ExitCode> {
        let start = Start {
            argv: self.command,
            env: self.environment.into_iter().collect(),
            folder: self.folder,
            ..Start::default()
        };
        run_as_local(&self.target, start, self.tty).await.map(ExitCode::from)
    }
}

/// Runs a command with this program's input, output and signals. The command gets a terminal if `tty` is true or if
/// `tty` is `None` and standard input and output are terminals. Returns the command's exit status, or 128 plus the
/// number of the signal that ended it.
///
/// # Errors
/// Fails if the command could not be started, or its exit status is unknown.
pub(super) async fn run_as_local(target: &Target, mut start: Start, tty: Option<bool>) -> Result<u8> {
    let with_terminal = tty.unwrap_or_else(|| io::stdin().is_terminal() && io::stdout().is_terminal());
    if with_terminal {
        let size = terminal::size().unwrap_or(agent::wire::exec::Size { rows: 24, columns: 80 });
        start.terminal = Some(size);
        let term = std::env::var("TERM").unwrap_or_else(|_| TERM.into());
        start.env.entry("TERM".into()).or_insert(term);
    }
    let session = Session::start(target, start).await?;
    let controls = controls(with_terminal)?;
    let raw = if with_terminal { Some(RawTerminal::enter()?) } else { None };
    let (output, printed) = channel();
    let printing = std::thread::spawn(move || print(printed));
    let result = session.run(Pipes { input: typed(), controls, output }).await;
    // Write all output before restoring the terminal and returning the status.
    let printed = tokio::task::spawn_blocking(move || printing.join()).await?;
    drop(raw);
    match printed {
        // A local program that writes to a closed pipe has the same exit status.
        Ok(Err(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            return Ok(exit_code(ExitStatus::Signal(libc::SIGPIPE)));
        }
        Ok(Err(error)) => return Err(error).context("cannot write the command's output"),
        Ok(Ok(())) | Err(_) => {}
    }
    result.map(exit_code)
}

/// Reads standard input in a separate thread, as a blocking read cannot be cancelled.
fn typed() -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut buffer = vec![0; MAX_PAYLOAD / 2];
        loop {
            match io::stdin().lock().read(&mut buffer) {
                Ok(len @ 1..) => {
                    if sender.blocking_send(buffer[..len].to_vec()).is_err() {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Dropping the sender ends the input.
                _ => return,
            }
        }
    });
    receiver
}

fn print(mut printed: mpsc::Receiver<Printed>) -> io::Result<()> {
    while let Some(piece) = printed.blocking_recv() {
        match piece {
            Printed::Output(bytes) => {
                let mut out = io::stdout().lock();
                out.write_all(&bytes)?;
                out.flush()?;
            }
            Printed::Errors(bytes) => io::stderr().lock().write_all(&bytes)?,
        }
    }
    Ok(())
}

/// Returns a channel that delivers the signals to forward and the terminal's size changes.
fn controls(with_terminal: bool) -> Result<mpsc::Receiver<ToGuest>> {
    let (sender, receiver) = channel();
    for number in SIGNALS.into_iter().filter(|number| !(with_terminal && *number == libc::SIGHUP)) {
        let mut coming = signal(SignalKind::from_raw(number))?;
        let sender = sender.clone();
        tokio::spawn(async move {
            while coming.recv().await.is_some() && sender.send(ToGuest::Signal(number)).await.is_ok() {}
        });
    }
    if with_terminal {
        let mut changes = signal(SignalKind::window_change())?;
        tokio::spawn(async move {
            while changes.recv().await.is_some() {
                let Some(size) = terminal::size() else { continue };
                if sender.send(ToGuest::Resize(size)).await.is_err() {
                    return;
                }
            }
        });
    }
    Ok(receiver)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variable_value_may_contain_equals_sign() {
        assert_eq!(variable("A=b=c"), Ok(("A".into(), "b=c".into())));
        assert_eq!(variable("A="), Ok(("A".into(), String::new())));
        assert!(variable("A").is_err() && variable("=b").is_err());
    }
}
