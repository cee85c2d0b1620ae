//! Registers in BAR0. QUERY_FW reports the addresses of most of them ([`super::caps::QueryFw`]).
//!
//! # Spec
//! mthca interface, section 2.

use super::super::hcr::HcrWord;
use super::super::words::{self, Block};
use crate::ids::Eqn;

/// A 32-bit register in BAR0. All other offsets, except for the MSI-X structures (see [`super::pci`]), read as 0 and
/// ignore writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Register {
    /// A word of the HCR.
    Hcr(HcrWord),
    /// A word of the EQ arm register. Bit 0 arms the EQ with the given number, bit 1 arms the next EQ, and so on.
    EqArm(Eqn),
    /// Writing this register sets the EQ's consumer index.
    EqSetCi(Eqn),
    /// Catastrophic error buffer. It reads nonzero after a catastrophic error.
    Catastrophe,
    /// Writing this register deasserts the INTx pin.
    ClearInterrupt,
    /// Writing [`RESET_VALUE`] to this register resets the device.
    Reset,
}

/// Maximum number of EQs. The arm register has one bit per EQ.
pub const EQS: u32 = 64;

/// Offset of the HCR.
pub const HCR: u32 = 0x8_0680;
/// Offset of the 64-bit EQ arm register. Linux writes only its second word, which arms EQs 0 to 31.
pub const EQ_ARM: u32 = 0x8_0a00;
/// Offset of the EQ consumer index registers. They are eight bytes apart, and only their first four bytes are used.
pub const EQ_SET_CI: u32 = 0x8_0b00;
/// Offset of the catastrophic error buffer.
pub const CATASTROPHE: u32 = 0x8_3000;
/// Length of the catastrophic error buffer in 32-bit words. If it is 0, the driver oopses on unload.
pub const CATASTROPHE_DWORDS: u32 = 1;
/// Offset of the register that deasserts INTx. It has one bit for each of 64 pins.
pub const CLEAR_INTERRUPT: u32 = 0xf_00d8;
/// Offset of the reset register, hard-coded in the driver.
pub const RESET: u32 = 0xf_0010;

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
    /// Decodes the offset of a word in BAR0.
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

/// Value that resets the device when written to the reset register.
pub const RESET_VALUE: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bar0_offsets_map_to_registers() {
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
