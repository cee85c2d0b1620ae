//! Constructors for errors of a known [`FailureKind`]. All other errors become [`FailureKind::Other`].

use crate::wire::{Failure, FailureKind};

/// Returns the error of a step that refers to an unknown object or requests something impossible.
pub(crate) fn bad_step(message: impl Into<String>) -> anyhow::Error {
    Failure::new(FailureKind::BadStep, message).into()
}

/// Returns the error of an event that did not occur in time.
pub(crate) fn timeout(message: impl Into<String>) -> anyhow::Error {
    Failure::new(FailureKind::Timeout, message).into()
}

/// Returns the error of memory or a completion that has the wrong content.
pub(crate) fn mismatch(message: impl Into<String>) -> anyhow::Error {
    Failure::new(FailureKind::Mismatch, message).into()
}

/// Converts an error to a failure whose message includes all causes. The failure has the kind of the outermost cause
/// that is a [`Failure`], or [`FailureKind::Other`].
pub(crate) fn into_failure(error: &anyhow::Error) -> Failure {
    let kind = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<Failure>())
        .map_or(FailureKind::Other, |failure| failure.kind);
    Failure::new(kind, format!("{error:#}"))
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[test]
    fn added_context_keeps_failure_kind() {
        let error = Err::<(), _>(timeout("no completion")).context("flow 0").unwrap_err();
        let failure = into_failure(&error);
        assert_eq!(failure.kind, FailureKind::Timeout);
        assert_eq!(failure.message, "flow 0: no completion");
    }

    #[test]
    fn system_error_has_kind_other() {
        let error = anyhow::Error::from(std::io::Error::from_raw_os_error(2));
        assert_eq!(into_failure(&error).kind, FailureKind::Other);
    }
}
