//! Runs client and server programs in two guests.

use std::time::Duration;

use agent::wire::{AwaitText, ExitStatus, Kill, ProgramEnd, ProgramId, Spawn, Wait};
use anyhow::{Context, Result, anyhow, bail};

use crate::vm::Vm;

/// How long a server may take to become ready in an emulated guest on a busy host.
const READY_TIMEOUT: Duration = Duration::from_secs(240);
/// How long a server may take to exit after its client has exited or after it has received a signal.
const END_TIMEOUT: Duration = Duration::from_secs(240);
/// Additional time for the reply to a step, beyond the step's own timeout.
const ANSWER_MARGIN: Duration = Duration::from_secs(60);

/// A client program and a server program.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// Command line of the server.
    pub server: String,
    /// Command line of the client.
    pub client: String,
    pub ready: Ready,
    /// Timeout for the client program.
    pub limit: Duration,
}

/// How a server shows that it is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// The server listens on the given TCP port.
    Tcp(u16),
    /// The server listens for connections through `rdma_cm`.
    Cm,
    /// The server prints a line that contains the given text.
    Line(&'static str),
}

#[derive(Clone, Debug)]
pub struct Ends {
    pub server: ProgramEnd,
    pub client: ProgramEnd,
}

/// Splits a command line at whitespace.
pub fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

impl Exchange {
    /// Runs both programs, which must succeed.
    ///
    /// # Errors
    /// Fails if one of the programs fails. The error contains the output of both.
    pub async fn run(&self, server: &mut Vm, client: &mut Vm) -> Result<Ends> {
        let ends = self.ends(server, client).await?;
        self.succeeded(&ends)?;
        Ok(ends)
    }

    /// Checks that both programs have succeeded.
    ///
    /// # Errors
    /// Fails if one of the programs has failed. The error contains the output of both.
    pub fn succeeded(&self, ends: &Ends) -> Result<()> {
        for (end, line) in [(&ends.client, &self.client), (&ends.server, &self.server)] {
            if end.status != ExitStatus::Code(0) {
                let Ends { server, client } = ends;
                bail!(
                    "{line} failed with {:?}\nclient: {}{}\nserver: {}{}",
                    end.status,
                    client.stdout,
                    client.stderr,
                    server.stdout,
                    server.stderr
                );
            }
        }
        Ok(())
    }

    /// Runs both programs, regardless of their exit status. If the client fails, the server is killed.
    ///
    /// # Errors
    /// Fails if the server does not become ready or if the client takes too long.
    pub async fn ends(&self, server: &mut Vm, client: &mut Vm) -> Result<Ends> {
        let waiting = spawn(server, &self.server).await?;
        if let Err(error) = self.ready.wait(server, waiting, &self.server).await {
            let end = stop(server, waiting).await?;
            return Err(error
                .context(format!("{} did not start listening: {}{}", self.server, end.stdout, end.stderr)));
        }
        let ended = client.program(self.limit, &self.client).await;
        match ended {
            Ok(client) if client.status == ExitStatus::Code(0) => {
                let server = wait(server, waiting, END_TIMEOUT).await.with_context(|| {
                    format!("{} did not exit after its client had succeeded: {}", self.server, client.stdout)
                })?;
                Ok(Ends { server, client })
            }
            Ok(client) => Ok(Ends { server: stop(server, waiting).await?, client }),
            Err(error) => {
                let end = stop(server, waiting).await?;
                Err(error.context(format!("server of {}: {}{}", self.client, end.stdout, end.stderr)))
            }
        }
    }
}

impl Ready {
    /// Waits until the server started with `command` is ready.
    ///
    /// # Errors
    /// Fails if the server does not become ready in time.
    pub async fn wait(self, vm: &mut Vm, program: ProgramId, command: &str) -> Result<()> {
        match self {
            Self::Tcp(port) => {
                // Text that the kernel prints for a listening socket: the local port, an all-zero peer address of 8
                // digits (IPv4) or 32 digits (IPv6), and the state LISTEN (0A).
                let any = |digits: usize| format!(":{port:04X} {}:0000 0A", "0".repeat(digits));
                await_text(vm, &["/proc/net/tcp", "/proc/net/tcp6"], &[&any(8), &any(32)], READY_TIMEOUT)
                    .await
            }
            Self::Cm => {
                // Count only this program's sockets, since the previous server may still be exiting. Some programs open
                // one listener per device, so wait until two successive polls agree.
                let name = command.split_whitespace().next().unwrap_or_default();
                let count = format!("rdma resource show cm_id | grep LISTEN | grep -c 'comm {name} '");
                let until = format!(
                    "until now=$({count}) && [ \"$now\" = \"$before\" ]; do before=$now; sleep 0.05; done"
                );
                vm.run_within(READY_TIMEOUT, &["sh", "-c", &until]).await.map(drop)
            }
            Self::Line(text) => line(vm, program, text, READY_TIMEOUT).await.map(drop),
        }
    }
}

/// Waits until one of the guest's files contains one of the given strings.
///
/// # Errors
/// Fails if none of the strings appears in any of the files in time.
pub async fn await_text(vm: &mut Vm, paths: &[&str], texts: &[&str], limit: Duration) -> Result<()> {
    let owned = |list: &[&str]| list.iter().map(|&text| text.to_owned()).collect();
    let timeout_ms = u32::try_from(limit.as_millis())?;
    let step = AwaitText { paths: owned(paths), texts: owned(texts), timeout_ms };
    vm.call_within(limit + ANSWER_MARGIN, step).await.map(drop)
}

/// Starts a program in the background, with line-buffered output.
///
/// # Errors
/// Fails if the program cannot be started.
pub async fn spawn(vm: &mut Vm, line: &str) -> Result<ProgramId> {
    let mut argv = words("stdbuf -oL");
    argv.extend(words(line));
    Ok(vm.call(Spawn { argv }).await?.program)
}

/// Waits for the next output line that contains `text`.
///
/// # Errors
/// Fails if no such line appears in time. The error contains the lines read so far.
pub async fn line(vm: &mut Vm, program: ProgramId, text: &str, limit: Duration) -> Result<String> {
    let deadline = tokio::time::Instant::now() + limit;
    let mut before = Vec::new();
    loop {
        let left = deadline.saturating_duration_since(tokio::time::Instant::now());
        let step = agent::wire::Ask { program, line: None, timeout_ms: u32::try_from(left.as_millis())? };
        let said = vm.call_within(left + ANSWER_MARGIN, step).await;
        let said =
            said.with_context(|| anyhow!("waiting for a line with {text:?}; lines so far: {before:?}"))?.line;
        if said.contains(text) {
            return Ok(said);
        }
        before.push(said);
    }
}

/// Waits until a program exits.
///
/// # Errors
/// Fails if the program does not exit in time.
pub async fn wait(vm: &mut Vm, program: ProgramId, limit: Duration) -> Result<ProgramEnd> {
    let step = Wait { program, timeout_ms: u32::try_from(limit.as_millis())? };
    vm.call_within(limit + ANSWER_MARGIN, step).await
}

/// Sends a signal to a program.
///
/// # Errors
/// Fails if the program does not exist.
pub async fn signal(vm: &mut Vm, program: ProgramId, signal: i32) -> Result<()> {
    vm.call(Kill { program, signal }).await.map(drop)
}

/// If `will_exit` is set, waits until the program exits by itself. Otherwise, kills the program.
///
/// # Errors
/// Fails if the program does not exit in time.
pub async fn stop_after(vm: &mut Vm, program: ProgramId, will_exit: bool) -> Result<ProgramEnd> {
    if will_exit { wait(vm, program, END_TIMEOUT).await } else { stop(vm, program).await }
}

/// Kills a program and waits until it has exited.
///
/// # Errors
/// Fails if the program does not exit.
pub async fn stop(vm: &mut Vm, program: ProgramId) -> Result<ProgramEnd> {
    signal(vm, program, libc::SIGKILL).await?;
    wait(vm, program, END_TIMEOUT).await
}
