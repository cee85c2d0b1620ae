//! Memory shared by two HCAs: two rings of frames, one per direction. This module does no I/O and does not read the
//! clock.
//!
//! ```text
//! 0     counters of the first direction: head, sleeping, tail, starving, each in its own cache line
//! 4096  counters of the second direction, in the same order
//! 8192  data of the first direction, followed by the data of the second
//! ```
//!
//! `head` and `tail` count bytes and wrap at 2^32. The bytes between them are records: a 32-bit length word, the frame,
//! and padding to eight bytes. The highest bit of the length word is set if the frame has no ICRC. The next three bits
//! contain the path MTU code if the frame carries several packets, and 0 otherwise. The creator of the memory sends in
//! the first direction.
//!
//! The other side may write any value anywhere at any time. Each side therefore keeps a private copy of its own
//! counters and never reads them back. Values written by the other side are loaded once and checked, and only the copy
//! is used. Frames are copied out before they are parsed. Of a long RoCE frame, only the headers are copied out and
//! parsed. Its payload is copied straight to guest memory, so a sender that changes it harms only its own message.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use engine::PayloadRef;
use protocol::roce::{Mtu, Offload, PacketPayload as _};
use thiserror::Error;
use vm_memory::{MmapRegion, VolatileMemory as _};

use crate::fabric::rx_batch::SharedFrame;
use crate::fabric::wake_flag::WakeFlag;
use crate::fabric::{HEADERS_LEN, MAX_FRAME_LEN, MAX_OFFLOADED_FRAME_LEN, MIN_FRAME_LEN, RxBatch};

/// Offset of the data in the memory.
const DATA_AT: usize = 2 * COUNTERS_LEN;
const COUNTERS_LEN: usize = 4096;

// Offsets of one direction's counters. They are far enough apart that no two share a cache line or a pair of
// adjacent lines.
const HEAD_AT: usize = 0;
const SLEEPING_AT: usize = 256;
const TAIL_AT: usize = 512;
const STARVING_AT: usize = 768;

/// Number of bytes in the length word.
const PREFIX: u32 = 4;
/// Bit of the length word that is set if the frame has no ICRC. The bit has no bearing on trust, since a malicious peer
/// could also compute a valid ICRC.
const ICRC_LEFT_OUT: u32 = 1 << 31;
/// Position of the path MTU code in the length word.
const MTU_SHIFT: u32 = 28;
const MTU_MASK: u32 = 7;
const LENGTH_MASK: u32 = (1 << MTU_SHIFT) - 1;
/// Records begin at multiples of this value so that no length word wraps around at the end of the ring.
const ALIGNMENT: usize = 8;

/// Minimum length in bytes of a frame that is read where it is. Copying a shorter frame costs less.
const MIN_SHARED_LEN: usize = 2048;

/// Length of one ring's data in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingLen(u32);

/// The other side wrote an invalid value. The link cannot continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RingError {
    /// The other side claims to have sent more than fits into the ring.
    #[error("the ring head is invalid: {0} bytes ahead of the tail")]
    Head(u32),
    /// The other side claims to have taken bytes that were not sent.
    #[error("the ring tail is invalid: {0} bytes behind the head")]
    Tail(u32),
    /// The frame length is out of range or exceeds the number of bytes sent.
    #[error("a frame in the ring has an invalid length word: {0:#x}")]
    Length(u32),
}

/// One side of the link. The creator of the memory sends in the first direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// This side created the memory.
    Creator,
    /// This side received the memory.
    Receiver,
}

/// The shared ring for one direction.
#[derive(Clone, Debug)]
struct Ring {
    region: Arc<MmapRegion>,
    counters: usize,
    data: usize,
    len: RingLen,
}

#[derive(Debug)]
pub struct Producer {
    ring: Ring,
    /// End of the last pushed frame, whether published or not.
    head: u32,
    /// Last valid tail loaded from the shared memory.
    tail: u32,
}

#[derive(Debug)]
pub struct Consumer {
    ring: Ring,
    tail: u32,
}

impl RingLen {
    /// Default length: long enough for several windows of a few QPs, and short enough for most of the ring to fit into
    /// an L2 cache.
    pub const DEFAULT: Self = Self(2 << 20);
    const MIN: u32 = 64 << 10;
    const MAX: u32 = 64 << 20;

    /// Creates a ring length. Returns `None` unless `bytes` is a power of two within the limits.
    pub fn new(bytes: u32) -> Option<Self> {
        (bytes.is_power_of_two() && (Self::MIN..=Self::MAX).contains(&bytes)).then_some(Self(bytes))
    }

    /// Returns the length in bytes.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Returns the length of the shared memory, which holds two rings.
    pub const fn memory_len(self) -> usize {
        DATA_AT + 2 * self.0 as usize
    }

    /// Returns the offset in the ring that corresponds to a byte count.
    const fn offset(self, count: u32) -> usize {
        (count & (self.0 - 1)) as usize
    }
}

/// Returns this side's ends of the two rings.
///
/// # Errors
/// Fails if the region is shorter than the rings.
pub fn ends(region: Arc<MmapRegion>, len: RingLen, side: Side) -> io::Result<(Producer, Consumer)> {
    if region.size() < len.memory_len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let ring = |index: usize| Ring {
        region: region.clone(),
        counters: index * COUNTERS_LEN,
        data: DATA_AT + index * len.get() as usize,
        len,
    };
    let (out, inward) = match side {
        Side::Creator => (ring(0), ring(1)),
        Side::Receiver => (ring(1), ring(0)),
    };
    Ok((Producer { ring: out, head: 0, tail: 0 }, Consumer { ring: inward, tail: 0 }))
}

/// Returns the number of bytes that a frame occupies in a ring.
const fn record_len(frame: usize) -> usize {
    (PREFIX as usize + frame).next_multiple_of(ALIGNMENT)
}

/// Returns whether a frame is untagged IPv4, so that all its headers are at its beginning. In other frames, any number
/// of VLAN tags could precede the IP addresses.
fn is_untagged_ipv4(head: &[u8]) -> bool {
    head.get(12..14) == Some(&[8, 0])
}

/// Decodes the offload in a length word. Returns `None` if the word is invalid.
fn offload_of(prefix: u32) -> Option<Offload> {
    let code = u8::try_from(prefix >> MTU_SHIFT & MTU_MASK).ok()?;
    match (prefix & ICRC_LEFT_OUT != 0, code) {
        (false, 0) => Some(Offload::None),
        (true, 0) => Some(Offload::Icrc),
        (true, code) => Mtu::from_code(code).map(Offload::Segmentation),
        (false, _) => None,
    }
}

impl Ring {
    /// Returns a counter or a length word. Offsets are computed from masked counts and always lie within the region.
    fn word(&self, at: usize) -> &AtomicU32 {
        self.region.get_atomic_ref(at).expect("the region is as long as its rings, and the place is aligned")
    }

    fn counter(&self, at: usize) -> &AtomicU32 {
        self.word(self.counters + at)
    }

    fn prefix(&self, count: u32) -> &AtomicU32 {
        self.word(self.data + self.len.offset(count))
    }

    /// Splits a range of `len` bytes into the part before the end of the ring and the part that wraps around to its
    /// start. The range begins at byte count `count`. Returns the offset and length of each part.
    fn pieces(&self, count: u32, len: usize) -> [(usize, usize); 2] {
        let start = self.len.offset(count);
        let first = len.min(self.len.get() as usize - start);
        [(self.data + start, first), (self.data, len - first)]
    }

    /// Returns a frame that can be read where it is, or `None` if the frame wraps around.
    fn shared(&self, count: u32, len: usize) -> Option<SharedFrame> {
        let [(at, first), _] = self.pieces(count, len);
        (first == len).then(|| SharedFrame { region: self.region.clone(), at, len })
    }

    fn write(&self, count: u32, bytes: PayloadRef<'_>) {
        let mut rest = bytes;
        for (at, len) in self.pieces(count, bytes.len()) {
            let (piece, after) = rest.split_at(len);
            rest = after;
            if let Ok(slice) = self.region.get_slice(at, len) {
                match piece {
                    PayloadRef::Private(bytes) => slice.copy_from(bytes),
                    PayloadRef::Shared(bytes) => bytes.copy_to_volatile_slice(slice),
                }
            }
        }
    }

    fn read(&self, count: u32, bytes: &mut [u8]) {
        let mut rest = bytes;
        for (at, len) in self.pieces(count, rest.len()) {
            let (piece, after) = rest.split_at_mut(len);
            rest = after;
            if let Ok(slice) = self.region.get_slice(at, len) {
                slice.copy_to(piece);
            }
        }
    }
}

impl Producer {
    /// Pushes a frame, which the consumer sees after [`Producer::publish`]. Returns false if the frame does
    /// not fit.
    ///
    /// # Errors
    /// Fails with [`RingError::Tail`] if the consumer's tail is invalid.
    pub fn push(&mut self, frame: &[u8], offload: Offload) -> Result<bool, RingError> {
        let Some(record) = self.begin(frame.len(), offload)? else { return Ok(false) };
        self.ring.write(self.head.wrapping_add(PREFIX), PayloadRef::Private(frame));
        self.head = self.head.wrapping_add(record);
        Ok(true)
    }

    /// Like [`Producer::push`], for a frame of `frame_len` bytes that consists of `parts`. If `is_intact` returns false
    /// after the parts have been copied, the frame is dropped.
    ///
    /// # Errors
    /// Fails as `push` does.
    pub(super) fn push_parts<'a>(
        &mut self,
        parts: impl Iterator<Item = PayloadRef<'a>>,
        frame_len: usize,
        offload: Offload,
        is_intact: impl FnOnce() -> bool,
    ) -> Result<bool, RingError> {
        let Some(record) = self.begin(frame_len, offload)? else { return Ok(false) };
        let end = self.head.wrapping_add(record);
        let mut at = self.head.wrapping_add(PREFIX);
        for part in parts {
            // Parts that are longer than announced must not overwrite other frames.
            let part = part.slice(0..part.len().min(end.wrapping_sub(at) as usize));
            self.ring.write(at, part);
            at = at.wrapping_add(u32::try_from(part.len()).unwrap_or(record));
        }
        if is_intact() {
            self.head = end;
        }
        Ok(true)
    }

    /// Writes the length word of a frame. Returns the number of bytes that the frame will occupy, or `None` if it does
    /// not fit.
    #[inline(always)]
    fn begin(&mut self, frame_len: usize, offload: Offload) -> Result<Option<u32>, RingError> {
        let wanted = record_len(frame_len);
        if self.room() < wanted {
            self.load_tail()?;
            if self.room() < wanted {
                return Ok(None);
            }
        }
        let (Ok(len), Ok(record)) = (u32::try_from(frame_len), u32::try_from(wanted)) else {
            return Ok(None);
        };
        let prefix = match offload {
            Offload::None => len,
            Offload::Icrc => len | ICRC_LEFT_OUT,
            Offload::Segmentation(mtu) => len | ICRC_LEFT_OUT | u32::from(mtu.code()) << MTU_SHIFT,
        };
        self.ring.prefix(self.head).store(prefix, Ordering::Relaxed);
        Ok(Some(record))
    }

    /// Publishes the pushed frames. Returns true if the consumer is sleeping and must be woken.
    #[must_use]
    pub fn publish(&mut self) -> bool {
        self.ring.counter(HEAD_AT).store(self.head, Ordering::Release);
        WakeFlag(self.ring.counter(SLEEPING_AT)).take()
    }

    /// Requests a wake-up for the next time the consumer releases space. Returns false if a frame of `frame` bytes
    /// already fits.
    ///
    /// # Errors
    /// Fails with [`RingError::Tail`] if the consumer's tail is invalid.
    pub fn request_room(&mut self, frame: usize) -> Result<bool, RingError> {
        WakeFlag(self.ring.counter(STARVING_AT)).request();
        self.load_tail()?;
        Ok(self.room() < record_len(frame))
    }

    /// Returns the number of bytes that the consumer has not taken, according to its tail counter.
    pub fn waiting(&self) -> u32 {
        let tail = self.ring.counter(TAIL_AT).load(Ordering::Relaxed);
        self.head.wrapping_sub(tail).min(self.ring.len.get())
    }

    /// Returns whether the consumer has indicated that it is sleeping.
    pub fn is_asleep(&self) -> bool {
        self.ring.counter(SLEEPING_AT).load(Ordering::Relaxed) != 0
    }

    fn room(&self) -> usize {
        (self.ring.len.get() - self.head.wrapping_sub(self.tail)) as usize
    }

    fn load_tail(&mut self) -> Result<(), RingError> {
        // Acquire ordering ensures that the consumer has read the old bytes before this side overwrites them.
        let tail = self.ring.counter(TAIL_AT).load(Ordering::Acquire);
        let waiting = self.head.wrapping_sub(tail);
        // Also reject a tail that moves backwards, since it would increase the number of unread bytes.
        if waiting > self.head.wrapping_sub(self.tail) {
            return Err(RingError::Tail(waiting));
        }
        self.tail = tail;
        Ok(())
    }
}

impl Consumer {
    /// Returns whether frames have arrived.
    pub fn has_frames(&self) -> bool {
        self.ring.counter(HEAD_AT).load(Ordering::Relaxed) != self.tail
    }

    /// Appends up to `max_frames` frames to `batch` and stops at the first one that does not fit. Of an untagged IPv4
    /// frame of at least `MIN_SHARED_LEN` bytes without an ICRC, only the headers are copied, unless the frame wraps
    /// around. If only the headers are copied, the batch refers to the frame in the ring, where the producer can still
    /// change it.
    ///
    /// # Errors
    /// Fails with a [`RingError`] if a value in the shared memory is invalid. Frames appended before the error are
    /// intact.
    pub fn take(&mut self, batch: &mut RxBatch, max_frames: usize) -> Result<(), RingError> {
        // Acquire ordering makes the frames visible along with the head.
        let head = self.ring.counter(HEAD_AT).load(Ordering::Acquire);
        let mut waiting = head.wrapping_sub(self.tail);
        if waiting > self.ring.len.get() || !(waiting as usize).is_multiple_of(ALIGNMENT) {
            return Err(RingError::Head(waiting));
        }
        for _ in 0..max_frames {
            if waiting == 0 {
                break;
            }
            let prefix = self.ring.prefix(self.tail).load(Ordering::Relaxed);
            let len = (prefix & LENGTH_MASK) as usize;
            let offload = offload_of(prefix).ok_or(RingError::Length(prefix))?;
            let most = match offload {
                Offload::None | Offload::Icrc => MAX_FRAME_LEN,
                Offload::Segmentation(_) => MAX_OFFLOADED_FRAME_LEN,
            };
            if !(MIN_FRAME_LEN..=most).contains(&len) || record_len(len) > waiting as usize {
                return Err(RingError::Length(prefix));
            }
            let at = self.tail.wrapping_add(PREFIX);
            let Some(space) = batch.space(len) else { break };
            let mut shared = None;
            let mut private_len = len;
            if offload != Offload::None && len >= MIN_SHARED_LEN {
                let head = space.get_mut(..HEADERS_LEN).unwrap_or_default();
                self.ring.read(at, head);
                shared = if is_untagged_ipv4(head) { self.ring.shared(at, len) } else { None };
            }
            if shared.is_some() {
                private_len = HEADERS_LEN;
            } else {
                self.ring.read(at, space);
            }
            batch.commit(private_len, offload, shared);
            #[expect(
                clippy::cast_possible_truncation,
                reason = "a frame is no longer than MAX_OFFLOADED_FRAME_LEN"
            )]
            let record = record_len(len) as u32;
            self.tail = self.tail.wrapping_add(record);
            waiting -= record;
        }
        Ok(())
    }

    /// Releases the space of the frames that were taken. The batch must no longer refer to them. Returns true if the
    /// producer is waiting for space and must be woken.
    #[must_use]
    pub fn release(&mut self) -> bool {
        self.ring.counter(TAIL_AT).store(self.tail, Ordering::Release);
        WakeFlag(self.ring.counter(STARVING_AT)).take()
    }

    /// Requests a wake-up for the next frame that arrives. Returns false if frames have already arrived.
    #[must_use]
    pub fn enable_wakeups(&mut self) -> bool {
        WakeFlag(self.ring.counter(SLEEPING_AT)).request();
        !self.has_frames()
    }

    /// Cancels the requested wake-up.
    pub fn disable_wakeups(&mut self) {
        WakeFlag(self.ring.counter(SLEEPING_AT)).clear();
    }
}

#[cfg(test)]
mod tests;
