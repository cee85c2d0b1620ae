//! `logs` collects all logs in one folder.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{describe, messages, print_json};
use crate::report::line;
use crate::testbed::name::TestbedName;

/// Arguments of [`super::Command::Logs`].
#[derive(Clone, Debug, clap::Args)]
pub struct Logs {
    /// Testbed name
    name: TestbedName,
    /// Target directory, created if it does not exist
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
    /// Print the paths to the files as a JSON array
    #[arg(long)]
    json: bool,
}

impl Logs {
    /// Copies the logs of a testbed.
    ///
    /// # Errors
    /// The testbed does not exist, or a file cannot be copied.
    pub(super) async fn run(self) -> Result<()> {
        let files = collect(&self.name, &self.to).await?;
        if self.json {
            return print_json(&files);
        }
        files.iter().try_for_each(|file| line(&file.display().to_string()))
    }
}

/// Copies all files from a testbed's log directory, and the kernel messages of its guests, to a folder. Returns the
/// paths of the copies.
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
            // A guest that has ended cannot be queried. Its console log contains the earlier messages.
            Err(error) => {
                tracing::warn!("cannot read kernel messages from guest {}: {error:#}", guest.name)
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Copies the files in a folder to another folder, which is created if it does not exist. Returns the paths of the
/// copies.
pub(super) fn copy(from: &Path, to: &Path) -> Result<Vec<PathBuf>> {
    fs::create_dir_all(to).with_context(|| format!("cannot create {}", to.display()))?;
    let mut files = Vec::new();
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            let target = to.join(entry.file_name());
            fs::copy(entry.path(), &target)
                .with_context(|| format!("cannot copy to {}", target.display()))?;
            files.push(target);
        }
    }
    Ok(files)
}
