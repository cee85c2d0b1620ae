//! Progress of long operations. On a terminal, it is shown in lines that are updated in place. Otherwise, it is logged.

use std::io::{self, IsTerminal as _, Write};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Interval at which the spinner is redrawn.
const TICK: Duration = Duration::from_millis(120);
/// Minimum interval between two log lines about the same download.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

static LINES: LazyLock<MultiProgress> = LazyLock::new(|| {
    let target =
        if io::stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    MultiProgress::with_draw_target(target)
});

/// An operation's progress. On a terminal, its line disappears on drop.
#[derive(Debug)]
pub struct Line {
    bar: ProgressBar,
    name: String,
    begun: Instant,
    logged: Mutex<Instant>,
}

impl Line {
    /// Starts a progress line for the operation `name`.
    pub fn begin(name: impl Into<String>) -> Self {
        let (name, begun) = (name.into(), Instant::now());
        let style = ProgressStyle::with_template("{spinner} {prefix:15} {msg} ({elapsed})");
        let bar = LINES.add(ProgressBar::new_spinner());
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        bar.set_prefix(name.clone());
        bar.enable_steady_tick(TICK);
        Self { bar, name, begun, logged: Mutex::new(begun) }
    }

    /// Shows the current step on a terminal. Without a terminal, does nothing.
    pub fn show(&self, step: impl Into<String>) {
        self.bar.set_message(step.into());
    }

    /// Shows the current step on a terminal. Without a terminal, logs it.
    pub fn step(&self, step: impl Into<String>) {
        let step = step.into();
        if self.bar.is_hidden() {
            let name = &self.name;
            tracing::info!("{name}: {step}");
        }
        *self.logged.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        self.show(step);
    }

    /// Shows the progress of a download on a terminal. Without a terminal, logs it at most once per `LOG_INTERVAL`.
    pub fn bytes(&self, done: u64, all: u64) {
        let amount = format!("{} of {} MiB", mebibytes(done.min(all)), mebibytes(all));
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if self.bar.is_hidden() && logged.elapsed() >= LOG_INTERVAL {
            *logged = Instant::now();
            let (component, seconds) = (&self.name, self.begun.elapsed().as_secs_f64());
            tracing::info!("{component}: downloaded {amount} in {seconds:.0} s");
        }
        self.show(amount);
    }

    /// Logs the result and duration of the operation.
    pub fn done(&self, result: &str) {
        let (component, seconds) = (&self.name, self.begun.elapsed().as_secs_f64());
        tracing::info!("{component}: {result} in {seconds:.0} s");
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Converts bytes to MiB, rounded up.
pub fn mebibytes(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}

/// Standard error as a log destination. Progress lines are hidden while a log line is written.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LINES.suspend(|| io::stderr().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
