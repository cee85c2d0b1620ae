//! The `hcad replay` command.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use card::frontend::{FrontendVisitor, Interface};
use card::record::{Finish, Header, ReadError, Reader, ReplaySource};
use card::replay::{Next, Outcome, Report, Step, clock, play};
use card::sanitize;
use card::telemetry::store::{Keep, Opening};
use card::telemetry::trace::{STANDARD_ERROR, Trace, TraceFormat};
use thiserror::Error;

use crate::builder::{self, ConfiguredDevice};
use crate::config::{Config, ConfigError};
use crate::descriptors;

const BUFFER_LEN: usize = 1 << 20;

#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Number of steps after which the replay stops.
    pub until: Option<u64>,
    pub trace: Option<(PathBuf, TraceFormat)>,
    /// Whether to print each step and the device's outputs.
    pub steps: bool,
    /// Whether to wait for a line on standard input before each step.
    pub wait: bool,
}

/// Why a replay failed or found a difference.
#[derive(Debug, Error)]
pub enum ReplayError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: ReadError },
    /// The recorded device cannot be created.
    #[error("{}: the recorded configuration is invalid", path.display())]
    Config { path: PathBuf, source: ConfigError },
    /// The trace cannot be written.
    #[error("cannot write {}", path.display())]
    Trace { path: PathBuf, source: io::Error },
    /// The file for the trace is the session record.
    #[error("cannot write a trace to {}, because it is the session record", path.display())]
    TraceToRecord { path: PathBuf },
    #[error("{}: the replay differs from the recording", path.display())]
    Differs { path: PathBuf },
    /// The recording is damaged and was replayed up to the damaged part.
    #[error("{}: the recording is damaged", path.display())]
    Damaged { path: PathBuf },
    /// Standard output cannot be written to.
    #[error("cannot write to standard output")]
    Output(#[from] io::Error),
}

/// Replays a file and prints the result to `out`. If the reader of `out` closes it, the replay ends without an error.
///
/// # Errors
/// Fails if the recording cannot be replayed or if the replay differs from it.
pub fn run(path: &Path, options: &Options, out: &mut dyn Write) -> Result<(), ReplayError> {
    match replay(path, options, out) {
        // The reader, such as `head`, does not need more output.
        Err(ReplayError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        ended => ended,
    }
}

fn replay(path: &Path, options: &Options, out: &mut dyn Write) -> Result<(), ReplayError> {
    let unreadable = |source| ReplayError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(|error| unreadable(error.into()))?;
    // Opening the trace truncates its file.
    if let Some((trace, _)) = &options.trace
        && trace != Path::new(STANDARD_ERROR)
        && is_at(&file, trace)
    {
        return Err(ReplayError::TraceToRecord { path: trace.clone() });
    }
    let reader = Reader::new(Box::new(BufReader::with_capacity(BUFFER_LEN, file))).map_err(unreadable)?;
    let header = reader.header().clone();
    let invalid = |source| ReplayError::Config { path: path.to_owned(), source };
    let config = Config::of_device(header.configuration.clone()).map_err(invalid)?;
    let [device] = config.devices.as_slice() else { return Err(unreadable(ReadError::NoRecord)) };
    // The device needs one eventfd per interrupt vector.
    descriptors::raise_limit();

    let name = sanitize::text(&header.device);
    let trace = options.trace.as_ref().map(|(path, format)| {
        Trace::open(&Keep::file(path), Opening::Replace, *format, &name)
            .map(|trace| trace.with_clock(clock::now))
            .map_err(|source| ReplayError::Trace { path: path.clone(), source })
    });
    let mut source = ReplaySource::new(reader);
    if options.steps {
        source.keep_log();
    }
    writeln!(out, "{}", title(path, &header, device.frontend.key()))?;
    if header.hcad != env!("CARGO_PKG_VERSION") {
        writeln!(
            out,
            "recorded by a different version; hcad {} may behave differently",
            env!("CARGO_PKG_VERSION")
        )?;
    }
    let subject = ConfiguredDevice::of(device);
    let run = Run { subject, source, trace: trace.transpose()?, options, out };
    let report = device.frontend.make(&builder::setup(device), run)?;
    writeln!(out, "{report}")?;
    match report.outcome {
        Outcome::Same(Finish::Unreadable(_)) => Err(ReplayError::Damaged { path: path.to_owned() }),
        Outcome::Same(_) | Outcome::Stopped => Ok(()),
        _ => Err(ReplayError::Differs { path: path.to_owned() }),
    }
}

/// Returns the first line of the output. It describes the recording.
fn title(path: &Path, Header { device, hcad, .. }: &Header, interface: &str) -> String {
    sanitize::text(&format!("{}: {device} ({interface}) of hcad {hcad}", path.display()))
}

/// Returns whether `path` refers to this file, possibly by another name.
fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::metadata(path)) {
        (Ok(file), Ok(there)) => (file.dev(), file.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}

/// All parts of a replay except the front-end.
struct Run<'a> {
    subject: ConfiguredDevice<'a>,
    source: ReplaySource,
    trace: Option<Trace>,
    options: &'a Options,
    out: &'a mut dyn Write,
}

impl FrontendVisitor for Run<'_> {
    type Output = io::Result<Report>;

    fn visit<F: Interface>(self, frontend: impl Fn() -> F + Send + 'static) -> Self::Output {
        let Self { subject, source, trace, options, out } = self;
        let mut hca = subject.hca(frontend(), None)?;
        hca.set_trace(trace);
        let mut failed = Ok(());
        let report = play(&mut hca, source, |step| {
            if options.until.is_some_and(|until| step.counts.steps > until) {
                return Next::Stop;
            }
            if options.steps {
                failed = show(step, out);
            }
            if options.wait && failed.is_ok() {
                failed = wait();
            }
            if failed.is_ok() { Next::Go } else { Next::Stop }
        });
        failed?;
        show_outputs(&report.rest, out)?;
        Ok(report)
    }
}

fn show(step: &Step<'_>, out: &mut dyn Write) -> io::Result<()> {
    show_outputs(&step.before, out)?;
    let input = sanitize::text(&step.input.to_string());
    writeln!(out, "{} {:.6} {input}", step.counts.steps, step.counts.span.as_secs_f64())?;
    out.flush()
}

fn show_outputs(outputs: &[String], out: &mut dyn Write) -> io::Result<()> {
    outputs.iter().try_for_each(|output| writeln!(out, "    {}", sanitize::text(output)))
}

/// Waits for a line. At the end of standard input, returns immediately.
fn wait() -> io::Result<()> {
    io::stdin().lock().read_line(&mut String::new()).map(drop)
}

#[cfg(test)]
mod tests {
    use card::record::Recorder;
    use card::telemetry::testing::Written;

    use super::*;

    /// A pipe whose reader closes it after a number of writes.
    struct ClosedAfter(usize);

    impl Write for ClosedAfter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self.0.checked_sub(1).ok_or(io::ErrorKind::BrokenPipe)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns a session record without steps.
    fn empty_record() -> Vec<u8> {
        let device = serde_json::json!({
            "id": 1, "frontend": { "jingzhao": {} }, "fabric": { "local": {} }
        });
        let header = Header::new("hca1", device.as_object().unwrap().clone());
        let file = Written::default();
        drop(Recorder::to(Box::new(file.clone()), Path::new("record"), &header, u64::MAX).unwrap());
        file.bytes()
    }

    #[test]
    fn closed_output_ends_replay_without_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record");
        fs::write(&path, empty_record()).unwrap();
        let options = Options { steps: true, ..Options::default() };
        run(&path, &options, &mut ClosedAfter(0)).unwrap();
        run(&path, &options, &mut ClosedAfter(1)).unwrap();
    }

    #[test]
    fn trace_does_not_overwrite_replayed_record() {
        let folder = tempfile::tempdir().unwrap();
        let [path, link, trace] = ["record", "link", "trace"].map(|name| folder.path().join(name));
        let record = empty_record();
        fs::write(&path, &record).unwrap();
        fs::hard_link(&path, &link).unwrap();
        let traced = |trace: &Path| {
            let trace = Some((trace.to_owned(), TraceFormat::Text));
            run(&path, &Options { trace, ..Options::default() }, &mut Vec::new())
        };
        for same in [&path, &link] {
            assert!(matches!(traced(same), Err(ReplayError::TraceToRecord { .. })), "{}", same.display());
            assert_eq!(fs::read(&path).unwrap(), record);
        }
        traced(&trace).unwrap();
        traced(&trace).unwrap();
    }

    #[test]
    fn readme_shows_first_line_of_output() {
        let readme = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md")).unwrap();
        let path = Path::new("logs/hcad-a.record");
        let header = Header::new("hca1", serde_json::Map::new());
        let lines = format!("$ hcad replay {}\n{}\n", path.display(), title(path, &header, "mthca"));
        assert!(readme.contains(&lines), "README does not contain {lines}");
    }

    #[test]
    fn control_characters_in_recording_are_not_printed() {
        let device = serde_json::json!({
            "id": 1, "frontend": { "jingzhao": {} }, "fabric": { "local": {} }
        });
        let configuration = device.as_object().unwrap().clone();
        let header = Header {
            hcad: "9\u{1b}]0;x\u{7}\nno differences".to_owned(),
            ..Header::new("\u{1b}[2J\u{9b}hca1\r\n", configuration)
        };
        let file = Written::default();
        drop(Recorder::to(Box::new(file.clone()), Path::new("record"), &header, u64::MAX).unwrap());
        let mut record = file.bytes();
        let run = |record: &[u8]| {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("record");
            std::fs::write(&path, record).unwrap();
            let mut out = Vec::new();
            let ended = run(&path, &Options { steps: true, ..Options::default() }, &mut out);
            (String::from_utf8(out).unwrap(), ended)
        };
        let (out, ended) = run(&record);
        assert!(ended.is_ok() && out.contains("\\u{1b}[2J\\u{9b}hca1\\r\\n"), "{out}");
        assert!(out.chars().all(|char| char == '\n' || !char.is_control()), "{out:?}");
        assert_eq!(out.lines().filter(|line| line.starts_with("no differences")).count(), 1, "{out}");

        // The replay of a damaged recording must fail, even if everything before the damage matches.
        *record.last_mut().unwrap() ^= 1;
        let (out, ended) = run(&record);
        assert!(
            matches!(ended, Err(ReplayError::Damaged { .. })) && out.contains("is damaged at byte"),
            "{out}"
        );
    }
}
