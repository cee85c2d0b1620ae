//! Constructors for errors with a specific [`FailureKind`]. All other errors have the kind [`FailureKind::Other`].

use crate::wire::{Failure, FailureKind};

/// Returns an error for a step that refers to an unknown object or requests something impossible.
pub(crate) fn bad_step(message: impl Into<String>) -> anyhow::Error {
    Failure::new(FailureKind::BadStep, message).into()
}

/// Returns an error for an event that did not occur in time.
pub(crate) fn timeout(message: impl Into<String>) -> anyhow::Error {
    Failure::new(FailureKind::Timeout, message).into()
}

/// Returns an error for memory or a completion with the wrong content.
pub(crate) fn mismatch(message: impl Into<String>) -> anyhow::Error {
    Failure::new(FailureKind::Mismatch, message).into()
}

/// Converts an error to a failure. The message includes all causes. The kind is that of the outermost [`Failure`] in
/// the chain, or [`FailureKind::Other`] if the chain contains none.
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
    fn adding_context_preserves_failure_kind() {
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
