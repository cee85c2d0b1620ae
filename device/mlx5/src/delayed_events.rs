//! Delayed completion events of CQs with moderation enabled.
//!
//! Transmit completions of the netdev are rarely urgent, and the reply to a frame often follows soon. If software has
//! enabled moderation for a CQ, events for its successful SQ WQEs are therefore delayed until another event is written
//! to the same EQ, the CQ has [`MAX_DELAYED_ENTRIES`] unread entries, or a millisecond has passed. A frame and its
//! reply then trigger one interrupt instead of two. After an event has timed out, its EQ's events are written
//! immediately until an urgent event has been written.
//!
//! # Spec
//! mlx5 interface, section 9.1: moderation.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use engine::Instant;
use protocol::ids::{Cqn, Eqn};

/// Number of unread entries at which a CQ's event is no longer delayed.
pub const MAX_DELAYED_ENTRIES: u32 = 4;

/// Maximum delay of an event. It exceeds the time that a peer's kernel takes to reply, even in an emulated guest, but
/// is too short to slow down a sender that waits for buffer space.
const TIMEOUT: Duration = Duration::from_millis(1);

/// Delayed events by EQ. Across all entries, each CQN occurs at most once, which bounds the map.
#[derive(Debug, Default)]
pub struct DelayedEvents(BTreeMap<Eqn, Delayed>);

#[derive(Debug)]
enum Delayed {
    /// The events of these CQs must be written by `until`.
    Until { until: Instant, cqns: BTreeSet<Cqn> },
    /// An event timed out. Events are written immediately until [`DelayedEvents::resume`] is called.
    Off,
}

impl DelayedEvents {
    /// Delays a CQ's event. Returns false if the event must be written immediately.
    pub fn delay(&mut self, eqn: Eqn, cqn: Cqn, now: Instant) -> bool {
        let first = || Delayed::Until { until: now + TIMEOUT, cqns: BTreeSet::new() };
        match self.0.entry(eqn).or_insert_with(first) {
            Delayed::Until { cqns, .. } => {
                cqns.insert(cqn);
                true
            }
            Delayed::Off => false,
        }
    }

    /// Drops a CQ's event once the CQ has been destroyed or all its entries have been read.
    pub fn cancel(&mut self, eqn: Eqn, cqn: Cqn) {
        if let Some(Delayed::Until { cqns, .. }) = self.0.get_mut(&eqn)
            && cqns.remove(&cqn)
            && cqns.is_empty()
        {
            self.0.remove(&eqn);
        }
    }

    /// Allows an EQ's events to be delayed again.
    pub fn resume(&mut self, eqn: Eqn) {
        if let Some(Delayed::Off) = self.0.get(&eqn) {
            self.0.remove(&eqn);
        }
    }

    /// Removes and returns the CQs with delayed events for an EQ. Called when another event is written to it.
    pub fn take(&mut self, eqn: Eqn) -> BTreeSet<Cqn> {
        let Some(Delayed::Until { cqns, .. }) = self.0.get_mut(&eqn) else { return BTreeSet::new() };
        let cqns = std::mem::take(cqns);
        self.0.remove(&eqn);
        cqns
    }

    /// Removes and returns the CQs whose events have timed out.
    pub fn take_expired(&mut self, now: Instant) -> Vec<Cqn> {
        let mut expired = Vec::new();
        for delayed in self.0.values_mut() {
            if let Delayed::Until { until, cqns } = delayed
                && *until <= now
            {
                expired.extend(std::mem::take(cqns));
                *delayed = Delayed::Off;
            }
        }
        expired
    }

    /// Returns the time at which [`DelayedEvents::take_expired`] must be called next.
    pub fn deadline(&self) -> Option<Instant> {
        let until = |delayed: &Delayed| match delayed {
            Delayed::Until { until, .. } => Some(*until),
            Delayed::Off => None,
        };
        self.0.values().filter_map(until).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EQN: Eqn = Eqn::new(4);
    const CQN: Cqn = Cqn::new(0x40);

    #[test]
    fn delayed_event_expires_after_timeout() {
        let mut events = DelayedEvents::default();
        assert!(events.delay(EQN, CQN, Instant::ZERO));
        let deadline = events.deadline().unwrap();
        assert_eq!(deadline, Instant::ZERO + TIMEOUT);
        assert!(events.delay(EQN, Cqn::new(0x41), deadline), "the first event determines the timeout");
        assert_eq!(events.take_expired(deadline), [CQN, Cqn::new(0x41)]);
        assert_eq!(events.deadline(), None);
    }

    #[test]
    fn timeout_disables_delays_until_resumed() {
        let mut events = DelayedEvents::default();
        assert!(events.delay(EQN, CQN, Instant::ZERO));
        events.take_expired(Instant::ZERO + TIMEOUT);
        assert!(!events.delay(EQN, CQN, Instant::ZERO));
        assert!(events.delay(Eqn::new(5), CQN, Instant::ZERO), "other EQs still delay events");
        assert!(events.take(EQN).is_empty());
        assert!(!events.delay(EQN, CQN, Instant::ZERO));
        events.resume(EQN);
        assert!(events.delay(EQN, CQN, Instant::ZERO));
    }

    #[test]
    fn cancelled_event_does_not_expire() {
        let mut events = DelayedEvents::default();
        assert!(events.delay(EQN, CQN, Instant::ZERO));
        events.cancel(EQN, CQN);
        assert_eq!(events.deadline(), None);
        assert!(events.take_expired(Instant::ZERO + TIMEOUT).is_empty());
    }
}
