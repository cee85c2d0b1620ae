//! Storage for trace records and captured frames: a file, rotating files, or an in-memory ring.
//!
//! The size of each file or ring is limited. All files are opened up front, before the process enters the sandbox, and
//! are reused in turn without being renamed. The second file is named after the first, with `.1` appended. After the
//! last file, the first is truncated and used again. A ring keeps the newest records, which an operator can dump.

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Seek as _, Write};
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::file;
use crate::log_line;

/// Where records are stored and how many are kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    Files {
        path: PathBuf,
        count: NonZeroU16,
    },
    /// Stores records in an in-memory ring of this size.
    Memory(RingBytes),
}

impl Keep {
    /// Stores records in one file.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self::Files { path: path.into(), count: NonZeroU16::MIN }
    }

    /// Returns the path of the first file, or [`MEMORY`].
    pub fn path(&self) -> &Path {
        match self {
            Self::Files { path, .. } => path,
            Self::Memory(_) => Path::new(MEMORY),
        }
    }

    /// Returns the paths of all files.
    pub fn files(&self) -> impl Iterator<Item = PathBuf> {
        let (path, count) = match self {
            Self::Files { path, count } => (path.as_path(), count.get()),
            Self::Memory(_) => (Path::new(""), 0),
        };
        (0..count).map(|index| numbered(path, index))
    }
}

/// Path that denotes an in-memory ring instead of a file.
pub const MEMORY: &str = "memory";

/// Maximum number of files per trace or capture. Each file uses a descriptor.
pub const MAX_FILES: u16 = 64;

/// Size of an in-memory ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct RingBytes(usize);

impl RingBytes {
    /// Minimum size, which is enough for several records or frames of any size.
    const LEAST: u64 = 64 << 10;
    /// Maximum size of one ring. A dump copies the ring within one iteration of the device's event loop.
    const MOST: u64 = 64 << 20;
}

impl TryFrom<u64> for RingBytes {
    type Error = String;

    fn try_from(bytes: u64) -> Result<Self, String> {
        if !(Self::LEAST..=Self::MOST).contains(&bytes) {
            return Err(format!("{bytes} is not between {} and {}", Self::LEAST, Self::MOST));
        }
        usize::try_from(bytes).map(Self).map_err(|error| error.to_string())
    }
}

impl From<RingBytes> for u64 {
    fn from(bytes: RingBytes) -> Self {
        bytes.0 as Self
    }
}

/// How to open files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    Replace,
    /// Fails if a file already exists. This mode neither overwrites a file nor blocks on a FIFO.
    New,
    /// Appends to existing files, beginning with the most recently written one.
    Append,
}

/// Number of bytes buffered before a write. A burst of frames at full rate then needs few system calls.
const BUFFER_LEN: usize = 1 << 20;

type Out = Box<dyn Write + Send>;

/// Stores records. Each record is stored in full or not at all.
///
/// A write error is logged once and stops the store, but does not affect the device. A single-file store also stops
/// when it reaches its size limit.
pub struct Store {
    /// Name used in log messages.
    what: &'static str,
    path: PathBuf,
    target: Option<Target>,
    /// Bytes written at the start of every file.
    head: Vec<u8>,
    /// Length of the current file.
    len: u64,
    max_len: u64,
    unflushed: bool,
    /// Why the store stopped early, if it did.
    ended: Option<String>,
}

enum Target {
    Out(BufWriter<Out>),
    /// Rotating files. The waiting files are in order of use.
    Files {
        current: BufWriter<File>,
        waiting: VecDeque<File>,
    },
    Memory(Ring),
}

/// The newest records, up to `most` bytes in total.
#[derive(Default)]
struct Ring {
    bytes: VecDeque<u8>,
    lens: VecDeque<usize>,
    most: usize,
}

impl Ring {
    fn push(&mut self, record: &[u8]) {
        while self.bytes.len() + record.len() > self.most
            && let Some(oldest) = self.lens.pop_front()
        {
            self.bytes.drain(..oldest);
        }
        if record.len() <= self.most {
            self.bytes.extend(record);
            self.lens.push_back(record.len());
        }
    }
}

impl Store {
    /// Creates a store that writes to `out`, beginning with `head`. Log messages refer to `out` as `path`.
    pub fn to(what: &'static str, out: Out, path: &Path, head: Vec<u8>) -> Self {
        Self::new(what, path, Target::Out(BufWriter::with_capacity(BUFFER_LEN, out)), head, 0)
    }

    /// Creates the store described by `keep`.
    ///
    /// # Errors
    /// Fails if a file cannot be opened. With [`Opening::New`], the files already created by this call are
    /// removed.
    pub fn open(what: &'static str, keep: &Keep, opening: Opening, head: Vec<u8>) -> io::Result<Self> {
        let bytes = match keep {
            Keep::Memory(bytes) => bytes.0,
            Keep::Files { path, .. } => {
                let mut files = open_all(keep, opening)?;
                if opening == Opening::Append {
                    let newest = |file: &File| file.metadata().and_then(|of| of.modified()).ok();
                    let times: Vec<Option<SystemTime>> = files.iter().map(newest).collect();
                    let last = (0..times.len()).max_by_key(|index| (times[*index], usize::MAX - index));
                    files.rotate_left(last.unwrap_or(0));
                }
                let Some(current) = files.pop_front() else {
                    return Err(io::ErrorKind::InvalidInput.into());
                };
                let len = current.metadata()?.len();
                let current = BufWriter::with_capacity(BUFFER_LEN, current);
                return Ok(Self::new(what, path, Target::Files { current, waiting: files }, head, len));
            }
        };
        let ring = Ring { most: bytes, ..Ring::default() };
        Ok(Self::new(what, keep.path(), Target::Memory(ring), head, 0))
    }

    fn new(what: &'static str, path: &Path, target: Target, head: Vec<u8>, len: u64) -> Self {
        let mut store = Self {
            what,
            path: path.to_owned(),
            target: Some(target),
            head: Vec::new(),
            len,
            max_len: u64::MAX,
            unflushed: false,
            ended: None,
        };
        store.begin(&head);
        Self { head, ..store }
    }

    /// Sets the size limit of each file.
    #[must_use]
    pub fn with_limit(self, max_len: u64) -> Self {
        Self { max_len, ..self }
    }

    /// Returns the path where records are stored, unless the store has stopped.
    pub fn path(&self) -> Option<&Path> {
        self.target.is_some().then_some(&self.path)
    }

    /// If the store stopped early, returns its path and the reason.
    pub fn ended(&self) -> Option<(&Path, &str)> {
        self.ended.as_deref().map(|why| (self.path.as_path(), why))
    }

    pub fn push(&mut self, record: &[u8]) {
        if self.len >= self.max_len && !matches!(self.target, Some(Target::Memory(_))) {
            self.next_file();
        }
        let written = match &mut self.target {
            None => return,
            Some(Target::Memory(ring)) => return ring.push(record),
            Some(Target::Out(out)) => out.write_all(record),
            Some(Target::Files { current, .. }) => current.write_all(record),
        };
        self.unflushed = true;
        match written {
            Ok(()) => self.len += record.len() as u64,
            Err(error) => self.stop(&error.to_string()),
        }
    }

    /// Flushes buffered records to the operating system. Call this when idle.
    pub fn flush(&mut self) {
        if !std::mem::take(&mut self.unflushed) {
            return;
        }
        let flushed = match &mut self.target {
            Some(Target::Out(out)) => out.flush(),
            Some(Target::Files { current, .. }) => current.flush(),
            Some(Target::Memory(_)) | None => Ok(()),
        };
        if let Err(error) = flushed {
            self.stop(&error.to_string());
        }
    }

    /// Returns the contents of the ring in the same format as a file, or `None` if the store is not a ring.
    pub fn kept(&self) -> Option<Vec<u8>> {
        match &self.target {
            Some(Target::Memory(ring)) => {
                let (older, newer) = ring.bytes.as_slices();
                Some([&self.head, older, newer].concat())
            }
            _ => None,
        }
    }

    fn begin(&mut self, head: &[u8]) {
        if !head.is_empty() && !matches!(self.target, Some(Target::Memory(_))) {
            let max_len = std::mem::replace(&mut self.max_len, u64::MAX);
            self.push(head);
            self.max_len = max_len;
        }
    }

    /// Truncates the next file and switches to it.
    fn next_file(&mut self) {
        self.flush();
        match self.target.take() {
            Some(Target::Files { current, mut waiting }) if !waiting.is_empty() => {
                let turned = current.into_inner().map_err(|error| error.into_error()).and_then(|full| {
                    waiting.push_back(full);
                    let mut next = waiting.pop_front().ok_or(io::ErrorKind::NotFound)?;
                    next.set_len(0)?;
                    next.rewind()?;
                    Ok(next)
                });
                match turned {
                    Ok(next) => {
                        let current = BufWriter::with_capacity(BUFFER_LEN, next);
                        self.target = Some(Target::Files { current, waiting });
                        self.len = 0;
                        let head = std::mem::take(&mut self.head);
                        self.begin(&head);
                        self.head = head;
                    }
                    Err(error) => self.stop(&error.to_string()),
                }
            }
            Some(_) => self.stop(&format!("size limit of {} bytes reached", self.max_len)),
            None => {}
        }
    }

    fn stop(&mut self, why: &str) {
        if self.ended.is_none() {
            log_line!(error, path = %self.path.display(), why, "{} stopped", self.what);
            self.ended = Some(why.to_owned());
        }
        self.target = None;
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("path", &self.path).finish_non_exhaustive()
    }
}

fn open_all(keep: &Keep, opening: Opening) -> io::Result<VecDeque<File>> {
    let mut opened = VecDeque::new();
    for path in keep.files() {
        let file = match opening {
            Opening::Replace => file::create(&path),
            Opening::New => file::create_new(&path),
            Opening::Append => file::append(&path),
        };
        match file {
            Ok(file) => opened.push_back(file),
            Err(error) => {
                if opening == Opening::New {
                    // Remove only the files that this call has created.
                    keep.files().take(opened.len()).for_each(|path| drop(std::fs::remove_file(path)));
                }
                return Err(error);
            }
        }
    }
    Ok(opened)
}

fn numbered(path: &Path, index: u16) -> PathBuf {
    match index {
        0 => path.to_owned(),
        _ => {
            let mut name = path.as_os_str().to_owned();
            name.push(format!(".{index}"));
            name.into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three(path: &Path) -> Keep {
        Keep::Files { path: path.to_owned(), count: NonZeroU16::new(3).unwrap() }
    }

    fn records(store: &mut Store, numbers: std::ops::Range<u32>) {
        numbers.for_each(|number| store.push(format!("{number:04}\n").as_bytes()));
        store.flush();
    }

    fn texts(keep: &Keep) -> Vec<String> {
        keep.files().map(|path| std::fs::read_to_string(path).unwrap()).collect()
    }

    #[test]
    fn each_rotated_file_starts_with_header() {
        let folder = tempfile::tempdir().unwrap();
        let keep = three(&folder.path().join("t"));
        let mut store = Store::open("trace", &keep, Opening::New, b"head\n".to_vec()).unwrap().with_limit(15);
        records(&mut store, 0..8);
        assert_eq!(texts(&keep), ["head\n0006\n0007\n", "head\n0002\n0003\n", "head\n0004\n0005\n"]);
        assert!(store.ended().is_none());
    }

    #[test]
    fn append_resumes_most_recently_written_file() {
        let folder = tempfile::tempdir().unwrap();
        let keep = three(&folder.path().join("t"));
        let mut store = Store::open("trace", &keep, Opening::Replace, Vec::new()).unwrap().with_limit(10);
        records(&mut store, 0..3);
        // Set a later modification time explicitly, because file systems have a coarse time resolution.
        let files: Vec<_> = keep.files().collect();
        let later = SystemTime::now() + std::time::Duration::from_secs(5);
        File::options().write(true).open(&files[1]).unwrap().set_modified(later).unwrap();
        let mut store = Store::open("trace", &keep, Opening::Append, Vec::new()).unwrap().with_limit(10);
        records(&mut store, 3..6);
        assert_eq!(texts(&keep), ["0000\n0001\n", "0002\n0003\n", "0004\n0005\n"]);
    }

    #[test]
    fn open_fails_cleanly_if_one_file_exists() {
        let folder = tempfile::tempdir().unwrap();
        let keep = three(&folder.path().join("t"));
        std::fs::write(folder.path().join("t.2"), "precious").unwrap();
        let error = Store::open("trace", &keep, Opening::New, Vec::new()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        assert_eq!(std::fs::read_to_string(folder.path().join("t.2")).unwrap(), "precious");
    }

    #[test]
    fn ring_dump_has_header_and_newest_records() {
        let most = RingBytes::try_from(RingBytes::LEAST).unwrap();
        let keep = Keep::Memory(most);
        let mut store = Store::open("trace", &keep, Opening::New, b"head\n".to_vec()).unwrap().with_limit(1);
        records(&mut store, 0..20_000);
        let text = String::from_utf8(store.kept().unwrap()).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!((lines[0], *lines.last().unwrap()), ("head", "19999"));
        assert!(text.len() <= most.0 + 5 && text.len() > most.0 - 10, "{}", text.len());
        assert!(lines[1..].iter().all(|line| line.len() >= 4));
        store.push(&vec![b'x'; most.0 + 1]);
        assert_eq!(store.kept().unwrap(), b"head\n", "a record longer than the ring is dropped");
    }

    #[test]
    fn rejects_ring_size_out_of_range() {
        for bytes in [0, RingBytes::LEAST - 1, RingBytes::MOST + 1] {
            assert!(RingBytes::try_from(bytes).is_err(), "{bytes}");
        }
    }
}
