//! Measures how fast one thread copies memory, as a reference for shared-memory fabrics.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// Size in bytes of a buffer that does not fit in the CPU caches. The region used for messages has the same size.
pub(crate) const LONG: usize = 16 << 20;

/// Copies between two buffers of `len` bytes for `time` and returns the bandwidth in bytes per second.
#[expect(clippy::cast_precision_loss, reason = "the rate is only displayed")]
pub(crate) fn bandwidth(len: usize, time: Duration) -> f64 {
    // Fill the buffers with values other than 0, so that the kernel allocates all their pages now.
    let (from, mut to) = (vec![1_u8; len], vec![2_u8; len]);
    // Number of copies between clock readings.
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
