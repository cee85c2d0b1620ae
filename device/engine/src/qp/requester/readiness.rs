//! Whether the responder has a receive request for the message that wants one, as far as its RNR NAKs tell.

use crate::Instant;

/// See the [module](self). Progress always leads back to `Ready`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Readiness {
    /// It has not said otherwise since the last progress.
    Ready,
    /// It was not ready: nothing is sent until then.
    Refused { until: Instant },
    /// The wait is over, and nothing was sent since.
    Due,
    /// It was asked again: few packets are sent until it answers, since those behind a refused one are dropped.
    Asked,
}

impl Readiness {
    /// Whether nothing may be sent.
    pub(super) fn is_waiting(self) -> bool {
        matches!(self, Self::Refused { .. })
    }

    /// Whether an RNR NAK can only be a copy of the one that was obeyed, or answer what was sent before it.
    pub(super) fn is_told(self) -> bool {
        matches!(self, Self::Refused { .. } | Self::Due)
    }

    /// End of the wait.
    pub(super) fn deadline(self) -> Option<Instant> {
        match self {
            Self::Refused { until } => Some(until),
            Self::Ready | Self::Due | Self::Asked => None,
        }
    }

    /// Time has passed.
    pub(super) fn on_time(&mut self, now: Instant) {
        if self.deadline().is_some_and(|until| until <= now) {
            *self = Self::Due;
        }
    }

    /// A packet is sent.
    pub(super) fn on_sent(&mut self) {
        if *self != Self::Ready {
            *self = Self::Asked;
        }
    }
}
