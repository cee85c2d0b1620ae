//! Registers of BAR0. Where most of them are is for the device to say, in QUERY_FW ([`super::caps::QueryFw`]).
//!
//! # Spec
//! mthca interface, section 2.

use super::super::hcr::HcrWord;
use super::super::words::{self, Block};
use crate::ids::Eqn;

/// A register of BAR0, 32 bits. Everything else in the BAR (the MSI-X structures apart, see [`super::pci`]) reads 0
/// and ignores writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Register {
    /// A word of the command register.
    Hcr(HcrWord),
    /// Write: bit n arms the event queue with this number plus n.
    EqArm(Eqn),
    /// Write: consumer index of an event queue.
    EqSetCi(Eqn),
    /// Read: not 0 once the device has failed.
    Catastrophe,
    /// Write: deasserts INTx.
    ClearInterrupt,
    /// Write 1: device reset.
    Reset,
}

/// Event queues that can be armed: bits of the arm register.
pub const EQS: u32 = 64;

/// Where the command register is.
pub const HCR: u32 = 0x8_0680;
/// Where the arm register is: 64 bits, big-endian. Linux writes its second dword only.
pub const EQ_ARM: u32 = 0x8_0a00;
/// Where the consumer indices are, eight bytes each, of which the first four count.
pub const EQ_SET_CI: u32 = 0x8_0b00;
/// Where the buffer of catastrophic errors is.
pub const CATASTROPHE: u32 = 0x8_3000;
/// Dwords of that buffer; with none the driver oopses when it is unloaded.
pub const CATASTROPHE_DWORDS: u32 = 1;
/// Where INTx is deasserted, one bit for each of 64 pins.
pub const CLEAR_INTERRUPT: u32 = 0xf_00d8;
/// Where the reset register is. The driver knows.
pub const RESET: u32 = 0xf_0010;

/// First byte, bytes and first register of each block, in address order.
const MAP: [Block<Register>; 6] = [
    (HCR, 4 * 7, Register::Hcr(HcrWord::InParamHigh)),
    (EQ_ARM, 8, Register::EqArm(Eqn::new(0))),
    (EQ_SET_CI, 8 * EQS, Register::EqSetCi(Eqn::new(0))),
    (CATASTROPHE, 4 * CATASTROPHE_DWORDS, Register::Catastrophe),
    (RESET, 4, Register::Reset),
    (CLEAR_INTERRUPT, 8, Register::ClearInterrupt),
];

const _: () = assert!(words::in_order(&MAP), "register blocks overlap or are out of order");

impl Register {
    /// The register whose word begins at `offset` of BAR0.
    pub fn at(offset: u64) -> Option<Self> {
        let (block, inside) = words::find(&MAP, offset)?;
        match block {
            Self::Hcr(_) => HcrWord::ALL.get(inside as usize / 4).copied().map(Self::Hcr),
            Self::EqArm(_) => Some(Self::EqArm(Eqn::new(if inside < 4 { 32 } else { 0 }))),
            Self::EqSetCi(_) => inside.is_multiple_of(8).then_some(Self::EqSetCi(Eqn::new(inside / 8))),
            single => Some(single),
        }
    }
}

/// What is written to the reset register.
pub const RESET_VALUE: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_are_where_query_fw_says() {
        for (offset, register) in [
            (0x80680, Some(Register::Hcr(HcrWord::InParamHigh))),
            (0x80698, Some(Register::Hcr(HcrWord::Command))),
            (0x8069c, None),
            (0x80a00, Some(Register::EqArm(Eqn::new(32)))),
            (0x80a04, Some(Register::EqArm(Eqn::new(0)))),
            (0x80a08, None),
            (0x80b00, Some(Register::EqSetCi(Eqn::new(0)))),
            (0x80b04, None),
            (0x80b18, Some(Register::EqSetCi(Eqn::new(3)))),
            (0x80cf8, Some(Register::EqSetCi(Eqn::new(63)))),
            (0x80d00, None),
            (0x83000, Some(Register::Catastrophe)),
            (0x83004, None),
            (0xf0010, Some(Register::Reset)),
            (0xf00dc, Some(Register::ClearInterrupt)),
            (0xf0011, None),
            (1 << 32 | 0xf0010, None),
        ] {
            assert_eq!(Register::at(offset), register, "{offset:#x}");
        }
    }
}
