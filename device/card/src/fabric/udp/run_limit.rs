//! Limit on runs of frames to one peer, set when the kernel rejects a run.

use std::time::Duration;

use engine::Instant;

/// Time after which a run is tried again. A failed attempt costs one system call.
const RETRY_AFTER: Duration = Duration::from_secs(60);

/// Minimum length of the frames that the kernel rejected in runs, and the time of the last rejection.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::fabric) struct RunLimit {
    refused: Option<(usize, Instant)>,
}

impl RunLimit {
    /// Returns whether frames of up to `len` bytes may be sent in a run.
    pub(super) fn permits(&self, now: Instant, len: usize) -> bool {
        self.refused.is_none_or(|(least, at)| len < least || now.saturating_since(at) >= RETRY_AFTER)
    }

    /// Handles the rejection of a run. For [`RETRY_AFTER`], frames of at least `len` bytes are sent one by one. Returns
    /// whether this is the first rejection.
    pub(super) fn refuse(&mut self, now: Instant, len: usize) -> bool {
        let before = self.refused.replace((len, now));
        if let Some((least, at)) = before
            && now.saturating_since(at) < RETRY_AFTER
        {
            self.refused = Some((len.min(least), now));
        }
        before.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn refused_run_is_retried_after_pause() {
        let mut limit = RunLimit::default();
        assert!(limit.permits(at(0), 9000));
        assert!(limit.refuse(at(1), 4000), "the first rejection is logged");
        assert!(limit.permits(at(2), 3999) && !limit.permits(at(2), 4000));
        assert!(!limit.refuse(at(2), 2000), "only the first rejection is logged");
        assert!(limit.permits(at(3), 1999) && !limit.permits(at(61), 2000));
        assert!(limit.permits(at(62), 9000));
        assert!(!limit.refuse(at(62), 4000));
        assert!(limit.permits(at(63), 3999), "a limit that has expired no longer counts");
    }
}
