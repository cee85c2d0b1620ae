//! Where the records of a trace and the frames of a capture are kept: a file, several files in turn, or memory.
//!
//! Each is bounded. Files are opened at the start, before the process confines itself, and used in turn without being
//! renamed: the second is called as the first with `.1` behind, and after the last the first is emptied and used again.
//! Memory keeps the newest and forgets the rest, until somebody asks for it.

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Seek as _, Write};
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::file;

/// Where to keep what is written, and how much.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    /// In files.
    Files {
        /// The first of them.
        path: PathBuf,
        /// How many.
        count: NonZeroU16,
    },
    /// The newest so many bytes, in memory.
    Memory(RingBytes),
}

impl Keep {
    /// In one file.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self::Files { path: path.into(), count: NonZeroU16::MIN }
    }

    /// How it is called.
    pub fn path(&self) -> &Path {
        match self {
            Self::Files { path, .. } => path,
            Self::Memory(_) => Path::new(MEMORY),
        }
    }

    /// All files.
    pub fn files(&self) -> impl Iterator<Item = PathBuf> {
        let (path, count) = match self {
            Self::Files { path, count } => (path.as_path(), count.get()),
            Self::Memory(_) => (Path::new(""), 0),
        };
        (0..count).map(|index| numbered(path, index))
    }
}

/// What stands for memory where a file is named.
pub const MEMORY: &str = "memory";

/// Bound: files of one trace or capture, each of which takes a descriptor.
pub const MAX_FILES: u16 = 64;

/// Size of what is kept in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct RingBytes(usize);

impl RingBytes {
    /// Room for some records or frames of any size.
    const LEAST: u64 = 64 << 10;
    /// Bound: what a device may keep so. It is copied in one turn of the device when it is asked for.
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

/// How files are opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// Those that are there are emptied.
    Replace,
    /// None may be there: nothing is overwritten, and nobody waits for a pipe.
    New,
    /// Behind what there is, in the file that was written last.
    Append,
}

/// Bytes collected before a write. A burst of frames at full rate costs few system calls.
const BUFFER_LEN: usize = 1 << 20;

type Out = Box<dyn Write + Send>;

/// Takes records, each whole.
///
/// A write that fails ends it with one log line, never the device. So does the greatest length, where there is one file.
pub struct Store {
    /// What the log calls it.
    what: &'static str,
    path: PathBuf,
    target: Option<Target>,
    /// What every file begins with.
    head: Vec<u8>,
    /// Bytes of the file that is being written.
    len: u64,
    max_len: u64,
    unflushed: bool,
    /// Why it ended.
    ended: Option<String>,
}

enum Target {
    /// Anything that takes bytes.
    Out(BufWriter<Out>),
    /// Files in turn; those that wait are in the order of their turns.
    Files {
        current: BufWriter<File>,
        waiting: VecDeque<File>,
    },
    Memory(Ring),
}

/// The newest records, whole.
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
    /// Goes to `out`, which is called `path`. `head` comes first.
    pub fn to(what: &'static str, out: Out, path: &Path, head: Vec<u8>) -> Self {
        Self::new(what, path, Target::Out(BufWriter::with_capacity(BUFFER_LEN, out)), head, 0)
    }

    /// Keeps records as `keep` says.
    ///
    /// # Errors
    /// A file cannot be opened. Those made before it are removed again.
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

    /// A file ends when it is so long.
    #[must_use]
    pub fn with_limit(self, max_len: u64) -> Self {
        Self { max_len, ..self }
    }

    /// Where it goes, unless it has ended.
    pub fn path(&self) -> Option<&Path> {
        self.target.is_some().then_some(&self.path)
    }

    /// Why it ended before its time, and in which file.
    pub fn ended(&self) -> Option<(&Path, &str)> {
        self.ended.as_deref().map(|why| (self.path.as_path(), why))
    }

    /// Takes a record.
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

    /// Hands what is buffered to the operating system. Call when there is nothing better to do.
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

    /// What memory holds, as a file would have it; `None` where it goes elsewhere.
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

    /// The file is full: the next one's turn, which is emptied.
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
            tracing::error!(path = %self.path.display(), why, "{} stopped", self.what);
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

/// All files of a store, the first first.
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
                    // They were made a moment ago, and are empty.
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
    fn files_take_turns_begin_with_their_head_and_the_oldest_is_used_again() {
        let folder = tempfile::tempdir().unwrap();
        let keep = three(&folder.path().join("t"));
        let mut store = Store::open("trace", &keep, Opening::New, b"head\n".to_vec()).unwrap().with_limit(15);
        records(&mut store, 0..8);
        assert_eq!(texts(&keep), ["head\n0006\n0007\n", "head\n0002\n0003\n", "head\n0004\n0005\n"]);
        assert!(store.ended().is_none());
    }

    #[test]
    fn what_goes_on_goes_on_in_the_file_that_was_written_last() {
        let folder = tempfile::tempdir().unwrap();
        let keep = three(&folder.path().join("t"));
        let mut store = Store::open("trace", &keep, Opening::Replace, Vec::new()).unwrap().with_limit(10);
        records(&mut store, 0..3);
        // File systems tell times in ticks.
        let files: Vec<_> = keep.files().collect();
        let later = SystemTime::now() + std::time::Duration::from_secs(5);
        File::options().write(true).open(&files[1]).unwrap().set_modified(later).unwrap();
        let mut store = Store::open("trace", &keep, Opening::Append, Vec::new()).unwrap().with_limit(10);
        records(&mut store, 3..6);
        assert_eq!(texts(&keep), ["0000\n0001\n", "0002\n0003\n", "0004\n0005\n"]);
    }

    #[test]
    fn a_file_that_is_there_is_kept_and_nothing_is_left_of_the_others() {
        let folder = tempfile::tempdir().unwrap();
        let keep = three(&folder.path().join("t"));
        std::fs::write(folder.path().join("t.2"), "precious").unwrap();
        let error = Store::open("trace", &keep, Opening::New, Vec::new()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        assert_eq!(std::fs::read_to_string(folder.path().join("t.2")).unwrap(), "precious");
    }

    #[test]
    fn memory_keeps_the_newest_records_whole_with_their_head() {
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
        assert_eq!(store.kept().unwrap(), b"head\n", "a record longer than all is forgotten at once");
    }

    #[test]
    fn the_size_of_memory_is_bounded() {
        for bytes in [0, RingBytes::LEAST - 1, RingBytes::MOST + 1] {
            assert!(RingBytes::try_from(bytes).is_err(), "{bytes}");
        }
    }
}
