//! The host command register (HCR) of the Mellanox lineage: seven words, the last of which starts a command.

use bitfield_struct::bitfield;

use super::status::CmdStatus;
use crate::describe::{Code, Field, Visitor};

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

    /// Name for traces.
    pub const fn name(self) -> &'static str {
        match self {
            Self::InParamHigh => "HCR.in_param[63:32]",
            Self::InParamLow => "HCR.in_param[31:0]",
            Self::InModifier => "HCR.in_modifier",
            Self::OutParamHigh => "HCR.out_param[63:32]",
            Self::OutParamLow => "HCR.out_param[31:0]",
            Self::Token => "HCR.token",
            Self::Command => "HCR.command",
        }
    }
}

/// The HCR as the device latches it when go is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latched {
    /// Inbox address or immediate value.
    pub in_param: u64,
    /// Command specific.
    pub in_modifier: u32,
    /// Outbox address.
    pub out_param: u64,
    /// Tag of the completion event.
    pub token: u16,
    /// Opcode, op_modifier and event bit.
    pub command: CommandWord,
}

/// HCR word 18h.
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

impl CommandWord {
    /// Tells the fields of the word; `op` is the interface's name for the opcode.
    pub fn describe(self, op: Option<&'static str>, to: &mut dyn Visitor) {
        Code(self.op().into(), op).show("op", to);
        self.op_modifier().show("op_modifier", to);
        self.event().show("event", to);
        self.go().show("go", to);
        // A word that starts a command has no status yet.
        if !self.go() {
            CmdStatus::word(self.status()).show("status", to);
        }
    }
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
    /// Word 18h as it reads.
    pub const fn word(self) -> CommandWord {
        match self {
            Self::Fresh => CommandWord::new(),
            Self::Executing(word) => word.with_go(true).with_status(0),
            Self::Finished(word, status) => word.with_go(false).with_status(status.code()),
        }
    }
}
