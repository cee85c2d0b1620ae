//! The trace: a driver's accesses and commands, and the device's resulting actions, with one record per line.
//!
//! A text line is `time device kind name key=value …`, in that order:
//!
//! ```text
//! 1762351200.000123 hca1 write HCR.in_modifier at=bar0+0x80008 width=4 value=0x5
//! 1762351200.000241 hca1 command SW2HW_MPT status=OK us=18.2 index=0x5 … in.key=0x20005 in.pd=0x3
//! 1762351200.000377 hca1 cqe send cqn=0x1 slot=4 wr=128 qpn=0x5 queue=send wqe=0x80 opcode=SEND byte_len=64 …
//! ```
//!
//! Records of events that a peer can trigger arbitrarily often are rate-limited. A record with a `suppressed` field
//! reports how many records were suppressed; see `repeats`.
//!
//! Time is in seconds since 1970, as in captures. Mailbox fields have the prefix `in.` or `out.`; zero fields are
//! omitted. `qpn` and `wr` identify a work request in its `wqe` and `cqe` records and in the comments of captured
//! frames. `wr` is the request's position in its queue, as reported in the interface's completions: a byte offset, the
//! index of the first quantum (E810), or the index of the first block (ConnectX).
//!
//! A field of raw bytes, such as the page list of a memory key, shows at most 4096 bytes. If it is longer, `...+` and
//! the number of omitted bytes follow.
//!
//! A JSON line is one object with the same keys and all fields. Kinds, names and keys are part of the public
//! interface: new ones may be added, but existing ones do not change. Their meanings are documented on the
//! types in `protocol` that implement `Describe`.

mod json;
mod repeats;
mod text;

use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::ValueEnum;
use engine::Instant;
use protocol::describe::{Field as _, Visitor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::json::JsonLine;
pub use self::repeats::Group;
use self::repeats::Repeats;
use self::text::TextLine;
use super::filter::{FieldFilter, TraceFilter};
use super::non_blocking;
use super::store::{Keep, Opening, Store};

/// Format of a trace record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum TraceFormat {
    /// Plain text, suitable for grep.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Kind of a trace record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Register read by the guest.
    Read,
    /// Register write by the guest.
    Write,
    /// Completed command.
    Command,
    /// Work queue entry fetched by the device.
    Wqe,
    /// Completion queue entry written by the device, or a failed attempt.
    Cqe,
    /// Event queue entry written by the device, or a failed attempt.
    Eqe,
    /// MSI-X interrupt raised by the device.
    Interrupt,
    /// Device reset.
    Reset,
    /// Ignored doorbell, register write, packet or frame, with the reason.
    Ignored,
    /// Failed request, with the reason.
    Refused,
    /// NAK or RNR NAK received for a QP's packet.
    Nak,
    /// Retransmission of a QP's packets, with the cause.
    Retry,
    /// Driver violation; only in strict mode.
    Violation,
}

impl Kind {
    /// Returns the name of the kind in a record.
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
            Self::Nak => "nak",
            Self::Retry => "retry",
            Self::Violation => "violation",
        }
    }
}

/// Clock that timestamps the records.
pub type Clock = fn() -> Duration;

/// Maximum number of bytes shown in a field of raw bytes. The longest field of fixed length, the capabilities of an
/// mlx5 device, is shown in full. A guest controls the length of other fields: a page list can have 32 MiB.
const MAX_BYTES: usize = 4096;

/// Path that denotes standard error instead of a file.
pub const STANDARD_ERROR: &str = "-";

/// The trace of one device.
///
/// A write error is logged once and ends the trace, but does not affect the device. A single-file trace also ends when
/// it reaches its size limit.
pub struct Trace {
    store: Store,
    device: String,
    format: TraceFormat,
    filter: TraceFilter,
    clock: Clock,
    line: String,
    repeats: Repeats,
}

impl Trace {
    /// Creates a trace that writes to `out`. Log messages refer to `out` as `path`. `device` is the device name in the
    /// records.
    pub fn new(out: Box<dyn Write + Send>, path: &Path, format: TraceFormat, device: &str) -> Self {
        Self::of(Store::to("trace", out, path, Vec::new()), format, device)
    }

    /// Opens a trace to the store described by `keep` or to [`STANDARD_ERROR`].
    ///
    /// # Errors
    /// Fails if a file cannot be opened.
    pub fn open(keep: &Keep, opening: Opening, format: TraceFormat, device: &str) -> io::Result<Self> {
        let store = match keep.path().to_str() {
            Some(STANDARD_ERROR) => {
                let out = Box::new(non_blocking::standard_error().map_err(io::Error::other)?);
                Store::to("trace", out, keep.path(), Vec::new())
            }
            _ => Store::open("trace", keep, opening, Vec::new())?,
        };
        Ok(Self::of(store, format, device))
    }

    fn of(store: Store, format: TraceFormat, device: &str) -> Self {
        Self {
            store,
            device: device.to_owned(),
            format,
            filter: TraceFilter::default(),
            clock: since_1970,
            line: String::new(),
            repeats: Repeats::default(),
        }
    }

    /// Sets the size limit for each file. Standard error is not affected.
    #[must_use]
    pub fn with_limit(self, max_len: u64) -> Self {
        match self.store.path().and_then(Path::to_str) {
            Some(STANDARD_ERROR) => self,
            _ => Self { store: self.store.with_limit(max_len), ..self },
        }
    }

    /// Writes only records that match the filter.
    #[must_use]
    pub fn with_filter(self, filter: TraceFilter) -> Self {
        Self { filter, ..self }
    }

    /// Replaces the clock, for example with a fixed one in tests.
    #[must_use]
    pub fn with_clock(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }

    /// Returns the path that records are written to, unless the trace has ended.
    pub fn path(&self) -> Option<&Path> {
        self.store.path()
    }

    /// If the trace ended early, returns its path and the reason.
    pub fn ended(&self) -> Option<(&Path, &str)> {
        self.store.ended()
    }

    pub fn kept(&self) -> Option<Vec<u8>> {
        self.store.kept()
    }

    pub fn now(&self) -> Duration {
        (self.clock)()
    }

    /// Writes a record. `fields` adds its fields.
    pub fn record(&mut self, kind: Kind, name: &str, fields: impl FnOnce(&mut dyn Visitor)) {
        if !self.filter.admits(kind) || self.store.path().is_none() {
            return;
        }
        let now = self.now();
        self.line.clear();
        let filter = &self.filter;
        let wanted = |to: &mut dyn Visitor| match filter.is_about_fields() {
            false => {
                fields(to);
                true
            }
            true => {
                let mut filtered = FieldFilter::new(filter, to);
                fields(&mut filtered);
                filtered.admits()
            }
        };
        let wanted = match self.format {
            TraceFormat::Text => wanted(&mut TextLine::begin(&mut self.line, now, &self.device, kind, name)),
            TraceFormat::Json => {
                let mut line = JsonLine::begin(&mut self.line, now, &self.device, kind, name);
                let wanted = wanted(&mut line);
                line.end();
                wanted
            }
        };
        if wanted {
            self.line.push('\n');
            self.store.push(self.line.as_bytes());
        }
    }

    /// Writes a record of an event that a peer can trigger arbitrarily often, unless the event's group has exceeded its
    /// rate limit. `fields` adds the fields that differ within the group.
    pub fn record_repeated(&mut self, now: Instant, group: Group, fields: impl FnOnce(&mut dyn Visitor)) {
        if !self.filter.admits(group.kind) || self.store.path().is_none() {
            return;
        }
        self.handle_deadline(now);
        if self.repeats.admit(now, group) {
            self.record(group.kind, group.name, |to| {
                group.show_object(to);
                fields(to);
                group.show_reason(to);
            });
        }
    }

    /// Returns the time at which [`Trace::handle_deadline`] will next report suppressed records.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.repeats.deadline()
    }

    /// Reports how many records were suppressed in periods that have ended by `now`, if any.
    pub fn handle_deadline(&mut self, now: Instant) {
        let suppressed = self.repeats.end_at(now);
        self.report_suppressed(suppressed);
    }

    /// Ends the trace: reports any suppressed records that have not been reported yet, and flushes.
    pub fn finish(&mut self) {
        let suppressed = self.repeats.end();
        self.report_suppressed(suppressed);
        self.flush();
    }

    fn report_suppressed(&mut self, suppressed: Vec<(Group, u64)>) {
        for (group, count) in suppressed {
            self.record(group.kind, group.name, |to| {
                group.show_object(to);
                group.show_reason(to);
                count.show("suppressed", to);
            });
        }
    }

    /// Flushes buffered records to the operating system. Call it when idle.
    pub fn flush(&mut self) {
        self.store.flush();
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { store, device, format, .. } = self;
        let mut debug = f.debug_struct("Trace");
        debug.field("store", store).field("device", device).field("format", format).finish_non_exhaustive()
    }
}

/// Appends at most [`MAX_BYTES`] of `bytes` in hexadecimal, and the number of bytes omitted.
fn push_hex(line: &mut String, bytes: &[u8]) {
    use fmt::Write as _;
    let (shown, omitted) = bytes.split_at(bytes.len().min(MAX_BYTES));
    // Writing to a string cannot fail.
    for byte in shown {
        let _ = write!(line, "{byte:02x}");
    }
    if !omitted.is_empty() {
        let _ = write!(line, "...+{}", omitted.len());
    }
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests;
