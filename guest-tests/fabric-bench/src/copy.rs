//! The yardstick of shared memory: one thread that copies from one buffer to another, the same bytes again and again.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// What no cache near a processor holds, as long as the region that messages are in.
pub(crate) const LONG: usize = 16 << 20;

/// Bytes a second, from a buffer of `len` bytes to another.
#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
pub(crate) fn bandwidth(len: usize, time: Duration) -> f64 {
    // No byte is 0: pages that were never written to come late.
    let (from, mut to) = (vec![1_u8; len], vec![2_u8; len]);
    // Between two looks at the clock.
    let rounds = (LONG / len).max(1);
    let start = Instant::now();
    let mut copied = 0_usize;
    while start.elapsed() < time {
        for _ in 0..rounds {
            black_box(&mut to).copy_from_slice(black_box(&from));
        }
        copied += rounds * len;
    }
    copied as f64 / start.elapsed().as_secs_f64()
}
