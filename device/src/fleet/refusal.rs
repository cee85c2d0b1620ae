//! Why which devices there are does not change.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use super::ENDING;
use crate::blueprint::MakeError;
use crate::config::ConfigError;

/// Why the devices stay those that they are.
#[derive(Debug, Error)]
pub(super) enum Refusal {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("{}", causes(.0))]
    Make(#[from] MakeError),
    #[error("cannot allocate host resources: {0}")]
    Host(#[from] io::Error),
    #[error("device {0} does not exist")]
    NoDevice(u16),
    #[error("{0} was removed and is still shutting down")]
    Leaving(String),
    #[error("{0} did not stop within {s} s; it is removed when it stops", s = ENDING.as_secs())]
    Hung(String),
    #[error("{key}: {name} cannot be recreated, because its connection was passed with --fd")]
    OnlyClient { key: String, name: String },
    #[error("hcad was started without a configuration file")]
    NoFile,
    #[error("cannot read {}: {error}{hint}", path.display())]
    Unreadable { path: PathBuf, error: io::Error, hint: &'static str },
}

/// What to do where confinement keeps the process from its own file.
pub(super) const HINT: &str = "; the sandbox allows reading only the original file. Use `hcactl reload`, which passes the current file, or add its directory to `confinement.readable`";

/// An error with what led to it, in one line.
pub(super) fn causes(error: &MakeError) -> String {
    let mut line = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        line += &format!(": {cause}");
        source = cause.source();
    }
    line
}
