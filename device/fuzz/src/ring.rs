//! Fuzzes the shared-memory ring between two HCAs. An attacker writes random words, counters and frame lengths to the
//! shared memory.
//!
//! The producer and the consumer are honest, but the attacker controls everything that they read. Every frame that the
//! consumer returns must have a valid length. A producer or consumer that reads an invalid word must return an error.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use card::fabric::ring::memory::{RingLen, Side, ends};
use card::fabric::{MAX_OFFLOADED_FRAME_LEN, MIN_FRAME_LEN, RxBatch};
use protocol::roce::{Mtu, Offload};
use vm_memory::{MmapRegion, VolatileMemory as _};

use super::input::Input;

/// Maximum number of operations in one run.
const OPERATIONS: usize = 256;

/// Offsets of the counters within the counter page of either direction.
const COUNTERS: [usize; 4] = [0, 256, 512, 768];
/// Size in bytes of each direction's counter page.
const COUNTERS_LEN: usize = 4096;
/// Offset of the first frame.
const DATA_AT: usize = 8192;

const OFFLOADS: [Offload; 4] =
    [Offload::None, Offload::Icrc, Offload::Segmentation(Mtu::Mtu256), Offload::Segmentation(Mtu::Mtu4096)];

pub fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let Some(len) = RingLen::new(64 << 10) else { return };
    let memory = Arc::new(MmapRegion::new(len.memory_len()).expect("memory can be mapped"));
    let (mut producer, _) = ends(memory.clone(), len, Side::Creator).expect("the memory is large enough");
    let (_, mut consumer) = ends(memory.clone(), len, Side::Receiver).expect("the memory is large enough");
    let set = |at: usize, value: u32| {
        let word = memory.get_atomic_ref::<AtomicU32>((at % len.memory_len()) & !3);
        word.expect("the offset is within the memory").store(value, Ordering::SeqCst);
    };
    let mut batch = RxBatch::new();
    for _ in 0..OPERATIONS {
        let Some(operation) = input.next_byte() else { break };
        let alive = match operation % 8 {
            0 => {
                set(usize::from(input.half()) * 4, input.word());
                true
            }
            1 => {
                let which = usize::from(input.byte());
                set(which / 4 % 2 * COUNTERS_LEN + COUNTERS[which % 4], input.word());
                true
            }
            2 => {
                set(DATA_AT + usize::from(input.half()), u32::from(input.half()));
                true
            }
            3 | 4 => producer
                .push(
                    &vec![operation; usize::from(input.half())],
                    OFFLOADS[usize::from(operation) % OFFLOADS.len()],
                )
                .is_ok(),
            5 => {
                let _ = producer.publish();
                true
            }
            6 => {
                let taken = consumer.take(&mut batch, usize::from(input.byte()));
                for arrival in batch.iter() {
                    assert!((MIN_FRAME_LEN..=MAX_OFFLOADED_FRAME_LEN).contains(&arrival.len()));
                    assert_eq!(arrival.contents().len(), arrival.len());
                }
                batch = RxBatch::new();
                let _ = consumer.release();
                taken.is_ok()
            }
            _ => {
                let _ = consumer.enable_wakeups();
                consumer.disable_wakeups();
                producer.request_room(usize::from(input.half())).is_ok()
            }
        };
        if !alive {
            break;
        }
    }
}
