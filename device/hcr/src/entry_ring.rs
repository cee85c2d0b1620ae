//! The buffer of a completion or event queue: a ring of 32-byte entries written by the device.
//!
//! The last byte of an entry holds the owner bit and is written last. Interfaces differ in how the device detects that
//! software has consumed an entry. [`OwnedRing`] reads the owner bit, and [`CountedRing`] uses the consumer index
//! reported by software.

use card::memory::queue::QueueMemory;
use engine::AccessError;
use protocol::ids::{Lkey, Pdn};
use thiserror::Error;

pub const LEN: usize = 32;
/// Offset of the owner byte, which is the last byte of an entry.
pub const OWNER: usize = LEN - 1;
/// Bit of the owner byte that is set while hardware owns the entry. Software sets the bit when it has consumed the
/// entry.
pub const HARDWARE_OWNED: u8 = 0x80;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WriteError {
    #[error("the queue is full: software has not consumed the oldest entry")]
    Full,
    #[error("the queue buffer is not accessible: {0}")]
    Access(AccessError),
}

/// Location of a ring's entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    pub pd: Pdn,
    pub lkey: Lkey,
    /// Offset of entry 0 in the region.
    pub start: u64,
    pub log_entries: u8,
}

/// A buffer and its producer index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryRing {
    buffer: Buffer,
    /// Free-running producer index. Its low bits select the next slot.
    producer: u32,
}

impl EntryRing {
    pub fn new(buffer: Buffer, producer: u32) -> Self {
        Self { buffer, producer }
    }

    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Switches to another buffer and keeps the producer index.
    pub fn move_to(&mut self, buffer: Buffer) {
        self.buffer = buffer;
    }

    pub fn entries(&self) -> u64 {
        1u64.checked_shl(self.buffer.log_entries.into()).unwrap_or(0)
    }

    /// Returns the free-running producer index, modulo 2^32.
    pub fn producer(&self) -> u32 {
        self.producer
    }

    /// Writes the next entry without checking whether the slot is free.
    ///
    /// # Errors
    /// Fails if the buffer cannot be written. In that case, the producer index does not advance.
    pub fn push(&mut self, entry: &[u8; LEN], mem: &impl QueueMemory) -> Result<(), AccessError> {
        let at = self.next_offset().ok_or(AccessError::Bounds)?;
        mem.publish(self.buffer.pd, self.buffer.lkey, at, entry)?;
        self.producer = self.producer.wrapping_add(1);
        Ok(())
    }

    /// Reads the next slot's owner byte. Returns `None` if the buffer cannot be read.
    pub fn owner(&self, mem: &impl QueueMemory) -> Option<u8> {
        let mut byte = [0];
        let at = self.next_offset()?.checked_add(OWNER as u64)?;
        mem.read(self.buffer.pd, self.buffer.lkey, at, &mut byte).ok()?;
        Some(byte[0])
    }

    fn next_offset(&self) -> Option<u64> {
        let mask = 1u32.checked_shl(self.buffer.log_entries.into()).map_or(u32::MAX, |entries| entries - 1);
        self.buffer.start.checked_add(u64::from(self.producer & mask) * LEN as u64)
    }
}

/// A ring without a consumer index. Its only flow control is the owner bit. Software should set the bit in all entries
/// before it creates the queue, and then in each entry that it has consumed. Some software does not set the bits before
/// it creates the queue, so the device checks the bit only if it was set in every entry when the ring was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnedRing {
    ring: EntryRing,
    checks_owner: bool,
}

impl OwnedRing {
    pub fn new(buffer: Buffer, producer: u32, mem: &impl QueueMemory) -> Self {
        Self { ring: EntryRing::new(buffer, producer), checks_owner: all_owned_by_hardware(&buffer, mem) }
    }

    pub fn buffer(&self) -> &Buffer {
        self.ring.buffer()
    }

    /// Returns whether the ring detects overruns. It does if hardware owned all entries when the ring was created.
    pub fn checks_owner(&self) -> bool {
        self.checks_owner
    }

    /// Returns a ring that continues in another buffer, at this ring's producer index.
    #[must_use]
    pub fn moved_to(&self, buffer: Buffer, mem: &impl QueueMemory) -> Self {
        Self::new(buffer, self.ring.producer, mem)
    }

    pub fn entries(&self) -> u64 {
        self.ring.entries()
    }

    /// Returns the free-running producer index, modulo 2^32.
    pub fn producer(&self) -> u32 {
        self.ring.producer()
    }

    /// Writes the next entry.
    ///
    /// # Errors
    /// Fails if the slot is not free or the buffer cannot be written. In that case, the entry is lost.
    pub fn push(&mut self, entry: &[u8; LEN], mem: &impl QueueMemory) -> Result<(), WriteError> {
        self.check(mem)?;
        self.ring.push(entry, mem).map_err(WriteError::Access)
    }

    fn check(&self, mem: &impl QueueMemory) -> Result<(), WriteError> {
        if !self.checks_owner {
            return Ok(());
        }
        let owner = self.ring.next_offset().and_then(|at| at.checked_add(OWNER as u64));
        let Buffer { pd, lkey, .. } = self.ring.buffer;
        let mut byte = [0];
        let read = owner.ok_or(AccessError::Bounds).and_then(|at| mem.read(pd, lkey, at, &mut byte));
        read.map_err(WriteError::Access)?;
        if byte[0] & HARDWARE_OWNED == 0 { Err(WriteError::Full) } else { Ok(()) }
    }
}

/// A ring with a consumer index reported by software.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedRing {
    ring: EntryRing,
    /// Free-running consumer index, modulo 2^32.
    consumer: u32,
}

impl CountedRing {
    pub fn new(buffer: Buffer) -> Self {
        Self { ring: EntryRing::new(buffer, 0), consumer: 0 }
    }

    pub fn ring(&self) -> &EntryRing {
        &self.ring
    }

    pub fn set_consumer(&mut self, consumer: u32) {
        self.consumer = consumer;
    }

    /// Switches to another buffer and keeps both indices.
    pub fn move_to(&mut self, buffer: Buffer) {
        self.ring.move_to(buffer);
    }

    /// Returns whether no slot is free, according to the last reported consumer index.
    pub fn is_full(&self) -> bool {
        u64::from(self.unread()) >= self.ring.entries()
    }

    /// Returns the number of unconsumed entries, according to the last reported consumer index.
    pub fn unread(&self) -> u32 {
        self.ring.producer().wrapping_sub(self.consumer)
    }
}

pub trait Ring {
    /// Writes the next entry.
    ///
    /// # Errors
    /// Fails if the slot is not free or the buffer cannot be written. In that case, the entry is lost.
    fn push(&mut self, entry: &[u8; LEN], mem: &impl QueueMemory) -> Result<(), WriteError>;
}

impl Ring for OwnedRing {
    fn push(&mut self, entry: &[u8; LEN], mem: &impl QueueMemory) -> Result<(), WriteError> {
        OwnedRing::push(self, entry, mem)
    }
}

impl Ring for CountedRing {
    fn push(&mut self, entry: &[u8; LEN], mem: &impl QueueMemory) -> Result<(), WriteError> {
        if self.is_full() {
            return Err(WriteError::Full);
        }
        self.ring.push(entry, mem).map_err(WriteError::Access)
    }
}

/// An event ring that reports an overflow to software.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventRing<R> {
    pub ring: R,
    overflowed: bool,
}

impl<R: Ring> EventRing<R> {
    pub fn new(ring: R) -> Self {
        Self { ring, overflowed: false }
    }

    /// Returns whether events have been lost and the overflow event has not been written yet.
    pub fn overflowed(&self) -> bool {
        self.overflowed
    }

    /// Writes an event, preceded by `overflow` if earlier events were lost. Succeeds if any entry was written, even if
    /// it was only `overflow`.
    ///
    /// # Errors
    /// Fails if no entry could be written. In that case, the event is lost.
    pub fn push(
        &mut self,
        event: &[u8; LEN],
        overflow: &[u8; LEN],
        mem: &impl QueueMemory,
    ) -> Result<(), WriteError> {
        let mut reported = false;
        let mut result = Ok(());
        if self.overflowed {
            result = self.ring.push(overflow, mem);
            reported = result.is_ok();
            self.overflowed = !reported;
        }
        let result = result.and_then(|()| self.ring.push(event, mem));
        if result == Err(WriteError::Full) {
            self.overflowed = true;
        }
        if reported { Ok(()) } else { result }
    }
}

fn all_owned_by_hardware(buffer: &Buffer, mem: &impl QueueMemory) -> bool {
    const CHUNK: usize = 128;
    // Commands accept at most 2^20 entries, which occupy 32 MiB. Strict mode also checks the buffers of larger queues,
    // before the command rejects them.
    let len = 1u64 << buffer.log_entries.min(20);
    let mut entries = [[0; LEN]; CHUNK];
    let mut index = 0;
    while index < len {
        let count = usize::try_from(len - index).unwrap_or(CHUNK).min(CHUNK);
        let chunk = &mut entries[..count];
        let Some(at) = buffer.start.checked_add(index * LEN as u64) else { return false };
        if mem.read(buffer.pd, buffer.lkey, at, chunk.as_flattened_mut()).is_err() {
            return false;
        }
        if chunk.iter().any(|entry| entry[OWNER] & HARDWARE_OWNED == 0) {
            return false;
        }
        index += count as u64;
    }
    true
}
