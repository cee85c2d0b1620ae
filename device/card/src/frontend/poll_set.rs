//! QPs whose queues are polled periodically because software does not ring doorbells for them.

use std::collections::BTreeSet;
use std::time::Duration;

use engine::Instant;

/// Maximum number of QPs polled in one period. A poll reads one or two slots. With more QPs, the cost stays the same,
/// but each QP is polled less often.
const POLLS_PER_PERIOD: usize = 256;

/// Table indices of QPs that are polled round-robin, every `PERIOD_MS` milliseconds.
#[derive(Debug, Default)]
pub struct PollSet<const PERIOD_MS: u64> {
    indices: BTreeSet<u32>,
    /// First index to poll in the next period.
    next: u32,
    due: Option<Instant>,
}

impl<const PERIOD_MS: u64> PollSet<PERIOD_MS> {
    const PERIOD: Duration = Duration::from_millis(PERIOD_MS);

    /// Returns the time at which [`PollSet::take_due`] must be called next.
    pub fn deadline(&self) -> Option<Instant> {
        self.due
    }

    pub fn insert(&mut self, index: u32, now: Instant) {
        self.indices.insert(index);
        self.due.get_or_insert(now + Self::PERIOD);
    }

    pub fn remove(&mut self, index: u32) {
        self.indices.remove(&index);
        self.due = self.due.filter(|_| !self.indices.is_empty());
    }

    /// Returns the QPs to poll now, each at most once.
    pub fn take_due(&mut self, now: Instant) -> Vec<u32> {
        if self.due.is_none_or(|due| due > now) {
            return Vec::new();
        }
        self.due = Some(now + Self::PERIOD);
        let turn = self.indices.range(self.next..).chain(self.indices.range(..self.next));
        let turn: Vec<u32> = turn.copied().take(POLLS_PER_PERIOD).collect();
        self.next = turn.last().map_or(0, |last| last.saturating_add(1));
        turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_millis(50);

    #[test]
    fn qps_are_polled_round_robin() {
        let mut set = PollSet::<50>::default();
        (0..600).for_each(|index| set.insert(index * 3, Instant::ZERO));
        let mut now = Instant::ZERO;
        assert_eq!(set.take_due(now), Vec::<u32>::new());
        let mut seen = BTreeSet::new();
        for _ in 0..3 {
            now = now + PERIOD;
            assert_eq!(set.deadline(), Some(now));
            let turn = set.take_due(now);
            assert_eq!((turn.len(), set.take_due(now).len()), (POLLS_PER_PERIOD, 0));
            seen.extend(turn);
        }
        assert_eq!(seen, set.indices);
    }

    #[test]
    fn empty_set_is_never_due() {
        let mut set = PollSet::<50>::default();
        assert_eq!((set.deadline(), set.take_due(Instant::ZERO)), (None, vec![]));
        set.insert(7, Instant::ZERO);
        set.insert(9, Instant::ZERO + PERIOD);
        assert_eq!(set.deadline(), Some(Instant::ZERO + PERIOD));
        set.remove(7);
        assert_eq!(set.take_due(Instant::ZERO + PERIOD), [9]);
        set.remove(9);
        assert_eq!(set.deadline(), None);
    }
}
