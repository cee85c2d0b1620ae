//! Rounds of polling over queues that share a doorbell in a mapped page.
//!
//! A doorbell that the device has not found yet can be overwritten by the doorbell of another queue. The device
//! therefore polls the doorbell records of all queues that share a doorbell, a limited number at a time. Such a pass
//! over the queues is called a round.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};

/// Maximum number of records polled as soon as a doorbell is found. If at most this many queues share the doorbell, all
/// of them are polled in the same turn.
pub const POLLS_AT_ONCE: usize = 16;
/// Maximum number of records polled at the end of a turn of the device thread.
pub const POLLS_PER_TURN: usize = 256;

/// The queues of each slot, and the active rounds. A slot identifies one or more doorbells that its queues share.
#[derive(Debug)]
pub struct PollRounds<S> {
    slots: BTreeMap<S, Queues>,
    /// Slots with an active round, and possibly slots whose round has already ended.
    active: VecDeque<S>,
    /// The slots in `active`, kept as a set to avoid duplicates. With duplicates, `active` could grow while one slot
    /// has a long round and software repeatedly rings the doorbell of a slot with short rounds.
    queued: BTreeSet<S>,
}

/// The queues of one slot and the progress of the current round.
#[derive(Debug, Default)]
struct Queues {
    all: BTreeSet<u32>,
    round: bool,
    /// The last queue polled in this round, or `None` at the start of the round.
    last: Option<u32>,
    /// Whether another doorbell was found during the round. If so, all queues are polled again.
    again: bool,
}

impl<S> Default for PollRounds<S> {
    fn default() -> Self {
        Self { slots: BTreeMap::new(), active: VecDeque::new(), queued: BTreeSet::new() }
    }
}

impl<S: Copy + Ord> PollRounds<S> {
    pub fn add(&mut self, slot: S, queue: u32) {
        self.slots.entry(slot).or_default().all.insert(queue);
    }

    pub fn remove(&mut self, slot: S, queue: u32) {
        if let Entry::Occupied(mut queues) = self.slots.entry(slot) {
            queues.get_mut().all.remove(&queue);
            if queues.get().all.is_empty() {
                queues.remove();
            }
        }
    }

    /// Returns the slots that have queues, in ascending order.
    pub fn slots(&self) -> impl Iterator<Item = S> {
        self.slots.keys().copied()
    }

    /// Starts a round over all queues of a slot. Skips the round if the slot's only queue is `seen`, which has just
    /// been polled.
    pub fn begin(&mut self, slot: S, seen: Option<u32>) {
        let Some(queues) = self.slots.get_mut(&slot) else { return };
        if queues.round {
            queues.again = true;
        } else if queues.all.len() > 1 || queues.all.first().copied() != seen {
            (queues.round, queues.last) = (true, None);
            if self.queued.insert(slot) {
                self.active.push_back(slot);
            }
        }
    }

    /// Returns the next queue of a slot to poll, or `None` if the slot's round has ended.
    pub fn next_of(&mut self, slot: S) -> Option<u32> {
        let queues = self.slots.get_mut(&slot).filter(|queues| queues.round)?;
        let from = queues.last.map_or(Unbounded, Excluded);
        let mut next = queues.all.range((from, Unbounded)).next();
        if next.is_none() && std::mem::take(&mut queues.again) {
            next = queues.all.first();
        }
        queues.last = next.copied();
        queues.round = next.is_some();
        queues.last
    }

    /// Returns whether a round may be active, in which case another turn is needed.
    pub fn is_active(&self) -> bool {
        !self.active.is_empty()
    }

    /// Returns the next queue to poll at the end of a turn, or `None` if no round is active.
    pub fn next_active(&mut self) -> Option<(S, u32)> {
        while let Some(slot) = self.active.front().copied() {
            match self.next_of(slot) {
                Some(queue) => return Some((slot, queue)),
                None => {
                    self.active.pop_front();
                    self.queued.remove(&slot);
                }
            }
        }
        None
    }

    /// Rotates the active rounds so that the next turn starts with a different slot.
    pub fn rotate(&mut self) {
        if self.active.len() > 1 {
            self.active.rotate_left(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: char = 'a';

    fn queues<const N: usize>(indices: [u32; N]) -> PollRounds<char> {
        let mut queues = PollRounds::default();
        indices.into_iter().for_each(|index| queues.add(SLOT, index));
        queues
    }

    fn rest(queues: &mut PollRounds<char>) -> Vec<u32> {
        std::iter::from_fn(|| queues.next_of(SLOT)).collect()
    }

    #[test]
    fn only_slots_with_queues_are_listed() {
        let mut queues = queues([1, 2]);
        queues.add('c', 1);
        assert_eq!(queues.slots().collect::<Vec<_>>(), ['a', 'c']);
        queues.remove('a', 2);
        queues.remove('c', 1);
        queues.remove('d', 1);
        assert_eq!(queues.slots().collect::<Vec<_>>(), ['a']);
    }

    #[test]
    fn round_is_skipped_if_only_queue_was_just_polled() {
        let mut queues = queues([5]);
        queues.begin(SLOT, Some(5));
        assert!(!queues.is_active() && rest(&mut queues).is_empty());
        queues.begin(SLOT, None);
        assert_eq!(rest(&mut queues), [5]);
    }

    #[test]
    fn doorbell_during_polling_round_starts_another_round() {
        let mut queues = queues([1, 2, 3, 4]);
        queues.begin(SLOT, Some(1));
        assert_eq!([queues.next_of(SLOT), queues.next_of(SLOT)], [Some(1), Some(2)]);
        queues.begin(SLOT, Some(1));
        queues.begin(SLOT, Some(3));
        assert_eq!(rest(&mut queues), [3, 4, 1, 2, 3, 4]);
        assert_eq!(queues.active, [SLOT], "the slot is queued only once");
    }

    #[test]
    fn finished_rounds_do_not_accumulate() {
        let mut queues = queues([1, 2]);
        for _ in 0..3 {
            queues.begin(SLOT, None);
            assert_eq!(rest(&mut queues), [1, 2]);
            [1, 2].into_iter().for_each(|index| queues.remove(SLOT, index));
            [1, 2].into_iter().for_each(|index| queues.add(SLOT, index));
        }
        assert_eq!(queues.active, [SLOT]);
        assert_eq!((queues.next_active(), queues.is_active()), (None, false));
        queues.begin(SLOT, None);
        assert_eq!(queues.next_active(), Some((SLOT, 1)));
    }

    #[test]
    fn queues_may_change_during_polling_round() {
        let mut queues = queues([1, 3, 5]);
        queues.begin(SLOT, None);
        assert_eq!([queues.next_of(SLOT), queues.next_of(SLOT)], [Some(1), Some(3)]);
        queues.remove(SLOT, 3);
        queues.add(SLOT, 4);
        assert_eq!(rest(&mut queues), [4, 5]);
        [1, 4, 5].into_iter().for_each(|index| queues.remove(SLOT, index));
        assert_eq!(queues.next_of(SLOT), None);
    }

    #[test]
    fn rounds_of_two_slots_alternate() {
        let mut queues = queues([1, 2]);
        queues.add('b', 7);
        queues.begin(SLOT, None);
        queues.begin('b', None);
        assert_eq!(queues.next_active(), Some((SLOT, 1)));
        queues.rotate();
        assert_eq!(queues.next_active(), Some(('b', 7)));
        assert_eq!([queues.next_active(), queues.next_active()], [Some((SLOT, 2)), None]);
        assert!(!queues.is_active());
    }
}
