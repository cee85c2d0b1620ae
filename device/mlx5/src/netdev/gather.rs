//! Reads a frame WQE's data.

use card::memory::translate::{AccessTarget, RegionAccess};
use engine::{Access, AccessError, Initiator};
use protocol::hca::mlx5::wqe::{DataItem, DataSegment};
use protocol::ids::Va;
use smallvec::SmallVec;

use crate::mkey::Mkeys;

/// The data of a frame and the position of the next byte to read.
///
/// The list of pieces is bounded, because a frame's WQE has at most 61 data and inline segments.
#[derive(Debug)]
pub struct Gather {
    initiator: Initiator,
    pieces: SmallVec<[Piece; 4]>,
    /// Number of pieces that have been read completely, and number of bytes read from the next one.
    position: (usize, usize),
}

#[derive(Debug)]
enum Piece {
    Memory(DataSegment),
    Inline(SmallVec<[u8; 64]>),
}

impl Piece {
    fn len(&self) -> usize {
        match self {
            Self::Memory(segment) => segment.byte_count as usize,
            Self::Inline(bytes) => bytes.len(),
        }
    }
}

impl Gather {
    pub fn new(initiator: Initiator, data: &[DataItem<'_>]) -> Self {
        let piece = |item: &DataItem<'_>| match item {
            DataItem::Pointer(segment) => Piece::Memory(*segment),
            DataItem::Inline(bytes) => Piece::Inline((*bytes).into()),
        };
        Self { initiator, pieces: data.iter().map(piece).collect(), position: (0, 0) }
    }

    /// Returns the total length of the data in bytes.
    pub fn total_len(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.len() as u64).sum()
    }

    /// Appends the next `len` bytes to `out`, or fewer at the end of the data.
    ///
    /// # Errors
    /// Fails if a key does not allow the access.
    pub fn take(
        &mut self,
        memory: &RegionAccess<'_, &Mkeys>,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), AccessError> {
        let mut rest = len;
        while rest > 0 {
            let (index, offset) = self.position;
            let Some(piece) = self.pieces.get(index) else { break };
            let left = piece.len() - offset;
            let now = rest.min(left);
            match piece {
                Piece::Memory(segment) => {
                    let va = Va::new(segment.va.get().wrapping_add(offset as u64));
                    let target = AccessTarget::address(self.initiator, segment.lkey, va);
                    memory.append(target, now, out, Access::LocalRead)?;
                }
                Piece::Inline(bytes) => out.extend(bytes.iter().skip(offset).take(now)),
            }
            rest -= now;
            self.position = if now == left { (index + 1, 0) } else { (index, offset + now) };
        }
        Ok(())
    }
}
