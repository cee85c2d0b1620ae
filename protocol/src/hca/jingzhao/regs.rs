//! Registers of BAR0: the host command register (HCR) at both of its addresses, reset and init_done.
//!
//! All registers are 32-bit little-endian words. [`writes`] and [`read`] turn any access of the guest into accesses
//! of whole words, and [`Register::at`] says which register a word is.
//!
//! # Spec
//! JingZhao interface, sections 1.1 to 1.5.

pub use crate::hca::hcr::{CommandState, CommandWord, HcrWord};
use crate::hca::words::{self, Block};

/// A register of BAR0. Everything else in the BAR (the MSI-X structures apart, see [`super::pci`]) reads 0 and
/// ignores writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Register {
    /// A word of the HCR; both addresses are the same register.
    Hcr(HcrWord),
    /// Write with bit 0 set: device reset. Reads 0.
    Reset,
    /// Reads 1.
    InitDone,
}

/// Where the HCR begins: in the document, and in the public driver.
pub const HCR: [u32; 2] = [0x8_0000, 0];
/// Where the reset register is: in the document, and in the public RTL.
pub const RESET: [u32; 2] = [0xf_0010, 0x0_0f10];
/// Where init_done is.
pub const INIT_DONE: u32 = 0x0_0f20;
/// Bytes of the HCR.
pub const HCR_LEN: u32 = 28;

/// First byte, bytes and first register of each block, in address order.
const MAP: [Block<Register>; 5] = [
    (HCR[1], HCR_LEN, Register::Hcr(HcrWord::InParamHigh)),
    (RESET[1], 4, Register::Reset),
    (INIT_DONE, 4, Register::InitDone),
    (HCR[0], HCR_LEN, Register::Hcr(HcrWord::InParamHigh)),
    (RESET[0], 4, Register::Reset),
];

const _: () = assert!(words::in_order(&MAP), "register blocks overlap or are out of order");

impl Register {
    /// The register whose word begins at `offset` of BAR0.
    pub fn at(offset: u64) -> Option<Self> {
        let (block, inside) = words::find(&MAP, offset)?;
        match block {
            Self::Hcr(_) => HcrWord::ALL.get(inside as usize / 4).copied().map(Self::Hcr),
            single => Some(single),
        }
    }

    /// Name for traces.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hcr(word) => word.name(),
            Self::Reset => "reset",
            Self::InitDone => "init_done",
        }
    }
}

/// The words a write means; see [`words::writes`].
pub fn writes(offset: u64, data: &[u8]) -> impl Iterator<Item = (u64, u32)> {
    words::writes(offset, data).map(|(offset, word)| (offset, u32::from_le_bytes(word)))
}

/// Serves a read; see [`words::read`].
pub fn read(offset: u64, out: &mut [u8], mut word: impl FnMut(u64) -> u32) {
    words::read(offset, out, |at| word(at).to_le_bytes());
}

/// HCR word 18h as it reads.
///
/// The public driver polls bit 15 for "executing" where the document has bit 23, so bit 15, although it is
/// op_modifier\[3\] when written, is a second go bit when read.
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
    fn command_word_matches_the_published_bytes() {
        let query = CommandWord::new().with_op(0x003).with_go(true);
        assert_eq!(query.into_bits().to_le_bytes(), [0x03, 0x00, 0x80, 0x00]);
        let map = CommandWord::new().with_op(0xffa).with_op_modifier(1).with_go(true);
        assert_eq!(map.into_bits().to_le_bytes(), [0xfa, 0x1f, 0x80, 0x00]);

        let parsed = CommandWord::from_bits(u32::from_le_bytes([0xfa, 0x1f, 0x80, 0x00]));
        assert_eq!((parsed.op(), parsed.op_modifier(), parsed.go()), (0xffa, 1, true));
        assert!(!parsed.event());
    }

    #[test]
    fn both_go_bits_are_set_while_executing_and_clear_when_finished() {
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
    fn both_command_windows_decode_to_the_same_registers() {
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
    fn reset_and_init_done_are_where_document_and_rtl_have_them() {
        assert_eq!(Register::at(0xf_0010), Some(Register::Reset));
        assert_eq!(Register::at(0xf10), Some(Register::Reset));
        assert_eq!(Register::at(0xf20), Some(Register::InitDone));
        assert_eq!(Register::at(0x1000), None);
        assert_eq!(Register::at(u64::MAX), None);
    }
}
