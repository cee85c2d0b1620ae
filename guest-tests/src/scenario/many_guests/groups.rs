//! Groups of guests that communicate at the same time.

use std::fmt;

use crate::scenario::fabric_mesh;

/// Number of senders in an incast.
pub(super) const SENDERS: usize = 8;

/// Guests that communicate with each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    /// Indices of the guests. The first one is the receiver of an incast.
    pub(super) members: Vec<usize>,
    /// Sender and receiver of each flow, as indices into `members`.
    pub(super) flows: Vec<(usize, usize)>,
}

impl Group {
    fn pair(a: usize, b: usize) -> Self {
        Self { members: vec![a, b], flows: vec![(0, 1), (1, 0)] }
    }

    pub(super) fn is_incast(&self) -> bool {
        self.members.len() > 2
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.is_incast() { "incast of guests" } else { "guests" };
        let names: Vec<String> = self.members.iter().map(|member| (member + 1).to_string()).collect();
        write!(f, "{what} {}", names.join(", "))
    }
}

/// Returns a schedule in which each pair of guests meets in exactly one round. `count` must be even.
pub(super) fn turns(count: usize) -> Vec<Vec<Group>> {
    let pairs = |pairs: Vec<(usize, usize)>| pairs.into_iter().map(|(a, b)| Group::pair(a, b)).collect();
    fabric_mesh::rounds(count).into_iter().map(pairs).collect()
}

/// Returns an incast whose receiver rotates with `turn`, and pairs of the remaining guests. If an odd number remains,
/// one guest is idle.
pub(super) fn incast(live: &[usize], turn: usize) -> Vec<Group> {
    let mut order = live.to_vec();
    order.rotate_left(turn % live.len().max(1));
    let others = order.split_off(order.len().min(1 + SENDERS));
    let flows = (1..order.len()).map(|sender| (sender, 0)).collect();
    let incast = Group { members: order, flows };
    let pairs = others.as_chunks::<2>().0.iter().map(|&[a, b]| Group::pair(a, b));
    std::iter::once(incast).chain(pairs).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_guest_receives_an_incast() {
        let all: Vec<usize> = (0..16).collect();
        let mut receivers = BTreeSet::new();
        for turn in 0..16 {
            let groups = incast(&all, turn);
            assert_eq!((groups.len(), groups[0].flows.len()), (4, SENDERS));
            let members: BTreeSet<_> = groups.iter().flat_map(|group| group.members.clone()).collect();
            assert_eq!(members.len(), 15);
            receivers.insert(groups[0].members[0]);
        }
        assert_eq!(receivers.len(), 16);
    }

    #[test]
    fn all_pairs_meet_in_fifteen_rounds() {
        let turns = turns(16);
        assert_eq!(turns.len(), 15);
        assert!(turns.iter().all(|groups| groups.len() == 8 && !groups[0].is_incast()));
    }
}
