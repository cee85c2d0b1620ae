//! The task that `ci` and `node` run in their guests. Both copy a directory from this machine to each guest and run a
//! command in the copy.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agent::wire::exec::Start;
use anyhow::{Context as _, Result, ensure};
use tokio::time::timeout;

use super::copy;
use crate::testbed::UpOptions;
use crate::testbed::name::Target;

/// Directory in the guests that the files are copied to.
const FOLDER: &str = "/work";

/// Options of the commands that copy a directory to their guests and run a command there.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct TaskOptions {
    /// Directory to copy to /work in each guest
    #[arg(long, value_name = "DIR", default_value = ".")]
    folder: PathBuf,
    /// Collect console output, kernel messages, logs, traces and captures in this directory, even if the
    /// command fails
    #[arg(long, value_name = "DIR")]
    pub(super) logs: Option<PathBuf>,
    /// Time limit for the command, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 1800)]
    timeout: u64,
}

impl TaskOptions {
    /// Checks, before the guests boot, that the directory fits into their memory and that the command can start.
    pub(super) fn check(&self, wanted: &UpOptions, command: &[String]) -> Result<()> {
        let half = u64::from(wanted.memory_mib()) << 19;
        ensure!(
            fits(&self.folder, self.logs.as_deref(), half)?,
            "{} is larger than {} MiB (half of each guest's memory). Select a smaller directory with --folder, increase --memory, or mount the directory with --share",
            self.folder.display(),
            half >> 20
        );
        can_start(command, &self.folder)
    }

    /// Copies the directory to a guest, without the logs of earlier runs.
    pub(super) async fn copy_to(&self, target: &Target) -> Result<()> {
        copy::into_guest(&self.folder, self.logs.as_deref(), target, Path::new(FOLDER)).await
    }

    /// Waits for the command's exit status. Fails if the timeout expires first.
    pub(super) async fn limit(&self, status: impl Future<Output = Result<u8>>) -> Result<u8> {
        timeout(Duration::from_secs(self.timeout), status).await.with_context(|| {
            format!("the command did not exit within {} s; --timeout changes this limit", self.timeout)
        })?
    }
}

/// Returns the request that starts a command in the copied directory.
pub(super) fn start(command: Vec<String>) -> Start {
    Start { argv: command, folder: Some(FOLDER.into()), ..Start::default() }
}

/// Checks that a command given as a relative path is an executable file in the directory. Without this check, the error
/// would appear only after the guests have booted.
pub(super) fn can_start(command: &[String], folder: &Path) -> Result<()> {
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

/// Returns whether the files in `folder`, not counting those in `excluded`, take up at most `limit` bytes in total.
fn fits(folder: &Path, excluded: Option<&Path>, limit: u64) -> Result<bool> {
    let folder = folder.canonicalize().with_context(|| folder.display().to_string())?;
    let excluded = excluded.and_then(|path| path.canonicalize().ok());
    let (mut left, mut folders) = (limit, vec![folder]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            if metadata.is_dir() {
                folders.extend(Some(entry.path()).filter(|path| excluded.as_ref() != Some(path)));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_limit_counts_files_in_subdirectories() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("deep")).unwrap();
        fs::write(root.path().join("deep/file"), [0; 600]).unwrap();
        fs::write(root.path().join("file"), [0; 400]).unwrap();
        assert!(fits(root.path(), None, 1000).unwrap() && !fits(root.path(), None, 999).unwrap());
        assert!(fits(root.path(), Some(&root.path().join("deep")), 400).unwrap(), "the logs are not copied");
        assert!(fits(&root.path().join("none"), None, 1000).is_err());
    }
}
