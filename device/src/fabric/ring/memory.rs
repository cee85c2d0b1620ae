//! What two HCAs share: two rings of frames in one piece of memory, one for each direction. No sockets, no clock.
//!
//! ```text
//! 0     counters of the first direction: head, sleeping, tail, starving, each in a cache line of its own
//! 4096  the same of the second
//! 8192  bytes of the first, then those of the second
//! ```
//!
//! `head` and `tail` count bytes and wrap at 2^32; the bytes between them are records: a word of 32 bits, the frame, and
//! padding to eight. The word is the frame's length, and says in its highest bit that the ICRC is left out. Who made the
//! memory sends in the first direction.
//!
//! The other side may write anything anywhere at any time. So what a side has written itself it keeps for itself and never
//! reads back; what the other has written is loaded once, checked, and used from the copy; and a frame is copied out before
//! anybody looks at it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use protocol::roce::IcrcField;
use thiserror::Error;
use vm_memory::{MmapRegion, VolatileMemory as _};

use crate::fabric::wish::{is_wanted, want};
use crate::fabric::{MAX_FRAME_LEN, MIN_FRAME_LEN, RxBatch};

/// Where the bytes begin.
const DATA_AT: usize = 2 * COUNTERS_LEN;
const COUNTERS_LEN: usize = 4096;

// Of one direction, far enough from each other that no two share a line or a pair of them.
const HEAD_AT: usize = 0;
const SLEEPING_AT: usize = 256;
const TAIL_AT: usize = 512;
const STARVING_AT: usize = 768;

/// Length of the word before a frame.
const PREFIX: u32 = 4;
/// Of that word. It says what is computed, not what may be believed: who writes what it likes could compute an ICRC too.
const ICRC_LEFT_OUT: u32 = 1 << 31;
/// Records begin at multiples of it, so that no length is cut by the end of the ring.
const ALIGNMENT: usize = 8;

/// The bytes of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingLen(u32);

/// What the other side wrote that no peer of ours writes. There is no way to go on with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Broken {
    /// It says to have sent more than there is room for.
    #[error("invalid ring head, {0} bytes ahead of the tail")]
    Head(u32),
    /// It says to have taken what was not sent.
    #[error("invalid ring tail, {0} bytes behind the head")]
    Tail(u32),
    /// The frame is longer than what was sent, or no frame.
    #[error("invalid frame length word {0:#x} in the ring")]
    Length(u32),
}

/// Which side we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It made the memory.
    Maker,
    /// It was given the memory.
    Taker,
}

/// One direction.
#[derive(Clone, Debug)]
struct Ring {
    region: Arc<MmapRegion>,
    counters: usize,
    data: usize,
    len: RingLen,
}

/// The end that frames are put in at.
#[derive(Debug)]
pub struct Producer {
    ring: Ring,
    /// Behind the last frame, published or not.
    head: u32,
    /// What the consumer said last.
    tail: u32,
}

/// The end that frames come out at.
#[derive(Debug)]
pub struct Consumer {
    ring: Ring,
    tail: u32,
}

impl RingLen {
    /// A burst of several windows of queue pairs fits, and most of it into a second-level cache.
    pub const USUAL: Self = Self(2 << 20);
    const MIN: u32 = 64 << 10;
    const MAX: u32 = 64 << 20;

    /// A power of two with room for some of the longest frames.
    pub fn new(bytes: u32) -> Option<Self> {
        (bytes.is_power_of_two() && (Self::MIN..=Self::MAX).contains(&bytes)).then_some(Self(bytes))
    }

    /// Bytes.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Length of all the memory that two rings of this length take.
    pub const fn memory_len(self) -> usize {
        DATA_AT + 2 * self.0 as usize
    }

    /// Where a count of bytes stands in the ring.
    const fn place(self, count: u32) -> usize {
        (count & (self.0 - 1)) as usize
    }
}

/// Both ends that a side has.
///
/// # Errors
/// The region is shorter than the rings.
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
        Side::Maker => (ring(0), ring(1)),
        Side::Taker => (ring(1), ring(0)),
    };
    Ok((Producer { ring: out, head: 0, tail: 0 }, Consumer { ring: inward, tail: 0 }))
}

/// Bytes that a frame takes in a ring.
const fn record_len(frame: usize) -> usize {
    (PREFIX as usize + frame).next_multiple_of(ALIGNMENT)
}

impl Ring {
    /// A counter, or the word before a frame. All places are computed from masked counts, so they are in the region.
    fn word(&self, at: usize) -> &AtomicU32 {
        self.region.get_atomic_ref(at).expect("the region is as long as its rings, and the place is aligned")
    }

    fn counter(&self, at: usize) -> &AtomicU32 {
        self.word(self.counters + at)
    }

    fn prefix(&self, count: u32) -> &AtomicU32 {
        self.word(self.data + self.len.place(count))
    }

    /// Bytes from a count on, in two pieces where the ring ends between them.
    fn pieces(&self, count: u32, len: usize) -> [(usize, usize); 2] {
        let start = self.len.place(count);
        let first = len.min(self.len.get() as usize - start);
        [(self.data + start, first), (self.data, len - first)]
    }

    fn write(&self, count: u32, bytes: &[u8]) {
        let mut rest = bytes;
        for (at, len) in self.pieces(count, bytes.len()) {
            let (piece, after) = rest.split_at(len);
            rest = after;
            if let Ok(slice) = self.region.get_slice(at, len) {
                slice.copy_from(piece);
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
    /// Puts a frame in, which the consumer sees with [`Producer::publish`]. False: there is no room.
    ///
    /// # Errors
    /// [`Broken::Tail`].
    pub fn push(&mut self, frame: &[u8], icrc: IcrcField) -> Result<bool, Broken> {
        let wanted = record_len(frame.len());
        if self.room() < wanted {
            self.look()?;
            if self.room() < wanted {
                return Ok(false);
            }
        }
        let (Ok(len), Ok(record)) = (u32::try_from(frame.len()), u32::try_from(wanted)) else {
            return Ok(false);
        };
        let prefix = if icrc == IcrcField::LeftOut { len | ICRC_LEFT_OUT } else { len };
        self.ring.prefix(self.head).store(prefix, Ordering::Relaxed);
        self.ring.write(self.head.wrapping_add(PREFIX), frame);
        self.head = self.head.wrapping_add(record);
        Ok(true)
    }

    /// Shows the consumer what was put in. True: it sleeps, and has to be woken.
    #[must_use]
    pub fn publish(&mut self) -> bool {
        self.ring.counter(HEAD_AT).store(self.head, Ordering::Release);
        is_wanted(self.ring.counter(SLEEPING_AT))
    }

    /// Wants to be woken when there is room again. False: there is some already.
    ///
    /// # Errors
    /// [`Broken::Tail`].
    pub fn starve(&mut self, frame: usize) -> Result<bool, Broken> {
        want(self.ring.counter(STARVING_AT));
        self.look()?;
        Ok(self.room() < record_len(frame))
    }

    /// Bytes that the consumer has not taken, by its own word.
    pub fn waiting(&self) -> u32 {
        let tail = self.ring.counter(TAIL_AT).load(Ordering::Relaxed);
        self.head.wrapping_sub(tail).min(self.ring.len.get())
    }

    /// Whether the consumer says that it sleeps until something comes.
    pub fn is_awaited(&self) -> bool {
        self.ring.counter(SLEEPING_AT).load(Ordering::Relaxed) != 0
    }

    fn room(&self) -> usize {
        (self.ring.len.get() - self.head.wrapping_sub(self.tail)) as usize
    }

    /// Takes over how far the consumer is.
    fn look(&mut self) -> Result<(), Broken> {
        // Acquire: the consumer has read what stood there before we write over it.
        let tail = self.ring.counter(TAIL_AT).load(Ordering::Acquire);
        let waiting = self.head.wrapping_sub(tail);
        // It does not go back either: that would be more waiting than there was.
        if waiting > self.head.wrapping_sub(self.tail) {
            return Err(Broken::Tail(waiting));
        }
        self.tail = tail;
        Ok(())
    }
}

impl Consumer {
    /// Whether there is something to take.
    pub fn has_frames(&self) -> bool {
        self.ring.counter(HEAD_AT).load(Ordering::Relaxed) != self.tail
    }

    /// Appends frames that have arrived to `batch`, up to so many and while it has room.
    ///
    /// # Errors
    /// [`Broken`]. What was appended is whole.
    pub fn take(&mut self, batch: &mut RxBatch, max_frames: usize) -> Result<(), Broken> {
        // Acquire: the frames were written before.
        let head = self.ring.counter(HEAD_AT).load(Ordering::Acquire);
        let mut waiting = head.wrapping_sub(self.tail);
        if waiting > self.ring.len.get() || !(waiting as usize).is_multiple_of(ALIGNMENT) {
            return Err(Broken::Head(waiting));
        }
        for _ in 0..max_frames {
            if waiting == 0 {
                break;
            }
            let prefix = self.ring.prefix(self.tail).load(Ordering::Relaxed);
            let len = (prefix & !ICRC_LEFT_OUT) as usize;
            let icrc = if prefix & ICRC_LEFT_OUT == 0 { IcrcField::Computed } else { IcrcField::LeftOut };
            if !(MIN_FRAME_LEN..=MAX_FRAME_LEN).contains(&len) || record_len(len) > waiting as usize {
                return Err(Broken::Length(prefix));
            }
            let Some(space) = batch.space(len) else { break };
            self.ring.read(self.tail.wrapping_add(PREFIX), space);
            batch.commit(len, icrc);
            #[expect(clippy::cast_possible_truncation, reason = "a frame is no longer than MAX_FRAME_LEN")]
            let record = record_len(len) as u32;
            self.tail = self.tail.wrapping_add(record);
            waiting -= record;
        }
        Ok(())
    }

    /// Lets the producer have the room of what was taken. True: it waits for that, and has to be woken.
    #[must_use]
    pub fn release(&mut self) -> bool {
        self.ring.counter(TAIL_AT).store(self.tail, Ordering::Release);
        is_wanted(self.ring.counter(STARVING_AT))
    }

    /// Wants to be woken by the next frame. False: there are some already.
    #[must_use]
    pub fn doze(&mut self) -> bool {
        want(self.ring.counter(SLEEPING_AT));
        !self.has_frames()
    }

    /// Needs no waking any more.
    pub fn wake(&mut self) {
        self.ring.counter(SLEEPING_AT).store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
