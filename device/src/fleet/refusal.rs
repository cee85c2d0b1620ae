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
    #[error("the host does not let it start: {0}")]
    Host(#[from] io::Error),
    #[error("there is no device {0}")]
    NoDevice(u16),
    #[error("{0} has been removed, and has not ended yet")]
    Leaving(String),
    #[error("{0} did not end within {s} s: it is removed when it does", s = ENDING.as_secs())]
    Hung(String),
    #[error("{key}: {name} cannot be made anew, for its client came with --fd")]
    OnlyClient { key: String, name: String },
    #[error("no file was named when hcad started")]
    NoFile,
    #[error("cannot read {}: {error}{hint}", path.display())]
    Unreadable { path: PathBuf, error: io::Error, hint: &'static str },
}

/// What to do where confinement keeps the process from its own file.
pub(super) const HINT: &str = ", for confinement lets it be read only while it is the same file: `hcactl reload` hands over \
                               the one that is there now, and `confinement.readable` may name its folder";

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
