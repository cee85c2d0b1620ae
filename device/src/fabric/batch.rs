//! Many frames in one buffer, so that neither allocation nor a system call is paid per frame.

use std::collections::VecDeque;
use std::ops::Range;

use protocol::ids::MacAddr;
use protocol::roce::{IcrcField, seal};

use super::sources::Source;
use super::{MAX_FRAME_LEN, MIN_FRAME_LEN};

/// Bound: bytes of frames that a turn makes for memory shared with others, and that it takes from there, but for the last
/// frame. Whoever copies them on finds them in the second-level cache, of which the guest's memory takes as much again.
pub(crate) const MEMORY_TURN_BYTES: usize = 256 << 10;

/// Frames on their way out, end to end in one buffer that is used again and again.
#[derive(Debug, Default)]
pub struct TxBatch {
    bytes: Vec<u8>,
    frames: VecDeque<TxFrame>,
    /// The driver of a NIC chooses the sources of its frames.
    has_chosen_sources: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct TxFrame {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) dst: MacAddr,
    pub(super) origin: Origin,
    pub(super) icrc: IcrcField,
}

/// Why a frame leaves, which says how a fabric treats it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// The engine, the station or management begins something.
    #[default]
    Own,
    /// It answers a frame that came, so its destination was heard of just now: see [`TxBatch::mark_answer`].
    Answer,
}

impl TxBatch {
    /// Frames of a device that is a NIC. Its driver chooses their sources, those of its RDMA half too, and fabrics check
    /// that no other member has them.
    pub fn of_nic() -> Self {
        Self { has_chosen_sources: true, ..Self::default() }
    }

    /// Where the next frame is to be appended. Call [`TxBatch::commit`] after it.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// What was appended since the last commit is a frame for `dst`.
    pub fn commit(&mut self, dst: MacAddr) {
        let start = self.frames.back().map_or(0, |frame| frame.end);
        let icrc = IcrcField::Computed;
        self.frames.push_back(TxFrame { start, end: self.bytes.len(), dst, origin: Origin::Own, icrc });
    }

    /// The frame committed last answers one that came. It is for whoever sent that and for nobody else, so a fabric that
    /// does not know the way loses it rather than send it to everybody: others must not pay for what one peer asks.
    pub fn mark_answer(&mut self) {
        self.mark(Origin::Answer);
    }

    /// Says why the frame committed last leaves.
    pub fn mark(&mut self, origin: Origin) {
        if let Some(frame) = self.frames.back_mut() {
            frame.origin = origin;
        }
    }

    /// Says whether the frame committed last, which the engine made, has its ICRC.
    pub fn mark_icrc(&mut self, icrc: IcrcField) {
        if let Some(frame) = self.frames.back_mut() {
            frame.icrc = icrc;
        }
    }

    /// Sees to it that the frame committed last has its ICRC.
    pub fn seal_last(&mut self) {
        if let Some(frame) = self.frames.back_mut()
            && frame.icrc == IcrcField::LeftOut
            && let Some(bytes) = self.bytes.get_mut(frame.start..)
        {
            frame.icrc = IcrcField::Computed;
            // The engine makes nothing that fails here.
            let _ = seal(bytes);
        }
    }

    /// Why the frame committed last leaves.
    pub fn last_origin(&self) -> Origin {
        self.frames.back().map(|frame| frame.origin).unwrap_or_default()
    }

    /// Appends a frame that is complete, and at least an Ethernet header.
    pub fn push(&mut self, frame: &[u8]) {
        if let Some(dst) = frame.first_chunk() {
            self.bytes.extend_from_slice(frame);
            self.commit(MacAddr(*dst));
        }
    }

    /// What was appended since the last commit is a frame of a NIC, which says itself whom it is for. What cannot be a
    /// frame is taken back: false.
    pub fn commit_plain(&mut self) -> bool {
        let start = self.frames.back().map_or(0, |frame| frame.end);
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

    /// Gives the frame committed last another destination.
    pub fn readdress_last(&mut self, dst: MacAddr) {
        if let Some(frame) = self.frames.back_mut()
            && let Some(field) = self.bytes.get_mut(frame.start..).and_then(<[u8]>::first_chunk_mut)
        {
            frame.dst = dst;
            *field = dst.0;
        }
    }

    /// Frames not sent yet, with their destinations.
    pub fn iter(&self) -> impl Iterator<Item = (MacAddr, &[u8])> {
        self.frames.iter().map(|frame| (frame.dst, &self.bytes[frame.start..frame.end]))
    }

    /// Frames not sent yet.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Their bytes, all told.
    pub fn bytes(&self) -> usize {
        let front = self.frames.front().map_or(0, |frame| frame.start);
        self.frames.back().map_or(0, |frame| frame.end - front)
    }

    /// Whether nothing is left to send.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// The frame that is last in line.
    pub fn last(&self) -> Option<&[u8]> {
        self.frames.back().map(|frame| &self.bytes[frame.start..frame.end])
    }

    /// Drops all frames and keeps the memory.
    pub fn clear(&mut self) {
        self.frames.clear();
        self.bytes.clear();
    }

    /// Takes back the frame committed last, if there is one.
    pub fn take_last(&mut self) -> Option<Vec<u8>> {
        let frame = self.frames.pop_back()?;
        let taken = self.bytes.split_off(frame.start);
        Some(taken)
    }

    /// Forgets all frames but so many at the end.
    pub fn keep_last(&mut self, frames: usize) {
        self.advance(self.frames.len().saturating_sub(frames));
    }

    /// Gives away all frames, for memory to put others in.
    pub(super) fn hand_over(&mut self, memory: Frames) -> Frames {
        let Frames { bytes, mut frames } = memory;
        frames.extend(
            self.frames.drain(..).map(|TxFrame { start, end, icrc, .. }| RxFrame { range: start..end, icrc }),
        );
        Frames { bytes: std::mem::replace(&mut self.bytes, bytes), frames }
    }

    pub(super) fn front(&self) -> Option<TxFrame> {
        self.frames.front().copied()
    }

    /// The sender that a frame of a NIC names. `None`: it is the configured one.
    pub(super) fn chosen_source(&self, frame: &TxFrame) -> Option<Source> {
        if self.has_chosen_sources { Source::of(self.bytes.get(frame.start..frame.end)?) } else { None }
    }

    /// MAC of [`TxBatch::chosen_source`].
    pub(super) fn chosen_mac(&self, frame: &TxFrame) -> Option<MacAddr> {
        let mac = || self.bytes.get(frame.start + 6..)?.first_chunk().map(|mac| MacAddr(*mac));
        if self.has_chosen_sources { mac() } else { None }
    }

    /// The longest run from the front that one segmented send can carry: same destination and length, of which only
    /// the last may be shorter. Frames of a NIC have the same source too.
    pub(super) fn run(&self, max_frames: usize, max_bytes: usize) -> Run {
        let Some(first) = self.front() else { return Run { frames: 0, bytes: 0..0, segment: 0 } };
        let segment = first.end - first.start;
        let source = self.chosen_mac(&first);
        let mut run = Run { frames: 1, bytes: first.start..first.end, segment };
        for frame in self.frames.iter().skip(1).take(max_frames.saturating_sub(1)) {
            let len = frame.end - frame.start;
            let is_alike = frame.dst == first.dst && self.chosen_mac(frame) == source;
            if !is_alike || len > segment || frame.end - first.start > max_bytes {
                break;
            }
            run.frames += 1;
            run.bytes.end = frame.end;
            if len < segment {
                break;
            }
        }
        run
    }

    pub(super) fn frames(&self) -> impl Iterator<Item = &TxFrame> {
        self.frames.iter()
    }

    pub(super) fn slice(&self, range: Range<usize>) -> &[u8] {
        &self.bytes[range]
    }

    /// Forgets the first `frames`; the memory is reused once all are gone.
    pub(super) fn advance(&mut self, frames: usize) {
        self.frames.drain(..frames);
        if self.frames.is_empty() {
            self.bytes.clear();
        }
    }
}

/// Frames that one segmented send carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) frames: usize,
    pub(super) bytes: Range<usize>,
    pub(super) segment: usize,
}

/// Frames that arrived, in buffers that are used again and again.
#[derive(Debug)]
pub struct RxBatch {
    pub(super) storage: Vec<u8>,
    pub(super) frames: Vec<RxFrame>,
}

#[derive(Clone, Debug)]
pub(super) struct RxFrame {
    range: Range<usize>,
    icrc: IcrcField,
}

impl RxFrame {
    /// One that came as it was on a wire.
    pub(super) fn whole(range: Range<usize>) -> Self {
        Self { range, icrc: IcrcField::Computed }
    }
}

/// Frames of a [`TxBatch`] that become those of an [`RxBatch`] without being copied.
#[derive(Debug, Default)]
pub(super) struct Frames {
    bytes: Vec<u8>,
    frames: Vec<RxFrame>,
}

impl Frames {
    pub(super) fn push(&mut self, frame: &[u8], icrc: IcrcField) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(frame);
        self.frames.push(RxFrame { range: start..self.bytes.len(), icrc });
    }

    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }

    /// Bytes of memory that they take.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Forgets all frames and keeps the memory.
    pub(super) fn clear(&mut self) {
        self.frames.clear();
        self.bytes.clear();
    }
}

impl RxBatch {
    /// Buffers that a batch has; each takes one datagram, or a run of datagrams the kernel joined.
    pub(super) const SLOTS: usize = 32;
    /// Bytes of one buffer: the most that a UDP receive gives at once.
    pub(super) const SLOT_LEN: usize = 1 << 16;

    /// An empty batch.
    pub fn new() -> Self {
        Self { storage: vec![0; Self::SLOTS * Self::SLOT_LEN], frames: Vec::new() }
    }

    /// Forgets the frames and keeps the memory.
    pub(super) fn clear(&mut self) {
        self.frames.clear();
    }

    /// Room for a frame behind the others, if a turn takes one more. Call [`RxBatch::commit`] after it.
    pub(super) fn space(&mut self, len: usize) -> Option<&mut [u8]> {
        let start = self.end();
        if start < MEMORY_TURN_BYTES { self.storage.get_mut(start..start + len) } else { None }
    }

    /// What was written to [`RxBatch::space`] is a frame.
    pub(super) fn commit(&mut self, len: usize, icrc: IcrcField) {
        let start = self.end();
        self.frames.push(RxFrame { range: start..start + len, icrc });
    }

    /// Forgets those frames from a number on that are not to be kept.
    pub(super) fn retain_from(&mut self, first: usize, mut keep: impl FnMut(&[u8]) -> bool) {
        let Self { storage, frames } = self;
        let mut number = 0;
        frames.retain(|frame| {
            number += 1;
            number <= first || keep(&storage[frame.range.clone()])
        });
    }

    fn end(&self) -> usize {
        self.frames.last().map_or(0, |frame| frame.range.end)
    }

    /// Takes these frames in place of its own, and returns the memory of those.
    pub(super) fn replace(&mut self, frames: Frames) -> Frames {
        let bytes = std::mem::replace(&mut self.storage, frames.bytes);
        let frames = std::mem::replace(&mut self.frames, frames.frames);
        let mut memory = Frames { bytes, frames };
        memory.clear();
        memory
    }

    /// The frames, in order of arrival, and whether each has its ICRC.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], IcrcField)> {
        self.frames.iter().map(|frame| (&self.storage[frame.range.clone()], frame.icrc))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether nothing arrived.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }
}

impl Default for RxBatch {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_run_ends_at_another_length_or_destination() {
        let mut batch = batch(&[(A, 80), (A, 100), (A, 100), (A, 60), (A, 100), (B, 100)]);
        let mut runs = Vec::new();
        while !batch.is_empty() {
            let run = batch.run(64, 60_000);
            runs.push((run.frames, run.bytes.len(), run.segment));
            batch.advance(run.frames);
        }
        assert_eq!(runs, [(1, 80, 80), (3, 260, 100), (1, 100, 100), (1, 100, 100)]);
        assert!(batch.buffer().is_empty());
    }

    #[test]
    fn a_run_respects_the_limits_of_one_send() {
        let batch = batch(&[(A, 100); 10]);
        assert_eq!(batch.run(4, 60_000).frames, 4);
        assert_eq!(batch.run(64, 350).frames, 3);
        assert_eq!(batch.run(1, 60_000).frames, 1);
        assert_eq!(
            batch.run(64, 10).frames,
            1,
            "a frame that is too long is sent alone, for the network to refuse"
        );
    }

    #[test]
    fn the_last_frame_can_be_taken_back() {
        let mut batch = batch(&[(A, 80), (B, 100)]);
        assert_eq!(batch.take_last().unwrap().len(), 100);
        batch.buffer().extend([1; 10]);
        batch.commit(A);
        let lengths: Vec<_> = batch.iter().map(|(dst, frame)| (dst, frame.len())).collect();
        assert_eq!(lengths, [(A, 80), (A, 10)]);
    }

    #[test]
    fn a_run_of_a_nic_ends_at_another_source() {
        let mut batch = TxBatch::of_nic();
        for source in [A, A, B, A] {
            batch.buffer().extend([&B.0[..], &source.0, &[0x5a; 48]].concat());
            assert!(batch.commit_plain());
        }
        let mut runs = Vec::new();
        while let Some(first) = batch.front() {
            let run = batch.run(64, 60_000);
            runs.push((batch.chosen_mac(&first), run.frames));
            batch.advance(run.frames);
        }
        assert_eq!(runs, [(Some(A), 2), (Some(B), 1), (Some(A), 1)]);
    }
}
