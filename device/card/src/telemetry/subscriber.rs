//! Sets up logging to standard error.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic::{self, PanicHookInfo};
use std::sync::OnceLock;
use std::thread;

use schemars::JsonSchema;
use serde::Deserialize;
use tracing_subscriber::filter::{Directive, LevelFilter, ParseError};
use tracing_subscriber::{EnvFilter, reload};

use super::{line, non_blocking};

type SetFilter = dyn Fn(EnvFilter) -> Result<(), reload::Error> + Send + Sync;

static SET_FILTER: OnceLock<Box<SetFilter>> = OnceLock::new();

/// Log settings.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LogConfig {
    /// Log filter: directives such as "info" or "info,device::vfio=debug". The environment variable RUST_LOG
    /// overrides them.
    pub filter: String,
    /// Format of the log lines.
    pub format: LogFormat,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { filter: "info".into(), format: LogFormat::Text }
    }
}

/// Format of the log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// Plain text.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Starts logging to standard error, as configured by `config` and RUST_LOG. Panics are also logged.
///
/// # Errors
/// Fails if a filter directive is invalid. The error message contains the directives.
pub fn init(config: &LogConfig) -> Result<(), String> {
    let (source, directives) = match std::env::var(EnvFilter::DEFAULT_ENV) {
        Ok(directives) => (EnvFilter::DEFAULT_ENV, directives),
        Err(_) => ("log.filter", config.filter.clone()),
    };
    let filter = filter(&directives).map_err(|error| format!("{source} {directives:?}: {error}"))?;
    let writer =
        non_blocking::standard_error().map_err(|error| format!("cannot start the log thread: {error}"))?;
    writer.set_format(config.format);
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(line::Lines::to(writer, config.format))
        .with_ansi(false)
        // By default, `tracing_subscriber` writes its own errors directly to standard error and panics if the write
        // fails.
        .log_internal_errors(false);
    let (set, filter): (_, Box<SetFilter>) = match config.format {
        LogFormat::Text => {
            let builder = builder.with_filter_reloading();
            let handle = builder.reload_handle();
            (builder.try_init(), Box::new(move |filter| handle.reload(filter)))
        }
        LogFormat::Json => {
            let builder = builder.json().with_filter_reloading();
            let handle = builder.reload_handle();
            (builder.try_init(), Box::new(move |filter| handle.reload(filter)))
        }
    };
    set.map_err(|error| error.to_string())?;
    // Logging has just been set up for the first time, so `SET_FILTER` is still empty.
    let _ = SET_FILTER.set(filter);
    panic::set_hook(Box::new(report));
    Ok(())
}

/// Returns the filter that the directives describe. Unless they mention the DNS client, its log is turned off. The
/// client logs every unexpected datagram, which would let anyone on the network flood the log.
fn filter(directives: &str) -> Result<EnvFilter, ParseError> {
    let filter = EnvFilter::try_new(directives)?;
    if directives.contains("hickory") {
        return Ok(filter);
    }
    let off = |target: &str| format!("{target}={}", LevelFilter::OFF).parse::<Directive>();
    Ok(filter.add_directive(off("hickory_net")?).add_directive(off("hickory_resolver")?))
}

/// Replaces the log filter. Returns false if the directives are invalid, RUST_LOG overrides them, or logging has not
/// been set up.
pub fn set_filter(directives: &str) -> bool {
    let is_ours = std::env::var_os(EnvFilter::DEFAULT_ENV).is_none();
    match (SET_FILTER.get(), filter(directives)) {
        (Some(set), Ok(filter)) if is_ours => set(filter).is_ok(),
        _ => false,
    }
}

/// Logs a panic. Unlike the standard library's hook, this hook does not block on standard error.
fn report(panic: &PanicHookInfo<'_>) {
    let thread = thread::current();
    let name = thread.name().unwrap_or("unnamed");
    let location = panic.location().map(tracing::field::display);
    let what = panic.payload_as_str().unwrap_or("payload is not text");
    let backtrace = Backtrace::capture();
    let backtrace =
        (backtrace.status() == BacktraceStatus::Captured).then(|| tracing::field::display(&backtrace));
    tracing::error!(target: line::PANIC, thread = name, location, backtrace, "panic: {what}");
}
