//! Tests that the memory use of a NIC does not grow while its driver misbehaves for a long time.

use crate::{alone, own_memory, work_time};

/// Number of operations. If HCAD_DAILY is set, the test performs more of them and takes minutes.
const OPERATIONS: usize = 20_000;
const DAILY_OPERATIONS: usize = 1_000_000;

/// Permitted growth in memory use, in bytes. It covers the objects that a guest can make the device store (see the
/// `function` module of the E810), pending frames, and memory held by the allocator.
const SLACK: u64 = 16 << 20;

/// A deterministic random number generator (xorshift64).
struct Random(u64);

impl Random {
    fn fill(&mut self, bytes: &mut [u8]) {
        for word in bytes.chunks_mut(8) {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            word.copy_from_slice(
                self.0.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes().split_at(word.len()).0,
            );
        }
    }
}

/// The function `endure`, which performs the operations, also checks that a second device on the same fabric can still
/// exchange frames.
#[test]
fn memory_use_under_hostile_driver_is_bounded() {
    let _alone = alone();
    let is_daily = std::env::var_os("HCAD_DAILY").is_some_and(|daily| !daily.is_empty());
    let operations = if is_daily { DAILY_OPERATIONS } else { OPERATIONS };
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut done, mut settled, mut most) = (0, 0, 0);
    let began = work_time();
    device_fuzz::e810::endure(operations, |bytes| {
        done += 1;
        // By now, the device probably stores the maximum number of objects of every kind, so its memory use should no
        // longer grow.
        if done == operations / 4 {
            settled = own_memory();
        }
        if done % (operations / 20) == 0 {
            most = most.max(own_memory());
        }
        random.fill(bytes);
    });
    let took = work_time() - began;
    println!(
        "{operations} operations in {took:.2?}: {settled} bytes after a quarter of them, at most {most}"
    );
    assert!(
        most <= settled + SLACK,
        "memory use grew from {settled} bytes after a quarter of the operations to {most} bytes"
    );
}

#[allow(
    dead_code,
    unreachable_pub,
    clippy::cast_possible_truncation,
    reason = "a library of its own in the fuzz crate, of which this is one target"
)]
#[path = "../../fuzz/src/lib.rs"]
mod device_fuzz;
