//! When a peer is told that its data met congestion: DCQCN's notification point.

use std::time::Duration;

use crate::Instant;

/// At most one notification per flow in this time: what a sender needs to react to one, and what the DCQCN paper and
/// adapters use.
const INTERVAL: Duration = Duration::from_micros(50);

/// Whether the peer is to be told that its data meets congestion.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Notifier {
    due: bool,
    told_at: Option<Instant>,
}

impl Notifier {
    /// Marked data of the peer arrived.
    pub(crate) fn on_marked(&mut self, now: Instant) {
        self.due |= self.told_at.is_none_or(|at| now >= at + INTERVAL);
    }

    /// A notification is due.
    pub(crate) fn is_due(&self) -> bool {
        self.due
    }

    /// It was sent.
    pub(crate) fn told(&mut self, now: Instant) {
        (self.due, self.told_at) = (false, Some(now));
    }
}
