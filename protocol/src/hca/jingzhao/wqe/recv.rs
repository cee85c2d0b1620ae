//! Receive WQEs.
//!
//! # Spec
//! JingZhao interface, sections 6.8 and 12 (J-22, J-23).

use zerocopy::FromBytes;

use super::{DataSegment, DataSegments, GRANULE, NextUnit, RawData, TERMINATOR, WqeError};
use crate::describe::{Describe, Visitor};
use crate::ids::Lkey;

/// Valid bit in the first byte of a receive WQE; see [`NextUnit::valid`].
pub const RECV_VALID: u8 = 1 << 5;

/// Value that the device writes to the data units of a consumed slot so that it can later detect which units the driver
/// has written. A written unit never has this length, since lengths are 31 bits wide, nor this address, since data
/// never starts at the last address. It can, however, have this key.
pub const UNTOUCHED: [u8; GRANULE] = [0xff; GRANULE];

/// Like [`UNTOUCHED`], for drivers that do not set a valid bit. Such drivers mark a free unit with a [`TERMINATOR`],
/// which has the same length and key as this value, but a different address.
pub const CONSUMED: [u8; GRANULE] = {
    let mut unit = UNTOUCHED;
    let mut at = 0;
    while at < 8 {
        unit[at] = TERMINATOR[at];
        at += 1;
    }
    unit
};

/// How the written part of a slot ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum End {
    Terminator,
    /// The driver wrote every unit of the slot.
    Slot,
    /// A unit in which at least one field still has its value from [`UNTOUCHED`].
    Untouched,
}

/// Part of a slot that the driver has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Number of written data units.
    pub units: usize,
    /// How the written part ends.
    pub end: End,
}

/// A parsed receive WQE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecvWqe {
    /// Scatter list of the receive.
    pub data: DataSegments,
}

impl RecvWqe {
    /// Returns whether the valid bit of a slot is set.
    pub fn is_valid(slot: &[u8]) -> bool {
        slot.first().is_some_and(|first| first & RECV_VALID != 0)
    }

    /// Returns whether a slot is posted even though its valid bit is clear. `first_pass` is true until the device has
    /// consumed every slot once since RESET. In the first pass, a slot that contains data counts as posted, even if its
    /// [`NextUnit`] was never written (J-23). In later passes, its [`NextUnit`] must also be nonzero.
    pub fn is_posted_without_valid_bit(slot: &[u8], first_pass: bool) -> bool {
        let Some((next, _)) = slot.split_first_chunk::<GRANULE>() else { return false };
        let marked = first_pass || next.iter().any(|byte| *byte != 0);
        // A unit with an address is complete, since drivers write the address last.
        let is_data = |unit: &RawData| !is_terminator(unit) && unit.va.get() != u64::MAX;
        marked && units(slot).first().is_some_and(is_data)
    }

    /// Returns the part of a slot that the driver has written. `is_key` returns whether a region with the given key
    /// exists. A key of FFFFFFFFh counts as written only if it belongs to a region.
    pub fn extent(slot: &[u8], is_key: impl Fn(Lkey) -> bool) -> Extent {
        let untouched = |unit: &RawData| {
            let key = unit.lkey.get();
            let key_untouched = key == u32::MAX && !is_key(Lkey::new(key));
            unit.len.get() == u32::MAX || key_untouched || unit.va.get() == u64::MAX
        };
        let mut count = 0;
        for unit in units(slot) {
            // A terminator counts only once its address is written. Otherwise, a late store of the address could modify
            // a slot that has already been consumed and refilled.
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

    /// Parses the data units of a posted slot, up to the first terminator or the end of the slot.
    ///
    /// # Errors
    /// [`WqeError::Inline`] for a data unit with the inline bit; [`WqeError::Truncated`] for a slot that is too short
    /// for a [`NextUnit`].
    pub fn parse(slot: &[u8]) -> Result<Self, WqeError> {
        if slot.len() < GRANULE {
            return Err(WqeError::Truncated("next unit"));
        }
        let units = units(slot).iter().take_while(|unit| !is_terminator(unit));
        Ok(Self { data: units.map(DataSegment::parse).collect::<Result<_, _>>()? })
    }

    /// Returns a posted slot of `slot_len` bytes as the public user library writes it: a [`NextUnit`] with the valid
    /// bit, the data units, and a zero terminator if it fits. Data units beyond the end of the slot are dropped.
    pub fn emit(&self, slot_len: usize) -> Vec<u8> {
        let mut slot = NextUnit { valid: true, ..NextUnit::default() }.emit().to_vec();
        self.data.iter().for_each(|unit| slot.extend_from_slice(&unit.emit_le()));
        slot.resize(slot_len, 0);
        slot
    }
}

/// Returns the complete units after the [`NextUnit`].
fn units(slot: &[u8]) -> &[RawData] {
    let rest = slot.get(GRANULE..).unwrap_or_default();
    let whole = rest.len() - rest.len() % GRANULE;
    rest.get(..whole).and_then(|units| <[RawData]>::ref_from_bytes(units).ok()).unwrap_or_default()
}

/// Returns whether a unit terminates the list. Keys 0 and 100h are ordinary keys if the length is nonzero (J-22).
fn is_terminator(unit: &RawData) -> bool {
    /// Key that the public kernel driver writes to terminators. The user library writes 0.
    const INVALID_LKEY: u32 = 0x100;
    unit.len.get() == 0 && matches!(unit.lkey.get(), 0 | INVALID_LKEY)
}

impl Describe for RecvWqe {
    fn describe(&self, to: &mut dyn Visitor) {
        to.objects("sge", &mut self.data.iter().map(|unit| unit as &dyn Describe));
    }
}
