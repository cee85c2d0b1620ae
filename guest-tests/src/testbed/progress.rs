//! What is under way, for whoever waits: lines that change on a terminal, and nothing elsewhere, where the log says it.

use std::io::{self, IsTerminal as _, Write};
use std::sync::LazyLock;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How often a line moves while nothing happens.
const TICK: Duration = Duration::from_millis(120);

static LINES: LazyLock<MultiProgress> = LazyLock::new(|| {
    let target =
        if io::stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    MultiProgress::with_draw_target(target)
});

/// A line for something that goes on. It goes when this is dropped.
#[derive(Debug)]
pub struct Line(ProgressBar);

impl Line {
    /// A line that begins with `what`.
    pub fn begin(what: impl Into<String>) -> Self {
        let style = ProgressStyle::with_template("{spinner} {prefix:12} {msg} ({elapsed})");
        let bar = LINES.add(ProgressBar::new_spinner());
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        bar.set_prefix(what.into());
        bar.enable_steady_tick(TICK);
        Self(bar)
    }

    /// Says how far it is.
    pub fn say(&self, message: impl Into<String>) {
        self.0.set_message(message.into());
    }

    /// Says how many bytes there are of how many.
    pub fn say_bytes(&self, done: u64, all: u64) {
        let mebibytes = |bytes: u64| bytes.div_ceil(1 << 20);
        self.say(format!("{} of {} MiB", mebibytes(done.min(all)), mebibytes(all)));
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Standard error for a log: lines that change make room for it.
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
