//! Host command register (HCR), the command interface of JingZhao and mthca. Writing its seventh and last word starts a
//! command.

use bitfield_struct::bitfield;

use super::status::CmdStatus;
use crate::describe::{Code, Field, Visitor};

/// A word of the HCR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HcrWord {
    /// 00h: in_param, high half.
    InParamHigh,
    /// 04h: in_param, low half.
    InParamLow,
    /// 08h: the command's in_modifier.
    InModifier,
    /// 0Ch: out_param, high half.
    OutParamHigh,
    /// 10h: out_param, low half.
    OutParamLow,
    /// 14h: token in bits 31:16.
    Token,
    /// 18h: the command word, [`CommandWord`].
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

    /// Returns the name shown in traces.
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

/// The HCR as latched when the driver sets the go bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingCommand {
    /// Inbox address or immediate value.
    pub in_param: u64,
    /// Command-specific value, for example the index of the object.
    pub in_modifier: u32,
    /// Address of the outbox.
    pub out_param: u64,
    /// Token to echo in the completion event.
    pub token: u16,
    /// Opcode, op_modifier and event bit.
    pub command: CommandWord,
}

/// HCR word at 18h.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct CommandWord {
    /// Bits 11:0: opcode of the command.
    #[bits(12)]
    pub op: u16,
    /// Bits 19:12: variant of the command.
    pub op_modifier: u8,
    #[bits(2)]
    __: u8,
    /// Bit 22: report the completion with an event.
    pub event: bool,
    /// Bit 23: set by the driver to start the command, cleared by the device when the command is done.
    pub go: bool,
    /// Bits 31:24: [`CmdStatus`] code, valid while `go` is clear.
    pub status: u8,
}

impl CommandWord {
    /// Passes the word's fields to the visitor. `op` is the name of the opcode.
    pub fn describe(self, op: Option<&'static str>, to: &mut dyn Visitor) {
        Code(self.op().into(), op).show("op", to);
        self.op_modifier().show("op_modifier", to);
        self.event().show("event", to);
        self.go().show("go", to);
        // The status is undefined until the command is done.
        if !self.go() {
            CmdStatus::word(self.status()).show("status", to);
        }
    }
}

/// State of the command unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandState {
    /// No command has been started since reset.
    Fresh,
    /// The command started by this word is executing.
    Executing(CommandWord),
    /// The command started by this word has completed with the given status.
    Finished(CommandWord, CmdStatus),
}

impl CommandState {
    /// Returns the HCR word at 18h as the driver reads it.
    pub const fn word(self) -> CommandWord {
        match self {
            Self::Fresh => CommandWord::new(),
            Self::Executing(word) => word.with_go(true).with_status(0),
            Self::Finished(word, status) => word.with_go(false).with_status(status.code()),
        }
    }
}
