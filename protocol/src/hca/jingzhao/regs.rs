//! Registers in BAR0: the host command register (HCR), the reset register, and init_done. The HCR and the reset
//! register have two offsets each.
//!
//! All registers are 32-bit little-endian words. [`writes`] and [`read`] split guest accesses into words, and
//! [`Register::at`] decodes the offset of a word.
//!
//! # Spec
//! JingZhao interface, sections 1.1 to 1.5 and 12 (J-04).

pub use crate::hca::hcr::{CommandState, CommandWord, HcrWord};
use crate::hca::words::{self, Block};

/// A register in BAR0. Apart from the MSI-X structures (see [`super::pci`]), all other offsets read as 0 and ignore
/// writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Register {
    /// A word of the HCR, which is accessible at both offsets of [`HCR`].
    Hcr(HcrWord),
    /// Reset register. Writing a value with bit 0 set resets the device; reads return 0.
    Reset,
    /// Initialisation-done register. Reads always return 1.
    InitDone,
}

/// Offsets of the HCR in the specification and in the public driver.
pub const HCR: [u32; 2] = [0x8_0000, 0];
/// Offsets of the reset register in the specification and in the public RTL.
pub const RESET: [u32; 2] = [0xf_0010, 0x0_0f10];
/// Offset of the init_done register.
pub const INIT_DONE: u32 = 0x0_0f20;
/// Length of the HCR in bytes.
pub const HCR_LEN: u32 = 28;

/// Offset, length in bytes and first register of each block, in address order.
const MAP: [Block<Register>; 5] = [
    (HCR[1], HCR_LEN, Register::Hcr(HcrWord::InParamHigh)),
    (RESET[1], 4, Register::Reset),
    (INIT_DONE, 4, Register::InitDone),
    (HCR[0], HCR_LEN, Register::Hcr(HcrWord::InParamHigh)),
    (RESET[0], 4, Register::Reset),
];

const _: () = assert!(words::in_order(&MAP), "register blocks overlap or are out of order");

impl Register {
    /// Decodes the offset of a word in BAR0.
    pub fn at(offset: u64) -> Option<Self> {
        let (block, inside) = words::find(&MAP, offset)?;
        match block {
            Self::Hcr(_) => HcrWord::ALL.get(inside as usize / 4).copied().map(Self::Hcr),
            single => Some(single),
        }
    }

    /// Returns the register name that appears in traces.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hcr(word) => word.name(),
            Self::Reset => "reset",
            Self::InitDone => "init_done",
        }
    }
}

/// Splits a write into words; see [`words::writes`].
pub fn writes(offset: u64, data: &[u8]) -> impl Iterator<Item = (u64, u32)> {
    words::writes(offset, data).map(|(offset, word)| (offset, u32::from_le_bytes(word)))
}

/// Performs a read; see [`words::read`].
pub fn read(offset: u64, out: &mut [u8], mut word: impl FnMut(u64) -> u32) {
    words::read(offset, out, |at| word(at).to_le_bytes());
}

/// Returns the HCR word at 18h as the driver reads it.
///
/// The specification defines bit 23 as "executing", but the public driver polls bit 15. Bit 15 is op_modifier\[3\] when
/// written and a copy of the go bit when read.
///
/// # Spec
/// JingZhao interface, section 1.3 (J-04).
pub fn command_word(state: CommandState) -> u32 {
    const DRIVER_GO: u8 = 1 << 3;
    let word = state.word();
    let others = word.op_modifier() & !DRIVER_GO;
    let go = if word.go() { DRIVER_GO } else { 0 };
    word.with_op_modifier(others | go).into_bits()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hca::status::CmdStatus;

    #[test]
    fn command_word_matches_published_bytes() {
        let query = CommandWord::new().with_op(0x003).with_go(true);
        assert_eq!(query.into_bits().to_le_bytes(), [0x03, 0x00, 0x80, 0x00]);
        let map = CommandWord::new().with_op(0xffa).with_op_modifier(1).with_go(true);
        assert_eq!(map.into_bits().to_le_bytes(), [0xfa, 0x1f, 0x80, 0x00]);

        let parsed = CommandWord::from_bits(u32::from_le_bytes([0xfa, 0x1f, 0x80, 0x00]));
        assert_eq!((parsed.op(), parsed.op_modifier(), parsed.go()), (0xffa, 1, true));
        assert!(!parsed.event());
    }

    #[test]
    fn go_bits_are_set_only_while_executing() {
        let query = CommandWord::new().with_op(0x003).with_go(true);
        assert_eq!(command_word(CommandState::Fresh), 0);
        assert_eq!(command_word(CommandState::Executing(query)).to_le_bytes(), [0x03, 0x80, 0x80, 0x00]);
        assert_eq!(command_word(CommandState::Finished(query, CmdStatus::Ok)).to_le_bytes(), [0x03, 0, 0, 0]);
        let unknown = CommandWord::new().with_op(0x055).with_go(true);
        assert_eq!(
            command_word(CommandState::Finished(unknown, CmdStatus::BadOp)).to_le_bytes(),
            [0x55, 0, 0, 0x02]
        );
        let all_ones = CommandWord::from_bits(u32::MAX);
        assert_eq!(command_word(CommandState::Finished(all_ones, CmdStatus::Ok)) & 0x0080_8000, 0);
        assert_eq!(command_word(CommandState::Executing(all_ones)) >> 24, 0);
    }

    #[test]
    fn both_hcr_offsets_decode_to_same_words() {
        for (index, word) in (0u64..).zip(HcrWord::ALL) {
            for base in HCR {
                assert_eq!(Register::at(u64::from(base) + 4 * index), Some(Register::Hcr(word)));
            }
        }
        assert_eq!(Register::at(0x1c), None);
        assert_eq!(Register::at(0x8_001c), None);
        assert_eq!(Register::at(0x2), None);
    }

    #[test]
    fn reset_and_init_done_match_published_offsets() {
        assert_eq!(Register::at(0xf_0010), Some(Register::Reset));
        assert_eq!(Register::at(0xf10), Some(Register::Reset));
        assert_eq!(Register::at(0xf20), Some(Register::InitDone));
        assert_eq!(Register::at(0x1000), None);
        assert_eq!(Register::at(u64::MAX), None);
    }
}
