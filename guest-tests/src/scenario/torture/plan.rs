//! Random sequences of disturbances. The same seed yields the same sequence.

use std::time::Duration;

use rand::RngExt as _;
use rand::SeedableRng as _;
use rand::seq::SliceRandom as _;
use rand_chacha::ChaCha8Rng;

/// Range of the pause before each disturbance, in milliseconds.
const PAUSE_MS: std::ops::Range<u64> = 500..4_000;
/// Range of durations for disturbances that are not instantaneous, in milliseconds. Even two disturbances in a row end
/// before a requester exhausts its retries ([`super::RETRY_TIME`]) and loses its connection.
const LENGTH_MS: std::ops::Range<u64> = 300..2_500;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    A,
    B,
}

impl Side {
    pub(super) const fn index(self) -> usize {
        match self {
            Self::A => 0,
            Self::B => 1,
        }
    }

    pub(super) const fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step<K> {
    pub(super) pause: Duration,
    pub(super) kind: K,
    /// The affected end, if the disturbance affects only one end of a connection.
    pub(super) side: Side,
    /// Duration of the disturbance, unless it is instantaneous.
    pub(super) length: Duration,
}

/// A sequence of disturbances. At first, each kind occurs once, in random order. Afterwards, kinds are drawn at random.
#[derive(Clone, Debug)]
pub(super) struct Plan<K> {
    kinds: Vec<K>,
    /// Kinds that have not been drawn yet. The last one is drawn next.
    first: Vec<K>,
    rng: ChaCha8Rng,
}

impl<K: Copy> Plan<K> {
    /// Creates the plan for a lane (see [`super`]). The plan depends neither on the other lanes nor on the progress of
    /// any lane.
    ///
    /// # Panics
    /// Panics if `kinds` is empty.
    pub(super) fn new(seed: u64, lane: u64, kinds: &[K]) -> Self {
        assert!(!kinds.is_empty(), "a plan needs at least one kind");
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(lane);
        let mut first = kinds.to_vec();
        first.shuffle(&mut rng);
        Self { kinds: kinds.to_vec(), first, rng }
    }

    pub(super) fn has_drawn_all(&self) -> bool {
        self.first.is_empty()
    }

    pub(super) fn draw(&mut self) -> Step<K> {
        let rng = &mut self.rng;
        let any = self.kinds[rng.random_range(0..self.kinds.len())];
        Step {
            pause: Duration::from_millis(rng.random_range(PAUSE_MS)),
            kind: self.first.pop().unwrap_or(any),
            side: if rng.random_bool(0.5) { Side::A } else { Side::B },
            length: Duration::from_millis(rng.random_range(LENGTH_MS)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const KINDS: [u8; 7] = [1, 2, 3, 4, 5, 6, 7];

    fn steps(seed: u64, lane: u64) -> Vec<Step<u8>> {
        let mut plan = Plan::new(seed, lane, &KINDS);
        (0..100).map(|_| plan.draw()).collect()
    }

    #[test]
    fn plan_depends_on_seed_and_lane() {
        assert_eq!(steps(5, 1), steps(5, 1));
        assert_ne!(steps(5, 1), steps(6, 1));
        assert_ne!(steps(5, 1), steps(5, 2));
    }

    #[test]
    fn every_kind_is_drawn_before_any_repeats() {
        for seed in 0..50 {
            let mut plan = Plan::new(seed, 0, &KINDS);
            let mut seen = BTreeSet::new();
            while !plan.has_drawn_all() {
                assert!(seen.insert(plan.draw().kind), "seed {seed}");
            }
            assert_eq!(seen.len(), KINDS.len());
        }
    }

    #[test]
    fn twice_the_longest_disturbance_fits_within_retry_time() {
        let all = steps(7, 0);
        assert!([Side::A, Side::B].iter().all(|side| all.iter().any(|step| step.side == *side)));
        let longest = all.iter().map(|step| step.length).max().unwrap();
        assert!(2 * longest < super::super::RETRY_TIME);
    }
}
