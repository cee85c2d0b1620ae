//! Commands of the HCR: opcodes, what each needs, and the codes they answer.
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
pub use crate::hca::hcr::Latched;
pub use crate::hca::status::{CmdError, CmdStatus};
use crate::ids::{Cqn, Eqn, Qpn};

/// A command the document lists.
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
    /// ERR2RST_QPEE, accepted in any state.
    ToRst,
    QueryQp,
    ConfSpecialQp,
    MadIfc,
    Nop,
}

/// The op_modifiers a command accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Modifiers {
    /// Every one.
    Any,
    /// These.
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

/// The inbox a command reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inbox {
    /// None; in_param is immediate or unused.
    None,
    /// So many bytes.
    Bytes(usize),
    /// So many bytes if op_modifier is 0, else none.
    BytesIfUnmodified(usize),
    /// As many entries as in_modifier says, two in a group of 20h bytes.
    MapIcm,
    /// 20h bytes and as many entries as in_modifier says, four in a group of 20h bytes.
    WriteMtt,
}

/// One row of the command table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandSpec {
    /// The command.
    pub op: Op,
    /// Its opcode, 12 bits.
    pub code: u16,
    /// Its name in the document.
    pub name: &'static str,
    /// What op_modifier may be.
    pub modifiers: Modifiers,
    /// What it reads.
    pub inbox: Inbox,
    /// Bytes it writes to the outbox; 0 needs no outbox.
    pub outbox_len: usize,
    /// Whether it is accepted before INIT_HCA.
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

/// Bytes of the QPC mailbox.
const QPC: usize = 0xc0;
const ICM_TABLES: Modifiers = Modifiers::OneOf(&[1, 2]);
const QP_TEARDOWN: Modifiers = Modifiers::OneOf(&[0, 2, 3]);

/// The command table of section 2, in the order of [`Op`]. MAD_IFC is the hardware's (section 3.14): the form with
/// management datagrams that drivers have for it is issued by nobody.
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
    /// The command with this opcode.
    pub fn from_code(code: u16) -> Option<Self> {
        COMMANDS.iter().find(|spec| spec.code == code).map(|spec| spec.op)
    }

    /// Its row of the command table.
    pub fn spec(self) -> &'static CommandSpec {
        &COMMANDS[self as usize]
    }

    /// Its name in the document.
    pub fn name(self) -> &'static str {
        self.spec().name
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A command that passed the checks common to all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// Which one.
    pub op: Op,
    /// One of those the command accepts.
    pub op_modifier: u8,
    /// Command specific; see [`Command::qpn`] and its like.
    pub in_modifier: u32,
    /// Inbox address (not 0 if an inbox is needed) or immediate value.
    pub in_param: u64,
    /// Outbox address (not 0 if an outbox is needed).
    pub out_param: u64,
    /// Bytes to read at `in_param`; 0 without inbox. At most one page.
    pub inbox_len: usize,
    /// Bytes to write at `out_param`; 0 without outbox.
    pub outbox_len: usize,
}

impl Command {
    /// Applies the generic checks in the order of the document.
    ///
    /// # Errors
    /// BAD_OP for an unknown opcode, then BAD_PARAM for an op_modifier outside the list or a missing mailbox, then
    /// BAD_SYS_STATE for a command that needs INIT_HCA first, then BAD_PARAM for a count that no mailbox holds.
    pub fn decode(latched: &Latched, initialised: bool) -> Result<Self, CmdError> {
        let Latched { in_param, in_modifier, out_param, command, .. } = *latched;
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

    /// in_modifier as QP number. Software's numbers have rolling high bits: the table index is the number masked.
    ///
    /// # Errors
    /// BAD_INDEX above 24 bits.
    pub fn qpn(&self) -> Result<Qpn, CmdError> {
        number(self.in_modifier, "QP number").map(Qpn::new)
    }

    /// in_modifier as CQ number, as [`Command::qpn`].
    ///
    /// # Errors
    /// BAD_INDEX above 24 bits.
    pub fn cqn(&self) -> Result<Cqn, CmdError> {
        number(self.in_modifier, "CQ number").map(Cqn::new)
    }

    /// in_modifier as EQ number, as [`Command::qpn`].
    ///
    /// # Errors
    /// BAD_INDEX above 24 bits.
    pub fn eqn(&self) -> Result<Eqn, CmdError> {
        number(self.in_modifier, "EQ number").map(Eqn::new)
    }

    /// The parameters of MAP_EQ.
    ///
    /// # Errors
    /// BAD_INDEX for an EQ number above 24 bits.
    pub fn map_eq(&self) -> Result<MapEq, CmdError> {
        let eqn = number(self.in_modifier & !UNMAP_EQ, "EQ number").map(Eqn::new)?;
        Ok(MapEq { eqn, remove: self.in_modifier & UNMAP_EQ != 0, events: self.in_param })
    }
}

/// Bit of in_modifier that makes MAP_EQ remove events.
const UNMAP_EQ: u32 = 1 << 31;

/// Tells the parameters of a command in their meaning for the opcode; as they are if it is unknown.
pub fn describe_parameters(latched: &Latched, to: &mut dyn Visitor) {
    let Latched { in_param, in_modifier, out_param, token, command } = *latched;
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

/// The parameters of MAP_EQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapEq {
    /// The event queue.
    pub eqn: Eqn,
    /// Remove the events from the queue's mask instead of adding them.
    pub remove: bool,
    /// Bit t is event type t.
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

    fn latched(code: u16, op_modifier: u8, in_modifier: u32, in_param: u64, out_param: u64) -> Latched {
        let command = CommandWord::new().with_op(code).with_op_modifier(op_modifier).with_go(true);
        Latched { in_param, in_modifier, out_param, token: 0xffff, command }
    }

    fn status(latched: &Latched, initialised: bool) -> CmdStatus {
        Command::decode(latched, initialised).unwrap_err().status.basic()
    }

    #[test]
    fn every_opcode_is_found_by_its_code_and_no_code_is_double() {
        for spec in &COMMANDS {
            assert_eq!(Op::from_code(spec.code), Some(spec.op));
        }
        for code in [0x000, 0x009, 0x00a, 0x00c, 0x025, 0x027, 0x02a, 0x02b, 0x030, 0x032, 0x033, 0x055] {
            assert_eq!(Op::from_code(code), None);
        }
    }

    #[test]
    fn unknown_opcode_wins_over_every_other_fault() {
        assert_eq!(status(&latched(0x055, 9, 0, 0, 0), false), CmdStatus::BadOp);
    }

    #[test]
    fn bad_modifier_and_missing_mailbox_are_bad_parameters() {
        assert_eq!(status(&latched(0x003, 1, 0, 0, 0x1000), true), CmdStatus::BadParam);
        assert_eq!(status(&latched(0x003, 0, 0, 0, 0), true), CmdStatus::BadParam);
        assert_eq!(status(&latched(0x007, 0, 0, 0, 0), false), CmdStatus::BadParam);
        assert_eq!(status(&latched(0xffa, 0, 1, 0x1000, 0), true), CmdStatus::BadParam);
        assert_eq!(status(&latched(0xffa, 3, 1, 0x1000, 0), true), CmdStatus::BadParam);
    }

    #[test]
    fn only_five_commands_run_before_init_hca() {
        let early: Vec<_> = COMMANDS.iter().filter(|spec| spec.before_init).map(|spec| spec.code).collect();
        assert_eq!(early, [0x003, 0x006, 0x007, 0x008, 0x031]);
        assert_eq!(status(&latched(0x00d, 0, 0, 0x1000, 0), false), CmdStatus::BadSysState);
    }

    #[test]
    fn mailbox_sizes_follow_the_counts() {
        let len = |l: &Latched| Command::decode(l, true).unwrap().inbox_len;
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
    fn reset_and_error_need_a_mailbox_only_unmodified() {
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
    fn numbers_are_refused_only_above_24_bits() {
        let query = |number| Command::decode(&latched(0x022, 0, number, 0, 0x1000), true).unwrap();
        assert_eq!(query(0xff_ffff).qpn(), Ok(Qpn::new(0xff_ffff)));
        assert_eq!(query(0x100_0000).qpn().unwrap_err().status, CmdStatus::BadIndex);
        assert_eq!(CmdStatus::BadIndex.basic().code(), 0x03);
    }

    #[test]
    fn map_eq_splits_the_clear_flag_from_the_number() {
        let command = Command::decode(&latched(0x012, 0, 0x8000_0002, 0x3_0c3c, 0), true).unwrap();
        assert_eq!(command.map_eq(), Ok(MapEq { eqn: Eqn::new(2), remove: true, events: 0x3_0c3c }));
    }

    proptest! {
        #[test]
        fn any_register_content_is_decoded_or_refused(
            in_param: u64, in_modifier: u32, out_param: u64, token: u16, word: u32, initialised: bool
        ) {
            let command = CommandWord::from_bits(word);
            let latched = Latched { in_param, in_modifier, out_param, token, command };
            if let Ok(command) = Command::decode(&latched, initialised) {
                prop_assert!(command.inbox_len <= PAGE && command.outbox_len <= PAGE);
            }
        }
    }
}
