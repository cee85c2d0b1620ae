//! Histogram of durations with power-of-two buckets, cheap enough to update for every request.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Number of buckets. Their upper bounds are 1 us, 2 us, 4 us, ..., 16.8 s.
const BOUNDED: usize = 25;

/// Histogram of durations with power-of-two buckets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Durations {
    /// Number of durations recorded.
    pub count: u64,
    /// Sum of all durations in nanoseconds.
    pub sum_ns: u64,
    /// Number of durations in each bucket. A bucket includes its own upper bound, but not that of the previous bucket.
    /// Durations above the last bound are not in any bucket.
    buckets: [u64; BOUNDED],
}

impl Durations {
    /// Adds one duration to the histogram.
    pub fn record(&mut self, duration: Duration) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.count += 1;
        self.sum_ns = self.sum_ns.saturating_add(ns);
        // The bounds are powers of two in microseconds. Find the smallest bound that is not below the duration.
        let bucket = u64::BITS - ns.div_ceil(1000).saturating_sub(1).leading_zeros();
        if let Some(bucket) = self.buckets.get_mut(bucket as usize) {
            *bucket += 1;
        }
    }

    /// Returns each bucket's upper bound in microseconds, with the number of durations up to it.
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
    fn histogram_buckets_include_their_upper_bound() {
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
