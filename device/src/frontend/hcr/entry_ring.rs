//! A ring of 32-byte entries that the device hands to software: the buffer of a completion or event queue.
//!
//! The last byte of an entry says who owns it and is written last. How the device learns that software has read an
//! entry is the interface's business: [`OwnedRing`] looks at that byte, others are told a consumer index.

use engine::AccessError;
use protocol::ids::{Lkey, Pdn};
use thiserror::Error;

use crate::memory::queue::QueueMemory;

/// Bytes of an entry.
pub const LEN: usize = 32;
/// Offset of an entry's owner byte, its last.
pub const OWNER: usize = LEN - 1;
/// Bit of the owner byte: the device may write the entry. Software sets it when it has read the entry.
pub const HARDWARE_OWNED: u8 = 0x80;

/// Why an entry was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WriteError {
    /// Software has not read the entry that is in its place.
    #[error("the queue is full: software has not consumed the oldest entry")]
    Full,
    /// The buffer cannot be reached.
    #[error("the buffer is not accessible: {0}")]
    Access(AccessError),
}

/// Where a ring's entries are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Protection domain the device writes in.
    pub pd: Pdn,
    /// Region of the entries.
    pub lkey: Lkey,
    /// Offset of entry 0 in the region.
    pub start: u64,
    /// Log2 of the entries.
    pub log_entries: u8,
}

/// A buffer and the producer's place in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryRing {
    buffer: Buffer,
    /// Entries written, counted on for ever; its low bits are the next entry.
    producer: u32,
}

impl EntryRing {
    /// A ring whose next entry has the number `producer`.
    pub fn new(buffer: Buffer, producer: u32) -> Self {
        Self { buffer, producer }
    }

    /// Its buffer.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Goes on in another buffer; the count does not change.
    pub fn move_to(&mut self, buffer: Buffer) {
        self.buffer = buffer;
    }

    /// Entries of the buffer.
    pub fn entries(&self) -> u64 {
        1u64.checked_shl(self.buffer.log_entries.into()).unwrap_or(0)
    }

    /// Entries written, modulo 2^32.
    pub fn producer(&self) -> u32 {
        self.producer
    }

    /// Writes the next entry, whatever is in its place.
    ///
    /// # Errors
    /// The buffer cannot be written; nothing has changed then.
    pub fn push(&mut self, entry: &[u8; LEN], mem: &impl QueueMemory) -> Result<(), AccessError> {
        let at = self.next_offset().ok_or(AccessError::Bounds)?;
        mem.publish(self.buffer.pd, self.buffer.lkey, at, entry)?;
        self.producer = self.producer.wrapping_add(1);
        Ok(())
    }

    /// Owner byte of the next entry as it is now, if it can be read.
    pub fn owner(&self, mem: &impl QueueMemory) -> Option<u8> {
        let mut byte = [0];
        let at = self.next_offset()?.checked_add(OWNER as u64)?;
        mem.read(self.buffer.pd, self.buffer.lkey, at, &mut byte).ok()?;
        Some(byte[0])
    }

    /// Offset of the next entry in the region.
    fn next_offset(&self) -> Option<u64> {
        let mask = 1u32.checked_shl(self.buffer.log_entries.into()).map_or(u32::MAX, |entries| entries - 1);
        self.buffer.start.checked_add(u64::from(self.producer & mask) * LEN as u64)
    }
}

/// A ring without consumer index: the owner byte is the only flow control. Software sets the bit in all entries before
/// it creates the queue, and again in each entry it has read. Software that does not do the first must still work, so
/// the bit is only looked at if it was set everywhere at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnedRing {
    ring: EntryRing,
    checks_owner: bool,
}

impl OwnedRing {
    /// A ring whose next entry has the number `producer`.
    pub fn new(buffer: Buffer, producer: u32, mem: &impl QueueMemory) -> Self {
        Self { ring: EntryRing::new(buffer, producer), checks_owner: all_owned_by_hardware(&buffer, mem) }
    }

    /// Its buffer.
    pub fn buffer(&self) -> &Buffer {
        self.ring.buffer()
    }

    /// Whether software gave all entries to the device at the start, so that overruns are noticed.
    pub fn checks_owner(&self) -> bool {
        self.checks_owner
    }

    /// The same ring in another buffer; the count goes on.
    #[must_use]
    pub fn moved_to(&self, buffer: Buffer, mem: &impl QueueMemory) -> Self {
        Self::new(buffer, self.ring.producer, mem)
    }

    /// Entries of the buffer.
    pub fn entries(&self) -> u64 {
        self.ring.entries()
    }

    /// Entries written, modulo 2^32.
    pub fn producer(&self) -> u32 {
        self.ring.producer()
    }

    /// Writes the next entry.
    ///
    /// # Errors
    /// The entry is lost, because software has not made room or the buffer cannot be written.
    pub fn push(&mut self, entry: &[u8; LEN], mem: &impl QueueMemory) -> Result<(), WriteError> {
        self.check(mem)?;
        self.ring.push(entry, mem).map_err(WriteError::Access)
    }

    /// Whether the next entry may be written.
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

/// A ring whose software tells how far it has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedRing {
    ring: EntryRing,
    /// Entries software has read, modulo 2^32.
    consumer: u32,
}

impl CountedRing {
    /// A ring without entries.
    pub fn new(buffer: Buffer) -> Self {
        Self { ring: EntryRing::new(buffer, 0), consumer: 0 }
    }

    /// Its buffer and place.
    pub fn ring(&self) -> &EntryRing {
        &self.ring
    }

    /// Takes over how far software has read.
    pub fn set_consumer(&mut self, consumer: u32) {
        self.consumer = consumer;
    }

    /// Goes on in another buffer; the counts do not change.
    pub fn move_to(&mut self, buffer: Buffer) {
        self.ring.move_to(buffer);
    }

    /// Whether there is no room, as far as software told.
    pub fn is_full(&self) -> bool {
        u64::from(self.unread()) >= self.ring.entries()
    }

    /// Entries that software has not read, as far as it told.
    pub fn unread(&self) -> u32 {
        self.ring.producer().wrapping_sub(self.consumer)
    }
}

/// Where entries go.
pub trait Ring {
    /// Writes the next entry.
    ///
    /// # Errors
    /// The entry is lost, because software has not made room or the buffer cannot be written.
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

/// A ring of events that tells software when it lost some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventRing<R> {
    /// Where the events go.
    pub ring: R,
    /// Events were lost that software has not been told of.
    overflowed: bool,
}

impl<R: Ring> EventRing<R> {
    /// A ring that has lost nothing.
    pub fn new(ring: R) -> Self {
        Self { ring, overflowed: false }
    }

    /// Whether events were lost that software has not been told of.
    pub fn overflowed(&self) -> bool {
        self.overflowed
    }

    /// Writes an event, behind `overflow` if others were lost since the last one that fitted. `Ok` if software has
    /// something new to read, be it only that.
    ///
    /// # Errors
    /// The event is lost.
    pub fn push(
        &mut self,
        event: &[u8; LEN],
        overflow: &[u8; LEN],
        mem: &impl QueueMemory,
    ) -> Result<(), WriteError> {
        let mut told = false;
        let mut result = Ok(());
        if self.overflowed {
            result = self.ring.push(overflow, mem);
            told = result.is_ok();
            self.overflowed = !told;
        }
        let result = result.and_then(|()| self.ring.push(event, mem));
        if result == Err(WriteError::Full) {
            self.overflowed = true;
        }
        if told { Ok(()) } else { result }
    }
}

fn all_owned_by_hardware(buffer: &Buffer, mem: &impl QueueMemory) -> bool {
    const CHUNK: usize = 128;
    let mut entries = [[0; LEN]; CHUNK];
    let mut index = 0u64;
    // Bound: 2^20 entries, the largest queue a command accepts, are 32 MiB.
    while index < 1u64 << buffer.log_entries.min(20) {
        let left = (1u64 << buffer.log_entries) - index;
        let count = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
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
