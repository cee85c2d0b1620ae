//! Receive WQEs and SRQ entries.

use smallvec::SmallVec;

use super::segments::DataSegment;
use crate::describe::{Describe, Field as _, Visitor};
use crate::hca::mlx5::mkey::TERMINATE_KEY;
use crate::hca::mlx5::srq::LinkSegment;

/// A receive WQE: a scatter list.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct RecvWqe {
    /// Buffers of the scatter list, in order. Up to four buffers are stored without allocation.
    pub scatter: SmallVec<[DataSegment; 4]>,
}

impl RecvWqe {
    /// Parses a receive queue entry. Accepts any entry and ignores an incomplete segment at the end.
    pub fn parse(entry: &[u8]) -> Self {
        Self { scatter: Self::segments(entry).collect() }
    }

    /// Returns the scatter list of a receive queue entry without storing it; see [`RecvWqe::parse`].
    #[inline]
    pub fn segments(entry: &[u8]) -> impl Iterator<Item = DataSegment> {
        // `byte_count` excludes bit 31, which is not part of the length (mlx5 interface, section 20, M-24).
        let segments = entry.as_chunks::<{ DataSegment::LEN }>().0.iter().map(DataSegment::parse);
        let is_end = |segment: &DataSegment| segment.byte_count == 0 && segment.lkey.get() == TERMINATE_KEY;
        segments.take_while(move |segment| !is_end(segment))
    }

    /// Returns the WQE as an entry of `len` bytes in wire format. Omits segments that do not fit and adds a terminating
    /// segment if there is room.
    pub fn emit(&self, len: usize) -> Vec<u8> {
        let end = DataSegment { lkey: crate::ids::Lkey::new(TERMINATE_KEY), ..DataSegment::default() };
        let mut entry: Vec<u8> =
            self.scatter.iter().chain([&end]).flat_map(DataSegment::emit).take(len).collect();
        entry.resize(len, 0);
        entry
    }

    /// Returns the sum of the buffer lengths in bytes.
    pub fn capacity(&self) -> u64 {
        self.scatter.iter().map(|segment| u64::from(segment.byte_count)).sum()
    }
}

impl Describe for RecvWqe {
    fn describe(&self, to: &mut dyn Visitor) {
        to.objects("scatter", &mut self.scatter.iter().map(|segment| segment as &dyn Describe));
    }
}

/// An SRQ entry: a link and a receive WQE.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct SrqEntry {
    /// Index of the next entry.
    pub next: u16,
    pub wqe: RecvWqe,
}

impl SrqEntry {
    /// Parses an entry. Returns `None` if the entry is too short for the link.
    pub fn parse(entry: &[u8]) -> Option<Self> {
        let link = LinkSegment::parse_prefix(entry)?;
        Some(Self { next: link.next, wqe: RecvWqe::parse(entry.get(LinkSegment::LEN..)?) })
    }

    /// Returns the entry in wire format, padded to `len` bytes. `len` must be at least 16.
    pub fn emit(&self, len: usize) -> Vec<u8> {
        let mut entry = LinkSegment { next: self.next, signature: 0 }.emit().to_vec();
        entry.extend(self.wqe.emit(len.saturating_sub(LinkSegment::LEN)));
        entry
    }
}

impl Describe for SrqEntry {
    fn describe(&self, to: &mut dyn Visitor) {
        self.next.show("next", to);
        self.wqe.describe(to);
    }
}
