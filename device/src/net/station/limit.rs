//! How often a port answers by itself: what arrives decides who is asked, never how much we send.

use std::array;
use std::num::NonZeroU32;

use engine::Instant;
use protocol::ids::MacAddr;

use crate::rate::Bucket;

/// Bound: answers a second for one sender, of all protocols together; a tenth of them at once. What people and kernels ask
/// stays far below, and a flood costs its sender the answers.
const ANSWERS_PER_SECOND: NonZeroU32 = NonZeroU32::new(1000).unwrap();

/// Bound: buckets, of which senders share one by chance. A sender may invent any number of MACs, so none has one of its
/// own; together they limit what all of them get.
const BUCKETS: usize = 64;

/// Answers that may still be given, by sender.
#[derive(Debug)]
pub(super) struct AnswerLimit([Bucket; BUCKETS]);

impl Default for AnswerLimit {
    fn default() -> Self {
        Self(array::from_fn(|_| Bucket::new(ANSWERS_PER_SECOND)))
    }
}

impl AnswerLimit {
    /// Whether a sender may have one answer more; it is counted.
    pub(super) fn take(&mut self, now: Instant, sender: MacAddr) -> bool {
        self.0.get_mut(bucket(sender)).is_some_and(|bucket| bucket.take(now))
    }
}

/// Fibonacci hashing: neighbouring MACs have buckets apart.
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
    fn a_flood_costs_its_sender_and_nobody_else() {
        let mut limit = AnswerLimit::default();
        let flood = || std::iter::repeat_n(FLOODER, 500);
        assert_eq!(taken(&mut limit, Instant::ZERO, flood()), 100);
        assert_eq!(taken(&mut limit, Instant::ZERO, std::iter::repeat_n(OTHER, 10)), 10);
        assert_eq!(taken(&mut limit, Instant::ZERO + Duration::from_millis(20), flood()), 20);
    }

    #[test]
    fn invented_senders_get_no_more_than_all_buckets_hold() {
        let mut limit = AnswerLimit::default();
        let invented = (0..100_000_u32).map(|n| {
            let [a, b, c, d] = n.to_be_bytes();
            MacAddr([2, 0, a, b, c, d])
        });
        assert_eq!(taken(&mut limit, Instant::ZERO, invented), BUCKETS * 100);
    }
}
