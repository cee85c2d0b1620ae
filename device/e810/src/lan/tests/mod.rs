//! Tests of the data path, with a minimal driver that follows the specification.

mod hostile;
mod receive;
mod transmit;

use protocol::ids::Iova;

use super::*;

/// Size of guest memory in bytes.
const MEMORY: u64 = 1 << 22;

const RING: u64 = 0x1_0000;

const BUFFERS: u64 = 0x10_0000;

const RING_LEN: u16 = 64;

const QUEUES: u16 = 4;

/// The VSI that owns all queues.
const VSI: u16 = 5;

struct Bench {
    lan: Lan,
    memory: GuestMemory,
    monitor: Monitor,
}

impl Bench {
    fn new() -> Self {
        let mut memory = GuestMemory::default();
        memory.map_zeros(0, MEMORY);
        Self { lan: Lan::new(QUEUES), memory, monitor: Monitor::default() }
    }

    fn write(&mut self, register: Register, value: u32) {
        assert!(self.lan.write(register, value), "{register:?}");
    }

    fn read(&self, register: Register) -> u64 {
        self.lan.read(register).unwrap_or_else(|| panic!("{register:?}"))
    }

    /// Returns all pending frames.
    fn sent(&mut self) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| self.poll()).collect()
    }

    fn poll(&mut self) -> Option<Vec<u8>> {
        // `poll_frame` must preserve the buffer's existing content.
        let mut out = vec![0xee; 3];
        let sent = self.lan.poll_frame((&self.memory, &mut self.monitor), &mut out);
        assert_eq!(out[..3], [0xee; 3]);
        let frame = out.split_off(3);
        assert_eq!(sent.is_some(), !frame.is_empty());
        sent.map(|sent| {
            assert_eq!(sent, OutgoingFrame { vsi: VSI, destination: Destination::Rules });
            frame
        })
    }
}

fn bytes(hex: &str) -> Vec<u8> {
    let digit = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    hex.as_bytes().chunks(2).map(digit).collect()
}
