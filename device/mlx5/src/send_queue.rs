//! The send queue of a QP: WQEs that consist of one or more 64-byte blocks.
//!
//! # Spec
//! mlx5 interface, sections 10.1 and 11.

use bitfield_struct::bitfield;
use card::memory::GuestMemory;
use engine::{AccessError, Fetch, Status};
use protocol::hca::mlx5::wqe::{BLOCK, ControlSegment, UNIT};
use smallvec::SmallVec;

use super::buffer::QueueBuffer;
use super::work_queue::{Advance, Counters, TooMany};

/// Number of 16-byte units in a block. WQE sizes are given in these units.
const UNITS: u8 = 4;
const _: () = assert!(BLOCK == UNIT * UNITS as usize);

/// Copy of a WQE. Most WQEs are 64 to 256 bytes long; the copy of a larger one is allocated on the heap.
pub type WqeBytes = SmallVec<[u8; 256]>;

/// Contents of a send request's `wr_id`: the data needed to complete the request.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct SendTag {
    pub index: u16,
    pub opcode: u8,
    /// Whether a CQE is written if the request succeeds.
    pub signaled: bool,
    pub event: bool,
    /// Size of the WQE in units of 16 bytes.
    #[bits(6)]
    pub size: u8,
    #[bits(32)]
    __: u64,
}

impl SendTag {
    fn of(index: u16, control: &ControlSegment) -> Self {
        Self::new()
            .with_index(index)
            .with_opcode(control.opcode)
            .with_signaled(control.is_signaled())
            .with_event(control.completion == 3)
            .with_size(control.size)
    }

    /// Returns the index of the block after the WQE. Even a WQE of size 0 occupies one block.
    fn end(self) -> u16 {
        self.index().wrapping_add(blocks(self.size()).max(1))
    }
}

/// Returns the number of blocks in a WQE. `size` is in units of 16 bytes.
pub fn blocks(size: u8) -> u16 {
    size.div_ceil(UNITS).into()
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchedWqe {
    pub tag: SendTag,
    /// The WQE, with the length specified in its control segment.
    pub bytes: WqeBytes,
}

/// Send queue of one QP. It follows the receive queue in the QP's buffer.
#[derive(Debug)]
pub struct SendQueue {
    start: u64,
    /// Number of blocks; 0 if the QP has no send queue.
    blocks: u32,
    counters: Counters,
    /// Number of blocks whose WQEs have completed, modulo 2^16. Strict mode checks that software does not reuse the
    /// blocks of WQEs that have not completed.
    completed: u16,
    /// The last implausible producer counter that a poll found. A poll reports each such counter once.
    rejected: Option<u16>,
}

impl SendQueue {
    /// Creates an empty queue of `blocks` blocks that begins at offset `start` in its buffer.
    pub fn new(start: u64, blocks: u32) -> Self {
        Self { start, blocks, counters: Counters::default(), completed: 0, rejected: None }
    }

    pub const fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Returns the number of blocks consumed, modulo 2^16.
    pub const fn taken(&self) -> u16 {
        self.counters.taken
    }

    pub const fn completed(&self) -> u16 {
        self.completed
    }

    /// Records that a WQE and all WQEs before it have completed.
    pub fn complete(&mut self, tag: SendTag) {
        // A WQE with an invalid size can end past the blocks that were consumed.
        let (end, taken) = (tag.end(), self.counters.taken);
        self.completed = if end.wrapping_sub(taken).cast_signed() > 0 { taken } else { end };
    }

    /// Returns the number of blocks that are posted but not consumed.
    pub fn waiting(&self) -> u16 {
        self.counters.waiting()
    }

    /// Drops all requests, and resets the counters to 0.
    pub fn clear(&mut self) {
        (self.counters, self.completed, self.rejected) = (Counters::default(), 0, None);
    }

    /// Updates the producer counter from the doorbell record.
    ///
    /// # Errors
    /// Fails if the record announces more blocks than the queue has.
    pub fn learn(&mut self, posted: u16) -> Result<(), TooMany> {
        self.counters.learn(posted, self.blocks)
    }

    /// Like [`SendQueue::learn`], for a doorbell record that is polled. `posted` may be unchanged.
    pub fn poll(&mut self, posted: u16) -> Advance {
        if posted == self.counters.posted() {
            return Advance::Nothing;
        }
        match self.learn(posted) {
            Ok(()) => {
                self.rejected = None;
                Advance::More
            }
            Err(TooMany) if self.rejected.replace(posted) == Some(posted) => Advance::Nothing,
            Err(TooMany) => Advance::TooMany,
        }
    }

    /// Fetches the next WQE. A WQE with an invalid size is rejected, and consumes at least one block (section 20, M-1).
    pub fn take(&mut self, buffer: &QueueBuffer, dma: &GuestMemory) -> Fetch<FetchedWqe> {
        if self.waiting() == 0 {
            return Fetch::Empty;
        }
        let index = self.counters.taken;
        let Ok(head) = self.head(index, buffer, dma) else { return Fetch::Broken };
        let control = ControlSegment::parse(&head);
        let tag = SendTag::of(index, &control);
        let refused = Fetch::Refused { wr_id: tag.into_bits(), status: Status::LocalQpOperation };
        let blocks = blocks(control.size);
        if blocks == 0 || blocks > self.waiting() {
            self.counters.take(blocks.max(1));
            return refused;
        }
        let Ok(bytes) = self.copy(index, control.size, buffer, dma) else { return Fetch::Broken };
        self.counters.take(blocks);
        Fetch::Ready(FetchedWqe { tag, bytes })
    }

    /// Copies the first bytes of a block.
    ///
    /// # Errors
    /// Fails if the queue's memory is not accessible.
    pub fn head<const LEN: usize>(
        &self,
        index: u16,
        buffer: &QueueBuffer,
        dma: &GuestMemory,
    ) -> Result<[u8; LEN], AccessError> {
        let mut head = [0; LEN];
        buffer.read(dma, self.block(index), &mut head)?;
        Ok(head)
    }

    /// Copies a WQE that was fetched and has not completed yet.
    ///
    /// # Errors
    /// Fails if the queue's memory is not accessible.
    pub fn reread(
        &self,
        index: u16,
        buffer: &QueueBuffer,
        dma: &GuestMemory,
    ) -> Result<WqeBytes, AccessError> {
        let head = self.head(index, buffer, dma)?;
        self.copy(index, ControlSegment::parse(&head).size, buffer, dma)
    }

    /// Copies a WQE block by block, because it may wrap around to the start of the queue.
    fn copy(
        &self,
        index: u16,
        size: u8,
        buffer: &QueueBuffer,
        dma: &GuestMemory,
    ) -> Result<WqeBytes, AccessError> {
        let mut bytes = WqeBytes::from_elem(0, usize::from(size) * UNIT);
        for (number, part) in (0..).zip(bytes.chunks_mut(BLOCK)) {
            buffer.read(dma, self.block(index.wrapping_add(number)), part)?;
        }
        Ok(bytes)
    }

    fn block(&self, index: u16) -> u64 {
        self.start + u64::from(u32::from(index) & self.blocks.saturating_sub(1)) * BLOCK as u64
    }
}

#[cfg(test)]
mod tests {
    use card::memory::testing::guest_memory;
    use protocol::hca::mlx5::input::Pages;
    use protocol::ids::{Iova, Qpn};

    use super::*;
    use crate::buffer::Placement;

    /// Creates a four-block send queue that follows a 64-byte receive queue.
    fn queue() -> (SendQueue, QueueBuffer) {
        let placement = Placement { log_page_size: 0, page_offset: 0 };
        let buffer = QueueBuffer::new(Pages::parse(&[0; 8]), placement, 5 * 64).unwrap();
        (SendQueue::new(64, 4), buffer)
    }

    fn put(dma: &GuestMemory, block: u64, size: u8) {
        let control = ControlSegment {
            opcode: 0xa,
            qpn: Qpn::new(0x80),
            size,
            completion: 2,
            ..ControlSegment::default()
        };
        dma.write(Iova::new(64 + 64 * block), &control.emit()).unwrap();
    }

    #[test]
    fn wqe_wraps_around_end_of_queue() {
        let dma = guest_memory(0, 1);
        let (mut queue, buffer) = queue();
        put(&dma, 0, 3);
        queue.learn(1).unwrap();
        assert!(matches!(queue.take(&buffer, &dma), Fetch::Ready(taken) if taken.bytes.len() == 48));
        put(&dma, 1, 4);
        put(&dma, 2, 9);
        dma.write(Iova::new(64), &[7; 16]).unwrap();
        queue.learn(5).unwrap();
        assert!(matches!(queue.take(&buffer, &dma), Fetch::Ready(taken) if taken.tag.index() == 1));
        let Fetch::Ready(taken) = queue.take(&buffer, &dma) else { panic!("no WQE") };
        assert_eq!((taken.tag.index(), taken.bytes.len(), &taken.bytes[128..]), (2, 144, &[7; 16][..]));
        assert!(taken.tag.signaled() && !taken.tag.event());
        assert_eq!(queue.take(&buffer, &dma), Fetch::Empty);
        assert_eq!(queue.reread(2, &buffer, &dma), Ok(taken.bytes));
    }

    /// Section 20, M-1: a WQE of size 0 must not stop the queue or make the device loop.
    #[test]
    fn wqe_of_invalid_size_still_consumes_blocks() {
        let dma = guest_memory(0, 1);
        let (mut queue, buffer) = queue();
        put(&dma, 0, 0);
        put(&dma, 1, 9);
        queue.learn(3).unwrap();
        for index in [0, 1] {
            let Fetch::Refused { wr_id, status } = queue.take(&buffer, &dma) else { panic!("accepted") };
            assert_eq!((SendTag::from_bits(wr_id).index(), status), (index, Status::LocalQpOperation));
        }
        assert_eq!(queue.take(&buffer, &dma), Fetch::Empty);
        assert!(queue.learn(8).is_err());
    }

    #[test]
    fn poll_finds_each_change_once() {
        let (mut queue, _) = queue();
        queue.counters = Counters::default();
        queue.learn(4).unwrap();
        queue.counters.take(4);
        let polled = [4, 5, 5, 9, 9, 10, 9, 6].map(|posted| queue.poll(posted));
        let (more, too_many, nothing) = (Advance::More, Advance::TooMany, Advance::Nothing);
        assert_eq!(polled, [nothing, more, nothing, too_many, nothing, too_many, too_many, more]);
    }

    #[test]
    fn poll_follows_counter_across_wraparound() {
        let (mut queue, _) = queue();
        for posted in 1..=u16::MAX {
            assert_eq!(queue.poll(posted), Advance::More);
            queue.counters.take(1);
        }
        assert_eq!(
            [queue.poll(0), queue.poll(0), queue.poll(3)],
            [Advance::More, Advance::Nothing, Advance::More]
        );
        assert_eq!(queue.waiting(), 4);
    }

    #[test]
    fn completed_blocks_do_not_exceed_consumed_blocks() {
        let (mut queue, _) = queue();
        queue.counters.taken = 9;
        queue.complete(SendTag::new().with_index(2).with_size(9));
        assert_eq!(queue.completed(), 5, "nine units are three blocks");
        queue.complete(SendTag::new().with_index(5));
        assert_eq!(queue.completed(), 6);
        queue.complete(SendTag::new().with_index(6).with_size(63));
        assert_eq!(queue.completed(), 9, "only three blocks were taken");
        queue.clear();
        assert_eq!(queue.completed(), 0);
    }
}
