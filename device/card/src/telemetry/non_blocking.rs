//! Non-blocking standard error. Lines pass through a queue to a writer thread, so logging neither blocks nor fails.
//!
//! If the reader is slow or has closed the pipe, or if a disk is full, lines are dropped and counted. Once
//! writing works again, a line reports the number of lost lines.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};

use super::subscriber::LogFormat;
use crate::capabilities;
use crate::log_target;

/// Maximum number of bytes waiting to be written. This is about ten thousand lines, or the trace of a busy
/// device for one second.
const MAX_WAITING: usize = 4 << 20;

/// Buffer capacity kept while nothing is waiting.
const KEPT: usize = 64 << 10;

/// A writer that puts whole lines into a queue, which a separate thread writes out.
#[derive(Debug)]
pub struct NonBlockingWriter {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<Pending>,
    /// Signalled when lines are waiting to be written, or when the writer is closed.
    filled: Condvar,
    /// Signalled when no lines are waiting or being written.
    idle: Condvar,
}

#[derive(Debug, Default)]
struct Pending {
    lines: Vec<u8>,
    /// Number of lines dropped since the writer thread last took `lines`. After the first dropped line, all further
    /// lines are dropped until the thread takes `lines` again. This leaves a single gap in the output.
    dropped: u64,
    /// Number of lines lost since the start.
    lost: u64,
    writing: bool,
    closed: bool,
    format: LogFormat,
}

/// Returns the process's writer to standard error.
///
/// # Errors
/// Fails if the thread cannot be started or standard error cannot be duplicated.
pub fn standard_error() -> Result<&'static NonBlockingWriter, &'static io::Error> {
    static WRITER: LazyLock<io::Result<NonBlockingWriter>> =
        LazyLock::new(|| NonBlockingWriter::start(File::from(io::stderr().as_fd().try_clone_to_owned()?)));
    WRITER.as_ref()
}

/// Returns the number of lines that standard error did not accept.
pub fn lines_lost() -> u64 {
    standard_error().map_or(0, NonBlockingWriter::lost)
}

impl NonBlockingWriter {
    /// Starts the thread that writes to `sink`. The thread ends when this writer is dropped, after writing
    /// the queued lines.
    ///
    /// # Errors
    /// Fails if the thread cannot be started.
    pub fn start(sink: impl Write + AsFd + Send + 'static) -> io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let writer = Self { shared: shared.clone() };
        capabilities::spawn_without("log", move || {
            WriterThread { shared, sink, missing: 0, torn: false }.run();
        })?;
        Ok(writer)
    }

    /// Sets the format of the line that reports lost lines.
    pub fn set_format(&self, format: LogFormat) {
        self.shared.lock().format = format;
    }

    /// Queues one or more lines, each with its line feed. If they do not fit, all of them are lost.
    pub fn push(&self, lines: &[u8]) {
        let mut waiting = self.shared.lock();
        if waiting.dropped > 0 || waiting.lines.len() + lines.len() > MAX_WAITING {
            waiting.dropped += count(lines);
            waiting.lost += count(lines);
        } else {
            waiting.lines.extend_from_slice(lines);
        }
        drop(waiting);
        self.shared.filled.notify_one();
    }

    pub fn lost(&self) -> u64 {
        self.shared.lock().lost
    }

    /// Waits until all lines are written, for at most `timeout`.
    pub fn finish(&self, timeout: Duration) {
        let waiting = self.shared.lock();
        let is_busy = |waiting: &mut Pending| waiting.writing || waiting.is_filled();
        let _ = self.shared.idle.wait_timeout_while(waiting, timeout, is_busy);
    }
}

impl Drop for NonBlockingWriter {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.filled.notify_one();
    }
}

/// Each call must pass complete lines, as the log and trace writers do.
impl Write for &NonBlockingWriter {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        self.push(lines);
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    /// Locks the queue. Poisoning is ignored because the queue contains only complete lines even if a thread panics
    /// while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pending {
    fn is_filled(&self) -> bool {
        !self.lines.is_empty() || self.dropped > 0
    }
}

struct WriterThread<W> {
    shared: Arc<Shared>,
    sink: W,
    /// Number of lost lines that have not been reported yet.
    missing: u64,
    /// Whether only part of the last line was written.
    torn: bool,
}

impl<W: Write + AsFd> WriterThread<W> {
    fn run(mut self) {
        let mut lines = Vec::new();
        while let Some((dropped, format)) = self.take(&mut lines) {
            self.report_lost(format);
            let lost = self.write(&lines);
            self.missing += lost + dropped;
            self.report_lost(format);
            lines.clear();
            lines.shrink_to(KEPT);

            let mut waiting = self.shared.lock();
            waiting.lost += lost;
            waiting.writing = false;
            if !waiting.is_filled() {
                self.shared.idle.notify_all();
            }
        }
    }

    /// Waits for lines and moves all of them to `lines`. Returns how many lines were dropped after them, and the log
    /// format. Returns `None` once the writer is closed and no lines are left.
    fn take(&self, lines: &mut Vec<u8>) -> Option<(u64, LogFormat)> {
        let is_empty = |waiting: &mut Pending| !waiting.is_filled() && !waiting.closed;
        let waited = self.shared.filled.wait_while(self.shared.lock(), is_empty);
        let mut waiting = waited.unwrap_or_else(PoisonError::into_inner);
        if !waiting.is_filled() {
            return None;
        }
        std::mem::swap(lines, &mut waiting.lines);
        waiting.writing = true;
        Some((std::mem::take(&mut waiting.dropped), waiting.format))
    }

    /// Reports the number of lost lines, if there are any and the sink accepts the report.
    fn report_lost(&mut self, format: LogFormat) {
        if self.missing > 0 && self.write(note(self.missing, format).as_bytes()) == 0 {
            self.missing = 0;
        }
    }

    /// Writes lines and returns the number of those that could not be written.
    fn write(&mut self, lines: &[u8]) -> u64 {
        let mut rest = lines;
        if self.torn && !rest.is_empty() {
            match self.write_some(b"\n") {
                Some(_) => self.torn = false,
                None => return count(rest),
            }
        }
        while !rest.is_empty() {
            let Some(written) = self.write_some(rest) else { return count(rest) };
            self.torn = rest[..written].last() != Some(&b'\n');
            rest = &rest[written..];
        }
        0
    }

    /// Writes as many bytes as the sink accepts, and waits if it accepts none. Returns the number of bytes written, or
    /// `None` on error.
    fn write_some(&mut self, bytes: &[u8]) -> Option<usize> {
        loop {
            match self.sink.write(bytes) {
                Ok(written) => return (written > 0).then_some(written.min(bytes.len())),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let _ = poll(&mut [PollFd::new(&self.sink, PollFlags::OUT)], None);
                }
                Err(_) => return None,
            }
        }
    }
}

fn count(lines: &[u8]) -> u64 {
    lines.iter().filter(|byte| **byte == b'\n').count() as u64
}

fn note(missing: u64, format: LogFormat) -> String {
    const MESSAGE: &str = "log lines lost: standard error was not read fast enough";
    const TARGET: &str = log_target!();
    let mut time = String::new();
    // Writing to a string cannot fail.
    let _ = SystemTime.format_time(&mut Writer::new(&mut time));
    let mut line = match format {
        LogFormat::Text => format!("{time}  WARN {TARGET}: {MESSAGE} lines={missing}"),
        LogFormat::Json => {
            let fields = serde_json::json!({ "message": MESSAGE, "lines": missing });
            serde_json::json!({ "timestamp": time, "level": "WARN", "fields": fields, "target": TARGET })
                .to_string()
        }
    };
    let _ = line.write_char('\n');
    line
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::fd::BorrowedFd;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    /// A disk that is temporarily full.
    struct Disk {
        stream: UnixStream,
        full: Arc<AtomicBool>,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            match self.full.load(Ordering::Acquire) {
                true => Err(ErrorKind::StorageFull.into()),
                // Write only part of each line.
                false => self.stream.write(&bytes[..bytes.len().min(3)]),
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl AsFd for Disk {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.stream.as_fd()
        }
    }

    fn read_all(writer: NonBlockingWriter, mut reader: UnixStream) -> String {
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn lines_lost_to_full_disk_are_counted_and_reported() {
        let (stream, reader) = UnixStream::pair().unwrap();
        let full = Arc::<AtomicBool>::default();
        let writer = NonBlockingWriter::start(Disk { stream, full: full.clone() }).unwrap();
        writer.push(b"one\n");
        writer.finish(TIMEOUT);
        full.store(true, Ordering::Release);
        writer.push(b"two\nthree\n");
        writer.push(b"four\n");
        writer.finish(TIMEOUT);
        assert_eq!(writer.lost(), 3);
        full.store(false, Ordering::Release);
        writer.push(b"five\n");
        writer.finish(TIMEOUT);
        let text = read_all(writer, reader);
        let lines: Vec<_> = text.lines().collect();
        assert!(
            matches!(lines[..], ["one", note, "five"] if note.ends_with("fast enough lines=3")),
            "{text}"
        );
    }

    #[test]
    fn blocked_pipe_drops_and_counts_lines() {
        let (stream, reader) = UnixStream::pair().unwrap();
        stream.set_nonblocking(true).unwrap();
        let writer = NonBlockingWriter::start(stream).unwrap();
        writer.set_format(LogFormat::Json);
        let line = [&[b'x'; 1023][..], b"\n"].concat();
        let pushed = 3 * (MAX_WAITING as u64) / 1024;
        for _ in 0..pushed {
            writer.push(&line);
        }
        let lost = writer.lost();
        assert!(lost > pushed / 4, "{lost} of {pushed}");
        writer.finish(Duration::ZERO);

        let text = read_all(writer, reader);
        let (notes, whole): (Vec<_>, Vec<_>) = text.lines().partition(|line| line.starts_with('{'));
        assert_eq!(whole.len() as u64, pushed - lost);
        let reported = notes.iter().map(|note| {
            let note: serde_json::Value = serde_json::from_str(note).unwrap();
            note["fields"]["lines"].as_u64().unwrap()
        });
        assert_eq!(reported.sum::<u64>(), lost);
    }

    /// The sink is a file, because a pipe without a reader has room for only a few hundred short writes.
    #[test]
    fn finish_writes_pending_lines() {
        let file = tempfile::tempfile().unwrap();
        let writer = NonBlockingWriter::start(file.try_clone().unwrap()).unwrap();
        for _ in 0..1000 {
            writer.push(b"line\n");
        }
        writer.finish(TIMEOUT);
        assert_eq!(file.metadata().unwrap().len(), 5000);
    }
}
