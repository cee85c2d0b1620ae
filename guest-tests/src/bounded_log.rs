//! Limits the size of logs. A program that fails in a loop, such as QEMU after its guest's device has failed, logs the
//! same lines endlessly.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::time::{MissedTickBehavior, interval};

/// Maximum size of one process's output in bytes. The first lines are kept, since they usually show what went wrong.
pub(crate) const LOG_LIMIT: u64 = 64 << 20;
/// How often to check the size of other programs' logs. A log can exceed the limit between two checks.
const TRIM_INTERVAL: Duration = Duration::from_secs(1);
/// Last line of a log that has reached its limit. The line before it may be incomplete.
const NOTICE: &str = "\n[guest-lab: this log is full; further output is discarded]\n";

/// A log that discards all output beyond a limit.
#[derive(Debug)]
pub(crate) struct BoundedLog<W> {
    file: W,
    /// Number of bytes that the log still accepts, or `None` once it is full.
    room: Option<u64>,
}

impl<W: Write> BoundedLog<W> {
    /// Creates a log that accepts `limit` more bytes.
    pub(crate) fn new(file: W, limit: u64) -> Self {
        Self { file, room: Some(limit) }
    }

    /// Appends as much of the text as fits. Returns the number of bytes written.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub(crate) fn append(&mut self, text: &[u8]) -> io::Result<usize> {
        let Some(room) = self.room else { return Ok(0) };
        let fitting = text.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        self.file.write_all(&text[..fitting])?;
        if fitting == text.len() {
            self.room = Some(room - fitting as u64);
            return Ok(fitting);
        }
        self.room = None;
        self.file.write_all(NOTICE.as_bytes())?;
        Ok(fitting + NOTICE.len())
    }
}

/// A task that limits the size of another program's log. It ends on drop.
#[derive(Debug)]
pub(crate) struct Trimmer(tokio::task::JoinHandle<()>);

impl Trimmer {
    /// Creates an empty log and starts to limit its size. The program must open the file with `O_APPEND`, so that its
    /// next write starts at the end of the truncated file.
    ///
    /// # Errors
    /// Fails if the file cannot be created.
    pub(crate) fn start(path: &Path) -> Result<Self> {
        let create = || {
            File::create(path)?;
            File::options().append(true).open(path)
        };
        let mut log = create().with_context(|| format!("cannot create {}", path.display()))?;
        let name = path.display().to_string();
        Ok(Self(tokio::spawn(async move {
            let mut ticks = interval(TRIM_INTERVAL);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                if let Err(error) = trim(&mut log, LOG_LIMIT) {
                    tracing::warn!("cannot limit the size of the console log {name}: {error}");
                    return;
                }
            }
        })))
    }
}

impl Drop for Trimmer {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Truncates a log that is longer than `limit` bytes and appends a notice.
fn trim(log: &mut File, limit: u64) -> io::Result<()> {
    if log.metadata()?.len() <= limit + NOTICE.len() as u64 {
        return Ok(());
    }
    log.set_len(limit)?;
    log.write_all(NOTICE.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn output_beyond_limit_is_replaced_by_notice() {
        let mut log = BoundedLog::new(Vec::new(), 10);
        assert_eq!(log.append(b"12345\n").unwrap(), 6);
        assert_eq!(log.append(b"7890").unwrap(), 4);
        assert_eq!(log.append(b"lost").unwrap(), NOTICE.len());
        assert_eq!(log.append(b"lost as well").unwrap(), 0);
        assert_eq!(String::from_utf8(log.file).unwrap(), format!("12345\n7890{NOTICE}"));
    }

    #[test]
    fn trimmed_log_keeps_its_beginning() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("guest-a.console");
        fs::write(&path, "").unwrap();
        let open = || File::options().append(true).open(&path).unwrap();
        let (mut program, mut log) = (open(), open());
        program.write_all(b"first ").unwrap();
        trim(&mut log, 8).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "first ");
        for _ in 0..3 {
            program.write_all(&[b'x'; 100]).unwrap();
            trim(&mut log, 8).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), format!("first xx{NOTICE}"));
        }
    }
}
