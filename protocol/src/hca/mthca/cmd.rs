//! HCR commands: opcodes, parameters and generic checks.
//!
//! # Spec
//! mthca interface, sections 3.1 and 3.5.

use std::fmt;

use super::icm;
use crate::describe::{Field as _, Hex, Visitor};
use crate::hca::hcr::PendingCommand;
use crate::hca::qp::Transition;
use crate::hca::status::{CmdError, CmdStatus};
use crate::ids::{Cqn, Eqn, Qpn};

/// A command used by drivers of devices without local memory.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    QueryFw,
    EnableLam,
    DisableLam,
    MapFa,
    UnmapFa,
    RunFw,
    QueryDevLim,
    QueryAdapter,
    SetIcmSize,
    MapIcmAux,
    UnmapIcmAux,
    MapIcm,
    UnmapIcm,
    InitHca,
    CloseHca,
    InitIb,
    CloseIb,
    SetIb,
    Sw2HwMpt,
    Hw2SwMpt,
    MapEq,
    Sw2HwEq,
    Hw2SwEq,
    Sw2HwCq,
    Hw2SwCq,
    ResizeCq,
    /// A command that changes the QP state.
    Modify(Transition),
    QueryQp,
    ConfSpecialQp,
    MadIfc,
    ReadMgm,
    WriteMgm,
    MgidHash,
    Sw2HwSrq,
    Hw2SwSrq,
    QuerySrq,
    ArmSrq,
    Nop,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Input {
    /// An immediate value, or nothing.
    Immediate,
    /// Address of an inbox of the given length in bytes.
    Mailbox(usize),
    /// Address of an inbox. in_modifier contains the number of its entries.
    Blocks,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    op: Op,
    code: u16,
    name: &'static str,
    input: Input,
    /// Whether the command is accepted before INIT_HCA and after CLOSE_HCA.
    always: bool,
}

const fn row(code: u16, op: Op, name: &'static str) -> Row {
    Row { op, code, name, input: Input::Immediate, always: false }
}

const fn inbox(len: usize, row: Row) -> Row {
    Row { input: Input::Mailbox(len), ..row }
}

const fn blocks(row: Row) -> Row {
    Row { input: Input::Blocks, ..row }
}

const fn always(row: Row) -> Row {
    Row { always: true, ..row }
}

const fn modify(code: u16, transition: Transition, name: &'static str) -> Row {
    inbox(super::modify::ModifyQp::LEN, row(code, Op::Modify(transition), name))
}

/// Command table, in the order of section 3.1.
static TABLE: [Row; 48] = [
    always(row(0x003, Op::QueryDevLim, "QUERY_DEV_LIM")),
    always(row(0x004, Op::QueryFw, "QUERY_FW")),
    always(row(0x006, Op::QueryAdapter, "QUERY_ADAPTER")),
    always(inbox(super::init::InitHca::LEN, row(0x007, Op::InitHca, "INIT_HCA"))),
    always(row(0x008, Op::CloseHca, "CLOSE_HCA")),
    inbox(super::port::InitIb::LEN, row(0x009, Op::InitIb, "INIT_IB")),
    row(0x00a, Op::CloseIb, "CLOSE_IB"),
    inbox(super::port::SetIb::LEN, row(0x00c, Op::SetIb, "SET_IB")),
    inbox(super::mpt::Mpt::LEN, row(0x00d, Op::Sw2HwMpt, "SW2HW_MPT")),
    row(0x00f, Op::Hw2SwMpt, "HW2SW_MPT"),
    row(0x012, Op::MapEq, "MAP_EQ"),
    inbox(super::eqc::Eqc::LEN, row(0x013, Op::Sw2HwEq, "SW2HW_EQ")),
    row(0x014, Op::Hw2SwEq, "HW2SW_EQ"),
    inbox(super::cqc::Cqc::LEN, row(0x016, Op::Sw2HwCq, "SW2HW_CQ")),
    row(0x017, Op::Hw2SwCq, "HW2SW_CQ"),
    modify(0x019, Transition::Rst2Init, "RST2INIT_QP"),
    modify(0x01a, Transition::Init2Rtr, "INIT2RTR_QP"),
    modify(0x01b, Transition::Rtr2Rts, "RTR2RTS_QP"),
    modify(0x01c, Transition::Rts2Rts, "RTS2RTS_QP"),
    modify(0x01d, Transition::SqErr2Rts, "SQERR2RTS_QP"),
    row(0x01e, Op::Modify(Transition::ToErr), "2ERR_QP"),
    row(0x01f, Op::Modify(Transition::Rts2Sqd), "RTS2SQD_QP"),
    modify(0x020, Transition::Sqd2Rts, "SQD2RTS_QP"),
    row(0x021, Op::Modify(Transition::ToRst), "ERR2RST_QP"),
    row(0x022, Op::QueryQp, "QUERY_QP"),
    row(0x023, Op::ConfSpecialQp, "CONF_SPECIAL_QP"),
    inbox(super::mad_ifc::MadIfc::LEN, row(0x024, Op::MadIfc, "MAD_IFC")),
    row(0x025, Op::ReadMgm, "READ_MGM"),
    inbox(super::mgm::Mgm::LEN, row(0x026, Op::WriteMgm, "WRITE_MGM")),
    inbox(super::mgm::GID_LEN, row(0x027, Op::MgidHash, "MGID_HASH")),
    inbox(super::cqc::ResizeCq::LEN, row(0x02c, Op::ResizeCq, "RESIZE_CQ")),
    modify(0x02d, Transition::Init2Init, "INIT2INIT_QP"),
    always(row(0x031, Op::Nop, "NOP")),
    inbox(super::srqc::Srqc::LEN, row(0x035, Op::Sw2HwSrq, "SW2HW_SRQ")),
    row(0x036, Op::Hw2SwSrq, "HW2SW_SRQ"),
    row(0x037, Op::QuerySrq, "QUERY_SRQ"),
    modify(0x038, Transition::Sqd2Sqd, "SQD2SQD_QP"),
    row(0x040, Op::ArmSrq, "ARM_SRQ"),
    always(row(0xff6, Op::RunFw, "RUN_FW")),
    always(row(0xff7, Op::DisableLam, "DISABLE_LAM")),
    always(row(0xff8, Op::EnableLam, "ENABLE_LAM")),
    always(row(0xff9, Op::UnmapIcm, "UNMAP_ICM")),
    always(blocks(row(0xffa, Op::MapIcm, "MAP_ICM"))),
    always(row(0xffb, Op::UnmapIcmAux, "UNMAP_ICM_AUX")),
    always(blocks(row(0xffc, Op::MapIcmAux, "MAP_ICM_AUX"))),
    always(row(0xffd, Op::SetIcmSize, "SET_ICM_SIZE")),
    always(row(0xffe, Op::UnmapFa, "UNMAP_FA")),
    always(blocks(row(0xfff, Op::MapFa, "MAP_FA"))),
];

impl Op {
    /// Looks up a command by opcode. Returns `None` for an unknown opcode.
    pub fn from_code(code: u16) -> Option<Self> {
        find(code).map(|row| row.op)
    }

    /// Returns the name that appears in traces.
    pub fn name(self) -> &'static str {
        TABLE.iter().find(|row| row.op == self).map_or("unknown", |row| row.name)
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

fn find(code: u16) -> Option<&'static Row> {
    TABLE.iter().find(|row| row.code == code)
}

/// A command that has passed the generic checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Command {
    pub op: Op,
    /// Variant of the command; its meaning depends on the opcode.
    pub op_modifier: u8,
    /// Command-specific value; see for example [`Command::qpn`].
    pub in_modifier: u32,
    /// Inbox address, or immediate value.
    pub in_param: u64,
    /// Outbox address, if the command has an outbox.
    pub out_param: u64,
    /// Length of the inbox in bytes, at most one page; 0 if the command has no inbox.
    pub inbox_len: usize,
}

impl Command {
    /// Decodes a latched command and performs the generic checks.
    ///
    /// # Errors
    /// BAD_OP for an unknown opcode; BAD_SYS_STATE for a command that requires INIT_HCA first; BAD_PARAM if the number
    /// of inbox entries is 0 or does not fit in a mailbox.
    pub fn decode(latched: &PendingCommand, initialised: bool) -> Result<Self, CmdError> {
        let PendingCommand { in_param, in_modifier, out_param, command, .. } = *latched;
        let code = command.op();
        let row = find(code).ok_or(CmdError::new(CmdStatus::BadOp, "opcode", code.into()))?;
        if !initialised && !row.always {
            return Err(CmdError::new(
                CmdStatus::BadSysState,
                "INIT_HCA required before opcode",
                code.into(),
            ));
        }
        let inbox_len = match row.input {
            Input::Immediate => 0,
            Input::Mailbox(len) => len,
            Input::Blocks => icm::inbox_len(in_modifier)?,
        };
        let op_modifier = command.op_modifier();
        Ok(Self { op: row.op, op_modifier, in_modifier, in_param, out_param, inbox_len })
    }

    /// Returns the QP number in in_modifier. The bits above the table size are a generation number.
    pub const fn qpn(&self) -> Qpn {
        Qpn::new(self.in_modifier)
    }

    /// Returns the CQ number in in_modifier. The bits above the table size are a generation number.
    pub const fn cqn(&self) -> Cqn {
        Cqn::new(self.in_modifier)
    }

    /// Returns the EQ number in in_modifier.
    pub const fn eqn(&self) -> Eqn {
        Eqn::new(self.in_modifier & 0xff)
    }

    /// For RTS2SQD_QP, returns whether the driver requests an event when the send queue is drained.
    pub const fn requests_drained_event(&self) -> bool {
        self.in_modifier >> 31 != 0
    }

    /// For ERR2RST_QP, returns whether the driver requests the context in the outbox.
    pub const fn requests_context(&self) -> bool {
        self.op_modifier == 2
    }

    /// Returns the parameters of a MAP_EQ command.
    pub const fn map_eq(&self) -> MapEq {
        MapEq { eqn: self.eqn(), unmap: self.in_modifier & UNMAP != 0, events: self.in_param }
    }
}

/// Passes a command's parameters to the visitor, under names that depend on the opcode.
pub fn describe_parameters(latched: &PendingCommand, to: &mut dyn Visitor) {
    let PendingCommand { in_param, in_modifier, out_param, token, command } = *latched;
    let number = Hex(in_modifier);
    let row = find(command.op());
    match row.map(|row| row.op) {
        Some(Op::MapIcm | Op::MapIcmAux | Op::MapFa) => in_modifier.show("blocks", to),
        Some(Op::UnmapIcm) => in_modifier.show("pages", to),
        Some(Op::Sw2HwMpt | Op::Hw2SwMpt | Op::ReadMgm | Op::WriteMgm) => number.show("index", to),
        Some(Op::Sw2HwEq | Op::Hw2SwEq) => number.show("eqn", to),
        Some(Op::MapEq) => {
            Hex(in_modifier & !UNMAP).show("eqn", to);
            (in_modifier & UNMAP != 0).show("remove", to);
        }
        Some(Op::Sw2HwCq | Op::Hw2SwCq | Op::ResizeCq) => number.show("cqn", to),
        Some(Op::Sw2HwSrq | Op::Hw2SwSrq | Op::QuerySrq | Op::ArmSrq) => number.show("srqn", to),
        Some(Op::Modify(_) | Op::QueryQp | Op::ConfSpecialQp) => number.show("qpn", to),
        Some(Op::InitIb | Op::CloseIb | Op::SetIb | Op::MadIfc) => number.show("port", to),
        Some(_) | None => number.show("in_modifier", to),
    }
    command.op_modifier().show("op_modifier", to);
    match row.map(|row| row.op) {
        Some(Op::MapEq) => Hex(in_param).show("events", to),
        Some(Op::UnmapIcm) => Hex(in_param).show("start", to),
        Some(Op::ArmSrq) => in_param.show("limit", to),
        _ => Hex(in_param).show("in_param", to),
    }
    Hex(out_param).show("out_param", to);
    if command.event() {
        Hex(token).show("token", to);
    }
}

/// Flag in in_modifier that makes MAP_EQ unmap the events.
const UNMAP: u32 = 1 << 31;

/// Parameters of a MAP_EQ command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapEq {
    /// EQN of the EQ to change.
    pub eqn: Eqn,
    /// Whether to unmap the events instead of mapping them.
    pub unmap: bool,
    /// Event mask. Bit n selects event type n.
    pub events: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hca::hcr::CommandWord;

    fn latched(code: u16, in_modifier: u32) -> PendingCommand {
        let command = CommandWord::new().with_op(code).with_go(true);
        PendingCommand { in_param: 0x1_2345_6000, in_modifier, out_param: 0, token: 0xffff, command }
    }

    /// The command words in this test are those of QUERY_FW and the first NOP in section 13.3.
    #[test]
    fn decodes_published_command_words() {
        let query_fw = CommandWord::from_bits(u32::from_be_bytes([0x00, 0x80, 0x00, 0x04]));
        assert!(query_fw.go() && !query_fw.event());
        assert_eq!(Op::from_code(query_fw.op()), Some(Op::QueryFw));
        let nop = CommandWord::from_bits(u32::from_be_bytes([0x00, 0xc0, 0x00, 0x31]));
        assert!(nop.go() && nop.event());
        assert_eq!(Op::from_code(nop.op()), Some(Op::Nop));
    }

    #[test]
    fn opcodes_and_commands_are_unique() {
        for (index, row) in TABLE.iter().enumerate() {
            assert_eq!(Op::from_code(row.code), Some(row.op));
            assert!(TABLE[..index].iter().all(|other| other.op != row.op), "{}", row.name);
        }
        for code in [0x001, 0x002, 0x005, 0x00b, 0x00e, 0x010, 0x015, 0x018, 0x02a, 0x034] {
            assert_eq!(Op::from_code(code), None, "{code:#x}");
        }
    }

    #[test]
    fn object_commands_require_init_hca() {
        let status =
            |code, initialised| Command::decode(&latched(code, 1), initialised).map_err(|e| e.status);
        assert_eq!(status(0x00d, false), Err(CmdStatus::BadSysState));
        assert!(status(0x00d, true).is_ok());
        for code in [0x003, 0x004, 0x006, 0x007, 0x008, 0x031, 0xff6, 0xff8, 0xff9, 0xffa, 0xffd, 0xfff] {
            assert!(status(code, false).is_ok(), "{code:#x}");
        }
        assert_eq!(status(0x055, true), Err(CmdStatus::BadOp));
    }

    #[test]
    fn inbox_length_depends_on_block_count() {
        let len = |count| Command::decode(&latched(0xffa, count), true).map(|command| command.inbox_len);
        assert_eq!(len(1), Ok(16));
        assert_eq!(len(256), Ok(4096));
        assert_eq!(len(257).unwrap_err().status, CmdStatus::BadParam);
        assert_eq!(len(0).unwrap_err().status, CmdStatus::BadParam);
    }

    /// The commands in this test are number 208 in section 14.4 and number 33 in section 14.3.
    #[test]
    fn map_eq_separates_unmap_flag_from_eqn() {
        let unmap = PendingCommand { in_param: 0x1f_43fe, ..latched(0x012, 0x8000_0002) };
        let expected = MapEq { eqn: Eqn::new(2), unmap: true, events: 0x1f_43fe };
        assert_eq!(Command::decode(&unmap, true).unwrap().map_eq(), expected);
        let map = PendingCommand { in_param: 0x400, ..latched(0x012, 3) };
        let expected = MapEq { eqn: Eqn::new(3), unmap: false, events: 0x400 };
        assert_eq!(Command::decode(&map, true).unwrap().map_eq(), expected);
    }
}
