//! The cache's entries: folders that appear whole, by a rename, or not at all, so runs may race and be interrupted.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Beginning of the name of a folder in the cache where an entry is being made.
const WORK: &str = "work-";

/// Where an entry is being made.
pub(super) struct Work {
    /// Path of the finished entry.
    pub(super) entry: PathBuf,
    /// Goes when the entry is made. Both are on one file system.
    pub(super) scratch: PathBuf,
}

/// The entry `name` of `cache`, made by `make` if it is not there. The folder is not to be changed afterwards.
///
/// # Errors
/// When it cannot be made.
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
    // Absolute, since programs that fill it run in other folders. Our own, since one that has lost its parent may
    // still write to that of an interrupted run.
    let cache = cache.canonicalize()?;
    for leftover in fs::read_dir(&cache)?.flatten() {
        if leftover.file_name().to_string_lossy().starts_with(WORK) {
            // If it cannot be removed now, the next run does.
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
    // What is left is removed by whoever makes the next entry.
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
