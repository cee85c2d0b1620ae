//! Short ways to make a [`Failure`] of a known kind; any other error becomes [`FailureKind::Other`] at the edge.

use crate::wire::{Failure, FailureKind};

/// The step asks for something that does not exist or cannot be done.
pub(crate) fn bad_step(message: impl Into<String>) -> anyhow::Error {
    Failure::new(FailureKind::BadStep, message).into()
}

/// What was waited for did not happen in time.
pub(crate) fn timeout(message: impl Into<String>) -> anyhow::Error {
    Failure::new(FailureKind::Timeout, message).into()
}

/// Memory or a completion is not what it should be.
pub(crate) fn mismatch(message: impl Into<String>) -> anyhow::Error {
    Failure::new(FailureKind::Mismatch, message).into()
}

/// An error with all its causes, of the kind of the first cause that has one.
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
