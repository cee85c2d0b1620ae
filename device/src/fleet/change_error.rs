//! Errors from changes to the set of devices.

use std::io;

use thiserror::Error;

use super::STOP_TIMEOUT;
use crate::builder::MakeError;
use crate::config::ConfigError;

/// Why a change to the set of devices failed.
#[derive(Debug, Error)]
pub(super) enum ChangeError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("{}", causes(.0))]
    Make(#[from] MakeError),
    #[error("cannot start the device: {0}")]
    Host(#[from] io::Error),
    #[error("device {0} does not exist")]
    NoDevice(u16),
    #[error("{0} was removed but has not stopped yet")]
    Leaving(String),
    #[error("{0} did not stop within {s} s and will be removed when it stops", s = STOP_TIMEOUT.as_secs())]
    Hung(String),
    #[error("{key}: {name} cannot be recreated because its connection was passed with --fd")]
    OnlyClient { key: String, name: String },
}

/// Hint that is added to the error if the sandbox may have denied access to the configuration file.
pub(super) const HINT: &str = "; the sandbox allows hcad to read only the file that existed at startup. Use `hcactl reload`, which sends the current file, or add the directory of the file to `confinement.readable`";

/// Returns an error and its causes on one line.
pub(super) fn causes(error: &MakeError) -> String {
    let mut line = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        line += &format!(": {cause}");
        source = cause.source();
    }
    line
}
