//! The send queue of a QP or SQ. Each WQE consists of one or more 64-byte blocks.
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

/// Content of a send request's `wr_id`: the data needed to complete the request.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchedWqe<'a> {
    pub tag: SendTag,
    /// The WQE, with the length specified in its control segment.
    pub bytes: &'a [u8],
}

/// Buffer with copies of posted blocks. A WQE can be copied long before it is executed, since software must not modify
/// it once posted (section 7.3).
///
/// Several send queues can share one `PostedBlocks`. A copy replaces all blocks of the previous copy, whichever queue
/// made it.
#[derive(Debug, Default)]
pub struct PostedBlocks {
    /// Incremented by each copy. A send queue compares it with the version of its own last copy.
    version: u64,
    /// Index of the first block.
    first: u16,
    bytes: Vec<u8>,
}

impl PostedBlocks {
    /// Returns the blocks from `index` on.
    fn starting_at(&self, index: u16) -> &[u8] {
        let start = usize::from(index.wrapping_sub(self.first)) * BLOCK;
        self.bytes.get(start..).unwrap_or_default()
    }

    /// Starts a copy. Returns its version, which is never 0.
    fn replace(&mut self, first: u16) -> u64 {
        self.bytes.clear();
        (self.first, self.version) = (first, self.version.wrapping_add(1));
        self.version
    }
}

/// Send queue of a QP or SQ. In a QP's buffer, it follows the receive queue.
#[derive(Debug)]
pub struct SendQueue {
    start: u64,
    /// Number of blocks; 0 if the QP has no send queue.
    blocks: u32,
    counters: Counters,
    /// Version of the [`PostedBlocks`] when this queue last copied its blocks; 0 if the queue has no copy.
    copied: u64,
    /// Number of blocks whose WQEs have completed, modulo 2^16. Strict mode checks that software does not reuse the
    /// blocks of WQEs that have not completed.
    completed: u16,
    /// The last producer counter that a poll rejected, kept so that it is reported only once.
    rejected: Option<u16>,
}

impl SendQueue {
    /// Creates an empty queue with `blocks` blocks, which begins at offset `start` in its buffer.
    pub fn new(start: u64, blocks: u32) -> Self {
        Self { start, blocks, counters: Counters::default(), copied: 0, completed: 0, rejected: None }
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
        // A WQE with an invalid size can end past the blocks that were consumed. Blocks that have not been consumed do
        // not count as completed.
        let (end, taken) = (tag.end(), self.counters.taken);
        self.completed = if end.wrapping_sub(taken).cast_signed() > 0 { taken } else { end };
    }

    /// Returns the number of blocks that are posted but not consumed.
    pub fn waiting(&self) -> u16 {
        self.counters.waiting()
    }

    /// Drops all requests and resets the counters to 0.
    pub fn clear(&mut self) {
        *self = Self::new(self.start, self.blocks);
    }

    /// Updates the producer counter from the doorbell record.
    ///
    /// # Errors
    /// Fails if the record's counter covers more blocks than the queue has.
    pub fn learn(&mut self, posted: u16) -> Result<(), TooMany> {
        self.counters.learn(posted, self.blocks)
    }

    /// Like [`SendQueue::learn`], but for a polled doorbell record, whose counter may be unchanged.
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

    /// Fetches the next WQE. A WQE with an invalid size is rejected and consumes at least one block (section 20, M-1).
    /// If `posted` does not contain the WQE, up to `ahead` posted blocks are copied to `posted`.
    pub fn take<'a>(
        &mut self,
        buffer: &QueueBuffer,
        dma: &GuestMemory,
        posted: &'a mut PostedBlocks,
        ahead: u16,
    ) -> Fetch<FetchedWqe<'a>> {
        let waiting = self.waiting();
        if waiting == 0 {
            return Fetch::Empty;
        }
        let index = self.counters.taken;
        if self.copied != posted.version || posted.starting_at(index).is_empty() {
            self.copy_posted(index, ahead.clamp(1, waiting), buffer, dma, posted);
        }
        let Some(control) = ControlSegment::parse_prefix(posted.starting_at(index)) else {
            return Fetch::Broken;
        };
        let missing = blocks(control.size).min(waiting);
        if posted.starting_at(index).len() < usize::from(missing) * BLOCK {
            self.copy_posted(index, missing, buffer, dma, posted);
        }
        // Parse the final copy again, because a misbehaving guest may have modified the WQE since the first copy.
        let wqe = posted.starting_at(index);
        let Some(control) = ControlSegment::parse_prefix(wqe) else { return Fetch::Broken };
        let (tag, blocks) = (SendTag::of(index, &control), blocks(control.size));
        let is_valid = (1..=waiting).contains(&blocks);
        self.counters.take(blocks.max(1));
        match wqe.get(..usize::from(control.size) * UNIT).filter(|_| is_valid) {
            Some(bytes) => Fetch::Ready(FetchedWqe { tag, bytes }),
            None => Fetch::Refused { wr_id: tag.into_bits(), status: Status::LocalQpOperation },
        }
    }

    /// Copies `count` posted blocks, starting at block `index`. If they are not all accessible, copies only the WQE at
    /// `index`. If the WQE is not accessible either, the copy is empty.
    fn copy_posted(
        &mut self,
        index: u16,
        count: u16,
        buffer: &QueueBuffer,
        dma: &GuestMemory,
        posted: &mut PostedBlocks,
    ) {
        self.copied = posted.replace(index);
        // The blocks may wrap around to the start of the queue.
        let to_end = self.blocks - (u32::from(index) & self.blocks.saturating_sub(1));
        let before_wrap = u32::from(count).min(to_end) as usize * BLOCK;
        posted.bytes.resize(usize::from(count) * BLOCK, 0);
        let (head, tail) = posted.bytes.split_at_mut(before_wrap);
        let head = buffer.read(dma, self.block(index), head);
        if head.and_then(|()| buffer.read(dma, self.start, tail)).is_err() {
            posted.bytes.clear();
            // Later WQEs must not use this copy, which may end inside a block.
            self.copied = 0;
            if let Ok(wqe) = self.copy_one(index, buffer, dma) {
                posted.bytes.extend_from_slice(&wqe);
            }
        }
    }

    /// Copies a WQE, or only its control segment if its size is invalid.
    fn copy_one(&self, index: u16, buffer: &QueueBuffer, dma: &GuestMemory) -> Result<WqeBytes, AccessError> {
        let head: [u8; ControlSegment::LEN] = self.head(index, buffer, dma)?;
        let size = ControlSegment::parse(&head).size;
        if !(1..=self.waiting()).contains(&blocks(size)) {
            return Ok(WqeBytes::from_slice(&head));
        }
        self.copy(index, size, buffer, dma)
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

    /// Copies a WQE that has been fetched but has not completed.
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

    /// Copies a WQE block by block. It may wrap around to the start of the queue.
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
        let mut posted = PostedBlocks::default();
        put(&dma, 0, 3);
        queue.learn(1).unwrap();
        let fetch = queue.take(&buffer, &dma, &mut posted, 2);
        assert!(matches!(fetch, Fetch::Ready(taken) if taken.bytes.len() == 48));
        put(&dma, 1, 4);
        put(&dma, 2, 9);
        dma.write(Iova::new(64), &[7; 16]).unwrap();
        queue.learn(5).unwrap();
        let fetch = queue.take(&buffer, &dma, &mut posted, 2);
        assert!(matches!(fetch, Fetch::Ready(taken) if taken.tag.index() == 1));
        let Fetch::Ready(taken) = queue.take(&buffer, &dma, &mut posted, 2) else { panic!("no WQE") };
        assert_eq!((taken.tag.index(), taken.bytes.len(), &taken.bytes[128..]), (2, 144, &[7; 16][..]));
        assert!(taken.tag.signaled() && !taken.tag.event());
        assert_eq!(queue.reread(2, &buffer, &dma).as_deref(), Ok(taken.bytes));
        assert_eq!(queue.take(&buffer, &dma, &mut posted, 2), Fetch::Empty);
    }

    /// Section 20, M-1: a WQE of size 0 must not stop the queue or make the device loop.
    #[test]
    fn wqe_with_invalid_size_still_consumes_blocks() {
        let dma = guest_memory(0, 1);
        let (mut queue, buffer) = queue();
        put(&dma, 0, 0);
        put(&dma, 1, 9);
        queue.learn(3).unwrap();
        let mut posted = PostedBlocks::default();
        for index in [0, 1] {
            let fetch = queue.take(&buffer, &dma, &mut posted, 4);
            let Fetch::Refused { wr_id, status } = fetch else { panic!("accepted") };
            assert_eq!((SendTag::from_bits(wr_id).index(), status), (index, Status::LocalQpOperation));
        }
        assert_eq!(queue.take(&buffer, &dma, &mut posted, 4), Fetch::Empty);
        assert!(queue.learn(8).is_err());
    }

    fn take_qpn(
        queue: &mut SendQueue,
        buffer: &QueueBuffer,
        dma: &GuestMemory,
        posted: &mut PostedBlocks,
    ) -> u64 {
        let fetch = queue.take(buffer, dma, posted, 4);
        let Fetch::Ready(taken) = fetch else { panic!("{fetch:?}") };
        ControlSegment::parse_prefix(taken.bytes).unwrap().qpn.get().into()
    }

    /// A queue uses neither blocks copied for another queue nor those that it copied before a reset.
    #[test]
    fn copied_blocks_belong_to_one_queue() {
        let dma = guest_memory(0, 1);
        let (mut near, buffer) = queue();
        let mut far = SendQueue::new(64 + 2 * 64, 2);
        let put = |block: u64, qpn| {
            let control = ControlSegment { qpn: Qpn::new(qpn), size: 1, ..ControlSegment::default() };
            dma.write(Iova::new(64 + 64 * block), &control.emit()).unwrap();
        };
        (0..4).for_each(|block| put(block, u32::try_from(block).unwrap()));
        let mut posted = PostedBlocks::default();
        near.learn(2).unwrap();
        far.learn(2).unwrap();
        let mut take = |queue: &mut SendQueue| take_qpn(queue, &buffer, &dma, &mut posted);
        assert_eq!([take(&mut near), take(&mut far), take(&mut near), take(&mut far)], [0, 2, 1, 3]);
        near.clear();
        near.learn(2).unwrap();
        assert_eq!(take(&mut near), 0);
        near.clear();
        put(0, 9);
        put(1, 10);
        near.learn(2).unwrap();
        assert_eq!([take(&mut near), take(&mut near)], [9, 10]);
    }

    /// The doorbell record may cover blocks whose pages are not mapped yet. Earlier WQEs are still fetched.
    #[test]
    fn wqe_before_unmapped_page_is_fetched() {
        let dma = guest_memory(0, 1);
        let pages = [0_u64, 0x10_0000].map(u64::to_be_bytes).concat();
        let placement = Placement { log_page_size: 0, page_offset: 0 };
        let buffer = QueueBuffer::new(Pages::parse(&pages), placement, 0x2000).unwrap();
        let mut queue = SendQueue::new(0x1000 - 64, 2);
        put(&dma, 62, 3);
        queue.learn(2).unwrap();
        let mut posted = PostedBlocks::default();
        let fetch = queue.take(&buffer, &dma, &mut posted, 2);
        assert!(matches!(fetch, Fetch::Ready(taken) if taken.bytes.len() == 48));
        assert_eq!(queue.take(&buffer, &dma, &mut posted, 2), Fetch::Broken);
    }

    #[test]
    fn poll_reports_each_counter_change_once() {
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
        assert_eq!(queue.completed(), 5, "nine units occupy three blocks");
        queue.complete(SendTag::new().with_index(5));
        assert_eq!(queue.completed(), 6);
        queue.complete(SendTag::new().with_index(6).with_size(63));
        assert_eq!(queue.completed(), 9, "only consumed blocks are counted");
        queue.clear();
        assert_eq!(queue.completed(), 0);
    }
}
