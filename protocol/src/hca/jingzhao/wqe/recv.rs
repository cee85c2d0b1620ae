//! Receive WQEs.
//!
//! # Spec
//! JingZhao interface, section 6.8.

use zerocopy::FromBytes;

use super::{DataSegment, DataSegments, GRANULE, NextUnit, RawData, TERMINATOR, WqeError};
use crate::describe::{Describe, Visitor};
use crate::ids::Lkey;

/// The valid bit of a receive WQE in its first byte, see [`NextUnit::valid`].
pub const RECV_VALID: u8 = 1 << 5;

/// A data unit that software has not written since the device took the WQE before. No receive has such a word: a length
/// has 31 bits, and no byte follows the last address. Only keys have all values.
pub const UNTOUCHED: [u8; GRANULE] = [0xff; GRANULE];

/// The same for software that knows no valid bit: what it takes for a free unit, but for the address.
pub const CONSUMED: [u8; GRANULE] = {
    let mut unit = UNTOUCHED;
    let mut at = 0;
    while at < 8 {
        unit[at] = TERMINATOR[at];
        at += 1;
    }
    unit
};

/// What ends the data units of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// A terminator.
    Terminator,
    /// The slot.
    Slot,
    /// A unit some of whose words are those of [`UNTOUCHED`].
    Untouched,
}

/// How much of a slot software has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Data units that are written.
    pub units: usize,
    /// What follows them.
    pub end: End,
}

/// A receive WQE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecvWqe {
    /// Scatter list.
    pub data: DataSegments,
}

impl RecvWqe {
    /// Whether a slot has the valid bit.
    pub fn is_marked(slot: &[u8]) -> bool {
        slot.first().is_some_and(|first| first & RECV_VALID != 0)
    }

    /// Whether a slot without the valid bit is posted all the same. `first_pass`: no slot of the queue was used since
    /// the QP left RESET, so that a slot whose next unit was never written can still tell by its data (J-23).
    pub fn is_posted_unmarked(slot: &[u8], first_pass: bool) -> bool {
        let Some((next, _)) = slot.split_first_chunk::<GRANULE>() else { return false };
        let marked = first_pass || next.iter().any(|byte| *byte != 0);
        // The address is the last word of a unit, so that one whose address is written is written.
        let is_data = |unit: &RawData| !is_terminator(unit) && unit.va.get() != u64::MAX;
        marked && units(slot).first().is_some_and(is_data)
    }

    /// How much of a slot is written. `is_key`: whether a region has the key, for the one key that [`UNTOUCHED`] has.
    pub fn extent(slot: &[u8], is_key: impl Fn(Lkey) -> bool) -> Extent {
        let untouched = |unit: &RawData| {
            let key = unit.lkey.get();
            let key_untouched = key == u32::MAX && !is_key(Lkey::new(key));
            unit.len.get() == u32::MAX || key_untouched || unit.va.get() == u64::MAX
        };
        let mut count = 0;
        for unit in units(slot) {
            // A terminator whose address is still to come would leave it in a slot that was taken and cleared meanwhile.
            if is_terminator(unit) && unit.va.get() != u64::MAX {
                return Extent { units: count, end: End::Terminator };
            }
            if untouched(unit) {
                return Extent { units: count, end: End::Untouched };
            }
            count += 1;
        }
        Extent { units: count, end: End::Slot }
    }

    /// Reads a posted slot: data units up to the first terminator, or to the end of the slot.
    ///
    /// # Errors
    /// [`WqeError::Inline`] for a data unit with the inline bit, [`WqeError::Truncated`] for a slot without next
    /// unit.
    pub fn parse(slot: &[u8]) -> Result<Self, WqeError> {
        if slot.len() < GRANULE {
            return Err(WqeError::Truncated("next unit"));
        }
        let units = units(slot).iter().take_while(|unit| !is_terminator(unit));
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

/// The units behind the next unit, as far as they are whole.
fn units(slot: &[u8]) -> &[RawData] {
    let rest = slot.get(GRANULE..).unwrap_or_default();
    let whole = rest.len() - rest.len() % GRANULE;
    rest.get(..whole).and_then(|units| <[RawData]>::ref_from_bytes(units).ok()).unwrap_or_default()
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
