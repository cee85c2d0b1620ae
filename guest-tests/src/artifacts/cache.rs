//! Entries of the cache: directories that are created by a rename, so that runs can race and be interrupted.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Prefix of directories in the cache for unfinished entries.
const WORK: &str = "work-";

/// Paths of an unfinished entry.
pub(super) struct Work {
    /// Path of the finished entry.
    pub(super) entry: PathBuf,
    /// Working directory, deleted when the entry is finished. Both paths are on one file system.
    pub(super) scratch: PathBuf,
}

/// Returns the entry `name` of `cache`. If it is missing, `make` creates it. The directory must not be changed
/// afterwards.
///
/// # Errors
/// The entry cannot be created.
pub(super) fn entry(cache: &Path, name: &str, make: impl FnOnce(&Work) -> Result<()>) -> Result<PathBuf> {
    let entry = cache.join(name);
    if entry.exists() {
        return Ok(entry);
    }
    fs::create_dir_all(cache).with_context(|| format!("cannot create {}", cache.display()))?;
    let lock = File::create(cache.join("lock"))
        .with_context(|| format!("cannot create the lock file in {}", cache.display()))?;
    if lock.try_lock().is_err() {
        tracing::info!(
            "waiting for another guest-lab process to finish filling the cache {}",
            cache.display()
        );
        lock.lock().context("cannot lock the cache")?;
    }
    if !entry.exists() {
        make_locked(cache, &entry, make)
            .with_context(|| format!("cannot create {name} in the cache {}", cache.display()))?;
    }
    Ok(entry)
}

fn make_locked(cache: &Path, entry: &Path, make: impl FnOnce(&Work) -> Result<()>) -> Result<()> {
    // The path is absolute, because programs that fill it run in other directories. It is unique to this process,
    // because an orphaned program may still write to the directory of an interrupted run.
    let cache = cache.canonicalize()?;
    for leftover in fs::read_dir(&cache)?.flatten() {
        if leftover.file_name().to_string_lossy().starts_with(WORK) {
            // If the removal fails, the next run repeats it.
            let _ = fs::remove_dir_all(leftover.path());
        }
    }
    let folder = cache.join(format!("{WORK}{}", std::process::id()));
    let work = Work { entry: folder.join("entry"), scratch: folder.join("scratch") };
    for folder in [&work.entry, &work.scratch] {
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    make(&work)?;
    fs::rename(&work.entry, entry)
        .with_context(|| format!("cannot move a new cache entry to {}", entry.display()))?;
    // The process that creates the next entry removes the rest.
    let _ = fs::remove_dir_all(&folder);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_entry_leaves_nothing_and_is_retried() {
        let cache = tempfile::tempdir().unwrap();
        let failed = entry(cache.path(), "x", |work| {
            fs::write(work.entry.join("half"), "")?;
            anyhow::bail!("no network")
        });
        assert!(format!("{:#}", failed.unwrap_err()).contains("no network"));
        assert!(!cache.path().join("x").exists());

        let made = entry(cache.path(), "x", |work| Ok(fs::write(work.entry.join("whole"), "")?)).unwrap();
        let names: Vec<_> = fs::read_dir(&made).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["whole"]);
        entry(cache.path(), "x", |_| anyhow::bail!("made twice")).unwrap();
    }
}
