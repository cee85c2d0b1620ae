//! A run's directory: console output, logs, captures and command lines. This module also provides short paths for the
//! run's sockets.

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

/// Number of runs kept for each scenario. Older runs are deleted when a new one starts.
const KEPT_RUNS: usize = 3;

/// Name of the symbolic link to the directory of the most recent run.
const LATEST: &str = "latest";

/// The directory that contains the output of one run.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    sockets: TempDir,
}

impl RunDir {
    /// Creates the next numbered directory below `lab/scenario` and updates the link `latest`.
    ///
    /// # Errors
    /// Fails if the directories cannot be created.
    pub fn create(lab: &Path, scenario: &str) -> Result<Self> {
        Self::create_with(lab, scenario, &std::env::temp_dir())
    }

    /// Creates the next numbered directory, with its sockets below `sockets`.
    ///
    /// # Errors
    /// Fails if the directories cannot be created.
    pub fn create_with(lab: &Path, scenario: &str, sockets: &Path) -> Result<Self> {
        let parent = lab.join(scenario);
        fs::create_dir_all(&parent).with_context(|| format!("cannot create {}", parent.display()))?;
        let mut runs = numbers(&parent)?;
        runs.sort_unstable();
        for old in runs.iter().rev().skip(KEPT_RUNS - 1) {
            // Another run may be removing the same directory concurrently.
            let _ = fs::remove_dir_all(parent.join(name(*old)));
        }
        let first = runs.last().map_or(1, |last| last + 1);
        // Runs that start at the same time take consecutive numbers. Few runs start together, so a bounded search
        // suffices.
        for number in first..first + 100 {
            let path = parent.join(name(number));
            match fs::create_dir(&path) {
                Ok(()) => {
                    let latest = parent.join(LATEST);
                    let _ = fs::remove_file(&latest);
                    let _ = std::os::unix::fs::symlink(name(number), &latest);
                    let sockets =
                        tempfile::Builder::new().prefix("hcad-lab-").tempdir_in(sockets).with_context(
                            || format!("cannot create a socket directory in {}", sockets.display()),
                        )?;
                    return Ok(Self { path, sockets });
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error).with_context(|| format!("cannot create {}", path.display())),
            }
        }
        bail!("too many runs are starting at the same time in {}; try again", parent.display())
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of a file in the run's directory.
    pub fn file(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    /// Returns a path for a socket, which is deleted at the end of the run. The path is short because socket paths are
    /// limited to 107 bytes.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.sockets.path().join(name)
    }

    /// Returns a path for a temporary file, which is deleted at the end of the run.
    pub fn scratch(&self, name: &str) -> PathBuf {
        self.socket(name)
    }

    /// Returns the captures created so far.
    ///
    /// # Errors
    /// Fails if the directory cannot be read.
    pub fn captures(&self) -> Result<Vec<PathBuf>> {
        let mut captures: Vec<PathBuf> = fs::read_dir(&self.path)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension() == Some(OsStr::new("pcapng")))
            .collect();
        captures.sort();
        Ok(captures)
    }
}

/// Returns the directory of the most recent run below `lab/scenario`, if it exists.
pub fn latest(lab: &Path, scenario: &str) -> Option<PathBuf> {
    let path = lab.join(scenario).join(LATEST).canonicalize().ok()?;
    path.is_dir().then_some(path)
}

fn name(number: u32) -> String {
    format!("{number:04}")
}

fn numbers(parent: &Path) -> Result<Vec<u32>> {
    let entries = fs::read_dir(parent).with_context(|| format!("cannot read {}", parent.display()))?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_numbered_and_old_runs_deleted() {
        let lab = tempfile::tempdir().unwrap();
        for _ in 0..KEPT_RUNS + 2 {
            RunDir::create(lab.path(), "x").unwrap();
        }
        let mut runs = numbers(&lab.path().join("x")).unwrap();
        runs.sort_unstable();
        assert_eq!(runs, [3, 4, 5]);
        assert_eq!(fs::read_link(lab.path().join("x/latest")).unwrap(), Path::new("0005"));
    }
}
