//! Prepares log lines for writing. Because a guest or a peer may control a line's content, lines are truncated to
//! [`MAX_LEN`] and count against the number of bytes that their thread may log. [`Line`] describes the exceptions.

use std::io::{self, Write};

use serde_json::Value;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

use super::log;
use super::non_blocking::NonBlockingWriter;
use super::subscriber::LogFormat;

/// Maximum length of a line in bytes, without its line feed.
pub(super) const MAX_LEN: usize = 2048;

/// Log target of a panic, whose backtrace is not truncated.
pub(super) const PANIC: &str = "device::panic";

/// Maximum lengths of the strings in a truncated JSON line, tried in turn until the line is short enough.
const STRING_LENS: [usize; 3] = [512, 128, 32];

/// A factory that creates a writer for each line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lines {
    writer: &'static NonBlockingWriter,
    format: LogFormat,
}

impl Lines {
    pub(super) const fn to(writer: &'static NonBlockingWriter, format: LogFormat) -> Self {
        Self { writer, format }
    }
}

/// A writer for one log line. The line must be written in a single call.
#[derive(Debug)]
pub(super) struct Line {
    lines: Lines,
    /// Whether the line is truncated to [`MAX_LEN`]. This applies to all lines except panics.
    is_bounded: bool,
    /// Whether the line counts against the byte allowance. Panics do not count. Lines below the info level do not count
    /// either, since only the operator can enable them.
    is_counted: bool,
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line { lines: *self, is_bounded: true, is_counted: true }
    }

    fn make_writer_for(&'a self, of: &Metadata<'_>) -> Line {
        let is_panic = of.target() == PANIC;
        Line { lines: *self, is_bounded: !is_panic, is_counted: !is_panic && *of.level() <= Level::INFO }
    }
}

impl Write for Line {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let cut = (self.is_bounded && line.len() > MAX_LEN + 1).then(|| cut(line, self.lines.format));
        let line_to_write = cut.as_deref().unwrap_or(line);
        if self.is_counted {
            log::count(line_to_write.len());
        }
        self.lines.writer.push(line_to_write);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Truncates a line and appends the number of bytes removed.
fn cut(line: &[u8], format: LogFormat) -> Vec<u8> {
    let mut short = match (format, serde_json::from_slice::<Value>(line)) {
        (LogFormat::Json, Ok(whole)) => STRING_LENS
            .iter()
            .map(|len| {
                let mut whole = whole.clone();
                cut_strings(&mut whole, *len);
                whole.to_string()
            })
            .find(|line| line.len() <= MAX_LEN)
            .unwrap_or_else(|| "{}".to_owned()),
        _ => cut_text(String::from_utf8_lossy(line).trim_end(), MAX_LEN - 32),
    };
    short.push('\n');
    short.into_bytes()
}

fn cut_text(text: &str, len: usize) -> String {
    let kept = text.floor_char_boundary(len);
    match text.len() - kept {
        0 => text.to_owned(),
        missing => format!("{} ({missing} more bytes)", &text[..kept]),
    }
}

fn cut_strings(value: &mut Value, len: usize) {
    match value {
        Value::String(text) => *text = cut_text(text, len),
        Value::Array(values) => values.iter_mut().for_each(|value| cut_strings(value, len)),
        Value::Object(values) => values.values_mut().for_each(|value| cut_strings(value, len)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::super::log::{BURST_LEN, Site};
    use super::*;

    /// Number of truncated lines that exhaust the byte allowance, even if it is partly refilled during the test.
    const LINES: u64 = BURST_LEN / MAX_LEN as u64 + 100;

    /// Logs [`LINES`] lines of twice the maximum length on a new thread. Returns the first line and whether the thread
    /// may log another line.
    fn log_long_lines(log: fn(&str)) -> (String, bool) {
        let (reader, sink) = UnixStream::pair().unwrap();
        let writer: &'static NonBlockingWriter = Box::leak(Box::new(NonBlockingWriter::start(sink).unwrap()));
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(Level::DEBUG)
            .with_ansi(false)
            .with_writer(Lines::to(writer, LogFormat::Text))
            .finish();
        let work = move || {
            let text = "x".repeat(2 * MAX_LEN);
            tracing::subscriber::with_default(subscriber, || (0..LINES).for_each(|_| log(&text)));
            Site::new().admit().is_some()
        };
        let may_log = thread::spawn(work).join().unwrap();
        let mut first = String::new();
        BufReader::new(reader).read_line(&mut first).unwrap();
        (first, may_log)
    }

    #[test]
    fn info_lines_are_truncated_and_counted() {
        let (line, may_log) = log_long_lines(|text| tracing::info!("{text}"));
        assert!(line.len() <= MAX_LEN + 1 && line.ends_with(" more bytes)\n"), "{line}");
        assert!(!may_log);
    }

    #[test]
    fn debug_lines_and_panics_are_not_counted() {
        let (line, may_log) = log_long_lines(|text| tracing::debug!("{text}"));
        assert!(line.len() <= MAX_LEN + 1 && line.ends_with(" more bytes)\n"), "{line}");
        assert!(may_log);
        let (line, may_log) = log_long_lines(|text| tracing::error!(target: PANIC, "{text}"));
        assert!(line.len() > 2 * MAX_LEN, "a panic must be logged in full");
        assert!(may_log);
    }

    #[test]
    fn long_line_is_truncated_with_note() {
        let line = format!("WARN device: driver {}\n", "\u{e4}".repeat(8192));
        let short = String::from_utf8(cut(line.as_bytes(), LogFormat::Text)).unwrap();
        assert!(short.len() <= MAX_LEN && short.starts_with("WARN device: driver \u{e4}"), "{short}");
        assert!(short.ends_with(" more bytes)\n"), "{short}");
    }

    #[test]
    fn truncated_json_line_stays_valid() {
        let fields = serde_json::json!({ "message": format!("driver {}", "x".repeat(8192)), "qpn": 7 });
        let line = serde_json::json!({ "level": "INFO", "fields": fields }).to_string() + "\n";
        let short = cut(line.as_bytes(), LogFormat::Json);
        assert!(short.len() <= MAX_LEN + 1 && short.ends_with(b"\n"), "{}", short.len());
        let short: Value = serde_json::from_slice(&short).unwrap();
        assert_eq!((&short["level"], &short["fields"]["qpn"]), (&"INFO".into(), &7.into()));
        let message = short["fields"]["message"].as_str().unwrap();
        assert!(message.starts_with("driver xxx") && message.ends_with(" more bytes)"), "{message}");
    }
}
