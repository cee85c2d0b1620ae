//! The DCQCN notification point (NP): sends congestion notifications.

use std::time::Duration;

use crate::Instant;

/// Minimum time between notifications for a flow, so that the sender has time to react. The DCQCN paper and hardware
/// adapters use the same value.
const INTERVAL: Duration = Duration::from_micros(50);

/// Decides when to send a congestion notification to the peer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Notifier {
    due: bool,
    last_sent_at: Option<Instant>,
}

impl Notifier {
    /// Records that a marked data packet arrived.
    pub(crate) fn on_marked(&mut self, now: Instant) {
        self.due |= self.last_sent_at.is_none_or(|at| now >= at + INTERVAL);
    }

    pub(crate) fn is_due(&self) -> bool {
        self.due
    }

    pub(crate) fn on_sent(&mut self, now: Instant) {
        (self.due, self.last_sent_at) = (false, Some(now));
    }
}
