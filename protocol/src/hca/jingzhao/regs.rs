//! Registers of BAR0: the host command register (HCR) at both of its addresses, reset and init_done.
//!
//! All registers are 32-bit little-endian words. [`writes`] and [`read`] turn any access of the guest into accesses
//! of whole words, and [`Register::at`] says which register a word is.
//!
//! # Spec
//! JingZhao interface, sections 1.1 to 1.5.

use bitfield_struct::bitfield;

use super::cmd::CmdStatus;

/// One of the seven words of the HCR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HcrWord {
    /// 00h: in_param, high half.
    InParamHigh,
    /// 04h: in_param, low half.
    InParamLow,
    /// 08h: in_modifier.
    InModifier,
    /// 0Ch: out_param, high half.
    OutParamHigh,
    /// 10h: out_param, low half.
    OutParamLow,
    /// 14h: token in bits 31:16.
    Token,
    /// 18h: [`CommandWord`].
    Command,
}

impl HcrWord {
    /// The words in address order.
    pub const ALL: [Self; 7] = [
        Self::InParamHigh,
        Self::InParamLow,
        Self::InModifier,
        Self::OutParamHigh,
        Self::OutParamLow,
        Self::Token,
        Self::Command,
    ];
}

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
const MAP: [(u32, u32, Register); 5] = [
    (HCR[1], HCR_LEN, Register::Hcr(HcrWord::InParamHigh)),
    (RESET[1], 4, Register::Reset),
    (INIT_DONE, 4, Register::InitDone),
    (HCR[0], HCR_LEN, Register::Hcr(HcrWord::InParamHigh)),
    (RESET[0], 4, Register::Reset),
];

const _: () = {
    let mut i = 1;
    while i < MAP.len() {
        assert!(MAP[i - 1].0 + MAP[i - 1].1 <= MAP[i].0, "register blocks overlap or are out of order");
        i += 1;
    }
};

impl Register {
    /// The register whose word begins at `offset` of BAR0.
    pub fn at(offset: u64) -> Option<Self> {
        let offset = u32::try_from(offset).ok().filter(|offset| offset.is_multiple_of(4))?;
        let (start, _, block) =
            MAP.into_iter().find(|(start, len, _)| (*start..start + len).contains(&offset))?;
        match block {
            Self::Hcr(_) => HcrWord::ALL.get((offset - start) as usize / 4).copied().map(Self::Hcr),
            single => Some(single),
        }
    }

    /// Name for traces.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hcr(HcrWord::InParamHigh) => "HCR.in_param[63:32]",
            Self::Hcr(HcrWord::InParamLow) => "HCR.in_param[31:0]",
            Self::Hcr(HcrWord::InModifier) => "HCR.in_modifier",
            Self::Hcr(HcrWord::OutParamHigh) => "HCR.out_param[63:32]",
            Self::Hcr(HcrWord::OutParamLow) => "HCR.out_param[31:0]",
            Self::Hcr(HcrWord::Token) => "HCR.token",
            Self::Hcr(HcrWord::Command) => "HCR.command",
            Self::Reset => "reset",
            Self::InitDone => "init_done",
        }
    }
}

/// The words a write means, as (offset, value), lower address first: one for four aligned bytes, two for eight, none
/// for anything else, which the device ignores.
pub fn writes(offset: u64, data: &[u8]) -> impl Iterator<Item = (u64, u32)> {
    let whole = offset.is_multiple_of(4) && matches!(data.len(), 4 | 8);
    let words = if whole { data } else { &[] };
    let (words, _) = words.as_chunks::<4>();
    (offset..).step_by(4).zip(words).map(|(offset, word)| (offset, u32::from_le_bytes(*word)))
}

/// Serves a read of any width and alignment out of the words it touches: `word` is called once for each, lower
/// address first, with the word's offset.
pub fn read(offset: u64, out: &mut [u8], mut word: impl FnMut(u64) -> u32) {
    let mut at = offset;
    let mut rest = out;
    while !rest.is_empty() {
        let start = at & !3;
        let bytes = word(start).to_le_bytes();
        let skip = (at & 3) as usize;
        let (now, later) = rest.split_at_mut(rest.len().min(4 - skip));
        now.copy_from_slice(&bytes[skip..skip + now.len()]);
        rest = later;
        at = start.wrapping_add(4);
    }
}

/// HCR word 18h.
///
/// The public driver polls bit 15 for "executing" where the document has bit 23, so bit 15, although it is
/// op_modifier\[3\] when written, is a second go bit when read.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct CommandWord {
    /// Bits 11:0: opcode.
    #[bits(12)]
    pub op: u16,
    /// [19:12]
    pub op_modifier: u8,
    #[bits(2)]
    __: u8,
    /// Bit 22: also report the completion to an event queue.
    pub event: bool,
    /// Bit 23: start, or executing.
    pub go: bool,
    /// Bits 31:24: result code, valid when `go` is clear.
    pub status: u8,
}

/// What the command unit is doing, for a read of word 18h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandState {
    /// No command since reset.
    Fresh,
    /// Executing the command that this word started.
    Executing(CommandWord),
    /// Finished the command that this word started.
    Finished(CommandWord, CmdStatus),
}

impl CommandState {
    /// The value of word 18h.
    ///
    /// # Spec
    /// JingZhao interface, section 1.3 (J-04).
    pub fn read(self) -> u32 {
        /// op_modifier\[3\], which is bit 15 of the word.
        const DRIVER_GO: u8 = 1 << 3;
        match self {
            Self::Fresh => 0,
            Self::Executing(word) => {
                let op_modifier = word.op_modifier() | DRIVER_GO;
                word.with_go(true).with_status(0).with_op_modifier(op_modifier).into_bits()
            }
            Self::Finished(word, status) => {
                let op_modifier = word.op_modifier() & !DRIVER_GO;
                word.with_go(false).with_status(status.code()).with_op_modifier(op_modifier).into_bits()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(CommandState::Fresh.read(), 0);
        assert_eq!(CommandState::Executing(query).read().to_le_bytes(), [0x03, 0x80, 0x80, 0x00]);
        assert_eq!(CommandState::Finished(query, CmdStatus::Ok).read().to_le_bytes(), [0x03, 0, 0, 0]);
        let unknown = CommandWord::new().with_op(0x055).with_go(true);
        assert_eq!(
            CommandState::Finished(unknown, CmdStatus::BadOp).read().to_le_bytes(),
            [0x55, 0, 0, 0x02]
        );
        let all_ones = CommandWord::from_bits(u32::MAX);
        assert_eq!(CommandState::Finished(all_ones, CmdStatus::Ok).read() & 0x0080_8000, 0);
        assert_eq!(CommandState::Executing(all_ones).read() >> 24, 0);
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

    #[test]
    fn eight_byte_writes_are_two_words_and_narrow_writes_are_none() {
        let eight: Vec<_> = writes(0x10, &[1, 0, 0, 0, 2, 0, 0, 0]).collect();
        assert_eq!(eight, [(0x10, 1), (0x14, 2)]);
        assert_eq!(writes(0x18, &[0, 0, 0x80, 0]).collect::<Vec<_>>(), [(0x18, 0x80_0000)]);
        assert_eq!(writes(0x18, &[1, 0]).count(), 0);
        assert_eq!(writes(0x18, &[1]).count(), 0);
        assert_eq!(writes(0x1a, &[0, 0, 0x80, 0]).count(), 0);
    }

    #[test]
    fn narrow_and_straddling_reads_are_served_from_the_words() {
        let word = |offset| if offset == 0x18 { 0x4433_2211 } else { 0x8877_6655 };
        let mut byte = [0];
        read(0x1a, &mut byte, word);
        assert_eq!(byte, [0x33]);
        let mut four = [0; 4];
        read(0x1a, &mut four, word);
        assert_eq!(four, [0x33, 0x44, 0x55, 0x66]);
        let mut eight = [0; 8];
        read(0x18, &mut eight, word);
        assert_eq!(eight, [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88]);
    }
}
