//! `ci` boots guests, runs one command in them, and stops them.

use std::fs::{self, File};
use std::io::{LineWriter, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use agent::wire::ExitStatus;
use agent::wire::exec::Start;
use anyhow::{Context as _, Result, anyhow, ensure};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::down::Stopped;
use super::session::{Pipes, Printed, Session, channel};
use super::up::Leased;
use super::{copy, down, exit_code, logs, until_signal};
use crate::artifacts::cache_dir;
use crate::report::line;
use crate::run_dir;
use crate::testbed::name::{GuestName, Target, TestbedName};
use crate::testbed::protocol::Description;
use crate::testbed::state::States;
use crate::testbed::{LOGS, UpOptions};

/// Directory in the guests to which the files are copied.
const FOLDER: &str = "/work";
/// Name prefix of testbeds started by `ci`. The process ID follows it.
const NAME: &str = "ci-";
/// Number of failed runs whose logs are kept.
const KEPT: usize = 3;
/// Maximum size of an incomplete line in bytes.
const LONGEST_LINE: usize = 64 << 10;

/// Arguments of [`super::Command::Ci`].
#[derive(Clone, Debug, clap::Args)]
pub struct Ci {
    #[command(flatten)]
    wanted: UpOptions,
    /// Directory to copy to /work in each guest
    #[arg(long, value_name = "DIR", default_value = ".")]
    folder: PathBuf,
    /// Collect the command's output, console output, kernel messages, logs, traces and captures in this
    /// directory, even if the command fails
    #[arg(long, value_name = "DIR")]
    logs: Option<PathBuf>,
    /// Time limit for the command, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 1800)]
    timeout: u64,
    /// Command to run in /work on every guest simultaneously; $HCAD_GUEST is set to the guest's name
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl Ci {
    /// Boots guests, copies the directory to them, runs the command in all of them, and stops them. The exit status is
    /// that of the first command that fails. A failure or a signal terminates all commands, but logs are still
    /// collected.
    ///
    /// # Errors
    /// The command could not be run.
    pub(super) async fn run(self) -> Result<ExitCode> {
        let half = u64::from(self.wanted.memory_mib()) << 19;
        ensure!(
            fits(&self.folder, half)?,
            "{} is larger than {} MiB (half of each guest's memory); select a smaller directory with --folder, increase --memory, or mount the directory with --share",
            self.folder.display(),
            half >> 20
        );
        can_start(&self.command, &self.folder)?;
        let all = cache_dir()?.join(LOGS);
        remove_old_logs(&all)?;
        let name: TestbedName = format!("{NAME}{}", std::process::id()).parse()?;
        let booted = until_signal(async { Ok(Leased::boot(&self.wanted, name.clone()).await) }).await;
        let (folder, result) = match booted {
            Ok(Ok(leased)) => {
                let description = &leased.description;
                (Some(description.folder.clone()), self.in_testbed(description).await)
            }
            Ok(Err(not_up)) => {
                self.copy_logs(not_up.folder.as_deref())?;
                (not_up.folder, Err(not_up.error))
            }
            // A CI system may cancel a job whose guests do not boot. The logs then show the cause.
            Err(cancelled) => {
                self.copy_logs(run_dir::latest(&all, name.as_str()).as_deref())?;
                (None, Err(cancelled))
            }
        };
        if let Some(folder) = folder {
            if self.logs.is_some() || matches!(result, Ok(0)) {
                // Remove the parent directory, which contains all runs of this testbed.
                let _ = fs::remove_dir_all(folder.parent().unwrap_or(&folder));
            } else {
                tracing::info!("the logs are in {}", folder.display());
            }
        }
        result.map(ExitCode::from)
    }

    /// Copies the logs of guests that did not boot.
    fn copy_logs(&self, from: Option<&Path>) -> Result<()> {
        if let (Some(from), Some(to)) = (from, &self.logs) {
            logs::copy(from, to)?;
        }
        Ok(())
    }

    /// Runs the command in the booted guests until it exits or a signal arrives, then collects logs and stops the
    /// testbed.
    async fn in_testbed(&self, description: &Description) -> Result<u8> {
        let testbed = &description.name;
        let guests: Vec<GuestName> = description.guests.iter().map(|guest| guest.name).collect();
        let result = until_signal(self.in_guests(description, &guests)).await;
        if let Some(to) = &self.logs
            && let Err(error) = logs::collect(testbed, to).await
        {
            tracing::warn!("cannot save the logs to {}: {error:#}", to.display());
        }
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

    async fn in_guests(&self, description: &Description, guests: &[GuestName]) -> Result<u8> {
        let target = |guest: &GuestName| Target { testbed: description.name.clone(), guest: *guest };
        for guest in guests {
            copy::into_guest(&self.folder, &target(guest), Path::new(FOLDER)).await?;
        }
        let start = Start { argv: self.command.clone(), folder: Some(FOLDER.into()), ..Start::default() };
        let mut running = JoinSet::new();
        for guest in guests {
            let printed = Transcript::create(&description.folder, *guest)?;
            running.spawn(one(target(guest), start.clone(), printed));
        }
        let all = async {
            while let Some(ended) = running.join_next().await {
                let code = exit_code(ended??);
                if code != 0 {
                    return Ok(code);
                }
            }
            Ok(0)
        };
        let limit = Duration::from_secs(self.timeout);
        // Dropping the connections terminates commands that are still running.
        timeout(limit, all).await.map_err(|_| {
            anyhow!("the command did not exit within {} s; --timeout changes this limit", self.timeout)
        })?
    }
}

/// Prints the output of a guest's command, each line after the guest's name, and writes it to a file among the logs.
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
async fn one(target: Target, start: Start, mut transcript: Transcript) -> Result<ExitStatus> {
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

/// Checks that a command given as a relative path is an executable file in the directory. Without this check, the error
/// would appear only after the guests have booted.
fn can_start(command: &[String], folder: &Path) -> Result<()> {
    let Some(program) = command.first().filter(|name| name.contains('/') && !name.starts_with('/')) else {
        return Ok(());
    };
    let path = folder.join(program);
    let metadata = fs::symlink_metadata(&path)
        .with_context(|| format!("cannot run {program}: cannot read {}", path.display()))?;
    // The target of a link may exist only in the guests.
    let can_run = metadata.is_file() && metadata.permissions().mode() & 0o111 != 0;
    ensure!(
        metadata.is_symlink() || can_run,
        "cannot run {program}: {} is not an executable file; to make a script executable, run chmod +x",
        path.display()
    );
    Ok(())
}

/// Returns whether the files in a directory take up at most `limit` bytes in total.
fn fits(folder: &Path, limit: u64) -> Result<bool> {
    let (mut left, mut folders) = (limit, vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            if metadata.is_dir() {
                folders.push(entry.path());
            } else if metadata.is_file() {
                match left.checked_sub(metadata.len()) {
                    Some(rest) => left = rest,
                    None => return Ok(false),
                }
            }
        }
    }
    Ok(true)
}

/// Removes the logs of all but the most recent failed runs, without touching runs in progress.
fn remove_old_logs(all: &Path) -> Result<()> {
    let running = States::open()?.running()?;
    let mut old = Vec::new();
    for entry in fs::read_dir(all).into_iter().flatten().flatten() {
        let name = entry.file_name().to_str().and_then(|name| name.parse::<TestbedName>().ok());
        if name.is_some_and(|name| name.as_str().starts_with(NAME) && !running.contains(&name))
            // Another run may be removing the same directory.
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
    fn size_limit_counts_files_in_subdirectories() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("deep")).unwrap();
        fs::write(root.path().join("deep/file"), [0; 600]).unwrap();
        fs::write(root.path().join("file"), [0; 400]).unwrap();
        assert!(fits(root.path(), 1000).unwrap() && !fits(root.path(), 999).unwrap());
        assert!(fits(&root.path().join("none"), 1000).is_err());
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
