//! The work queues of a queue pair in memory, and their entries.
//!
//! # Spec
//! mlx5 interface, sections 7, 10.1, 11 and 12.1.

use anyhow::Result;

use super::bytes::{put_u32, put_u64};
use super::queue::UAR;
use crate::vfio::{Arena, Bar, Device, PAGE};
use crate::wire::Remote;

/// Length in bytes of a block of the send queue. Every WQE of this driver fits into one block.
const BLOCK: usize = 64;
/// Length in bytes of a data segment, and of a receive queue entry, which consists of one data segment.
pub(super) const SEGMENT: usize = 16;

/// Memory of a queue pair: the receive queue, directly followed by the send queue, and the doorbell record.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueMemory {
    offset: usize,
    /// Offset of the doorbell record in the arena.
    pub(super) record: usize,
    /// Log2 of the number of receives, or `None` if the QP has no receive queue.
    pub(super) log_receives: Option<u8>,
    /// Log2 of the number of blocks in the send queue.
    pub(super) log_sends: u8,
}

impl QueueMemory {
    /// Allocates the queues. The doorbell record at offset `record` must be zeroed.
    pub(super) fn alloc(
        arena: &mut Arena,
        log_receives: Option<u8>,
        log_sends: u8,
        record: usize,
    ) -> Result<Self> {
        let memory = Self { offset: 0, record, log_receives, log_sends };
        Ok(Self { offset: arena.alloc(memory.pages(), PAGE)?, ..memory })
    }

    /// Returns the offset of the queues and the number of pages that they occupy.
    pub(super) const fn place(&self) -> (usize, usize) {
        (self.offset, self.pages())
    }

    const fn pages(&self) -> usize {
        (self.receive_bytes() + (BLOCK << self.log_sends)).div_ceil(PAGE)
    }

    const fn receive_bytes(&self) -> usize {
        match self.log_receives {
            Some(log) => SEGMENT << log,
            None => 0,
        }
    }
}

/// The part of a message that one data segment describes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) key: u32,
    pub(super) address: u64,
    pub(super) len: u32,
}

impl Segment {
    pub(super) fn emit(self) -> [u8; SEGMENT] {
        let mut bytes = [0; SEGMENT];
        put_u32(&mut bytes, 0x00, self.len);
        put_u32(&mut bytes, 0x04, self.key);
        put_u64(&mut bytes, 0x08, self.address);
        bytes
    }
}

/// A send request. It can be posted repeatedly, because [`Sends::post`] sets the index only in the queue's copy.
#[derive(Clone, Debug)]
pub(super) struct SendWqe([u8; BLOCK]);

impl SendWqe {
    /// Creates an RDMA WRITE to `remote`, or a SEND if `remote` is `None`. If `completion` is false, only a failure
    /// causes a completion.
    pub(super) fn new(qpn: u32, data: Segment, remote: Option<Remote>, completion: bool) -> Self {
        const SEND: u32 = 0x0a;
        const WRITE: u32 = 0x08;
        const COMPLETION: u32 = 2 << 2;
        let mut wqe = [0; BLOCK];
        let (opcode, data_at) = match remote {
            None => (SEND, 0x10),
            Some(Remote { va, rkey }) => {
                put_u64(&mut wqe, 0x10, va);
                put_u32(&mut wqe, 0x18, rkey);
                (WRITE, 0x20)
            }
        };
        wqe[data_at..data_at + SEGMENT].copy_from_slice(&data.emit());
        // The size is in units of 16 bytes.
        let units = if remote.is_some() { 3 } else { 2 };
        put_u32(&mut wqe, 0x00, opcode);
        put_u32(&mut wqe, 0x04, qpn << 8 | units);
        put_u32(&mut wqe, 0x08, if completion { COMPLETION } else { 0 });
        Self(wqe)
    }
}

/// Returns the offset in BAR0 of one of the two send registers in a doorbell page.
pub(super) fn send_doorbell(uar: u32, register: u32) -> u64 {
    u64::from(uar) * UAR + 0x800 + u64::from(register % 2) * 0x200
}

/// The send queue and its doorbell.
#[derive(Debug)]
pub(super) struct Sends {
    offset: usize,
    log: u8,
    record: usize,
    /// Offset of the doorbell in BAR0.
    doorbell: u64,
    /// Number of WQEs posted since the QP was last reset.
    posted: u16,
    /// First 8 bytes of the last WQE posted.
    latest: [u8; 8],
}

impl Sends {
    pub(super) const fn new(memory: &QueueMemory, doorbell: u64) -> Self {
        Self {
            offset: memory.offset + memory.receive_bytes(),
            log: memory.log_sends,
            record: memory.record + 4,
            doorbell,
            posted: 0,
            latest: [0; 8],
        }
    }

    /// Returns the index of the next WQE.
    pub(super) const fn next(&self) -> u16 {
        self.posted
    }

    /// Copies a WQE to the queue, without ringing the doorbell.
    pub(super) fn post(&mut self, arena: &Arena, wqe: &SendWqe) {
        let mut bytes = wqe.0;
        bytes[1..3].copy_from_slice(&self.posted.to_be_bytes());
        let index = usize::from(self.posted) & ((1 << self.log) - 1);
        arena.write(self.offset + index * BLOCK, &bytes);
        self.latest.copy_from_slice(&bytes[..8]);
        self.posted = self.posted.wrapping_add(1);
    }

    /// Updates the doorbell record and rings the doorbell for all posted WQEs.
    pub(super) fn ring(&self, device: &Device, arena: &Arena) -> Result<()> {
        // `publish_word` stores a little-endian word, but the record is big-endian.
        arena.publish_word(self.record, u32::from(self.posted).swap_bytes());
        device.write(Bar::Zero, self.doorbell, &self.latest)
    }

    /// Empties the queue after the QP has been reset.
    pub(super) fn reset(&mut self, arena: &Arena) {
        self.posted = 0;
        arena.publish_word(self.record, 0);
    }
}

/// The receive queue. It has no doorbell: the device reads the doorbell record when it needs receives.
#[derive(Debug)]
pub(super) struct Receives {
    offset: usize,
    log: u8,
    record: usize,
    /// Number of receives posted so far, modulo 2^16.
    posted: u16,
}

impl Receives {
    /// Creates the receive queue of a QP, which must have one.
    pub(super) fn new(memory: &QueueMemory) -> Self {
        let log = memory.log_receives.unwrap_or(0);
        Self { offset: memory.offset, log, record: memory.record, posted: 0 }
    }

    /// Returns the index of the next receive.
    pub(super) const fn next(&self) -> u16 {
        self.posted
    }

    /// Copies an entry to the queue and makes it available to the device.
    pub(super) fn post(&mut self, arena: &Arena, entry: &[u8; SEGMENT]) {
        let index = usize::from(self.posted) & ((1 << self.log) - 1);
        arena.write(self.offset + index * SEGMENT, entry);
        self.posted = self.posted.wrapping_add(1);
        arena.store_word(self.record, u32::from(self.posted).swap_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 2 << 20;

    fn word(arena: &Arena, at: usize) -> u32 {
        let mut bytes = [0; 4];
        arena.read(at, &mut bytes);
        u32::from_be_bytes(bytes)
    }

    fn words(arena: &Arena, at: usize, count: usize) -> Vec<u32> {
        (0..count).map(|n| word(arena, at + 4 * n)).collect()
    }

    #[test]
    fn send_and_receive_match_spec_example() {
        // Section 22: a SEND of 512 bytes, and the receive that the peer posted for it.
        let mut arena = Arena::detached(LEN);
        let record = arena.alloc(1, PAGE).unwrap();
        let memory = QueueMemory::alloc(&mut arena, Some(8), 6, record).unwrap();
        let (mut sends, mut receives) = (Sends::new(&memory, 0), Receives::new(&memory));
        let data = Segment { key: 0xc05, address: 0x55f6_fb79_1000, len: 0x200 };
        sends.post(&arena, &SendWqe::new(0x84, data, None, true));
        let data = Segment { key: 0xb04, address: 0x5567_be5f_6000, len: 0x200 };
        receives.post(&arena, &data.emit());
        let (start, pages) = memory.place();
        assert_eq!(pages, 2);
        assert_eq!(words(&arena, start, 4), [0x200, 0xb04, 0x5567, 0xbe5f_6000]);
        let expected = [0xa, 0x8402, 8, 0, 0x200, 0xc05, 0x55f6, 0xfb79_1000];
        assert_eq!(words(&arena, start + PAGE, 8), expected);
        assert_eq!(word(&arena, record), 1, "receive counter");
        assert_eq!(word(&arena, record + 4), 0, "the doorbell has not been rung");
    }

    #[test]
    fn posted_wqes_differ_only_in_index() {
        let mut arena = Arena::detached(LEN);
        let record = arena.alloc(1, PAGE).unwrap();
        let memory = QueueMemory::alloc(&mut arena, None, 6, record).unwrap();
        let mut sends = Sends::new(&memory, 0);
        let data = Segment { key: 1, address: 2, len: 3 };
        let wqe = SendWqe::new(0x84, data, Some(Remote { va: 4, rkey: 5 }), false);
        for _ in 0..65 {
            sends.post(&arena, &wqe);
        }
        let (start, _) = memory.place();
        let rest = [0x8403, 0, 0, 0, 4, 5, 0, 3, 1, 0, 2];
        // The 65th WQE replaces the first.
        assert_eq!(words(&arena, start, 12), [&[64 << 8 | 8], rest.as_slice()].concat());
        assert_eq!(words(&arena, start + 64, 12), [&[1 << 8 | 8], rest.as_slice()].concat());
        assert_eq!(sends.next(), 65);
    }
}
