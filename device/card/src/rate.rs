//! Limits the rate of events.

use std::num::NonZeroU32;

use engine::Instant;

const SECOND_NS: u64 = 1_000_000_000;

/// A token bucket that fills at a steady rate. It holds a tenth of a second's worth of tokens, but at least one token.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    /// Tokens per second. This is also the number of billionths of a token added per nanosecond.
    rate: u64,
    /// Fill level in billionths of a token, which makes refills exact at any rate.
    level: u64,
    full: u64,
    at: Instant,
}

impl Bucket {
    /// Creates a full bucket that gains `per_second` tokens per second.
    pub fn new(per_second: NonZeroU32) -> Self {
        let rate = u64::from(per_second.get());
        let full = (rate / 10).max(1) * SECOND_NS;
        Self { rate, level: full, full, at: Instant::ZERO }
    }

    /// Takes a token. Returns false if no token is left.
    pub fn take(&mut self, now: Instant) -> bool {
        let passed = u64::try_from(now.saturating_since(self.at).as_nanos()).unwrap_or(u64::MAX);
        self.level = self.level.saturating_add(passed.saturating_mul(self.rate)).min(self.full);
        self.at = self.at.max(now);
        let taken = self.level >= SECOND_NS;
        if taken {
            self.level -= SECOND_NS;
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(bucket: &mut Bucket, micros: u64, tries: usize) -> usize {
        let now = Instant::from_nanos(micros * 1000);
        (0..tries).filter(|_| bucket.take(now)).count()
    }

    #[test]
    fn full_bucket_holds_tokens_for_a_tenth_of_a_second() {
        let mut bucket = Bucket::new(NonZeroU32::new(1000).unwrap());
        assert_eq!(taken(&mut bucket, 5_000_000, 500), 100);
        assert_eq!(taken(&mut bucket, 5_000_999, 500), 0);
        assert_eq!(taken(&mut bucket, 5_001_000, 500), 1);
        assert_eq!(taken(&mut bucket, 5_051_000, 500), 50);
        assert_eq!(taken(&mut bucket, 90_000_000, 500), 100);
    }

    #[test]
    fn rate_1_adds_one_token_per_second() {
        let mut bucket = Bucket::new(NonZeroU32::MIN);
        assert_eq!(taken(&mut bucket, 0, 2), 1);
        assert_eq!(taken(&mut bucket, 999_999, 2), 0);
        assert_eq!(taken(&mut bucket, 1_000_000, 2), 1);
    }

    #[test]
    fn clock_going_backwards_adds_no_tokens() {
        let mut bucket = Bucket::new(NonZeroU32::new(10).unwrap());
        assert_eq!(taken(&mut bucket, 7, 5), 1);
        assert_eq!(taken(&mut bucket, 3, 5), 0);
    }
}
