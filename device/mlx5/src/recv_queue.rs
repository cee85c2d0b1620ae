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
        // Convert the segments directly, since a `RecvWqe` would be another copy of the scatter list.
        let request = self.with_entry(number, buffer, dma, |entry| RecvRequest {
            wr_id: number.into(),
            sges: RecvWqe::segments(entry).map(|segment| sge(&segment)).collect(),
        });
        let Ok(request) = request else { return Fetch::Broken };
        self.counters.take(1);
        Fetch::Ready(request)
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
        self.with_entry(number, buffer, dma, RecvWqe::parse)
    }

    /// Passes a copy of an entry to `parse`.
    fn with_entry<T>(
        &self,
        number: u16,
        buffer: &QueueBuffer,
        dma: &GuestMemory,
        parse: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, AccessError> {
        let slot = u32::from(number) & self.entries.saturating_sub(1);
        let at = u64::from(slot) << self.log_stride;
        // Most receives have at most four segments. Avoid moving a 512-byte `Entry` around for them.
        if let Some(entry) = [0; SHORT_ENTRY].get_mut(..1 << self.log_stride) {
            buffer.read(dma, at, entry)?;
            return Ok(parse(entry));
        }
        let mut entry = Entry::from_elem(0, 1 << self.log_stride);
        buffer.read(dma, at, &mut entry)?;
        Ok(parse(&entry))
    }
}

pub fn request(number: u16, wqe: &RecvWqe) -> RecvRequest {
    RecvRequest { wr_id: number.into(), sges: wqe.scatter.iter().map(sge).collect() }
}

pub fn sge(data: &DataSegment) -> Sge {
    Sge { va: data.va, lkey: data.lkey, len: data.byte_count }
}
