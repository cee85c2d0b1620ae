//! Deadlines of many QPs.

use std::collections::BTreeSet;

use crate::Instant;

/// At most one pending deadline per QP, ordered by time. The QP remembers its own registered deadline, so that a change
/// finds the old entry without a search.
///
/// Deadlines only ever move forward in place: one that became later, or was dropped, stays until it fires and is then
/// looked at again. An acknowledged packet thus costs no tree operation, and an early wake-up per timeout period is the
/// price.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    entries: BTreeSet<(Instant, u32)>,
}

impl Timers {
    /// Makes sure that QP `index` fires at `wanted` or before. `registered` is the QP's own note.
    pub(crate) fn want(&mut self, index: u32, registered: &mut Option<Instant>, wanted: Option<Instant>) {
        let Some(wanted) = wanted else { return };
        match *registered {
            Some(at) if at <= wanted => {}
            old => {
                if let Some(at) = old {
                    self.entries.remove(&(at, index));
                }
                self.entries.insert((wanted, index));
                *registered = Some(wanted);
            }
        }
    }

    /// Forgets the QP's deadline.
    pub(crate) fn forget(&mut self, index: u32, registered: &mut Option<Instant>) {
        if let Some(at) = registered.take() {
            self.entries.remove(&(at, index));
        }
    }

    /// Takes the next QP whose deadline has come. The caller clears the QP's note.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<u32> {
        let &(at, index) = self.entries.first()?;
        if at > now {
            return None;
        }
        self.entries.pop_first();
        Some(index)
    }

    /// The earliest deadline.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.entries.first().map(|&(at, _)| at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_deadline_keeps_the_early_entry_and_an_earlier_one_replaces_it() {
        let at = Instant::from_nanos;
        let (mut timers, mut note) = (Timers::default(), None);
        timers.want(7, &mut note, Some(at(10)));
        timers.want(7, &mut note, Some(at(20)));
        assert_eq!(timers.next(), Some(at(10)));
        timers.want(7, &mut note, Some(at(5)));
        assert_eq!(timers.pop_due(at(4)), None);
        assert_eq!(timers.pop_due(at(5)), Some(7));
        assert_eq!(timers.next(), None);
    }
}
