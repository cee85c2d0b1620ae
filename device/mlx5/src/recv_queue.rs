//! The receive queue of a QP or RQ: a ring of entries. Receives have no doorbell. Instead, the device reads the
//! doorbell record whenever it has consumed all known entries (section 20, M-12).
//!
//! # Spec
//! mlx5 interface, section 12.1.

use card::memory::GuestMemory;
use engine::{AccessError, Fetch, RecvRequest, Sge};
use protocol::hca::mlx5::wqe::{DataSegment, RecvWqe};
use smallvec::SmallVec;

use super::buffer::QueueBuffer;
use super::work_queue::Counters;

/// Copy of an entry. Copies longer than 512 bytes are allocated on the heap.
pub type Entry = SmallVec<[u8; 512]>;

/// Length in bytes of an entry with four segments.
const SHORT_ENTRY: usize = 64;

/// Space for the copy of an entry.
struct EntryCopy {
    short: [u8; SHORT_ENTRY],
    /// Used for entries that do not fit in `short`. Most receives have at most four segments.
    long: Entry,
}

impl EntryCopy {
    fn new() -> Self {
        Self { short: [0; SHORT_ENTRY], long: Entry::new() }
    }

    /// Returns space for `len` bytes.
    #[inline]
    fn with_len(&mut self, len: usize) -> &mut [u8] {
        match self.short.get_mut(..len) {
            Some(short) => short,
            None => resized(&mut self.long, len),
        }
    }
}

#[cold]
fn resized(entry: &mut Entry, len: usize) -> &mut [u8] {
    entry.resize(len, 0);
    entry
}

/// Receive queue of a QP or RQ, at the start of its buffer.
#[derive(Debug)]
pub struct RecvQueue {
    /// Number of entries; 0 if the QP has no receive queue of its own.
    entries: u32,
    log_stride: u8,
    counters: Counters,
}

impl RecvQueue {
    /// Creates an empty queue of `2^log_stride`-byte entries.
    pub fn new(entries: u32, log_stride: u8) -> Self {
        Self { entries, log_stride, counters: Counters::default() }
    }

    pub const fn entries(&self) -> u32 {
        self.entries
    }

    /// Returns the number of entries consumed, modulo 2^16.
    pub fn taken(&self) -> u16 {
        self.counters.taken
    }

    /// Drops all requests and resets the counters to 0.
    pub fn clear(&mut self) {
        self.counters = Counters::default();
    }

    /// Returns whether an entry is posted. `record` reads the receive counter from the doorbell record and returns
    /// `None` if the record is not accessible.
    pub fn is_posted(&mut self, record: impl FnOnce() -> Option<u16>) -> bool {
        if self.counters.waiting() == 0
            && let Some(posted) = record()
        {
            // An implausible counter is ignored.
            let _ = self.counters.learn(posted, self.entries);
        }
        self.counters.waiting() != 0
    }

    /// Fetches the next entry, if one is posted. The request's `wr_id` is the entry number, modulo 2^16.
    pub fn take(
        &mut self,
        buffer: &QueueBuffer,
        dma: &GuestMemory,
        record: impl FnOnce() -> Option<u16>,
    ) -> Fetch<RecvRequest> {
        if !self.is_posted(record) {
            return Fetch::Empty;
        }
        let number = self.counters.taken;
        let mut copy = EntryCopy::new();
        let Ok(entry) = self.copy(number, buffer, dma, &mut copy) else { return Fetch::Broken };
        self.counters.take(1);
        // Convert the segments directly, since a `RecvWqe` would be another copy of the scatter list.
        let sges = RecvWqe::segments(entry).map(|segment| sge(&segment)).collect();
        Fetch::Ready(RecvRequest { wr_id: number.into(), sges })
    }

    /// Consumes the next posted entry, which has been read with [`RecvQueue::read`].
    pub fn consume(&mut self) {
        self.counters.take(1);
    }

    /// Copies an entry. `number` is the entry number modulo 2^16.
    ///
    /// # Errors
    /// Fails if the queue's memory is not accessible.
    pub fn read(&self, number: u16, buffer: &QueueBuffer, dma: &GuestMemory) -> Result<RecvWqe, AccessError> {
        let mut copy = EntryCopy::new();
        self.copy(number, buffer, dma, &mut copy).map(RecvWqe::parse)
    }

    /// Copies the bytes of an entry.
    #[inline]
    fn copy<'a>(
        &self,
        number: u16,
        buffer: &QueueBuffer,
        dma: &GuestMemory,
        to: &'a mut EntryCopy,
    ) -> Result<&'a [u8], AccessError> {
        let slot = u32::from(number) & self.entries.saturating_sub(1);
        let at = u64::from(slot) << self.log_stride;
        let entry = to.with_len(1 << self.log_stride);
        buffer.read(dma, at, entry)?;
        Ok(entry)
    }
}

pub fn request(number: u16, wqe: &RecvWqe) -> RecvRequest {
    RecvRequest { wr_id: number.into(), sges: wqe.scatter.iter().map(sge).collect() }
}

pub fn sge(data: &DataSegment) -> Sge {
    Sge { va: data.va, lkey: data.lkey, len: data.byte_count }
}
