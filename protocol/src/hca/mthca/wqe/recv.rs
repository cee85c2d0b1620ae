//! Receive WQEs of a QP or an SRQ.
//!
//! # Spec
//! mthca interface, section 7.4.

use zerocopy::FromBytes;

use super::super::mpt::END_KEY;
use super::{DataSegment, DataSegments, GRANULE, NextSegment, RawData, WqeError};
use crate::ids::Va;

/// A parsed receive WQE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecvWqe {
    /// Byte offset of the next WQE in an SRQ. Not used by receive queues, which are rings.
    pub successor: u32,
    /// Scatter list of the receive.
    pub data: DataSegments,
}

impl RecvWqe {
    /// Parses the data segments of a slot, up to the terminating segment or the end of the slot. The WQE size in
    /// the preceding WQE's [`NextSegment`] is ignored.
    ///
    /// # Errors
    /// [`WqeError::Inline`] if a data segment has the inline bit set; [`WqeError::Truncated`] if the slot is too short
    /// for a [`NextSegment`].
    pub fn parse(slot: &[u8]) -> Result<Self, WqeError> {
        let (next, rest) = slot.split_first_chunk::<GRANULE>().ok_or(WqeError::Truncated("next segment"))?;
        let whole = rest.len() - rest.len() % GRANULE;
        let list = rest.get(..whole).and_then(|list| <[RawData]>::ref_from_bytes(list).ok());
        let list = list.unwrap_or_default().iter().take_while(|raw| !is_end(raw));
        Ok(Self { successor: successor(next), data: list.map(DataSegment::parse).collect::<Result<_, _>>()? })
    }

    /// Returns the byte offset of the next WQE in an SRQ, even if this WQE's scatter list is invalid. Returns 0 if the
    /// slot is too short for a [`NextSegment`].
    pub fn successor_of(slot: &[u8]) -> u32 {
        slot.first_chunk().map_or(0, successor)
    }

    /// Returns a slot of `len` bytes, as a driver would write it. Data segments that do not fit are dropped.
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

fn successor(next: &[u8; GRANULE]) -> u32 {
    NextSegment::parse(next).link.address
}

fn is_end(raw: &RawData) -> bool {
    raw.len.get() == 0 && raw.lkey.get() == END_KEY.get()
}
