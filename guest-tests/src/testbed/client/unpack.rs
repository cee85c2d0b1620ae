//! Unpacks an archive from an untrusted guest. Nothing is written outside the target, and the disk space and memory
//! used are limited.

use std::cell::Cell;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::{Context, Result, ensure};

/// Disk space charged for each new file or directory, in addition to its content. This is the usual block size of file
/// systems.
const ENTRY_LEN: u64 = 4096;
/// Maximum number of archive entries for directories. They are kept in memory until everything else has been unpacked.
const MOST_DIRECTORIES: usize = 100_000;
/// Maximum size in bytes of the metadata that precedes an entry, such as long file names. It is kept in memory.
const LONGEST_METADATA: u64 = 1 << 20;
/// Block size of an archive. Entry data is padded to whole blocks.
const BLOCK_LEN: u64 = 512;
/// Maximum number of bytes after the last entry. tar usually pads by at most 10 KiB.
const LONGEST_PADDING: u64 = 1 << 20;

/// Unpacks the file or directory called `name` and discards the rest of the archive. The destination, `to`, appears
/// only when it is complete. The unpacked files may take up at most `limit` bytes.
///
/// # Errors
/// Fails if the archive is invalid, is too large or does not contain `name`, or if its content cannot be written.
pub(super) fn unpack(archive: impl Read, name: &str, to: &Path, limit: u64) -> Result<()> {
    let parent = match to.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    let work = tempfile::Builder::new()
        .prefix(".guest-lab-")
        .tempdir_in(&parent)
        .with_context(|| format!("cannot write to {}", parent.display()))?;
    write_entries(archive, work.path(), limit).context("cannot unpack the archive from the guest")?;
    let unpacked = work.path().join(name);
    ensure!(fs::symlink_metadata(&unpacked).is_ok(), "the archive from the guest does not contain {name}");
    fs::rename(&unpacked, to).with_context(|| format!("cannot write {}", to.display()))
}

fn write_entries(archive: impl Read, folder: &Path, limit: u64) -> Result<()> {
    let allowance = Rc::new(Cell::new(0));
    let mut archive = tar::Archive::new(Metered { archive, allowance: Rc::clone(&allowance) });
    archive.set_preserve_permissions(true);
    let mut space = Space { limit, left: limit, last: PathBuf::new() };
    // Since a directory's permissions may forbid creating files in it, directories are unpacked last, deepest first.
    let mut folders = Vec::new();
    let mut entries = archive.entries()?;
    // Unused allowance of the previous entry. If that entry's content was not unpacked, the next read skips the content
    // and needs this allowance for it.
    let mut unread = 0;
    loop {
        allowance.set(LONGEST_METADATA + unread);
        let Some(entry) = entries.next() else { break };
        let mut entry = entry?;
        space.charge(&entry.path()?, entry.size())?;
        // A sparse file's size includes its holes, but the archive does not contain them.
        let is_sparse = entry.header().entry_type().is_gnu_sparse();
        let stored = if is_sparse { entry.header().entry_size()? } else { entry.size() };
        allowance.set(stored + BLOCK_LEN);
        if entry.header().entry_type().is_dir() {
            ensure!(
                folders.len() < MOST_DIRECTORIES,
                "the archive contains more than {MOST_DIRECTORIES} directories"
            );
            folders.push(entry);
        } else {
            entry.unpack_in(folder)?;
        }
        unread = allowance.get();
    }
    folders.sort_by(|a, b| b.path_bytes().cmp(&a.path_bytes()));
    for mut entry in folders {
        entry.unpack_in(folder)?;
    }
    // Read the archive to its end. Otherwise, tar in the guest would fail.
    allowance.set(LONGEST_PADDING);
    io::copy(&mut archive.into_inner(), &mut io::sink()).map(drop).map_err(Into::into)
}

/// Disk space left for the unpacked files.
struct Space {
    limit: u64,
    left: u64,
    /// Path of the previous entry.
    last: PathBuf,
}

impl Space {
    /// Deducts the space for an entry with the given path and size, and for the directories in its path that it does
    /// not share with the previous entry.
    fn charge(&mut self, path: &Path, len: u64) -> Result<()> {
        let parts = path.components();
        let shared = parts.clone().zip(self.last.components()).take_while(|(a, b)| a == b).count();
        let created = parts.count().saturating_sub(shared).max(1) as u64;
        let needed = created.saturating_mul(ENTRY_LEN).saturating_add(len);
        self.left = self.left.checked_sub(needed).with_context(|| {
            let mebibytes = self.limit >> 20;
            format!("the files take up more than {mebibytes} MiB; raise the limit with --max-size")
        })?;
        path.clone_into(&mut self.last);
        Ok(())
    }
}

/// Reader that fails when its allowance is used up.
struct Metered<R> {
    archive: R,
    allowance: Rc<Cell<u64>>,
}

impl<R: Read> Read for Metered<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let allowance = self.allowance.get();
        if allowance == 0 {
            return Err(io::Error::other("the archive contains too much data besides its files"));
        }
        let len = buffer.len().min(usize::try_from(allowance).unwrap_or(usize::MAX));
        let read = self.archive.read(&mut buffer[..len])?;
        self.allowance.set(allowance.saturating_sub(read as u64));
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn header(kind: tar::EntryType, len: u64) -> tar::Header {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(len);
        header.set_mode(0o755);
        header
    }

    /// Returns an archive that contains a file of each length, with names such as `file/0`.
    fn files(lengths: &[u64]) -> Vec<u8> {
        let mut archive = tar::Builder::new(Vec::new());
        for (number, len) in lengths.iter().enumerate() {
            let mut header = header(tar::EntryType::Regular, *len);
            archive.append_data(&mut header, format!("file/{number}"), io::repeat(7).take(*len)).unwrap();
        }
        archive.into_inner().unwrap()
    }

    /// Unpacks `file` with a 1 MiB limit. Checks that nothing was written and returns the error.
    fn error(archive: impl Read) -> String {
        let root = tempfile::tempdir().unwrap();
        let error = format!("{:#}", unpack(archive, "file", &root.path().join("to"), MIB).unwrap_err());
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0, "{error}");
        error
    }

    #[test]
    fn unpacked_files_exceeding_limit_are_rejected() {
        let root = tempfile::tempdir().unwrap();
        let to = root.path().join("to");
        unpack(files(&[500_000, 500_000]).as_slice(), "file", &to, MIB).unwrap();
        assert_eq!(fs::metadata(to.join("1")).unwrap().len(), 500_000);
        let text = error(files(&[500_000, 600_000]).as_slice());
        assert!(text.contains("take up more than 1 MiB; raise the limit with --max-size"), "{text}");
        // Empty files also take up space.
        assert!(error(files(&[0; 300]).as_slice()).contains("--max-size"));
    }

    #[test]
    fn sparse_file_holes_count_towards_limit() {
        let mut header = header(tar::EntryType::GNUSparse, 0);
        header.set_path("file").unwrap();
        let gnu = header.as_gnu_mut().unwrap();
        gnu.sparse[0].offset.copy_from_slice(b"10000000000\0");
        gnu.sparse[0].numbytes.copy_from_slice(b"00000000000\0");
        gnu.realsize.copy_from_slice(b"10000000000\0");
        header.set_cksum();
        let mut archive = tar::Builder::new(Vec::new());
        archive.append(&header, io::empty()).unwrap();
        let text = error(archive.into_inner().unwrap().as_slice());
        assert!(text.contains("--max-size"), "{text}");
    }

    #[test]
    fn deep_path_directories_count_towards_limit() {
        let mut archive = tar::Builder::new(Vec::new());
        let path = format!("file/{}", "d/".repeat(1000));
        archive.append_data(&mut header(tar::EntryType::Regular, 0), path, io::empty()).unwrap();
        let text = error(archive.into_inner().unwrap().as_slice());
        assert!(text.contains("--max-size"), "{text}");
    }

    #[test]
    fn long_metadata_and_padding_are_rejected() {
        let mut name = header(tar::EntryType::GNULongName, 2 * MIB);
        name.set_cksum();
        let endless = name.as_bytes().chain(io::repeat(b'x'));
        let text = error(endless);
        assert!(text.contains("too much data besides its files"), "{text}");
        let padded = files(&[1]);
        let text = error(padded.as_slice().chain(io::repeat(0)));
        assert!(text.contains("too much data besides its files"), "{text}");
    }

    #[test]
    fn entry_outside_target_is_not_unpacked() {
        let root = tempfile::tempdir().unwrap();
        let mut archive = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(4);
        let name = &mut header.as_old_mut().name;
        name[..10].copy_from_slice(b"../escaped");
        header.set_cksum();
        archive.append(&header, &b"evil"[..]).unwrap();
        let bytes = archive.into_inner().unwrap();
        let to = root.path().join("in/file");
        fs::create_dir(root.path().join("in")).unwrap();
        let error = format!("{:#}", unpack(bytes.as_slice(), "file", &to, MIB).unwrap_err());
        assert_eq!(error, "the archive from the guest does not contain file");
        assert!(!root.path().join("escaped").exists() && !root.path().join("in/escaped").exists());
    }
}
