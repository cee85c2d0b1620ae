//! A simulated user who types `guest-lab` commands.

use std::fmt;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::{Instant, sleep, timeout};

use crate::artifacts::cache_dir;
use crate::lab::Lab;
use crate::run_dir::RunDir;

/// Timeout for a command, generous enough for emulated guests on a busy host.
const MAX_WAIT: Duration = Duration::from_secs(180);
/// How long guests may take to stop after their supervisor has exited.
const END: Duration = Duration::from_secs(60);
/// Interval between polls of the process list.
const POLL: Duration = Duration::from_millis(50);

/// A simulated user with its own testbed directory.
#[derive(Clone)]
pub(super) struct User {
    program: PathBuf,
    state: PathBuf,
    /// Options added to `up` and `ci` so that they use this lab's programs.
    options: Vec<String>,
    /// Cache to use instead of the caller's cache.
    cache: Option<PathBuf>,
    /// Working directory, if it differs from the caller's.
    folder: Option<PathBuf>,
    /// Environment variables in addition to the caller's.
    variables: Vec<(String, String)>,
    /// Timeout for a command.
    limit: Duration,
}

/// Exit status and output of a finished command.
pub(super) struct Outcome {
    pub(super) code: Option<i32>,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: String,
}

impl User {
    pub(super) fn new(lab: &Lab, run: &RunDir) -> Result<Self> {
        let state = run.socket("state");
        Ok(Self {
            program: std::env::current_exe().context("cannot determine this program's path")?,
            state,
            options: lab.given().to_vec(),
            cache: None,
            folder: None,
            variables: Vec::new(),
            limit: MAX_WAIT,
        })
    }

    /// Returns the same user in another directory, with additional environment variables.
    pub(super) fn in_folder(&self, folder: &Path, variables: &[(&str, &str)]) -> Self {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let folder = Some(folder.to_owned());
        Self { folder, variables: variables.iter().map(owned).collect(), ..self.clone() }
    }

    /// Returns the same user, but with guests that stop when this program exits. This way, a failed case leaves no
    /// guests behind.
    pub(super) fn bound(&self) -> Self {
        let own = format!("--for-pid={}", std::process::id());
        Self { options: self.options.iter().cloned().chain([own]).collect(), ..self.clone() }
    }

    /// Returns the same user with a different timeout for commands.
    pub(super) fn within(&self, limit: Duration) -> Self {
        Self { limit, ..self.clone() }
    }

    /// Returns a user with its own cache in `folder`, initially filled with links to the entries of the caller's cache.
    pub(super) fn with_cache(&self, folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder)?;
        for entry in fs::read_dir(cache_dir()?)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() && entry.file_name() != "testbeds" {
                symlink(entry.path(), folder.join(entry.file_name()))?;
            }
        }
        Ok(Self { cache: Some(folder.to_owned()), ..self.clone() })
    }

    /// Builds the module in `folder` against the lab's kernel.
    pub(super) async fn build(&self, folder: &str) -> Result<Outcome> {
        let kernel = self.options.iter().find(|option| option.starts_with("--kernel"));
        let words: Vec<&str> =
            ["build"].into_iter().chain(kernel.map(String::as_str)).chain([folder]).collect();
        self.run(&words).await
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.env("HCAD_LAB_STATE", &self.state);
        if let Some(cache) = &self.cache {
            command.env("HCAD_LAB_CACHE", cache);
        }
        let (first, others) = arguments.split_at(arguments.len().min(1));
        command.args(first);
        match first {
            ["up" | "ci"] => {
                command.args(&self.options);
            }
            // Guests started by `here` use this machine's root file system. Options for the lab's root do not apply.
            ["here"] => {
                command.args(self.options.iter().filter(|option| !option.starts_with("--root")));
            }
            _ => {}
        }
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.args(others);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command
    }

    pub(super) async fn run(&self, arguments: &[&str]) -> Result<Outcome> {
        self.run_with(b"", arguments).await
    }

    /// Runs a command with the given input and waits until it exits.
    pub(super) async fn run_with(&self, input: &[u8], arguments: &[&str]) -> Result<Outcome> {
        let mut child = self.command(arguments).spawn().context("cannot start guest-lab")?;
        let mut stdin = child.stdin.take().context("no input")?;
        let feed = async {
            // The command may exit without having read its input.
            let _ = stdin.write_all(input).await;
            drop(stdin);
        };
        let limit = self.limit;
        let ended = timeout(limit, async { tokio::join!(feed, child.wait_with_output()).1 }).await;
        let output = ended.with_context(|| format!("{arguments:?} did not exit within {limit:?}"))??;
        Ok(Outcome {
            code: output.status.code(),
            stdout: output.stdout,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    /// Starts a command without waiting for it to end.
    pub(super) fn start(&self, arguments: &[&str]) -> Result<Running> {
        let mut child = self.command(arguments).spawn().context("cannot start guest-lab")?;
        let stdout = BufReader::new(child.stdout.take().context("no output")?);
        Ok(Running { child, stdout, seen: Vec::new() })
    }

    /// Returns the processes of a testbed: first the supervisor, then the QEMU processes.
    pub(super) async fn processes(&self, testbed: &str) -> Result<Vec<u32>> {
        let all: Value = serde_json::from_slice(&self.run(&["ps", "--json"]).await?.stdout)?;
        let found = all.as_array().into_iter().flatten().find(|one| one["name"] == testbed);
        let found = found.with_context(|| format!("no {testbed} in {all}"))?;
        let guests = found["guests"].as_array().into_iter().flatten().map(|guest| &guest["qemu"]);
        let ids = std::iter::once(&found["supervisor"]).chain(guests).filter_map(Value::as_u64);
        Ok(ids.map(u32::try_from).collect::<Result<_, _>>()?)
    }

    /// Waits until the testbed has at least two processes, including child processes, and returns all of them.
    pub(super) async fn wait_for_processes(&self, testbed: &str, limit: Duration) -> Result<Vec<u32>> {
        let begun = Instant::now();
        loop {
            match self.processes(testbed).await {
                Ok(processes) => {
                    let all = processes.iter().flat_map(|id| children_of(*id)).chain(processes.clone());
                    let all: Vec<u32> = all.collect();
                    if all.len() > 1 {
                        return Ok(all);
                    }
                }
                Err(error) if begun.elapsed() > limit => {
                    return Err(error.context("the command did not start"));
                }
                Err(_) => {}
            }
            sleep(POLL).await;
        }
    }

    /// Checks that no testbed is listed, that `processes` have exited, and that only the lock file is left in the
    /// testbed directory.
    pub(super) async fn expect_nothing_left(&self, processes: &[u32]) -> Result<()> {
        let begun = Instant::now();
        while let Some(alive) = processes.iter().find(|id| is_alive(**id)) {
            ensure!(begun.elapsed() < END, "process {alive} of {processes:?} is still running after {END:?}");
            sleep(POLL).await;
        }
        let listed = self.run(&["ps", "--json"]).await?;
        ensure!(listed.stdout.trim_ascii() == b"[]", "{listed:?}");
        let left =
            fs::read_dir(&self.state)?.map(|entry| Ok(entry?.file_name())).collect::<Result<Vec<_>>>()?;
        ensure!(left == ["lock"], "left behind: {left:?}");
        Ok(())
    }
}

/// Returns whether a process has a thread that is not a zombie. The main thread can become a zombie long before other
/// threads close their files.
fn is_alive(id: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{id}/task")) else { return false };
    threads.flatten().any(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        state.is_some_and(|state| state != 'Z' && state != 'X')
    })
}

/// Returns the children of a process's main thread.
fn children_of(id: u32) -> Vec<u32> {
    let children = fs::read_to_string(Path::new("/proc").join(format!("{id}/task/{id}/children")));
    children.unwrap_or_default().split_whitespace().filter_map(|id| id.parse().ok()).collect()
}

/// Returns the child process that is running `program`.
pub(super) fn child(id: u32, program: &str) -> Result<u32> {
    let name = |id: &u32| fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default();
    let found = children_of(id).into_iter().find(|id| name(id).trim() == program);
    found.with_context(|| format!("process {id} has no child {program}"))
}

pub(super) fn kill(id: u32) -> Result<()> {
    signal(id, Signal::KILL)
}

pub(super) fn signal(id: u32, signal: Signal) -> Result<()> {
    let process = Pid::from_raw(i32::try_from(id)?).context("no process has this number")?;
    Ok(kill_process(process, signal)?)
}

impl Outcome {
    /// Checks that the command succeeded.
    pub(super) fn succeeded(&self) -> Result<()> {
        ensure!(self.code == Some(0), "{self:?}");
        Ok(())
    }

    /// Checks that the command succeeded and printed exactly `text`.
    pub(super) fn printed(&self, text: &str) -> Result<()> {
        self.succeeded()?;
        ensure!(self.stdout == text.as_bytes(), "expected '{text}': {self:?}");
        Ok(())
    }

    /// Checks that the command failed and that its message contains all of `parts`.
    pub(super) fn failed(&self, parts: &[&str]) -> Result<()> {
        ensure!(self.code.is_some_and(|code| code != 0), "{self:?}");
        for part in parts {
            ensure!(self.stderr.contains(part), "expected '{part}' in {self:?}");
        }
        Ok(())
    }
}

impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stdout = &self.stdout[..self.stdout.len().min(2000)];
        write!(
            f,
            "status {:?}, standard output '{}', standard error '{}'",
            self.code,
            stdout.escape_ascii(),
            self.stderr
        )
    }
}

/// A command that the user has started.
pub(super) struct Running {
    child: Child,
    stdout: BufReader<ChildStdout>,
    seen: Vec<u8>,
}

impl Running {
    /// Waits for a line that contains `text`.
    pub(super) async fn line(&mut self, text: &str) -> Result<()> {
        let search = async {
            loop {
                let mut line = Vec::new();
                if self.stdout.read_until(b'\n', &mut line).await? == 0 {
                    bail!("the command exited without printing a line that contains '{text}'");
                }
                self.seen.extend(&line);
                if String::from_utf8_lossy(&line).contains(text) {
                    return Ok(());
                }
            }
        };
        timeout(MAX_WAIT, search)
            .await
            .with_context(|| format!("no line that contains '{text}' within {MAX_WAIT:?}"))?
    }

    pub(super) fn id(&self) -> Result<u32> {
        self.child.id().context("the command has ended")
    }

    pub(super) fn signal(&self, signal: i32) -> Result<()> {
        let id = libc::pid_t::try_from(self.id()?)?;
        // SAFETY: kill takes no pointers. The child has not been reaped, so no other process can have its ID.
        ensure!(unsafe { libc::kill(id, signal) } == 0, "{}", std::io::Error::last_os_error());
        Ok(())
    }

    /// Closes the command's output and waits until it exits.
    pub(super) async fn end_without_output(self) -> Result<Outcome> {
        let Self { child, stdout, .. } = self;
        drop(stdout);
        let output = timeout(MAX_WAIT, child.wait_with_output())
            .await
            .with_context(|| format!("the command did not exit within {MAX_WAIT:?}"))??;
        Ok(Outcome {
            code: output.status.code(),
            stdout: output.stdout,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    /// Waits until the command exits and reads all its output.
    pub(super) async fn end(mut self) -> Result<Outcome> {
        // This closes the command's input.
        drop(self.child.stdin.take());
        let mut stderr = String::new();
        let mut errors = self.child.stderr.take().context("no errors")?;
        let all = async {
            let (out, err) =
                tokio::join!(self.stdout.read_to_end(&mut self.seen), errors.read_to_string(&mut stderr));
            out?;
            err?;
            anyhow::Ok(self.child.wait().await?)
        };
        let status = timeout(MAX_WAIT, all)
            .await
            .with_context(|| format!("the command did not exit within {MAX_WAIT:?}"))??;
        Ok(Outcome { code: status.code(), stdout: self.seen, stderr })
    }
}
