//! Receive WQEs.
//!
//! # Spec
//! JingZhao interface, section 6.8.

use zerocopy::{FromBytes, IntoBytes};

use super::{DataSegment, DataSegments, GRANULE, NextUnit, RawData, WqeError};
use crate::describe::{Describe, Visitor};

/// The valid bit of a receive WQE in its first byte, see [`NextUnit::valid`].
pub const RECV_VALID: u8 = 1 << 5;

/// Whether a slot of a receive queue holds a WQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// No.
    No,
    /// Yes.
    Yes,
    /// It is marked, but its first data unit is still zero: either a receive without data, or software, which marks
    /// a slot before it fills it, is not done. Read it again.
    Unsettled,
}

/// A receive WQE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecvWqe {
    /// Scatter list.
    pub data: DataSegments,
}

impl RecvWqe {
    /// Whether a slot is posted. `first_pass`: no slot of the queue was used since the QP left RESET, so that a slot
    /// whose next unit was never written can still tell by its data (J-23).
    pub fn posted(slot: &[u8], first_pass: bool) -> Posted {
        let Some((next, rest)) = slot.split_first_chunk::<GRANULE>() else { return Posted::No };
        let first = RawData::ref_from_prefix(rest).ok().map(|(unit, _)| unit);
        let has_data = first.is_some_and(|unit| !is_terminator(unit));
        if NextUnit::parse(next).valid {
            let zero = first.is_none_or(|unit| unit.as_bytes().iter().all(|byte| *byte == 0));
            return if zero { Posted::Unsettled } else { Posted::Yes };
        }
        let marked = first_pass || next.iter().any(|byte| *byte != 0);
        if marked && has_data { Posted::Yes } else { Posted::No }
    }

    /// Reads a posted slot: data units up to the first terminator, or to the end of the slot.
    ///
    /// # Errors
    /// [`WqeError::Inline`] for a data unit with the inline bit, [`WqeError::Truncated`] for a slot without next
    /// unit.
    pub fn parse(slot: &[u8]) -> Result<Self, WqeError> {
        let (_, rest) = slot.split_first_chunk::<GRANULE>().ok_or(WqeError::Truncated("next unit"))?;
        let whole = rest.len() - rest.len() % GRANULE;
        let units = rest.get(..whole).and_then(|units| <[RawData]>::ref_from_bytes(units).ok());
        let units = units.unwrap_or_default().iter().take_while(|unit| !is_terminator(unit));
        Ok(Self { data: units.map(DataSegment::parse).collect::<Result<_, _>>()? })
    }

    /// A posted slot of `slot_len` bytes as the public user library writes it: valid bit, data units, and a zero
    /// terminator if there is room. Data units beyond the slot are cut off.
    pub fn emit(&self, slot_len: usize) -> Vec<u8> {
        let mut slot = NextUnit { valid: true, ..NextUnit::default() }.emit().to_vec();
        self.data.iter().for_each(|unit| slot.extend_from_slice(&unit.emit_le()));
        slot.resize(slot_len, 0);
        slot
    }
}

/// Key 100h and key 0 are ordinary keys when there is a length (J-22).
fn is_terminator(unit: &RawData) -> bool {
    /// The key of a terminator, besides 0.
    const INVALID_LKEY: u32 = 0x100;
    unit.len.get() == 0 && matches!(unit.lkey.get(), 0 | INVALID_LKEY)
}

impl Describe for RecvWqe {
    fn describe(&self, to: &mut dyn Visitor) {
        to.objects("sge", &mut self.data.iter().map(|unit| unit as &dyn Describe));
    }
}
