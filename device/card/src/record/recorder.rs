//! Writes session recordings to a file.

use std::fmt;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::chunk::{self, HEAD_LEN};
use super::codec;
use super::entry::{Ending, Entry};
use super::header::{Header, MAGIC};
use super::queue::{MAX_WAITING, Queue};
use super::sink::RecordSink;
use crate::capabilities;
use crate::log_line;
use crate::telemetry::file;

/// Maximum time to wait for the last entries to be written when a recording is closed. Without a limit, a slow disk
/// could block the daemon.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Number of bytes reserved for the last entry.
const LAST_LEN: u64 = HEAD_LEN + 1;

/// A recording in progress. It ends when this value is dropped.
pub struct Recorder {
    sink: RecordSink,
    queue: Arc<Queue>,
    path: PathBuf,
    /// [`CLOSE_TIMEOUT`], unless a test changes it.
    pub(crate) close_timeout: Duration,
}

impl Recorder {
    /// Creates or replaces the file at `path`. The recording ends before the file exceeds `max_len` bytes.
    ///
    /// # Errors
    /// Fails if the file cannot be created or written, or if the writer thread cannot be started.
    pub fn create(path: &Path, header: &Header, max_len: u64) -> io::Result<Self> {
        Self::to(Box::new(file::create(path)?), path, header, max_len)
    }

    /// Writes the recording to `out`. Log messages refer to `out` as `path`.
    ///
    /// # Errors
    /// Fails if the header cannot be written or if the writer thread cannot be started.
    pub fn to(out: Box<dyn Write + Send>, path: &Path, header: &Header, max_len: u64) -> io::Result<Self> {
        Self::with_room(out, path, header, max_len, MAX_WAITING)
    }

    /// Like [`Recorder::to`], but with at most `room` bytes waiting to be written.
    pub(super) fn with_room(
        out: Box<dyn Write + Send>,
        path: &Path,
        header: &Header,
        max_len: u64,
        room: usize,
    ) -> io::Result<Self> {
        let header = serde_json::to_vec(header)?;
        let mut out = BufWriter::new(out);
        out.write_all(&MAGIC)?;
        chunk::write(&mut out, &header)?;
        out.flush()?;
        let len = MAGIC.len() as u64 + HEAD_LEN + header.len() as u64;
        let queue = Arc::new(Queue::new(room));
        let mut writer = Writer { out, queue: queue.clone(), left: max_len.saturating_sub(len) };
        let called = path.to_owned();
        capabilities::spawn_without("record", move || {
            let failure = match writer.run() {
                Ok(WriteOutcome::All) => None,
                Ok(WriteOutcome::AtLimit) => {
                    log_line!(warn, path = %called.display(), "recording stopped: size limit reached");
                    Some(Ending::Full.to_string())
                }
                Err(error) => {
                    log_line!(error, path = %called.display(), %error, "recording stopped: write failed");
                    Some(error.to_string())
                }
            };
            writer.queue.end(failure);
        })?;
        Ok(Self {
            sink: RecordSink::recording(queue.clone()),
            queue,
            path: path.to_owned(),
            close_timeout: CLOSE_TIMEOUT,
        })
    }

    /// Like [`Recorder::create`], but the file must not exist yet.
    ///
    /// # Errors
    /// Fails in the same cases as [`Recorder::create`], or if the file already exists.
    pub fn create_new(path: &Path, header: &Header, max_len: u64) -> io::Result<Self> {
        Self::to(Box::new(file::create_new(path)?), path, header, max_len)
    }

    /// Returns the path of the file, unless the recording has ended.
    pub fn path(&self) -> Option<&Path> {
        self.queue.is_open().then_some(&*self.path)
    }

    /// Ends the recording. Returns the path of the file. If the recording had already ended, also returns the reason.
    pub fn finish(self) -> (PathBuf, Option<String>) {
        let (path, queue) = (self.path.clone(), self.queue.clone());
        drop(self);
        (path, queue.failure())
    }

    pub fn sink(&self) -> &RecordSink {
        &self.sink
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let ending = if thread::panicking() { Ending::Failed } else { Ending::Closed };
        if !self.queue.close(ending, self.close_timeout) {
            log_line!(warn, path = %self.path.display(), "session record may be incomplete: timed out writing its last entries");
        }
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Why the writer stopped without an error.
enum WriteOutcome {
    All,
    /// The file reached its size limit.
    AtLimit,
}

struct Writer {
    out: BufWriter<Box<dyn Write + Send>>,
    queue: Arc<Queue>,
    /// Number of bytes that may still be written to the file.
    left: u64,
}

impl Writer {
    fn run(&mut self) -> io::Result<WriteOutcome> {
        loop {
            let batch = self.queue.take();
            for contents in batch.chunks {
                let len = HEAD_LEN + contents.len() as u64;
                if len + LAST_LEN > self.left {
                    let mut last = Vec::new();
                    codec::encode(&Entry::End(Ending::Full), &mut last);
                    if self.left >= LAST_LEN {
                        chunk::write(&mut self.out, &last)?;
                    }
                    self.out.flush()?;
                    return Ok(WriteOutcome::AtLimit);
                }
                self.left -= len;
                chunk::write(&mut self.out, &contents)?;
                self.queue.done(contents);
            }
            self.out.flush()?;
            if batch.last {
                return Ok(WriteOutcome::All);
            }
        }
    }
}
