//! Deadlines of all QPs in an engine.

use std::collections::BTreeSet;

use crate::Instant;

/// Deadlines ordered by time, at most one per QP. Each QP also stores its registered deadline, so that an update finds
/// the old entry without a search.
///
/// Only an earlier deadline replaces an entry. If a QP's deadline is postponed or no longer needed, its entry stays
/// until it fires, and the QP then registers its current deadline. This saves a tree operation for each
/// acknowledgement, at the cost of one early wake-up per timeout period.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    entries: BTreeSet<(Instant, u32)>,
}

impl Timers {
    /// Ensures that the timer of QP `index` fires no later than `deadline`. `registered` is the deadline stored in the
    /// QP.
    pub(crate) fn schedule(
        &mut self,
        index: u32,
        registered: &mut Option<Instant>,
        deadline: Option<Instant>,
    ) {
        let Some(deadline) = deadline else { return };
        match *registered {
            Some(at) if at <= deadline => {}
            old => {
                if let Some(at) = old {
                    self.entries.remove(&(at, index));
                }
                self.entries.insert((deadline, index));
                *registered = Some(deadline);
            }
        }
    }

    pub(crate) fn cancel(&mut self, index: u32, registered: &mut Option<Instant>) {
        if let Some(at) = registered.take() {
            self.entries.remove(&(at, index));
        }
    }

    /// Removes and returns the next QP whose deadline is due. The caller must clear the deadline stored in the QP.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<u32> {
        let &(at, index) = self.entries.first()?;
        if at > now {
            return None;
        }
        self.entries.pop_first();
        Some(index)
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        self.entries.first().map(|&(at, _)| at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_earlier_deadline_replaces_entry() {
        let at = Instant::from_nanos;
        let (mut timers, mut note) = (Timers::default(), None);
        timers.schedule(7, &mut note, Some(at(10)));
        timers.schedule(7, &mut note, Some(at(20)));
        assert_eq!(timers.next(), Some(at(10)));
        timers.schedule(7, &mut note, Some(at(5)));
        assert_eq!(timers.pop_due(at(4)), None);
        assert_eq!(timers.pop_due(at(5)), Some(7));
        assert_eq!(timers.next(), None);
    }
}
