//! Limits the rate of replies. Received frames determine where this port sends replies, but must not determine how many
//! replies it sends.

use std::array;
use std::num::NonZeroU32;

use engine::Instant;
use protocol::ids::MacAddr;

use crate::rate::Bucket;

/// Maximum number of replies per second to one sender, across all protocols. Bursts of a tenth of this number are
/// permitted. Normal traffic stays far below the limit.
const REPLIES_PER_SECOND: NonZeroU32 = NonZeroU32::new(1000).unwrap();

/// Number of buckets. A hash of the sender's MAC selects the bucket, which several senders may share. One bucket per
/// MAC would not limit the total rate: a sender can invent any number of MACs.
const BUCKETS: usize = 64;

/// Token buckets for replies, each shared by the senders that hash to it.
#[derive(Debug)]
pub(super) struct AnswerLimit([Bucket; BUCKETS]);

impl Default for AnswerLimit {
    fn default() -> Self {
        Self(array::from_fn(|_| Bucket::new(REPLIES_PER_SECOND)))
    }
}

impl AnswerLimit {
    /// Takes a token for a reply to a sender. Returns whether the reply is permitted.
    pub(super) fn take(&mut self, now: Instant, sender: MacAddr) -> bool {
        self.0.get_mut(bucket(sender)).is_some_and(|bucket| bucket.take(now))
    }
}

/// Returns the bucket of a MAC. With Fibonacci hashing, consecutive MACs get different buckets.
fn bucket(mac: MacAddr) -> usize {
    let [a, b, c, d, e, f] = mac.0;
    let hash = u64::from_be_bytes([0, 0, a, b, c, d, e, f]).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    usize::try_from(hash >> (u64::BITS - BUCKETS.ilog2())).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const FLOODER: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const OTHER: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

    fn taken(limit: &mut AnswerLimit, now: Instant, senders: impl Iterator<Item = MacAddr>) -> usize {
        senders.filter(|sender| limit.take(now, *sender)).count()
    }

    #[test]
    fn flood_does_not_limit_other_senders() {
        let mut limit = AnswerLimit::default();
        let flood = || std::iter::repeat_n(FLOODER, 500);
        assert_eq!(taken(&mut limit, Instant::ZERO, flood()), 100);
        assert_eq!(taken(&mut limit, Instant::ZERO, std::iter::repeat_n(OTHER, 10)), 10);
        assert_eq!(taken(&mut limit, Instant::ZERO + Duration::from_millis(20), flood()), 20);
    }

    #[test]
    fn total_replies_to_random_senders_are_limited() {
        let mut limit = AnswerLimit::default();
        let invented = (0..100_000_u32).map(|n| {
            let [a, b, c, d] = n.to_be_bytes();
            MacAddr([2, 0, a, b, c, d])
        });
        assert_eq!(taken(&mut limit, Instant::ZERO, invented), BUCKETS * 100);
    }
}
