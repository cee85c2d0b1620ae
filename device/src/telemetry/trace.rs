//! The trace: what a driver did to its device and what the device did in answer, one line a record.
//!
//! A text line is `time device kind name key=value …`, in that order:
//!
//! ```text
//! 1762351200.000123 hca1 write HCR.in_modifier at=bar0+0x80008 width=4 value=0x5
//! 1762351200.000241 hca1 command SW2HW_MPT status=OK us=18.2 index=0x5 … in.key=0x20005 in.pd=0x3
//! 1762351200.000377 hca1 cqe send cqn=0x1 slot=4 qpn=0x5 queue=send wqe=0x80 opcode=SEND byte_len=64 …
//! ```
//!
//! Time is in seconds since 1970, as captures have it. A mailbox's fields follow `in.` and `out.`; those that are 0 are
//! left out. A JSON line is one object with the same keys and all fields. Kinds, names and keys are an interface: they
//! are added, not changed. What they mean is said where the types of `protocol` describe themselves.

mod json;
mod text;

use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::ValueEnum;
use protocol::describe::Visitor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::json::JsonLine;
use self::text::TextLine;
use super::{file, outlet};

/// Form of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum TraceFormat {
    /// For people and grep.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// What a record is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The guest read a register.
    Read,
    /// The guest wrote a register.
    Write,
    /// A command ended.
    Command,
    /// The device took a work queue entry.
    Wqe,
    /// The device wrote a completion queue entry, or tried to.
    Cqe,
    /// The device wrote an event queue entry, or tried to.
    Eqe,
    /// The device raised an MSI-X vector.
    Interrupt,
    /// The device was reset.
    Reset,
    /// Nothing was done for a doorbell, a store, a packet or a frame, and why.
    Ignored,
    /// A request failed, and why.
    Refused,
    /// The driver did something against the interface; of a strict device only.
    Violation,
}

impl Kind {
    /// Its word in a record.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Command => "command",
            Self::Wqe => "wqe",
            Self::Cqe => "cqe",
            Self::Eqe => "eqe",
            Self::Interrupt => "interrupt",
            Self::Reset => "reset",
            Self::Ignored => "ignored",
            Self::Refused => "refused",
            Self::Violation => "violation",
        }
    }
}

/// Where a trace tells the time.
pub type Clock = fn() -> Duration;

/// What stands for standard error where a file is named.
pub const STANDARD_ERROR: &str = "-";

/// The trace of one device.
///
/// A write that fails ends it with one log line, never the device. So does a file of the greatest length.
pub struct Trace {
    path: PathBuf,
    out: Option<BufWriter<Box<dyn Write + Send>>>,
    unflushed: bool,
    device: String,
    format: TraceFormat,
    clock: Clock,
    line: String,
    /// Bytes written, with those of the file before.
    len: u64,
    max_len: u64,
    /// Why it ended.
    ended: Option<String>,
}

/// Bytes collected before a write. Large enough for some hundred records.
const BUFFER_LEN: usize = 1 << 16;

impl Trace {
    /// A trace that goes to `out`, which is called `path`. `device` is the name its records have.
    pub fn new(out: Box<dyn Write + Send>, path: &Path, format: TraceFormat, device: &str) -> Self {
        Self {
            path: path.to_owned(),
            out: Some(BufWriter::with_capacity(BUFFER_LEN, out)),
            unflushed: false,
            device: device.to_owned(),
            format,
            clock: since_1970,
            line: String::new(),
            len: 0,
            max_len: u64::MAX,
            ended: None,
        }
    }

    /// Creates or replaces the file at `path`, or goes to [`STANDARD_ERROR`].
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn create(path: &Path, format: TraceFormat, device: &str) -> io::Result<Self> {
        Self::open(path, format, device, file::create)
    }

    /// Creates the file at `path`, which must not exist: nothing is overwritten, and nobody waits for a pipe. Or goes to
    /// [`STANDARD_ERROR`].
    ///
    /// # Errors
    /// The file exists, or cannot be created.
    pub fn create_new(path: &Path, format: TraceFormat, device: &str) -> io::Result<Self> {
        Self::open(path, format, device, file::create_new)
    }

    /// Goes on in the file at `path`, or on [`STANDARD_ERROR`].
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn append(path: &Path, format: TraceFormat, device: &str) -> io::Result<Self> {
        let mut len = 0;
        let trace = Self::open(path, format, device, |path| {
            let file = file::append(path)?;
            len = file.metadata()?.len();
            Ok(file)
        });
        Ok(Self { len, ..trace? })
    }

    /// Ends when the file is so long. Standard error has bounds of its own.
    #[must_use]
    pub fn with_limit(self, max_len: u64) -> Self {
        match self.path.to_str() {
            Some(STANDARD_ERROR) => self,
            _ => Self { max_len, ..self },
        }
    }

    fn open(
        path: &Path,
        format: TraceFormat,
        device: &str,
        file: impl FnOnce(&Path) -> io::Result<File>,
    ) -> io::Result<Self> {
        let out: Box<dyn Write + Send> = match path.to_str() {
            Some(STANDARD_ERROR) => Box::new(outlet::standard_error().map_err(io::Error::other)?),
            _ => Box::new(file(path)?),
        };
        Ok(Self::new(out, path, format, device))
    }

    /// With another clock: tests have one that stands still.
    #[must_use]
    pub fn with_clock(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }

    /// Where it goes, unless it has ended.
    pub fn path(&self) -> Option<&Path> {
        self.out.is_some().then_some(&self.path)
    }

    /// Why it ended before its time, and in which file.
    pub fn ended(&self) -> Option<(&Path, &str)> {
        self.ended.as_deref().map(|why| (self.path.as_path(), why))
    }

    /// What time it is.
    pub fn now(&self) -> Duration {
        (self.clock)()
    }

    /// Writes a record; `fields` tells its fields.
    pub fn record(&mut self, kind: Kind, name: &str, fields: impl FnOnce(&mut dyn Visitor)) {
        let now = self.now();
        if self.len >= self.max_len && self.out.is_some() {
            self.flush();
            return self.stop(&format!("the file has reached its bound of {} bytes", self.max_len));
        }
        let Some(out) = &mut self.out else { return };
        self.line.clear();
        match self.format {
            TraceFormat::Text => fields(&mut TextLine::begin(&mut self.line, now, &self.device, kind, name)),
            TraceFormat::Json => {
                let mut line = JsonLine::begin(&mut self.line, now, &self.device, kind, name);
                fields(&mut line);
                line.end();
            }
        }
        self.line.push('\n');
        self.unflushed = true;
        match out.write_all(self.line.as_bytes()) {
            Ok(()) => self.len += self.line.len() as u64,
            Err(error) => self.stop(&error.to_string()),
        }
    }

    /// Hands buffered records to the operating system. Call when there is nothing better to do.
    pub fn flush(&mut self) {
        if !std::mem::take(&mut self.unflushed) {
            return;
        }
        if let Some(out) = &mut self.out
            && let Err(error) = out.flush()
        {
            self.stop(&error.to_string());
        }
    }

    fn stop(&mut self, why: &str) {
        if self.ended.is_none() {
            tracing::error!(path = %self.path.display(), why, "trace ends: it cannot be written");
            self.ended = Some(why.to_owned());
        }
        self.out = None;
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, device, format, .. } = self;
        let mut debug = f.debug_struct("Trace");
        debug.field("path", path).field("device", device).field("format", format).finish_non_exhaustive()
    }
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
pub(crate) mod tests;
