//! Doorbell registers in a UAR page.
//!
//! # Spec
//! JingZhao interface, sections 1.6 and 12 (J-06, J-07).

use bitfield_struct::bitfield;

use super::wqe::{GRANULE, WqeOpcode};
use crate::describe::describe;
use crate::ids::{Cqn, Eqn, Qpn};

/// Length of a UAR page in bytes.
pub const UAR_PAGE: u64 = 4096;

/// A register in a UAR page. Writes to other offsets are ignored, and the whole page reads as 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UarRegister {
    /// 00h: word 0 of the send doorbell. An 8-byte write to this offset rings the doorbell.
    SendLow,
    /// 04h: word 1 of the send doorbell. Writing it rings the doorbell.
    SendHigh,
    /// 10h: arms the CQ whose number is in bits 23:0.
    ArmCq,
    /// 20h: arms the EQ whose number is in bits 7:0.
    ArmEq,
}

impl UarRegister {
    /// Returns the register name that appears in traces.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SendLow => "sq_doorbell[31:0]",
            Self::SendHigh => "sq_doorbell[63:32]",
            Self::ArmCq => "arm_cq",
            Self::ArmEq => "arm_eq",
        }
    }

    /// Returns the register at `offset` in a UAR page.
    pub const fn at(offset: u64) -> Option<Self> {
        match offset {
            0x00 => Some(Self::SendLow),
            0x04 => Some(Self::SendHigh),
            0x10 => Some(Self::ArmCq),
            0x20 => Some(Self::ArmEq),
            _ => None,
        }
    }
}

/// Unit of send queue positions in doorbells and links. It depends on the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum PositionUnit {
    /// 16-byte units. Positions are not reduced modulo the queue length (J-06, J-07).
    #[default]
    Granule,
    /// Slots, used by the public kernel driver. Doorbells count slots, and links contain byte offsets without the low
    /// six bits.
    Slot,
}

/// A doorbell for a send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendDoorbell {
    /// Position of the first WQE, 24 bits; see [`SendDoorbell::position`].
    pub head: u32,
    /// Fence bit of the first WQE.
    pub fence: bool,
    /// Opcode of the first WQE, five bits.
    pub opcode: u8,
    /// QP number, including the high bits that drivers use as a generation counter.
    pub qpn: Qpn,
    /// Size of the first WQE in 16-byte units, including its [`NextUnit`](super::wqe::NextUnit).
    pub size: u8,
}

impl SendDoorbell {
    /// Parses a doorbell from its two words; `low` is the word at the lower address.
    pub fn parse(low: u32, high: u32) -> Self {
        let (low, high) = (Low::from_bits(low), High::from_bits(high));
        Self {
            head: low.head(),
            fence: low.fence(),
            opcode: low.opcode(),
            qpn: Qpn::new(high.qpn()),
            size: high.size(),
        }
    }

    /// Returns the two words of the doorbell, lower address first. Values that exceed their fields are truncated.
    pub fn emit(&self) -> [u32; 2] {
        let low = Low::new()
            .with_head(self.head & 0xff_ffff)
            .with_fence(self.fence)
            .with_opcode(self.opcode & 0x1f);
        let high = High::new().with_qpn(self.qpn.get()).with_size(self.size);
        [low.into_bits(), high.into_bits()]
    }

    /// Returns the byte offset of the first WQE in a queue of `len` bytes, or `None` if `len` is 0 or `log_slot` is out
    /// of range.
    pub fn position(&self, unit: PositionUnit, log_slot: u8, len: u32) -> Option<u32> {
        let bytes = match unit {
            PositionUnit::Granule => u64::from(self.head) * GRANULE as u64,
            PositionUnit::Slot => u64::from(self.head & 0xffff).checked_shl(log_slot.into())?,
        };
        wrap(bytes, len)
    }
}

describe!(SendDoorbell { qpn, opcode as WqeOpcode::word, size, head, fence });

/// Reduces `bytes` modulo the queue length `len`. Returns `None` if `len` is 0.
pub(super) fn wrap(bytes: u64, len: u32) -> Option<u32> {
    bytes.checked_rem(len.into()).and_then(|offset| u32::try_from(offset).ok())
}

/// Returns the CQ number in an ARM_CQ write.
pub const fn arm_cq(word: u32) -> Cqn {
    Cqn::new(word)
}

/// Returns the EQ number in an ARM_EQ write.
pub const fn arm_eq(word: u32) -> Eqn {
    Eqn::new(word & 0xff)
}

#[bitfield(u32)]
struct Low {
    #[bits(5)]
    opcode: u8,
    fence: bool,
    #[bits(2)]
    __: u8,
    #[bits(24)]
    head: u32,
}

#[bitfield(u32)]
struct High {
    size: u8,
    #[bits(24)]
    qpn: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(doorbell: &SendDoorbell) -> Vec<u8> {
        doorbell.emit().into_iter().flat_map(u32::to_le_bytes).collect()
    }

    fn send(head: u32) -> SendDoorbell {
        SendDoorbell { head, fence: false, opcode: 0x0a, qpn: Qpn::new(5), size: 2 }
    }

    #[test]
    fn example_doorbells_round_trip() {
        for (head, published) in [
            (0, [0x0a, 0x00, 0x00, 0x00, 0x02, 0x05, 0x00, 0x00]),
            (8, [0x0a, 0x08, 0x00, 0x00, 0x02, 0x05, 0x00, 0x00]),
            (1, [0x0a, 0x01, 0x00, 0x00, 0x02, 0x05, 0x00, 0x00]),
        ] {
            assert_eq!(bytes(&send(head)), published);
            let word = |at: usize| u32::from_le_bytes(published[at..at + 4].try_into().unwrap());
            assert_eq!(SendDoorbell::parse(word(0), word(4)), send(head));
        }
        let fenced = SendDoorbell { fence: true, ..send(0) };
        assert_eq!(bytes(&fenced)[0], 0x2a);
    }

    #[test]
    fn doorbell_head_counts_granules_or_slots() {
        assert_eq!(send(8).position(PositionUnit::Granule, 7, 0x4000), Some(128));
        assert_eq!(send(1).position(PositionUnit::Slot, 7, 0x4000), Some(128));
    }

    #[test]
    fn doorbell_head_wraps_to_same_slot() {
        for lap in 0..64 {
            let head = 8 + lap * (0x4000 / 16);
            assert_eq!(send(head).position(PositionUnit::Granule, 7, 0x4000), Some(128));
        }
        assert_eq!(send(0xff_ffff).position(PositionUnit::Granule, 7, 0x4000), Some(0x3ff0));
    }

    #[test]
    fn slot_number_is_16_bits_wide() {
        assert_eq!(send(0x7f_0001).position(PositionUnit::Slot, 7, 0x4000), Some(128));
    }

    #[test]
    fn zero_length_queue_has_no_wqe_offset() {
        assert_eq!(send(8).position(PositionUnit::Granule, 7, 0), None);
        assert_eq!(send(8).position(PositionUnit::Slot, 200, 0x4000), None);
    }

    #[test]
    fn receive_doorbell_offset_is_not_a_register() {
        assert_eq!(UarRegister::at(0x18), None);
        assert_eq!(UarRegister::at(0x10), Some(UarRegister::ArmCq));
        assert_eq!(UarRegister::at(0x20), Some(UarRegister::ArmEq));
        assert_eq!(arm_cq(0xff01_0203), Cqn::new(0x01_0203));
        assert_eq!(arm_eq(0x0000_0105), Eqn::new(5));
    }

    proptest! {
        #[test]
        fn any_doorbell_round_trips(low: u32, high: u32, log_slot: u8, len: u32) {
            let doorbell = SendDoorbell::parse(low, high);
            let [low, high] = doorbell.emit();
            prop_assert_eq!(SendDoorbell::parse(low, high), doorbell);
            for unit in [PositionUnit::Granule, PositionUnit::Slot] {
                if let Some(position) = doorbell.position(unit, log_slot, len) {
                    prop_assert!(position < len);
                }
            }
        }
    }
}
