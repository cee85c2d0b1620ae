//! `logs` collects all logs in one directory or prints their paths, even for a testbed that has stopped.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{describe, messages, print_json};
use crate::artifacts::cache_dir;
use crate::report::line;
use crate::run_dir;
use crate::testbed::LOGS;
use crate::testbed::name::TestbedName;
use crate::testbed::state::States;

/// Arguments of [`super::Command::Logs`].
#[derive(Clone, Debug, clap::Args)]
pub struct Logs {
    /// Testbed name; if the testbed is not running, the logs of its last run are used
    name: TestbedName,
    /// Copy the logs to this directory, creating it if necessary [default: only print the paths]
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
    /// Print the file paths as a JSON array
    #[arg(long)]
    json: bool,
}

impl Logs {
    /// Finds the logs of a testbed, copies them if `to` is set, and prints their paths.
    ///
    /// # Errors
    /// Fails if the testbed has never run, its logs have been deleted, or a file cannot be copied.
    pub(super) async fn run(self) -> Result<()> {
        let is_running = States::open()?.running()?.contains(&self.name);
        let files = match (&self.to, is_running) {
            (Some(to), true) => collect(&self.name, to).await?,
            (None, true) => files(&describe(&self.name).await?.folder)?,
            (to, false) => {
                let folder = last_run(&cache_dir()?.join(LOGS), &self.name)?;
                tracing::info!(
                    "testbed {} is not running; the logs of its last run are in {}",
                    self.name,
                    folder.display()
                );
                to.as_deref().map_or_else(|| files(&folder), |to| copy(&folder, to))?
            }
        };
        if self.json {
            return print_json(&files);
        }
        files.iter().try_for_each(|file| line(&file.display().to_string()))
    }
}

/// Returns the directory with the logs of a testbed's last run.
fn last_run(logs: &Path, name: &TestbedName) -> Result<PathBuf> {
    run_dir::latest(logs, name.as_str()).with_context(|| {
        format!(
            "testbed {name} is not running, and {} contains no logs of an earlier run",
            logs.join(name.as_str()).display()
        )
    })
}

/// Copies a testbed's log directory and its guests' kernel messages to a directory. Returns the paths of the copies.
pub(super) async fn collect(name: &TestbedName, to: &Path) -> Result<Vec<PathBuf>> {
    let description = describe(name).await?;
    let mut files = copy(&description.folder, to)?;
    for guest in &description.guests {
        match messages(name, guest.name).await {
            Ok(lines) => {
                let target = to.join(format!("guest-{}.dmesg", guest.name));
                fs::write(&target, lines.join("\n") + "\n")
                    .with_context(|| format!("cannot write {}", target.display()))?;
                files.push(target);
            }
            // A stopped guest cannot be queried. Its console log contains the earlier messages.
            Err(error) => {
                tracing::warn!("cannot read kernel messages from guest {}: {error:#}", guest.name)
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Copies the files in `from` to `to`, creating `to` if it does not exist. Returns the sorted paths of the copies.
pub(super) fn copy(from: &Path, to: &Path) -> Result<Vec<PathBuf>> {
    fs::create_dir_all(to).with_context(|| format!("cannot create {}", to.display()))?;
    let mut copies = Vec::new();
    for file in files(from)? {
        let Some(name) = file.file_name() else { continue };
        let target = to.join(name);
        fs::copy(&file, &target)
            .with_context(|| format!("cannot copy {} to {}", file.display(), target.display()))?;
        copies.push(target);
    }
    Ok(copies)
}

/// Returns the sorted paths of the files in a directory.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_dir::RunDir;

    #[test]
    fn stopped_testbed_uses_logs_of_last_run() {
        let root = tempfile::tempdir().unwrap();
        let name: TestbedName = "lab".parse().unwrap();
        let error = format!("{:#}", last_run(root.path(), &name).unwrap_err());
        assert!(error.starts_with("testbed lab is not running, and ") && error.contains("/lab "), "{error}");
        for text in ["old", "new"] {
            let run = RunDir::create(root.path(), "lab").unwrap();
            fs::write(run.file("guest-a.console"), text).unwrap();
        }
        let to = root.path().join("to");
        let copies = copy(&last_run(root.path(), &name).unwrap(), &to).unwrap();
        assert_eq!(copies, [to.join("guest-a.console")]);
        assert_eq!(fs::read_to_string(&copies[0]).unwrap(), "new");
    }
}
