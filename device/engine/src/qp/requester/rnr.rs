//! RNR NAK handling: how long the requester waits after an RNR NAK and how it resumes.

use crate::Instant;

/// State after an RNR NAK. The next acknowledged packet resets it to `Ready`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RnrState {
    /// No RNR NAK has arrived since a packet was last acknowledged.
    Ready,
    /// An RNR NAK was received. Nothing is sent before `until`.
    Waiting { until: Instant },
    /// The wait is over, but nothing has been sent since.
    Expired,
    /// The request was retransmitted. Only a few packets are sent until the responder replies, because the responder
    /// drops packets that follow a rejected one.
    Probing,
}

impl RnrState {
    pub(super) fn is_waiting(self) -> bool {
        matches!(self, Self::Waiting { .. })
    }

    /// Returns whether an RNR NAK must be ignored because it duplicates the one already handled or responds to a packet
    /// sent before the wait.
    pub(super) fn ignores_rnr_nak(self) -> bool {
        matches!(self, Self::Waiting { .. } | Self::Expired)
    }

    pub(super) fn deadline(self) -> Option<Instant> {
        match self {
            Self::Waiting { until } => Some(until),
            Self::Ready | Self::Expired | Self::Probing => None,
        }
    }

    /// Enters `Expired` if the wait has ended by `now`. Returns true if the state changed.
    pub(super) fn advance_to(&mut self, now: Instant) -> bool {
        let is_over = self.deadline().is_some_and(|until| until <= now);
        if is_over {
            *self = Self::Expired;
        }
        is_over
    }

    pub(super) fn on_sent(&mut self) {
        if *self != Self::Ready {
            *self = Self::Probing;
        }
    }
}
