//! Outbound frames. The frames in a batch share one buffer, which avoids an allocation and a system call per frame.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::iter::once;
use std::ops::Range;

use engine::{DetachedPayload, PayloadRef};
use protocol::ids::MacAddr;
use protocol::roce::{Offload, seal};
use smallvec::SmallVec;

use super::rx_batch::{Frames, RxFrame};
use super::sources::Source;
use super::{MAX_FRAME_LEN, MIN_FRAME_LEN, padding};
use crate::memory::GuestRange;

/// Minimum number of bytes of sent frames that are removed from the start of the buffer at once.
const MIN_RECLAIMED_LEN: usize = 64 << 10;

/// Outbound frames, back to back in a reused buffer. The payload of a frame can be [detached](DetachedPayload) until
/// [`TxBatch::settle`] copies it.
#[derive(Debug, Default)]
pub struct TxBatch {
    bytes: Vec<u8>,
    frames: VecDeque<TxFrame>,
    /// Detached payloads of the frames.
    detached: Vec<Detached>,
    /// Ranges of guest memory that contain the detached payloads.
    ranges: Vec<GuestRange>,
    /// Total length of the detached payloads in bytes.
    detached_bytes: usize,
    has_chosen_sources: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct TxFrame {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) dst: MacAddr,
    pub(super) origin: Origin,
    pub(super) offload: Offload,
    /// Length of the detached payload in bytes; 0 if the frame is complete.
    detached_len: u32,
    /// Index of the detached payload in [`TxBatch::detached`].
    detached: u32,
}

/// Detached payload of a frame in the batch.
#[derive(Clone, Debug)]
struct Detached {
    /// Position in [`TxBatch::bytes`] at which the payload belongs.
    at: usize,
    /// Part of [`TxBatch::ranges`] that contains the payload.
    ranges: Range<usize>,
}

/// Origin of a frame, which determines how a fabric treats it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// An unsolicited frame from the engine, the host stack or management.
    #[default]
    Own,
    /// A reply to a received frame; see [`TxBatch::mark_answer`].
    Answer,
}

impl TxFrame {
    /// Returns the length of the frame in bytes.
    pub(super) fn len(&self) -> usize {
        self.end - self.start + self.detached_len as usize
    }
}

impl TxBatch {
    /// Creates a batch for a NIC, whose driver chooses the source addresses of all frames, including RDMA frames.
    /// Fabrics check that none of these addresses belongs to another member.
    pub fn of_nic() -> Self {
        Self { has_chosen_sources: true, ..Self::default() }
    }

    /// Returns the buffer. Append the next frame to it, then call [`TxBatch::commit`].
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Commits the bytes appended since the last commit as a frame for `dst`.
    pub fn commit(&mut self, dst: MacAddr) {
        self.commit_with(dst, Origin::Own, Offload::None);
    }

    /// Like [`TxBatch::commit`], but also sets the frame's origin and its offload.
    pub fn commit_with(&mut self, dst: MacAddr, origin: Origin, offload: Offload) {
        let start = self.committed_end();
        let end = self.bytes.len();
        self.frames.push_back(TxFrame { start, end, dst, origin, offload, detached_len: 0, detached: 0 });
    }

    /// Commits the bytes appended since the last commit as frames of `len` bytes each. The number of these bytes must
    /// be a multiple of `len`.
    pub(crate) fn commit_burst(&mut self, len: usize, dst: MacAddr, origin: Origin, offload: Offload) {
        let mut start = self.committed_end();
        while start < self.bytes.len() {
            let end = start + len;
            self.frames.push_back(TxFrame { start, end, dst, origin, offload, detached_len: 0, detached: 0 });
            start = end;
        }
    }

    /// Removes and returns the bytes appended since the last commit.
    pub(crate) fn take_uncommitted(&mut self) -> Vec<u8> {
        self.bytes.split_off(self.committed_end())
    }

    /// Returns the offset in the buffer at which the last committed frame ends.
    fn committed_end(&self) -> usize {
        self.frames.back().map_or(0, |frame| frame.end)
    }

    /// Returns the buffer and the list of ranges in guest memory. Append the next frame without its payload to the
    /// buffer, and the ranges of the detached payload to the list. Then call [`TxBatch::commit_detached`].
    pub(crate) fn detached_buffer(&mut self) -> (&mut Vec<u8>, &mut Vec<GuestRange>) {
        (&mut self.bytes, &mut self.ranges)
    }

    /// Like [`TxBatch::commit_with`], for a frame with a detached payload. The payload's ranges must be the last in
    /// the list of [`TxBatch::detached_buffer`].
    pub(crate) fn commit_detached(
        &mut self,
        dst: MacAddr,
        origin: Origin,
        offload: Offload,
        payload: DetachedPayload,
    ) {
        self.commit_with(dst, origin, offload);
        if let Some(frame) = self.frames.back_mut()
            && let Ok(index) = u32::try_from(self.detached.len())
        {
            let DetachedPayload { at, ranges, len } = payload;
            let ranges = self.ranges.len().saturating_sub(ranges.into())..self.ranges.len();
            self.detached.push(Detached { at: frame.start + usize::from(at), ranges });
            (frame.detached_len, frame.detached) = (len.get(), index);
            self.detached_bytes += len.get() as usize;
        }
    }

    /// Copies all detached payloads into the batch. Drops frames whose guest memory has been lost.
    pub fn settle(&mut self) {
        let Some(first) = self.frames.iter().position(|frame| frame.detached_len > 0) else {
            return self.forget_detached();
        };
        let kept = self.frames.get(first).map_or(0, |frame| frame.start);
        let (mut bytes, mut frames) = (Vec::with_capacity(self.bytes()), Vec::new());
        for frame in self.frames.range(first..) {
            let start = bytes.len();
            self.parts(frame).for_each(|part| part.append_to(&mut bytes));
            if self.is_intact(frame) {
                let (start, end) = (kept + start, kept + bytes.len());
                frames.push(TxFrame { start, end, detached_len: 0, ..*frame });
            } else {
                bytes.truncate(start);
            }
        }
        self.bytes.truncate(kept);
        self.bytes.append(&mut bytes);
        self.frames.truncate(first);
        self.frames.extend(frames);
        self.forget_detached();
        self.reset_if_empty();
    }

    /// Copies the payload of the last frame into the batch if it is detached. Drops the frame and returns false if its
    /// guest memory has been lost.
    pub(crate) fn settle_last(&mut self) -> bool {
        let Some(frame) = self.frames.back().copied().filter(|frame| frame.detached_len > 0) else {
            return true;
        };
        let mut bytes = Vec::with_capacity(frame.len());
        self.parts(&frame).for_each(|part| part.append_to(&mut bytes));
        let is_intact = self.is_intact(&frame);
        self.drop_last();
        if is_intact {
            self.bytes.append(&mut bytes);
            self.commit_with(frame.dst, frame.origin, frame.offload);
        }
        is_intact
    }

    /// Makes the whole buffer available again if no frame is left.
    fn reset_if_empty(&mut self) {
        if self.frames.is_empty() {
            self.bytes.clear();
            self.forget_detached();
        }
    }

    /// Removes all detached payloads, which no frame uses any more.
    fn forget_detached(&mut self) {
        self.detached.clear();
        self.ranges.clear();
        self.detached_bytes = 0;
    }

    /// Returns the position and the ranges of a frame's detached payload, or `None` if the frame has none.
    fn detached(&self, frame: &TxFrame) -> Option<(usize, &[GuestRange])> {
        let Detached { at, ranges } =
            self.detached.get(frame.detached as usize).filter(|_| frame.detached_len > 0)?;
        Some((*at, self.ranges.get(ranges.clone()).unwrap_or_default()))
    }

    /// Returns the parts of a frame in order.
    pub(super) fn parts(&self, frame: &TxFrame) -> impl Iterator<Item = PayloadRef<'_>> {
        let (at, ranges) = self.detached(frame).unwrap_or((frame.end, &[]));
        let detached = ranges.iter().filter_map(GuestRange::bytes).map(PayloadRef::Shared);
        let own = |range: Range<usize>| PayloadRef::Private(&self.bytes[range]);
        once(own(frame.start..at)).chain(detached).chain(once(own(at..frame.end)))
    }

    /// Returns the bytes of a frame, or `None` if its payload is detached.
    pub(super) fn whole(&self, frame: &TxFrame) -> Option<&[u8]> {
        if frame.detached_len == 0 { self.bytes.get(frame.start..frame.end) } else { None }
    }

    /// Returns whether all guest memory that the frame refers to is intact. If any of it has been lost, copies of the
    /// frame may be incomplete.
    pub(super) fn is_intact(&self, frame: &TxFrame) -> bool {
        self.detached(frame).is_none_or(|(_, ranges)| !ranges.iter().any(GuestRange::is_lost))
    }

    /// Marks the last frame as a reply, which must reach only the requester. A fabric that has not learned the
    /// requester's location drops the reply, since flooding it would let one peer's requests burden the other members.
    pub fn mark_answer(&mut self) {
        self.mark(Origin::Answer);
    }

    /// Sets the origin of the last frame.
    pub fn mark(&mut self, origin: Origin) {
        if let Some(frame) = self.frames.back_mut() {
            frame.origin = origin;
        }
    }

    /// Adds the ICRC to the last frame if it is missing.
    pub fn seal_last(&mut self) {
        if self.settle_last()
            && let Some(frame) = self.frames.back_mut()
            && frame.offload == Offload::Icrc
            && let Some(bytes) = self.bytes.get_mut(frame.start..)
        {
            frame.offload = Offload::None;
            // This cannot fail because frames from the engine are always well-formed.
            let _ = seal(bytes);
        }
    }

    pub fn last_origin(&self) -> Origin {
        self.frames.back().map(|frame| frame.origin).unwrap_or_default()
    }

    /// Appends a complete frame. Ignores a frame that is shorter than an Ethernet header.
    pub fn push(&mut self, frame: &[u8]) {
        if let Some(dst) = frame.first_chunk() {
            self.bytes.extend_from_slice(frame);
            self.commit(MacAddr(*dst));
        }
    }

    /// Commits the bytes appended since the last commit as a frame from a NIC. The destination is taken from
    /// the frame itself. If the length is invalid, discards the bytes and returns false.
    pub fn commit_nic(&mut self) -> bool {
        let start = self.committed_end();
        let frame = &self.bytes[start..];
        match frame.first_chunk() {
            Some(dst) if (MIN_FRAME_LEN..=MAX_FRAME_LEN).contains(&frame.len()) => {
                let dst = MacAddr(*dst);
                self.commit(dst);
                true
            }
            _ => {
                self.bytes.truncate(start);
                false
            }
        }
    }

    /// Changes the destination of the last frame.
    pub fn readdress_last(&mut self, dst: MacAddr) {
        if let Some(frame) = self.frames.back_mut()
            && let Some(field) = self.bytes.get_mut(frame.start..).and_then(<[u8]>::first_chunk_mut)
        {
            frame.dst = dst;
            *field = dst.0;
        }
    }

    /// Returns the pending frames with their destinations, without detached payload.
    pub fn iter(&self) -> impl Iterator<Item = (MacAddr, &[u8])> {
        self.frames.iter().map(|frame| (frame.dst, &self.bytes[frame.start..frame.end]))
    }

    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Returns the total length of the pending frames in bytes.
    pub fn bytes(&self) -> usize {
        let front = self.frames.front().map_or(0, |frame| frame.start);
        self.frames.back().map_or(0, |frame| frame.end - front + self.detached_bytes)
    }

    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Returns the last frame, without detached payload.
    pub fn last(&self) -> Option<&[u8]> {
        self.frames.back().map(|frame| &self.bytes[frame.start..frame.end])
    }

    /// Drops all frames, but keeps the memory.
    pub fn clear(&mut self) {
        self.advance(self.frames.len());
    }

    pub fn take_last(&mut self) -> Option<Vec<u8>> {
        if !self.settle_last() {
            return None;
        }
        let frame = self.frames.pop_back()?;
        let taken = self.bytes.split_off(frame.start);
        self.reset_if_empty();
        Some(taken)
    }

    /// Drops the last frame, but keeps the memory.
    pub fn drop_last(&mut self) {
        if let Some(frame) = self.frames.pop_back() {
            self.bytes.truncate(frame.start);
            if frame.detached_len > 0
                && let Some(detached) = self.detached.pop()
            {
                self.detached_bytes -= frame.detached_len as usize;
                self.ranges.truncate(detached.ranges.start);
            }
            self.reset_if_empty();
        }
    }

    /// Drops all but the last `frames` frames.
    pub fn keep_last(&mut self, frames: usize) {
        self.advance(self.frames.len().saturating_sub(frames));
    }

    /// Moves all frames out of the batch and makes `memory` the batch's new buffer.
    pub(super) fn hand_over(&mut self, memory: Frames) -> Frames {
        let Frames { bytes, mut frames } = memory;
        debug_assert!(self.detached_bytes == 0, "the receiver cannot access the sender's guest memory");
        let whole = |TxFrame { start, end, offload, .. }| RxFrame::new(start..end, offload);
        frames.extend(self.frames.drain(..).map(whole));
        Frames { bytes: std::mem::replace(&mut self.bytes, bytes), frames }
    }

    pub(super) fn front(&self) -> Option<TxFrame> {
        self.frames.front().copied()
    }

    /// Returns a frame's source addresses if a NIC's driver chose them, or `None` if the device sends from its
    /// configured addresses.
    pub(super) fn chosen_source(&self, frame: &TxFrame) -> Option<Source> {
        if self.has_chosen_sources { Source::of(self.bytes.get(frame.start..frame.end)?) } else { None }
    }

    /// Returns a frame's source MAC if a NIC's driver chose it.
    pub(super) fn chosen_mac(&self, frame: &TxFrame) -> Option<MacAddr> {
        let mac = || self.bytes.get(frame.start + 6..)?.first_chunk().map(|mac| MacAddr(*mac));
        if self.has_chosen_sources { mac() } else { None }
    }

    /// Returns the longest run of frames at the front of the batch that fits into one segmented send. All frames of a
    /// run have the same destination and length, except that the last one may be shorter. If `padding` permits it,
    /// shorter frames are padded to that length. Frames from a NIC must also have the same source.
    pub(super) fn run(&self, max_frames: usize, max_bytes: usize, padding: Padding) -> Run {
        let Some(first) = self.front() else {
            return Run { frames: 0, segment: 0, padding: 0, is_paddable: false };
        };
        let source = self.chosen_mac(&first);
        let mut run = Run { frames: 1, segment: first.len(), padding: 0, is_paddable: false };
        // Length of the run's shortest frame, and total length of all frames but the last.
        let (mut shortest, mut sum, mut last) = (first.len(), 0, first.len());
        let mut checked = 0;
        for frame in self.frames.iter().skip(1).take(max_frames.saturating_sub(1)) {
            let segment = run.segment.max(frame.len());
            let is_alike = frame.dst == first.dst && self.chosen_mac(frame) == source;
            if !is_alike || run.frames * segment + frame.len() > max_bytes {
                break;
            }
            if shortest < segment {
                if !padding::is_small(shortest, segment) {
                    break;
                }
                let mut unchecked = self.frames.range(checked..run.frames);
                if !unchecked.all(|frame| padding::can_pad(self.contents(frame))) {
                    break;
                }
                run.is_paddable = true;
                if padding == Padding::Refused {
                    break;
                }
                checked = run.frames;
            }
            sum += last;
            last = frame.len();
            shortest = shortest.min(last);
            run.segment = segment;
            run.padding = run.frames * segment - sum;
            run.frames += 1;
        }
        run
    }

    /// Returns the frames of a run as one slice if none of them needs padding.
    pub(super) fn contiguous(&self, run: &Run) -> Option<&[u8]> {
        let (first, last) = (self.frames.front()?, self.frames.get(run.frames.checked_sub(1)?)?);
        (run.padding == 0).then(|| &self.bytes[first.start..last.end])
    }

    /// Returns the frames of a run and their padding.
    pub(super) fn padded<'a>(&'a self, run: &Run, padding: &'a [u8]) -> SmallVec<[IoSlice<'a>; 32]> {
        let mut slices = SmallVec::new();
        let mut start = self.frames.front().map_or(0, |frame| frame.start);
        for (number, frame) in self.frames.iter().take(run.frames).enumerate() {
            let is_last = number + 1 == run.frames;
            let missing = if is_last { 0 } else { run.segment - frame.len() };
            if is_last || missing > 0 {
                slices.push(IoSlice::new(&self.bytes[start..frame.end]));
                start = frame.end;
            }
            if missing > 0 {
                slices.push(IoSlice::new(&padding[..missing]));
            }
        }
        slices
    }

    fn contents(&self, frame: &TxFrame) -> &[u8] {
        &self.bytes[frame.start..frame.end]
    }

    pub(super) fn frames(&self) -> impl Iterator<Item = &TxFrame> {
        self.frames.iter()
    }

    pub(super) fn slice(&self, range: Range<usize>) -> &[u8] {
        &self.bytes[range]
    }

    /// Drops the first `frames` frames. Their memory is reused once all frames have been dropped, or after
    /// [`TxBatch::reclaim`].
    pub(super) fn advance(&mut self, frames: usize) {
        if self.detached_bytes > 0 {
            let sent: usize = self.frames.range(..frames).map(|frame| frame.detached_len as usize).sum();
            self.detached_bytes -= sent;
        }
        self.frames.drain(..frames);
        self.reset_if_empty();
    }

    /// Moves the remaining frames to the start of the buffer if at least as many bytes precede them. A fabric calls
    /// this when it is [blocked](super::Sent::Blocked). Otherwise, the buffer would grow for as long as the fabric
    /// leaves some of the frames in the batch. A ring member could prolong this at will.
    pub(super) fn reclaim(&mut self) {
        let sent_len = self.frames.front().map_or(0, |frame| frame.start);
        if sent_len < MIN_RECLAIMED_LEN.max(self.bytes.len() - sent_len) {
            return;
        }
        self.bytes.drain(..sent_len);
        for frame in &mut self.frames {
            (frame.start, frame.end) = (frame.start - sent_len, frame.end - sent_len);
        }
        for payload in &mut self.detached {
            // The payloads of sent frames are no longer used.
            payload.at = payload.at.saturating_sub(sent_len);
        }
    }
}

/// Whether the receiver of a run currently accepts padded frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Padding {
    Refused,
    Accepted,
}

/// Consecutive frames for one segmented send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) frames: usize,
    /// Length of each frame including padding. The last frame has no padding and can be shorter.
    pub(super) segment: usize,
    /// Total number of padding bytes.
    pub(super) padding: usize,
    /// Whether padding makes the run longer, or would make it longer if the receiver accepted padded frames.
    pub(super) is_paddable: bool,
}

#[cfg(test)]
pub(super) mod tests {
    use std::num::NonZeroU32;

    use protocol::ids::Iova;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::super::padding::tests::roce;
    use super::*;
    use crate::memory::dma::PAGE_LEN;
    use crate::memory::{GuestMemory, Permissions};

    const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const B: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

    fn batch(frames: &[(MacAddr, usize)]) -> TxBatch {
        let mut batch = TxBatch::default();
        for (dst, len) in frames {
            let end = batch.buffer().len() + len;
            batch.buffer().resize(end, 0x5a);
            batch.commit(*dst);
        }
        batch
    }

    #[test]
    fn run_frames_share_destination_and_only_last_is_shorter() {
        let mut batch = batch(&[(A, 80), (A, 100), (A, 100), (A, 60), (A, 100), (B, 100)]);
        let mut runs = Vec::new();
        while !batch.is_empty() {
            let run = batch.run(64, 60_000, Padding::Refused);
            runs.push((run.frames, run.segment));
            assert!(!run.is_paddable);
            batch.advance(run.frames);
        }
        assert_eq!(runs, [(1, 80), (3, 100), (1, 100), (1, 100)]);
        assert!(batch.buffer().is_empty());
    }

    /// Returns guest memory of two pages, with the bytes 0 to 255 at the start of each page.
    pub(in crate::fabric) fn memory() -> GuestMemory {
        let fd = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, 2 * PAGE_LEN).unwrap();
        let mut memory = GuestMemory::default();
        let permissions = Permissions { read: true, write: true };
        memory.map(Iova::new(0), 2 * PAGE_LEN, permissions, Some((fd, 0))).unwrap();
        let bytes: Vec<u8> = (0..=255).collect();
        memory.write(Iova::new(0), &bytes).unwrap();
        memory.write(Iova::new(PAGE_LEN), &bytes).unwrap();
        memory
    }

    /// Adds a frame whose payload consists of 100 and 50 bytes of guest memory.
    fn push_detached(batch: &mut TxBatch, memory: &GuestMemory) {
        let (frame, ranges) = batch.detached_buffer();
        frame.extend([&A.0[..], &[0; 10], &[0xee; 4]].concat());
        memory.locate(Iova::new(10), 100, ranges).unwrap();
        memory.locate(Iova::new(PAGE_LEN), 50, ranges).unwrap();
        let payload = DetachedPayload { at: 16, ranges: 2, len: NonZeroU32::new(150).unwrap() };
        batch.commit_detached(A, Origin::Answer, Offload::Icrc, payload);
    }

    fn whole_frame() -> Vec<u8> {
        [&A.0[..], &[0; 10], &Vec::from_iter(10..110), &Vec::from_iter(0..50), &[0xee; 4]].concat()
    }

    #[test]
    fn settled_frame_contains_its_payload() {
        let memory = memory();
        let mut batch = batch(&[(A, 80), (B, 100)]);
        push_detached(&mut batch, &memory);
        push_detached(&mut batch, &memory);
        batch.push(&[3; 60]);
        assert_eq!((batch.bytes(), batch.front().unwrap().len()), (80 + 100 + 2 * 170 + 60, 80));
        batch.advance(1);
        batch.settle();
        memory.write(Iova::new(0), &[0; 256]).unwrap();
        let frames: Vec<_> = batch.iter().map(|(_, frame)| frame.to_vec()).collect();
        assert_eq!(frames, [vec![0x5a; 100], whole_frame(), whole_frame(), vec![3; 60]]);
        assert_eq!(batch.bytes(), 100 + 2 * 170 + 60);
        let kinds: Vec<_> = batch.frames().map(|frame| (frame.origin, frame.offload)).collect();
        assert_eq!(kinds[1], (Origin::Answer, Offload::Icrc));
    }

    #[test]
    fn settled_batch_does_not_refer_to_guest_memory() {
        let memory = memory();
        let mut batch = TxBatch::default();
        push_detached(&mut batch, &memory);
        batch.push(&[3; 60]);
        batch.advance(1);
        batch.settle();
        assert_eq!((batch.ranges.len(), batch.bytes()), (0, 60));
        batch.drop_last();
        batch.push(&[4; 60]);
        assert_eq!(batch.last(), Some(&[4; 60][..]), "frames begin at the start of an empty batch");
        batch.push(&[5; 60]);
        batch.advance(1);
        assert_eq!(batch.take_last(), Some(vec![5; 60]));
        batch.push(&[6; 60]);
        assert_eq!(batch.last(), Some(&[6; 60][..]), "also after the last frame has been taken");
    }

    #[test]
    fn removed_frames_do_not_leave_their_payload_behind() {
        let memory = memory();
        let mut batch = TxBatch::default();
        push_detached(&mut batch, &memory);
        batch.drop_last();
        push_detached(&mut batch, &memory);
        push_detached(&mut batch, &memory);
        assert_eq!(batch.take_last(), Some(whole_frame()));
        assert_eq!((batch.len(), batch.bytes()), (1, 170));
        assert!(batch.settle_last());
        assert_eq!((batch.last(), batch.ranges.len()), (Some(&*whole_frame()), 0));
        batch.clear();
        assert_eq!((batch.bytes(), batch.ranges.len(), batch.buffer().len()), (0, 0, 0));
    }

    #[test]
    fn buffer_is_reused_even_if_frames_always_remain() {
        let memory = memory();
        let mut batch = TxBatch::default();
        push_detached(&mut batch, &memory);
        for round in 0..5000_u32 {
            let plain = [&A.0[..], &round.to_ne_bytes().repeat(250)].concat();
            batch.push(&plain);
            push_detached(&mut batch, &memory);
            batch.advance(1);
            assert_eq!(batch.iter().next(), Some((A, &*plain)));
            batch.advance(1);
            batch.reclaim();
        }
        let len = batch.buffer().len();
        assert!(len < 4 * MIN_RECLAIMED_LEN, "{len} bytes for one frame");
        batch.settle();
        let frames: Vec<_> = batch.iter().map(|(_, frame)| frame.to_vec()).collect();
        assert_eq!(frames, [whole_frame()]);
    }

    /// A socket takes a long batch in several runs. Moving the rest after each run would copy most of the batch.
    #[test]
    fn frames_move_only_while_fabric_is_blocked() {
        let mut batch = batch(&[(A, 4096); 64]);
        batch.advance(48);
        assert_eq!(batch.front().unwrap().start, 48 * 4096);
        batch.reclaim();
        assert_eq!((batch.front().unwrap().start, batch.buffer().len()), (0, 16 * 4096));
    }

    #[test]
    fn run_respects_send_limits() {
        let batch = batch(&[(A, 100); 10]);
        assert_eq!(batch.run(4, 60_000, Padding::Refused).frames, 4);
        assert_eq!(batch.run(64, 350, Padding::Refused).frames, 3);
        assert_eq!(batch.run(1, 60_000, Padding::Refused).frames, 1);
        assert_eq!(
            batch.run(64, 10, Padding::Refused).frames,
            1,
            "an oversized frame is sent alone, and the network rejects it"
        );
    }

    #[test]
    fn last_frame_can_be_removed() {
        let mut batch = batch(&[(A, 80), (B, 100)]);
        assert_eq!(batch.take_last().unwrap().len(), 100);
        batch.buffer().extend([1; 10]);
        batch.commit(A);
        let lengths: Vec<_> = batch.iter().map(|(dst, frame)| (dst, frame.len())).collect();
        assert_eq!(lengths, [(A, 80), (A, 10)]);
    }

    #[test]
    fn run_of_nic_frames_ends_where_source_mac_changes() {
        let mut batch = TxBatch::of_nic();
        for source in [A, A, B, A] {
            batch.buffer().extend([&B.0[..], &source.0, &[0x5a; 48]].concat());
            assert!(batch.commit_nic());
        }
        let mut runs = Vec::new();
        while let Some(first) = batch.front() {
            let run = batch.run(64, 60_000, Padding::Refused);
            runs.push((batch.chosen_mac(&first), run.frames));
            batch.advance(run.frames);
        }
        assert_eq!(runs, [(Some(A), 2), (Some(B), 1), (Some(A), 1)]);
    }

    /// Returns a batch with RoCE frames of the given lengths.
    fn roce_batch(lengths: &[u16]) -> TxBatch {
        let mut batch = TxBatch::default();
        lengths.iter().for_each(|len| batch.push(&roce(A, B, *len, 0x5a)));
        batch
    }

    /// Returns the number of frames, the segment size and the number of padding bytes of each run.
    fn runs(batch: &mut TxBatch, padding: Padding) -> Vec<(usize, usize, usize)> {
        let mut runs = Vec::new();
        while !batch.is_empty() {
            let run = batch.run(15, 65_507, padding);
            runs.push((run.frames, run.segment, run.padding));
            assert_eq!(batch.contiguous(&run).is_some(), run.padding == 0);
            batch.advance(run.frames);
        }
        runs
    }

    /// The frames have the lengths of First, Middle and Last packets of WRITEs.
    #[test]
    fn padded_run_spans_messages() {
        let lengths = [4174, 4158, 4158, 4158].repeat(2);
        assert_eq!(runs(&mut roce_batch(&lengths), Padding::Accepted), [(8, 4174, 5 * 16)]);
        assert_eq!(
            runs(&mut roce_batch(&lengths), Padding::Refused),
            [(2, 4174, 0), (2, 4158, 0), (2, 4174, 0), (2, 4158, 0)]
        );
    }

    #[test]
    fn shorter_frames_are_padded_to_length_of_later_frame() {
        let lengths = [4158, 4158, 4174, 4158, 100, 4174];
        assert_eq!(
            runs(&mut roce_batch(&lengths), Padding::Accepted),
            [(5, 4174, 3 * 16), (1, 4174, 0)],
            "the short frame is not padded and ends the run"
        );
    }

    #[test]
    fn padding_is_omitted_if_unneeded_or_too_long() {
        for lengths in [&[4158, 4158][..], &[4174, 4158], &[4158, 100, 4158], &[4150, 4174], &[122, 138]] {
            let plain = runs(&mut roce_batch(lengths), Padding::Refused);
            assert_eq!(runs(&mut roce_batch(lengths), Padding::Accepted), plain);
            assert!(!roce_batch(lengths).run(15, 65_507, Padding::Refused).is_paddable);
        }
    }

    #[test]
    fn padded_run_respects_send_limit() {
        let batch = roce_batch(&[4158, 4158, 4158, 4174]);
        let longest = 3 * 4174 + 4174;
        assert_eq!(batch.run(15, longest, Padding::Accepted).frames, 4);
        assert_eq!(batch.run(15, longest - 1, Padding::Accepted).frames, 3);
        assert_eq!(batch.run(3, longest, Padding::Accepted).frames, 3);
    }

    #[test]
    fn only_roce_frames_are_padded() {
        let mut batch = roce_batch(&[4174]);
        let mut tcp = roce(A, B, 4158, 1);
        tcp[23] = 6;
        batch.push(&tcp);
        batch.push(&roce(A, B, 4174, 1));
        assert_eq!(runs(&mut batch, Padding::Accepted), [(2, 4174, 0), (1, 4174, 0)]);
    }

    #[test]
    fn padded_slices_contain_frames_and_padding() {
        let batch = roce_batch(&[4174, 4158, 4158, 4158]);
        let run = batch.run(15, 65_507, Padding::Accepted);
        let slices = batch.padded(&run, &[0; 20]);
        let lengths: Vec<_> = slices.iter().map(|slice| slice.len()).collect();
        assert_eq!(lengths, [4174 + 4158, 16, 4158, 16, 4158]);
    }
}
