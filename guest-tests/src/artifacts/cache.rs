//! Cache entries. Each entry is created in a working directory and then moved into place, so the cache never contains a
//! partial entry.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Prefix of cache directories that contain unfinished entries.
const WORK: &str = "work-";

/// Paths used while an entry is created.
pub(super) struct Work {
    /// Directory for the entry's files. It becomes the cache entry when all files have been created.
    pub(super) entry: PathBuf,
    /// Directory for temporary files, on the same file system. It is deleted when the entry is finished.
    pub(super) scratch: PathBuf,
}

/// Returns the path of the entry `name` in `cache`. If the entry does not exist, `make` creates it. The entry's
/// directory must not be changed afterwards.
///
/// # Errors
/// Fails if the entry cannot be created.
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
        lock.lock().with_context(|| format!("cannot lock the cache {}", cache.display()))?;
    }
    if !entry.exists() {
        make_locked(cache, &entry, make)
            .with_context(|| format!("cannot create {name} in the cache {}", cache.display()))?;
    }
    Ok(entry)
}

fn make_locked(cache: &Path, entry: &Path, make: impl FnOnce(&Work) -> Result<()>) -> Result<()> {
    // The programs that fill the directory run in other directories, so its path must be absolute. It is also unique to
    // this process, because a program orphaned by an interrupted run may still be writing to that run's directory.
    let cache = cache.canonicalize()?;
    for leftover in fs::read_dir(&cache)?.flatten() {
        if leftover.file_name().to_string_lossy().starts_with(WORK) {
            // If the removal fails, the next run tries again.
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
    // If the removal fails, the process that creates the next entry removes the directory.
    let _ = fs::remove_dir_all(&folder);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_entry_is_retried() {
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
