//! How long things took, as a histogram that costs an addition for each.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Buckets with an upper bound: 1 us, 2 us, 4 us, ... 16.8 s.
const BOUNDED: usize = 25;

/// Durations by power of two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Durations {
    /// How many there were.
    pub count: u64,
    /// All of them together, nanoseconds.
    pub sum_ns: u64,
    /// Those that are longer than the bound before and not longer than their own; longer ones are in none.
    buckets: [u64; BOUNDED],
}

impl Durations {
    /// Counts one.
    pub fn record(&mut self, duration: Duration) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.count += 1;
        self.sum_ns = self.sum_ns.saturating_add(ns);
        // The smallest power of two that is not shorter, of microseconds.
        let bucket = u64::BITS - ns.div_ceil(1000).saturating_sub(1).leading_zeros();
        if let Some(bucket) = self.buckets.get_mut(bucket as usize) {
            *bucket += 1;
        }
    }

    /// Upper bounds in microseconds, and how many durations are not longer.
    pub fn cumulative(&self) -> impl Iterator<Item = (u64, u64)> {
        self.buckets.iter().enumerate().scan(0, |below, (index, count)| {
            *below += count;
            Some((1 << index, *below))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_counted_at_its_bound_and_above() {
        let mut durations = Durations::default();
        for ns in [0, 1000, 1001, 2000, 4_000_001, 16_777_216_000, 16_777_216_001, u64::MAX] {
            durations.record(Duration::from_nanos(ns));
        }
        let not_longer = |us: u64| durations.cumulative().find(|(bound, _)| *bound == us).unwrap().1;
        assert_eq!(not_longer(1), 2);
        assert_eq!(not_longer(2), 4);
        assert_eq!(not_longer(2048), 4);
        assert_eq!(not_longer(4096), 5);
        assert_eq!(not_longer(16_777_216), 6);
        assert_eq!(durations.cumulative().last(), Some((16_777_216, 6)));
        assert_eq!((durations.count, durations.sum_ns), (8, u64::MAX));
    }
}
