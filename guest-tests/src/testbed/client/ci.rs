//! `ci` boots guests, runs one command in them, and stops them.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use agent::wire::exec::Start;
use anyhow::{Context as _, Result, anyhow, ensure};
use tokio::time::timeout;

use super::job::{self, Job};
use super::{copy, until_signal};
use crate::testbed::UpOptions;
use crate::testbed::name::Target;
use crate::testbed::protocol::Description;

/// Directory in the guests to which the files are copied.
pub(super) const FOLDER: &str = "/work";
/// Name prefix of testbeds started by `ci`.
const NAME: &str = "ci-";

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
        check_size(&self.folder, &self.wanted)?;
        can_start(&self.command, &self.folder)?;
        let job = Job { wanted: &self.wanted, prefix: NAME, logs: self.logs.as_deref() };
        let code = job.run(async |description| until_signal(self.in_guests(description)).await).await?;
        Ok(ExitCode::from(code))
    }

    async fn in_guests(&self, description: &Description) -> Result<u8> {
        for guest in &description.guests {
            let target = Target { testbed: description.name.clone(), guest: guest.name };
            copy::into_guest(&self.folder, &target, Path::new(FOLDER)).await?;
        }
        let start = Start { argv: self.command.clone(), folder: Some(FOLDER.into()), ..Start::default() };
        let limit = Duration::from_secs(self.timeout);
        timeout(limit, job::run_in_all(description, &start)).await.map_err(|_| {
            anyhow!("the command did not exit within {} s; --timeout changes this limit", self.timeout)
        })?
    }
}

/// Checks that a directory fits into the guests' memory.
pub(super) fn check_size(folder: &Path, wanted: &UpOptions) -> Result<()> {
    let half = u64::from(wanted.memory_mib()) << 19;
    ensure!(
        fits(folder, half)?,
        "{} is larger than {} MiB (half of each guest's memory); select a smaller directory with --folder, increase --memory, or mount the directory with --share",
        folder.display(),
        half >> 20
    );
    Ok(())
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
}
