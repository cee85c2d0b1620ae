//! HCR commands: opcodes, requirements and generic checks.
//!
//! # Spec
//! JingZhao interface, sections 1.4 and 2.

use std::fmt;

use super::PAGE;
use super::icm::IcmTable;
use super::mad_ifc::MadIfc;
use super::transition::Transition;
use super::{icm, mtt};
use crate::describe::{Field, Hex, Visitor};
pub use crate::hca::hcr::PendingCommand;
pub use crate::hca::status::{CmdError, CmdStatus};
use crate::ids::{Cqn, Eqn, Qpn};

/// Commands defined by the specification.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    QueryDevLim,
    QueryAdapter,
    InitHca,
    CloseHca,
    MapIcm,
    UnmapIcm,
    Sw2HwMpt,
    Hw2SwMpt,
    WriteMtt,
    MapEq,
    Sw2HwEq,
    Hw2SwEq,
    Sw2HwCq,
    Hw2SwCq,
    ResizeCq,
    Rst2Init,
    Init2Init,
    Init2Rtr,
    Rtr2Rts,
    Rts2Rts,
    SqErr2Rts,
    ToErr,
    Rts2Sqd,
    Sqd2Sqd,
    Sqd2Rts,
    /// ERR2RST_QPEE, which is accepted in any state.
    ToRst,
    QueryQp,
    ConfSpecialQp,
    MadIfc,
    Nop,
}

/// Values of op_modifier that a command accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Modifiers {
    /// The command accepts all values.
    Any,
    /// The command accepts only the listed values.
    OneOf(&'static [u8]),
}

impl Modifiers {
    const fn zero() -> Self {
        Self::OneOf(&[0])
    }

    fn allow(self, op_modifier: u8) -> bool {
        match self {
            Self::Any => true,
            Self::OneOf(list) => list.contains(&op_modifier),
        }
    }
}

/// Inbox read by a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inbox {
    /// No inbox. in_param is an immediate value or unused.
    None,
    /// An inbox of the given length in bytes.
    Bytes(usize),
    /// An inbox of the given length if op_modifier is 0, and no inbox otherwise.
    BytesIfUnmodified(usize),
    /// An inbox of `in_modifier` entries. Two entries form a group of 20h bytes.
    MapIcm,
    /// An inbox with a header of 20h bytes and `in_modifier` entries. Four entries form a group of 20h bytes.
    WriteMtt,
}

/// A row of the command table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandSpec {
    /// Command that the row describes.
    pub op: Op,
    /// Opcode of the command, 12 bits.
    pub code: u16,
    /// Name in the specification.
    pub name: &'static str,
    /// Accepted values of op_modifier.
    pub modifiers: Modifiers,
    /// Inbox that the command reads.
    pub inbox: Inbox,
    /// Length of the outbox in bytes; 0 if the command has none.
    pub outbox_len: usize,
    /// Whether the command is accepted before INIT_HCA.
    pub before_init: bool,
}

const fn row(op: Op, code: u16, name: &'static str) -> CommandSpec {
    let modifiers = Modifiers::zero();
    CommandSpec { op, code, name, modifiers, inbox: Inbox::None, outbox_len: 0, before_init: false }
}

const fn inbox(inbox: Inbox, spec: CommandSpec) -> CommandSpec {
    CommandSpec { inbox, ..spec }
}

const fn outbox(outbox_len: usize, spec: CommandSpec) -> CommandSpec {
    CommandSpec { outbox_len, ..spec }
}

const fn modified(modifiers: Modifiers, spec: CommandSpec) -> CommandSpec {
    CommandSpec { modifiers, ..spec }
}

const fn early(spec: CommandSpec) -> CommandSpec {
    CommandSpec { before_init: true, ..spec }
}

/// Length of the QPC mailbox in bytes.
const QPC: usize = 0xc0;
const ICM_TABLES: Modifiers = Modifiers::OneOf(&[1, 2]);
const QP_TEARDOWN: Modifiers = Modifiers::OneOf(&[0, 2, 3]);

/// Command table of section 2, in the order of [`Op`]. The row for MAD_IFC describes the form that the hardware
/// implements (section 3.14). The drivers also define a form that carries a MAD, but never use it.
pub static COMMANDS: [CommandSpec; 30] = [
    early(outbox(0x40, row(Op::QueryDevLim, 0x003, "QUERY_DEV_LIM"))),
    early(outbox(0x20, row(Op::QueryAdapter, 0x006, "QUERY_ADAPTER"))),
    early(inbox(Inbox::Bytes(0x40), row(Op::InitHca, 0x007, "INIT_HCA"))),
    early(row(Op::CloseHca, 0x008, "CLOSE_HCA")),
    modified(ICM_TABLES, inbox(Inbox::MapIcm, row(Op::MapIcm, 0xffa, "MAP_ICM"))),
    modified(ICM_TABLES, row(Op::UnmapIcm, 0xff9, "UNMAP_ICM")),
    inbox(Inbox::Bytes(0x40), row(Op::Sw2HwMpt, 0x00d, "SW2HW_MPT")),
    row(Op::Hw2SwMpt, 0x00f, "HW2SW_MPT"),
    inbox(Inbox::WriteMtt, row(Op::WriteMtt, 0x011, "WRITE_MTT")),
    row(Op::MapEq, 0x012, "MAP_EQ"),
    inbox(Inbox::Bytes(0x40), row(Op::Sw2HwEq, 0x013, "SW2HW_EQ")),
    row(Op::Hw2SwEq, 0x014, "HW2SW_EQ"),
    inbox(Inbox::Bytes(0x40), row(Op::Sw2HwCq, 0x016, "SW2HW_CQ")),
    row(Op::Hw2SwCq, 0x017, "HW2SW_CQ"),
    modified(Modifiers::Any, inbox(Inbox::Bytes(8), row(Op::ResizeCq, 0x02c, "RESIZE_CQ"))),
    inbox(Inbox::Bytes(QPC), row(Op::Rst2Init, 0x019, "RST2INIT_QPEE")),
    inbox(Inbox::Bytes(QPC), row(Op::Init2Init, 0x02d, "INIT2INIT_QPEE")),
    inbox(Inbox::Bytes(QPC), row(Op::Init2Rtr, 0x01a, "INIT2RTR_QPEE")),
    inbox(Inbox::Bytes(QPC), row(Op::Rtr2Rts, 0x01b, "RTR2RTS_QPEE")),
    inbox(Inbox::Bytes(QPC), row(Op::Rts2Rts, 0x01c, "RTS2RTS_QPEE")),
    inbox(Inbox::Bytes(QPC), row(Op::SqErr2Rts, 0x01d, "SQERR2RTS_QPEE")),
    modified(QP_TEARDOWN, inbox(Inbox::BytesIfUnmodified(QPC), row(Op::ToErr, 0x01e, "2ERR_QPEE"))),
    inbox(Inbox::Bytes(QPC), row(Op::Rts2Sqd, 0x01f, "RTS2SQD_QPEE")),
    inbox(Inbox::Bytes(QPC), row(Op::Sqd2Sqd, 0x038, "SQD2SQD_QPEE")),
    inbox(Inbox::Bytes(QPC), row(Op::Sqd2Rts, 0x020, "SQD2RTS_QPEE")),
    modified(QP_TEARDOWN, inbox(Inbox::BytesIfUnmodified(QPC), row(Op::ToRst, 0x021, "ERR2RST_QPEE"))),
    outbox(QPC, row(Op::QueryQp, 0x022, "QUERY_QP")),
    modified(Modifiers::OneOf(&[0, 1, 2, 3]), row(Op::ConfSpecialQp, 0x023, "CONF_SPECIAL_QP")),
    modified(Modifiers::OneOf(&[1]), outbox(MadIfc::LEN, row(Op::MadIfc, 0x024, "MAD_IFC"))),
    early(row(Op::Nop, 0x031, "NOP")),
];

const _: () = {
    let mut i = 0;
    while i < COMMANDS.len() {
        assert!(COMMANDS[i].op as usize == i, "the command table is out of order");
        i += 1;
    }
};

impl Op {
    /// Looks up a command by opcode. Returns `None` for an unknown opcode.
    pub fn from_code(code: u16) -> Option<Self> {
        COMMANDS.iter().find(|spec| spec.code == code).map(|spec| spec.op)
    }

    /// Returns the command's row in the command table.
    pub fn spec(self) -> &'static CommandSpec {
        &COMMANDS[self as usize]
    }

    /// Returns the name in the specification.
    pub fn name(self) -> &'static str {
        self.spec().name
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A command that has passed the generic checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Command {
    pub op: Op,
    /// One of the op_modifier values that the command accepts.
    pub op_modifier: u8,
    /// Command-specific value. See, for example, [`Command::qpn`].
    pub in_modifier: u32,
    /// Address of the inbox, or an immediate value. The address is nonzero if the command requires an inbox.
    pub in_param: u64,
    /// Outbox address, nonzero if an outbox is required.
    pub out_param: u64,
    /// Number of bytes to read at `in_param`, at most one page; 0 if there is no inbox.
    pub inbox_len: usize,
    /// Number of bytes to write at `out_param`; 0 if there is no outbox.
    pub outbox_len: usize,
}

impl Command {
    /// Decodes a latched command and performs the generic checks in the order given by the specification.
    ///
    /// # Errors
    /// The first failed check determines the error: BAD_OP for an unknown opcode, BAD_PARAM for an unsupported
    /// op_modifier or a missing mailbox, BAD_SYS_STATE for a command that requires INIT_HCA, and BAD_PARAM for a count
    /// that exceeds a mailbox.
    pub fn decode(latched: &PendingCommand, initialised: bool) -> Result<Self, CmdError> {
        let PendingCommand { in_param, in_modifier, out_param, command, .. } = *latched;
        let op = Op::from_code(command.op()).ok_or(CmdError::new(
            CmdStatus::BadOp,
            "opcode",
            command.op().into(),
        ))?;
        let spec = op.spec();
        let op_modifier = command.op_modifier();
        if !spec.modifiers.allow(op_modifier) {
            return Err(CmdError::param("op_modifier", op_modifier.into()));
        }
        let needs_inbox = match spec.inbox {
            Inbox::None => false,
            Inbox::BytesIfUnmodified(_) => op_modifier == 0,
            Inbox::Bytes(_) | Inbox::MapIcm | Inbox::WriteMtt => true,
        };
        if needs_inbox && in_param == 0 {
            return Err(CmdError::param("inbox address", in_param));
        }
        if spec.outbox_len != 0 && out_param == 0 {
            return Err(CmdError::param("outbox address", out_param));
        }
        if !initialised && !spec.before_init {
            return Err(CmdError::new(
                CmdStatus::BadSysState,
                "INIT_HCA required before opcode",
                spec.code.into(),
            ));
        }
        let inbox_len = match spec.inbox {
            Inbox::Bytes(len) | Inbox::BytesIfUnmodified(len) if needs_inbox => len,
            Inbox::MapIcm => icm::inbox_len(in_modifier)?,
            Inbox::WriteMtt => mtt::inbox_len(in_modifier)?,
            Inbox::None | Inbox::Bytes(_) | Inbox::BytesIfUnmodified(_) => 0,
        };
        debug_assert!(inbox_len <= PAGE);
        Ok(Self { op, op_modifier, in_modifier, in_param, out_param, inbox_len, outbox_len: spec.outbox_len })
    }

    /// Returns the QP number in in_modifier. Only its low bits are the table index; drivers use the higher bits as a
    /// generation counter.
    ///
    /// # Errors
    /// BAD_INDEX if the number exceeds 24 bits.
    pub fn qpn(&self) -> Result<Qpn, CmdError> {
        number(self.in_modifier, "QP number").map(Qpn::new)
    }

    /// Returns the CQ number in in_modifier; see [`Command::qpn`].
    ///
    /// # Errors
    /// BAD_INDEX if the number exceeds 24 bits.
    pub fn cqn(&self) -> Result<Cqn, CmdError> {
        number(self.in_modifier, "CQ number").map(Cqn::new)
    }

    /// Returns the EQ number in in_modifier; see [`Command::qpn`].
    ///
    /// # Errors
    /// BAD_INDEX if the number exceeds 24 bits.
    pub fn eqn(&self) -> Result<Eqn, CmdError> {
        number(self.in_modifier, "EQ number").map(Eqn::new)
    }

    /// Returns the parameters of MAP_EQ.
    ///
    /// # Errors
    /// BAD_INDEX for an EQ number that exceeds 24 bits.
    pub fn map_eq(&self) -> Result<MapEq, CmdError> {
        let eqn = number(self.in_modifier & !UNMAP_EQ, "EQ number").map(Eqn::new)?;
        Ok(MapEq { eqn, remove: self.in_modifier & UNMAP_EQ != 0, events: self.in_param })
    }
}

/// Flag in in_modifier that makes MAP_EQ unmap the events.
const UNMAP_EQ: u32 = 1 << 31;

/// Passes the parameters of a command to the visitor, decoded for the command's opcode. Parameters of an unknown opcode
/// are not decoded.
pub fn describe_parameters(latched: &PendingCommand, to: &mut dyn Visitor) {
    let PendingCommand { in_param, in_modifier, out_param, token, command } = *latched;
    let number = Hex(in_modifier);
    let op = Op::from_code(command.op());
    match op {
        Some(Op::MapIcm | Op::WriteMtt) => in_modifier.show("entries", to),
        Some(Op::UnmapIcm) => {
            Hex(in_param).show("virt", to);
            in_modifier.show("pages", to);
        }
        Some(Op::Sw2HwMpt | Op::Hw2SwMpt) => number.show("index", to),
        Some(Op::Sw2HwEq | Op::Hw2SwEq) => number.show("eqn", to),
        Some(Op::MapEq) => {
            Hex(in_modifier & !UNMAP_EQ).show("eqn", to);
            (in_modifier & UNMAP_EQ != 0).show("remove", to);
            Hex(in_param).show("events", to);
        }
        Some(Op::Sw2HwCq | Op::Hw2SwCq | Op::ResizeCq) => number.show("cqn", to),
        Some(op) if Transition::from_op(op).is_some() || op == Op::QueryQp => number.show("qpn", to),
        Some(_) | None => number.show("in_modifier", to),
    }
    match op.and_then(|op| IcmTable::of(op, command.op_modifier())) {
        Some(table) => table.show("table", to),
        None => command.op_modifier().show("op_modifier", to),
    }
    let immediate = matches!(op, Some(Op::UnmapIcm | Op::MapEq));
    if !immediate {
        Hex(in_param).show("in_param", to);
    }
    Hex(out_param).show("out_param", to);
    Hex(token).show("token", to);
    command.event().show("event", to);
}

/// Parameters of the MAP_EQ command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapEq {
    /// EQN of the EQ to change.
    pub eqn: Eqn,
    /// Whether to unmap the events instead of mapping them.
    pub remove: bool,
    /// Event mask: bit n selects event type n.
    pub events: u64,
}

fn number(in_modifier: u32, what: &'static str) -> Result<u32, CmdError> {
    if in_modifier > 0xff_ffff {
        return Err(CmdError::new(CmdStatus::BadIndex, what, in_modifier.into()));
    }
    Ok(in_modifier)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hca::hcr::CommandWord;
    use proptest::prelude::*;

    fn latched(
        code: u16,
        op_modifier: u8,
        in_modifier: u32,
        in_param: u64,
        out_param: u64,
    ) -> PendingCommand {
        let command = CommandWord::new().with_op(code).with_op_modifier(op_modifier).with_go(true);
        PendingCommand { in_param, in_modifier, out_param, token: 0xffff, command }
    }

    fn status(latched: &PendingCommand, initialised: bool) -> CmdStatus {
        Command::decode(latched, initialised).unwrap_err().status.basic()
    }

    #[test]
    fn opcodes_are_unique_and_round_trip() {
        for spec in &COMMANDS {
            assert_eq!(Op::from_code(spec.code), Some(spec.op));
        }
        for code in [0x000, 0x009, 0x00a, 0x00c, 0x025, 0x027, 0x02a, 0x02b, 0x030, 0x032, 0x033, 0x055] {
            assert_eq!(Op::from_code(code), None);
        }
    }

    #[test]
    fn unknown_opcode_is_reported_first() {
        assert_eq!(status(&latched(0x055, 9, 0, 0, 0), false), CmdStatus::BadOp);
    }

    #[test]
    fn rejects_bad_modifier_and_missing_mailbox() {
        assert_eq!(status(&latched(0x003, 1, 0, 0, 0x1000), true), CmdStatus::BadParam);
        assert_eq!(status(&latched(0x003, 0, 0, 0, 0), true), CmdStatus::BadParam);
        assert_eq!(status(&latched(0x007, 0, 0, 0, 0), false), CmdStatus::BadParam);
        assert_eq!(status(&latched(0xffa, 0, 1, 0x1000, 0), true), CmdStatus::BadParam);
        assert_eq!(status(&latched(0xffa, 3, 1, 0x1000, 0), true), CmdStatus::BadParam);
    }

    #[test]
    fn five_commands_are_accepted_before_init_hca() {
        let early: Vec<_> = COMMANDS.iter().filter(|spec| spec.before_init).map(|spec| spec.code).collect();
        assert_eq!(early, [0x003, 0x006, 0x007, 0x008, 0x031]);
        assert_eq!(status(&latched(0x00d, 0, 0, 0x1000, 0), false), CmdStatus::BadSysState);
    }

    #[test]
    fn inbox_length_depends_on_entry_count() {
        let len = |l: &PendingCommand| Command::decode(l, true).unwrap().inbox_len;
        assert_eq!(len(&latched(0xffa, 1, 1, 0x1000, 0)), 0x20);
        assert_eq!(len(&latched(0xffa, 1, 3, 0x1000, 0)), 0x40);
        assert_eq!(len(&latched(0xffa, 1, 256, 0x1000, 0)), 0x1000);
        assert_eq!(status(&latched(0xffa, 1, 0, 0x1000, 0), true), CmdStatus::BadParam);
        assert_eq!(status(&latched(0xffa, 1, 257, 0x1000, 0), true), CmdStatus::BadParam);
        assert_eq!(len(&latched(0x011, 0, 5, 0x1000, 0)), 0x60);
        assert_eq!(len(&latched(0x011, 0, 508, 0x1000, 0)), 0x1000);
        assert_eq!(len(&latched(0x011, 0, u32::MAX, 0x1000, 0)), 0x1000);
        assert_eq!(status(&latched(0x011, 0, 0, 0x1000, 0), true), CmdStatus::BadParam);
    }

    #[test]
    fn teardown_requires_inbox_only_if_op_modifier_is_0() {
        for code in [0x01e, 0x021] {
            assert_eq!(status(&latched(code, 0, 5, 0, 0), true), CmdStatus::BadParam);
            assert_eq!(status(&latched(code, 1, 5, 0x1000, 0), true), CmdStatus::BadParam);
            for op_modifier in [2, 3] {
                assert_eq!(Command::decode(&latched(code, op_modifier, 5, 0, 0), true).unwrap().inbox_len, 0);
            }
            assert_eq!(Command::decode(&latched(code, 0, 5, 0x1000, 0), true).unwrap().inbox_len, 0xc0);
        }
    }

    #[test]
    fn rejects_numbers_wider_than_24_bits() {
        let query = |number| Command::decode(&latched(0x022, 0, number, 0, 0x1000), true).unwrap();
        assert_eq!(query(0xff_ffff).qpn(), Ok(Qpn::new(0xff_ffff)));
        assert_eq!(query(0x100_0000).qpn().unwrap_err().status, CmdStatus::BadIndex);
        assert_eq!(CmdStatus::BadIndex.basic().code(), 0x03);
    }

    #[test]
    fn map_eq_separates_unmap_flag_from_eqn() {
        let command = Command::decode(&latched(0x012, 0, 0x8000_0002, 0x3_0c3c, 0), true).unwrap();
        assert_eq!(command.map_eq(), Ok(MapEq { eqn: Eqn::new(2), remove: true, events: 0x3_0c3c }));
    }

    proptest! {
        #[test]
        fn decode_never_panics(
            in_param: u64, in_modifier: u32, out_param: u64, token: u16, word: u32, initialised: bool
        ) {
            let command = CommandWord::from_bits(word);
            let latched = PendingCommand { in_param, in_modifier, out_param, token, command };
            if let Ok(command) = Command::decode(&latched, initialised) {
                prop_assert!(command.inbox_len <= PAGE && command.outbox_len <= PAGE);
            }
        }
    }
}
