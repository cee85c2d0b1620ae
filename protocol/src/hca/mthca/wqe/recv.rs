//! Receive WQEs, of a QP's own queue or of a shared one.
//!
//! # Spec
//! mthca interface, section 7.4.

use zerocopy::FromBytes;

use super::super::mpt::END_KEY;
use super::{DataSegment, DataSegments, GRANULE, NextSegment, RawData, WqeError};
use crate::ids::Va;

/// A receive WQE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecvWqe {
    /// Byte offset of the WQE that follows in a shared queue. Without meaning in a QP's own, which is a ring.
    pub successor: u32,
    /// Scatter list.
    pub data: DataSegments,
}

impl RecvWqe {
    /// Reads a slot: data segments up to the end mark, or to the end of the slot. The size that software wrote into the
    /// slot before it means nothing.
    ///
    /// # Errors
    /// [`WqeError::Inline`] for a data segment with the inline bit, [`WqeError::Truncated`] for a slot without next
    /// segment.
    pub fn parse(slot: &[u8]) -> Result<Self, WqeError> {
        let (next, rest) = slot.split_first_chunk::<GRANULE>().ok_or(WqeError::Truncated("next segment"))?;
        let whole = rest.len() - rest.len() % GRANULE;
        let list = rest.get(..whole).and_then(|list| <[RawData]>::ref_from_bytes(list).ok());
        let list = list.unwrap_or_default().iter().take_while(|raw| !is_end(raw));
        Ok(Self { successor: successor(next), data: list.map(DataSegment::parse).collect::<Result<_, _>>()? })
    }

    /// Byte offset of the WQE that follows a slot in a shared queue, whether the slot's list can be read or not; 0 for
    /// a slot without next segment.
    pub fn successor_of(slot: &[u8]) -> u32 {
        slot.first_chunk().map_or(0, successor)
    }

    /// A slot of `len` bytes as software fills it. Data segments beyond the slot are cut off.
    pub fn emit(&self, len: usize) -> Vec<u8> {
        let mut next = NextSegment::default();
        next.link.address = self.successor;
        let mut slot = next.emit().to_vec();
        self.data.iter().for_each(|data| slot.extend_from_slice(&data.emit_be()));
        let end = DataSegment { len: 0, lkey: END_KEY, va: Va::new(0) };
        slot.extend_from_slice(&end.emit_be());
        slot.resize(len, 0);
        slot
    }
}

/// Where a slot says the next one of a shared queue is.
fn successor(next: &[u8; GRANULE]) -> u32 {
    NextSegment::parse(next).link.address
}

/// Whether a scatter list ends in front of this segment.
fn is_end(raw: &RawData) -> bool {
    raw.len.get() == 0 && raw.lkey.get() == END_KEY.get()
}
