//! A testbed that exists only while commands run in its guests.

use std::fs::{self, File};
use std::io::{LineWriter, Write as _};
use std::path::Path;
use std::time::Duration;

use agent::wire::ExitStatus;
use agent::wire::exec::Start;
use anyhow::{Context as _, Result};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::down::Stopped;
use super::session::{Pipes, Printed, Session, channel};
use super::task::TaskOptions;
use super::up::Leased;
use super::{down, exit_code, logs, until_signal};
use crate::artifacts::cache_dir;
use crate::report::line;
use crate::run_dir;
use crate::testbed::name::{GuestName, Target, TestbedName};
use crate::testbed::protocol::Description;
use crate::testbed::state::States;
use crate::testbed::{LOGS, UpOptions};

/// Number of failed runs whose logs are kept.
const KEPT: usize = 3;
/// How long the other commands may run after one has failed. The cause of the failure is often visible only at the
/// other end of a connection.
const GRACE: Duration = Duration::from_secs(2);
/// Maximum size of an incomplete line in bytes.
const LONGEST_LINE: usize = 64 << 10;

/// A testbed for one run of `ci`, `here` or `node`.
pub(super) struct Job<'a> {
    pub(super) wanted: &'a UpOptions,
    /// Prefix of the testbed's default name. The process ID follows it.
    pub(super) prefix: &'a str,
    /// Directory to collect the logs in.
    pub(super) logs: Option<&'a Path>,
}

impl Job<'_> {
    /// Boots the guests, calls `run`, collects the logs and stops the guests. Returns the status that `run` returned,
    /// or 1 if that status was 0 but a problem, such as a driver violation, was reported when the guests were stopped.
    /// A signal that arrives during the boot cancels it. After the boot, `run` handles signals.
    ///
    /// # Errors
    /// Fails if the guests do not boot or if `run` fails. The logs are collected even then. Also fails if the directory
    /// for the logs cannot be created.
    pub(super) async fn run(&self, run: impl AsyncFnOnce(&Description) -> Result<u8>) -> Result<u8> {
        if let Some(to) = self.logs {
            fs::create_dir_all(to).with_context(|| format!("cannot create {}", to.display()))?;
        }
        let all = cache_dir()?.join(LOGS);
        remove_old_logs(&all, self.prefix)?;
        let name: TestbedName = format!("{}{}", self.prefix, std::process::id()).parse()?;
        let booted = until_signal(async { Ok(Leased::boot(self.wanted, name.clone()).await) }).await;
        let (folder, saved, result) = match booted {
            Ok(Ok(leased)) => {
                let description = &leased.description;
                let result = run(description).await;
                let saved = match self.logs {
                    Some(to) => are_saved(logs::collect(&description.name, to).await, to),
                    None => false,
                };
                (Some(description.folder.clone()), saved, stop(&description.name, result).await)
            }
            Ok(Err(not_up)) => {
                let saved = self.copy_logs(not_up.folder.as_deref());
                (not_up.folder, saved, Err(not_up.error))
            }
            // A CI system may cancel a job whose guests do not boot. The logs then show the cause.
            Err(cancelled) => {
                let saved = self.copy_logs(run_dir::latest(&all, name.as_str()).as_deref());
                (None, saved, Err(cancelled))
            }
        };
        if let Some(folder) = folder {
            if may_remove_logs(self.logs.is_some(), saved, &result) {
                // Remove the parent directory, which contains all of the testbed's runs.
                let _ = fs::remove_dir_all(folder.parent().unwrap_or(&folder));
            } else {
                tracing::info!("the logs are in {}", folder.display());
            }
        }
        result
    }

    /// Copies the logs of guests that did not boot. Returns whether this succeeded.
    fn copy_logs(&self, from: Option<&Path>) -> bool {
        match (from, self.logs) {
            (Some(from), Some(to)) => are_saved(logs::copy(from, to), to),
            _ => false,
        }
    }
}

/// Returns whether the logs have been saved to `to`. An error is only logged, because it must not hide the result of the
/// run. The caller must then keep the only copy of the logs.
fn are_saved<T>(saved: Result<T>, to: &Path) -> bool {
    saved.inspect_err(|error| tracing::warn!("cannot save the logs to {}: {error:#}", to.display())).is_ok()
}

/// Returns whether the cached logs of a run can be removed. `wanted` is whether `--logs` is given, and `saved` whether
/// its directory contains them.
fn may_remove_logs(wanted: bool, saved: bool, result: &Result<u8>) -> bool {
    saved || (!wanted && matches!(result, Ok(0)))
}

/// Stops the guests. Returns `result`, or 1 if it is 0 but a problem was reported.
async fn stop(testbed: &TestbedName, result: Result<u8>) -> Result<u8> {
    let Stopped { complaints, strict } = down::end(testbed).await?;
    for complaint in &complaints {
        tracing::error!("{complaint}");
    }
    if strict && complaints.is_empty() {
        tracing::info!("strict mode found no unexpected violations");
    }
    Ok(match result? {
        0 if !complaints.is_empty() => 1,
        code => code,
    })
}

/// Runs a command in all guests simultaneously. If the command fails in one guest, returns that guest's exit status.
/// The other guests then have [`GRACE`] to finish before the command is terminated there. Dropping the future also
/// terminates the command in all guests. `task` sets the time limit, if any.
pub(super) async fn run_in_all(
    description: &Description,
    start: &Start,
    task: Option<&TaskOptions>,
) -> Result<u8> {
    let mut running = JoinSet::new();
    for guest in &description.guests {
        let target = Target { testbed: description.name.clone(), guest: guest.name };
        let transcript = Transcript::create(&description.folder, guest.name)?;
        running.spawn(run_in_one(target, start.clone(), transcript));
    }
    let failure = first_failure(&mut running);
    let result = match task {
        Some(task) => task.limit(failure).await,
        None => failure.await,
    };
    if !matches!(result, Ok(0)) {
        let others = async {
            while let Some(ended) = running.join_next().await {
                if let Ok(Err(error)) = ended {
                    tracing::warn!("{error:#}");
                }
            }
        };
        // Commands that are still running are terminated when `running` is dropped.
        let _ = timeout(GRACE, others).await;
    }
    result
}

/// Waits until a command fails and returns its exit status. Returns 0 if all commands succeed.
async fn first_failure(running: &mut JoinSet<Result<ExitStatus>>) -> Result<u8> {
    while let Some(ended) = running.join_next().await {
        let code = exit_code(ended??);
        if code != 0 {
            return Ok(code);
        }
    }
    Ok(0)
}

/// Prints the output of a guest's command, with the guest's name before each line, and writes it to a file in the log
/// directory.
struct Transcript {
    guest: GuestName,
    file: LineWriter<File>,
}

impl Transcript {
    fn create(logs: &Path, guest: GuestName) -> Result<Self> {
        let path = logs.join(format!("guest-{guest}.output"));
        let file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self { guest, file: LineWriter::new(file) })
    }

    fn line(&mut self, text: &str) -> Result<()> {
        line(&format!("{}| {text}", self.guest))?;
        writeln!(self.file, "{text}").context("cannot write the command's output to the logs")
    }
}

/// Runs the command in one guest.
async fn run_in_one(target: Target, start: Start, mut transcript: Transcript) -> Result<ExitStatus> {
    let session = Session::start(&target, start).await?;
    let (feed, input) = channel();
    drop(feed);
    let (_controls, controls) = channel();
    let (output, mut printed) = channel();
    let show = async {
        let (mut lines, mut errors) = (Vec::new(), Vec::new());
        while let Some(piece) = printed.recv().await {
            let (kept, bytes) = match piece {
                Printed::Output(bytes) => (&mut lines, bytes),
                Printed::Errors(bytes) => (&mut errors, bytes),
            };
            kept.extend(bytes);
            for text in take_lines(kept) {
                transcript.line(&text)?;
            }
        }
        for rest in [lines, errors].into_iter().filter(|rest| !rest.is_empty()) {
            transcript.line(&String::from_utf8_lossy(&rest))?;
        }
        anyhow::Ok(())
    };
    let (status, shown) = tokio::join!(session.run(Pipes { input, controls, output }), show);
    shown?;
    let status = status?;
    if status != ExitStatus::Code(0) {
        let guest = target.guest;
        tracing::error!("guest {guest}: the command failed with {status}");
    }
    Ok(status)
}

/// Removes the logs of all but the most recent failed runs, without touching runs in progress.
fn remove_old_logs(all: &Path, prefix: &str) -> Result<()> {
    let running = States::open()?.running()?;
    let mut old = Vec::new();
    for entry in fs::read_dir(all).into_iter().flatten().flatten() {
        let name = entry.file_name().to_str().and_then(|name| name.parse::<TestbedName>().ok());
        if name.is_some_and(|name| name.as_str().starts_with(prefix) && !running.contains(&name))
            // Ignore errors: another run may be removing the same directory.
            && let Ok(modified) = entry.metadata().and_then(|metadata| metadata.modified())
        {
            old.push((modified, entry.path()));
        }
    }
    old.sort();
    for (_, folder) in old.iter().rev().skip(KEPT) {
        let _ = fs::remove_dir_all(folder);
    }
    Ok(())
}

/// Takes all complete lines from the buffer. Also takes an incomplete line if it is too long.
fn take_lines(kept: &mut Vec<u8>) -> Vec<String> {
    let end = match kept.iter().rposition(|&byte| byte == b'\n') {
        Some(end) => end + 1,
        None if kept.len() > LONGEST_LINE => kept.len(),
        None => return Vec::new(),
    };
    let whole: Vec<u8> = kept.drain(..end).collect();
    String::from_utf8_lossy(&whole).lines().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_are_removed_only_after_success_or_once_saved() {
        let root = tempfile::tempdir().unwrap();
        let (from, to, file) = (root.path().join("from"), root.path().join("to"), root.path().join("file"));
        fs::create_dir(&from).unwrap();
        for path in [&from.join("guest-a.console"), &file] {
            fs::write(path, "").unwrap();
        }
        let failed = || Ok(3);
        // The directory for the logs cannot be created, because its name belongs to a file.
        let saved = are_saved(logs::copy(&from, &file), &file);
        assert!(!may_remove_logs(true, saved, &failed()) && !may_remove_logs(true, saved, &Ok(0)));
        let saved = are_saved(logs::copy(&from, &to), &to);
        assert!(may_remove_logs(true, saved, &failed()));
        assert!(may_remove_logs(false, false, &Ok(0)) && !may_remove_logs(false, false, &failed()));
    }

    #[test]
    fn take_lines_returns_complete_or_overlong_lines() {
        let mut kept = b"one\ntwo\r\nthr".to_vec();
        assert_eq!(take_lines(&mut kept), ["one", "two"]);
        assert_eq!(kept, b"thr");
        assert!(take_lines(&mut kept).is_empty());
        let mut long = vec![b'x'; LONGEST_LINE + 1];
        assert_eq!(take_lines(&mut long).len(), 1);
        assert!(long.is_empty());
    }
}
