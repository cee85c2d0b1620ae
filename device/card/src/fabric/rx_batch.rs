//! Received frames. The frames in a batch share one buffer, except for long frames in shared memory.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use engine::PayloadRef;
use protocol::roce::{Offload, PacketPayload as _};
use vm_memory::{MmapRegion, VolatileMemory as _, VolatileSlice};

use super::MEMORY_TURN_BYTES;

/// Received frames, in reused buffers.
#[derive(Debug)]
pub struct RxBatch {
    pub(super) storage: Vec<u8>,
    pub(super) frames: Vec<RxFrame>,
    /// Frames that remain in shared memory.
    shared: Vec<SharedFrame>,
    /// Number of bytes received from shared memory in this turn.
    received: usize,
}

#[derive(Clone, Debug)]
pub(super) struct RxFrame {
    /// Range of [`RxBatch::storage`] that holds the frame or, if `shared` is set, the beginning of the frame.
    range: Range<usize>,
    offload: Offload,
    /// Index of the frame in [`RxBatch::shared`].
    shared: Option<u32>,
}

impl RxFrame {
    pub(super) fn new(range: Range<usize>, offload: Offload) -> Self {
        Self { range, offload, shared: None }
    }

    /// Describes a frame received from a wire. Such a frame has no offload.
    pub(super) fn whole(range: Range<usize>) -> Self {
        Self::new(range, Offload::None)
    }
}

/// A frame in memory that its sender may change at any time.
#[derive(Clone, Debug)]
pub(super) struct SharedFrame {
    pub(super) region: Arc<MmapRegion>,
    /// Offset in the region.
    pub(super) at: usize,
    pub(super) len: usize,
}

impl SharedFrame {
    fn slice(&self) -> Option<VolatileSlice<'_>> {
        self.region.get_slice(self.at, self.len).ok()
    }
}

/// A received frame. Its payload is in private memory or in memory that the sender can still change.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// The frame or, if `shared` is set, the beginning of the frame.
    head: &'a [u8],
    /// The whole frame, in memory that its sender may change at any time.
    shared: Option<VolatileSlice<'a>>,
    offload: Offload,
}

impl<'a> Arrival<'a> {
    /// Returns a frame in private memory.
    pub const fn new(frame: &'a [u8], offload: Offload) -> Self {
        Self { head: frame, shared: None, offload }
    }

    /// Returns a frame in memory that its sender may change at any time. `head` is a private copy of its beginning,
    /// which contains all headers.
    pub const fn in_shared_memory(head: &'a [u8], frame: VolatileSlice<'a>, offload: Offload) -> Self {
        Self { head, shared: Some(frame), offload }
    }

    /// Returns the work that remains before the frame is in wire format.
    pub const fn offload(&self) -> Offload {
        self.offload
    }

    /// Returns the length of the frame in bytes.
    pub fn len(&self) -> usize {
        self.shared.map_or(self.head.len(), |shared| shared.len())
    }

    /// Returns whether the frame has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the beginning of the frame, which is in private memory and contains all headers, and the whole frame.
    pub(crate) fn parts(&self) -> (&'a [u8], PayloadRef<'a>) {
        (self.head, self.shared.map_or(PayloadRef::Private(self.head), PayloadRef::Shared))
    }

    /// Returns the frame in private memory, copying it if necessary. The copy begins with the private copy of the
    /// headers, whose addresses the fabric has checked.
    pub fn contents(&self) -> Cow<'a, [u8]> {
        let Some(shared) = self.shared.map(PayloadRef::Shared) else { return self.head.into() };
        let mut copy = Vec::with_capacity(shared.len());
        let copied = self.head.len().min(shared.len());
        copy.extend_from_slice(&self.head[..copied]);
        shared.slice(copied..shared.len()).append_to(&mut copy);
        copy.into()
    }
}

/// A buffer of frames that moves as a whole from a [`TxBatch`](super::TxBatch) to an [`RxBatch`].
#[derive(Debug, Default)]
pub(super) struct Frames {
    pub(super) bytes: Vec<u8>,
    pub(super) frames: Vec<RxFrame>,
}

impl Frames {
    pub(super) fn push(&mut self, frame: &[u8], offload: Offload) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(frame);
        self.frames.push(RxFrame::new(start..self.bytes.len(), offload));
    }

    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Drops all frames, but keeps the memory.
    pub(super) fn clear(&mut self) {
        self.frames.clear();
        self.bytes.clear();
    }
}

impl RxBatch {
    /// Number of buffers in a batch. Each buffer holds one datagram, or a run of datagrams coalesced by the
    /// kernel.
    pub(super) const SLOTS: usize = 32;
    /// Size of one buffer in bytes, which is the most that a UDP receive call returns.
    pub(super) const SLOT_LEN: usize = 1 << 16;

    pub fn new() -> Self {
        Self {
            storage: vec![0; Self::SLOTS * Self::SLOT_LEN],
            frames: Vec::new(),
            shared: Vec::new(),
            received: 0,
        }
    }

    /// Drops all frames, but keeps the memory.
    pub(super) fn clear(&mut self) {
        self.frames.clear();
        self.shared.clear();
        self.received = 0;
    }

    /// Returns space for `len` bytes after the existing frames, or `None` if no more frames may be received in this
    /// turn. Write a frame or its beginning, then call [`RxBatch::commit`].
    pub(super) fn space(&mut self, len: usize) -> Option<&mut [u8]> {
        let start = self.end();
        if self.received < MEMORY_TURN_BYTES { self.storage.get_mut(start..start + len) } else { None }
    }

    /// Commits the `len` bytes written to [`RxBatch::space`]. If `shared` is set, they are the beginning of that frame,
    /// and otherwise a whole frame.
    pub(super) fn commit(&mut self, len: usize, offload: Offload, shared: Option<SharedFrame>) {
        let start = self.end();
        self.received += shared.as_ref().map_or(len, |shared| shared.len);
        let shared = shared.and_then(|frame| {
            let index = u32::try_from(self.shared.len()).ok()?;
            self.shared.push(frame);
            Some(index)
        });
        self.frames.push(RxFrame { range: start..start + len, offload, shared });
    }

    /// Starting at index `first`, drops every frame for which `keep` returns false. `keep` receives the frame or its
    /// beginning, which holds all addresses.
    pub(super) fn retain_from(&mut self, first: usize, mut keep: impl FnMut(&[u8]) -> bool) {
        let Self { storage, frames, .. } = self;
        let mut number = 0;
        frames.retain(|frame| {
            number += 1;
            number <= first || keep(&storage[frame.range.clone()])
        });
    }

    fn end(&self) -> usize {
        self.frames.last().map_or(0, |frame| frame.range.end)
    }

    /// Replaces the frames. Returns the old buffers for reuse.
    pub(super) fn replace(&mut self, frames: Frames) -> Frames {
        let bytes = std::mem::replace(&mut self.storage, frames.bytes);
        let frames = std::mem::replace(&mut self.frames, frames.frames);
        let mut memory = Frames { bytes, frames };
        memory.clear();
        memory
    }

    /// Returns the frames in order of arrival.
    pub fn iter(&self) -> impl Iterator<Item = Arrival<'_>> {
        self.frames.iter().filter_map(|frame| {
            let shared = match frame.shared {
                Some(index) => Some(self.shared.get(index as usize)?.slice()?),
                None => None,
            };
            Some(Arrival { head: &self.storage[frame.range.clone()], shared, offload: frame.offload })
        })
    }

    pub fn len(&self) -> usize {
        self.frames.len()
    }

    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }
}

impl Default for RxBatch {
    fn default() -> Self {
        Self::new()
    }
}
