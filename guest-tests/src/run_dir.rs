//! The folder of one run: consoles, logs, captures, command lines; and short paths for its sockets.

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

/// Runs of one scenario that are kept; older ones are removed when a run begins.
const KEPT_RUNS: usize = 3;

/// Where one run of a scenario leaves what it did.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    sockets: TempDir,
}

impl RunDir {
    /// Makes the next numbered folder below `lab/scenario` and points the link `latest` to it.
    ///
    /// # Errors
    /// When the folders cannot be made.
    pub fn create(lab: &Path, scenario: &str) -> Result<Self> {
        Self::create_with(lab, scenario, &std::env::temp_dir())
    }

    /// The same, with its sockets below `sockets`.
    ///
    /// # Errors
    /// When the folders cannot be made.
    pub fn create_with(lab: &Path, scenario: &str, sockets: &Path) -> Result<Self> {
        let parent = lab.join(scenario);
        fs::create_dir_all(&parent).with_context(|| format!("cannot create {}", parent.display()))?;
        let mut runs = numbers(&parent)?;
        runs.sort_unstable();
        for old in runs.iter().rev().skip(KEPT_RUNS - 1) {
            // Another run may be removing the same one.
            let _ = fs::remove_dir_all(parent.join(name(*old)));
        }
        let first = runs.last().map_or(1, |last| last + 1);
        // Bound: runs that start at the same moment take neighbouring numbers; there are few of them.
        for number in first..first + 100 {
            let path = parent.join(name(number));
            match fs::create_dir(&path) {
                Ok(()) => {
                    let latest = parent.join("latest");
                    let _ = fs::remove_file(&latest);
                    let _ = std::os::unix::fs::symlink(name(number), &latest);
                    let sockets = tempfile::Builder::new()
                        .prefix("hcad-lab-")
                        .tempdir_in(sockets)
                        .context("cannot create a directory for sockets")?;
                    return Ok(Self { path, sockets });
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error).with_context(|| format!("cannot create {}", path.display())),
            }
        }
        bail!("cannot find an unused run number in {}; remove old runs", parent.display())
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A file in the folder.
    pub fn file(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    /// A path for a socket. It is short, since a socket's path has at most 107 bytes, and goes with the run.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.sockets.path().join(name)
    }

    /// A path for a file that goes with the run.
    pub fn scratch(&self, name: &str) -> PathBuf {
        self.socket(name)
    }

    /// The captures taken so far.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn captures(&self) -> Result<Vec<PathBuf>> {
        let mut captures: Vec<PathBuf> = fs::read_dir(&self.path)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension() == Some(OsStr::new("pcapng")))
            .collect();
        captures.sort();
        Ok(captures)
    }
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
    fn runs_are_numbered_and_old_ones_go() {
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
