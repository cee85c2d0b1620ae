//! QPs in ERR, in the order in which their receive queues are polled.

use std::collections::BTreeMap;

/// A FIFO queue of QPs, with at most one entry per QP. Each QP also stores its turn, so that an entry is removed
/// without a search: QPs can stay in ERR indefinitely, and software can destroy 2^17 of them at once.
#[derive(Debug, Default)]
pub(crate) struct ErrorQps {
    /// Indices of the QPs by turn.
    turns: BTreeMap<u64, u32>,
    next_turn: u64,
}

impl ErrorQps {
    pub(crate) fn len(&self) -> usize {
        self.turns.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// Appends QP `index`, unless it is already in the queue. `turn` is the turn stored in the QP.
    pub(crate) fn push_back(&mut self, index: u32, turn: &mut Option<u64>) {
        if turn.is_none() {
            self.turns.insert(self.next_turn, index);
            *turn = Some(self.next_turn);
            self.next_turn += 1;
        }
    }

    /// Removes and returns the first QP. The caller must clear the turn stored in the QP.
    pub(crate) fn pop_front(&mut self) -> Option<u32> {
        self.turns.pop_first().map(|(_, index)| index)
    }

    /// Removes a QP, if it is in the queue.
    pub(crate) fn remove(&mut self, turn: &mut Option<u64>) {
        if let Some(turn) = turn.take() {
            self.turns.remove(&turn);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removal_keeps_order_of_other_qps() {
        let (mut queue, mut turns) = (ErrorQps::default(), [None; 4]);
        for (index, turn) in (0..).zip(&mut turns) {
            queue.push_back(index, turn);
            queue.push_back(index, turn);
        }
        queue.remove(&mut turns[1]);
        queue.remove(&mut turns[1]);
        assert_eq!((queue.pop_front(), queue.len()), (Some(0), 2));
        turns[0] = None;
        queue.push_back(0, &mut turns[0]);
        let left: Vec<u32> = std::iter::from_fn(|| queue.pop_front()).collect();
        assert_eq!((left, queue.is_empty()), (vec![2, 3, 0], true));
    }
}
