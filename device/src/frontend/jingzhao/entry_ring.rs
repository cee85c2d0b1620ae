//! A ring of 32-byte entries that the device hands to software: the buffer of a completion or event queue.
//!
//! There is no consumer index: the owner bit in an entry's last byte is the only flow control. Software sets the bit
//! in all entries before it creates the queue, and again in each entry it has read. Software that does not do the
//! first must still work, so the bit is only looked at if it was set everywhere at the start.
//!
//! # Spec
//! JingZhao interface, sections 7 and 8.2.

use engine::AccessError;
use protocol::hca::jingzhao::cqe::{HARDWARE_OWNED, LEN, OWNER};
use protocol::ids::{Lkey, Pdn};
use thiserror::Error;

use super::queue_memory::QueueMemory;

/// Why an entry was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WriteError {
    /// Software has not read the entry that is in its place.
    #[error("software has not read the oldest entry")]
    Full,
    /// The buffer cannot be reached.
    #[error("the buffer cannot be reached ({0:?})")]
    Access(AccessError),
}

/// The buffer and the producer's place in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EntryRing {
    pd: Pdn,
    lkey: Lkey,
    /// Offset of entry 0 in the region.
    start: u64,
    log_entries: u8,
    /// Entries written, counted on for ever; its low bits are the next entry.
    producer: u32,
    checks_owner: bool,
}

impl EntryRing {
    pub(super) fn new(
        pd: Pdn,
        lkey: Lkey,
        start: u64,
        log_entries: u8,
        producer: u32,
        mem: &impl QueueMemory,
    ) -> Self {
        let mut ring = Self { pd, lkey, start, log_entries, producer, checks_owner: false };
        ring.checks_owner = ring.all_owned_by_hardware(mem);
        ring
    }

    /// The same ring with another buffer; the count goes on.
    pub(super) fn resized(&self, lkey: Lkey, log_entries: u8, mem: &impl QueueMemory) -> Self {
        Self::new(self.pd, lkey, self.start, log_entries, self.producer, mem)
    }

    /// Entries of the buffer.
    pub(super) fn entries(&self) -> u64 {
        1u64.checked_shl(self.log_entries.into()).unwrap_or(0)
    }

    pub(super) fn producer(&self) -> u32 {
        self.producer
    }

    /// Whether the next entry may be written.
    pub(super) fn check(&self, mem: &impl QueueMemory) -> Result<(), WriteError> {
        if !self.checks_owner {
            return Ok(());
        }
        let owner = self.offset(self.producer).and_then(|at| at.checked_add(OWNER as u64));
        let mut byte = [0];
        let read =
            owner.ok_or(AccessError::Bounds).and_then(|at| mem.read(self.pd, self.lkey, at, &mut byte));
        read.map_err(WriteError::Access)?;
        if byte[0] & HARDWARE_OWNED == 0 { Err(WriteError::Full) } else { Ok(()) }
    }

    /// Writes the next entry.
    pub(super) fn push(&mut self, entry: &[u8; LEN], mem: &impl QueueMemory) -> Result<(), WriteError> {
        self.check(mem)?;
        let at = self.offset(self.producer).ok_or(WriteError::Access(AccessError::Bounds))?;
        mem.publish(self.pd, self.lkey, at, entry).map_err(WriteError::Access)?;
        self.producer = self.producer.wrapping_add(1);
        Ok(())
    }

    fn offset(&self, index: u32) -> Option<u64> {
        let mask = 1u32.checked_shl(self.log_entries.into()).map_or(u32::MAX, |entries| entries - 1);
        self.start.checked_add(u64::from(index & mask) * LEN as u64)
    }

    fn all_owned_by_hardware(&self, mem: &impl QueueMemory) -> bool {
        const CHUNK: usize = 128;
        let mut entries = [[0; LEN]; CHUNK];
        let mut index = 0u64;
        // Bound: 2^20 entries, the largest queue a command accepts, are 32 MiB.
        while index < 1u64 << self.log_entries.min(20) {
            let left = (1u64 << self.log_entries) - index;
            let count = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
            let chunk = &mut entries[..count];
            let Some(at) = self.start.checked_add(index * LEN as u64) else { return false };
            if mem.read(self.pd, self.lkey, at, chunk.as_flattened_mut()).is_err() {
                return false;
            }
            if chunk.iter().any(|entry| entry[OWNER] & HARDWARE_OWNED == 0) {
                return false;
            }
            index += count as u64;
        }
        true
    }
}
