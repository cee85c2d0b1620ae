//! Where log lines go.

use tracing_subscriber::EnvFilter;

use crate::config::{LogConfig, LogFormat};

/// Sends log lines to standard error, as `config` says unless RUST_LOG says otherwise.
///
/// # Errors
/// A filter directive is malformed; the text names it.
pub fn init(config: &LogConfig) -> Result<(), String> {
    let directives = std::env::var(EnvFilter::DEFAULT_ENV).unwrap_or_else(|_| config.filter.clone());
    let filter =
        EnvFilter::try_new(&directives).map_err(|error| format!("log.filter {directives:?}: {error}"))?;
    let builder =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false);
    let set = match config.format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    set.map_err(|error| error.to_string())
}
