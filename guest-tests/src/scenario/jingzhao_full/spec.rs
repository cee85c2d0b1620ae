//! The command table of the interface document, and the results of the generic checks for every command.
//!
//! # Spec
//! JingZhao interface, sections 1.4, 2 and 3.14.

use std::fmt;

use super::expected::Expected;

/// Status codes (section 1.4).
pub(super) mod status {
    pub(crate) const OK: u8 = 0x00;
    pub(crate) const INTERNAL_ERR: u8 = 0x01;
    pub(crate) const BAD_OP: u8 = 0x02;
    pub(crate) const BAD_PARAM: u8 = 0x03;
    pub(crate) const BAD_SYS_STATE: u8 = 0x04;
    pub(crate) const EXCEED_LIM: u8 = 0x08;
    pub(crate) const BAD_RES_STATE: u8 = 0x09;
    pub(crate) const BAD_INDEX: u8 = 0x0a;
    pub(crate) const BAD_QPEE_STATE: u8 = 0x10;
}

/// The expected status from each of two devices. The first has the default options, and the second has the options
/// `extended_status` and `mad_ifc`.
pub(super) type Statuses = [u8; 2];

/// Values permitted by the op_modifier column.
#[derive(Clone, Copy, Debug)]
pub(super) enum OpModifier {
    /// The command ignores the field.
    Any,
    /// The command accepts only the listed values.
    In(&'static [u8]),
}

impl OpModifier {
    /// Returns one of the valid values.
    pub(super) fn first(self) -> u8 {
        match self {
            Self::Any => 0,
            Self::In(list) => list.first().copied().unwrap_or(0),
        }
    }

    /// Returns values that are not listed: neighbours of listed values, single bits, and all bits set.
    pub(super) fn unlisted(self) -> impl Iterator<Item = u8> {
        const TRIED: [u8; 10] = [0, 1, 2, 3, 4, 5, 8, 16, 128, 255];
        TRIED.into_iter().filter(move |modifier| match self {
            Self::Any => false,
            Self::In(list) => !list.contains(modifier),
        })
    }
}

/// The kind of value permitted by the in_modifier column. The generic 24-bit check applies only to object numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InModifier {
    /// Zero, a count, or an index.
    Other,
    /// A QPN, CQN or EQN of at most 24 bits.
    Number,
}

/// Contents permitted by the inbox column.
#[derive(Clone, Copy, Debug)]
pub(super) enum Inbox {
    None,
    Bytes(u64),
    /// A mailbox of the given number of bytes if op_modifier is 0, and no mailbox otherwise.
    Unmodified(u64),
    /// A mailbox of ceil(n/2) * 20h bytes for n entries.
    MapIcm,
    /// A mailbox of 20h + ceil(n/4) * 20h bytes for n entries.
    WriteMtt,
}

impl Inbox {
    /// Returns the length in bytes, or `None` if there is no mailbox. If the length depends on the number of entries,
    /// returns the length for one entry.
    pub(super) fn bytes(self) -> Option<u64> {
        match self {
            Self::None => None,
            Self::Bytes(len) | Self::Unmodified(len) => Some(len),
            Self::MapIcm => Some(0x20),
            Self::WriteMtt => Some(0x40),
        }
    }
}

/// A row of the table in section 2.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) op: u16,
    pub(super) name: &'static str,
    pub(super) op_modifier: OpModifier,
    pub(super) in_modifier: InModifier,
    pub(super) inbox: Inbox,
    /// Length of the output mailbox in bytes.
    pub(super) outbox: Option<u64>,
}

const fn row(
    op: u16,
    name: &'static str,
    op_modifier: OpModifier,
    in_modifier: InModifier,
    inbox: Inbox,
    outbox: Option<u64>,
) -> Row {
    Row { op, name, op_modifier, in_modifier, inbox, outbox }
}

/// Section 2: op, name, op_modifier, in_modifier, inbox, outbox. The row for MAD_IFC is from section 3.14.
#[rustfmt::skip]
pub(super) const SECTION_2: [Row; 30] = {
    use InModifier::{Number, Other};
    use Inbox::{Bytes, MapIcm, Unmodified, WriteMtt};
    use OpModifier::{Any, In};
    const NO: Inbox = Inbox::None;
    [
        row(0x003, "QUERY_DEV_LIM",   In(&[0]),          Other,  NO,               Some(0x40)),
        row(0x006, "QUERY_ADAPTER",   In(&[0]),          Other,  NO,               Some(0x20)),
        row(0x007, "INIT_HCA",        In(&[0]),          Other,  Bytes(0x40),      None),
        row(0x008, "CLOSE_HCA",       In(&[0]),          Other,  NO,               None),
        row(0xffa, "MAP_ICM",         In(&[1, 2]),       Other,  MapIcm,           None),
        row(0xff9, "UNMAP_ICM",       In(&[1, 2]),       Other,  NO,               None),
        row(0x00d, "SW2HW_MPT",       In(&[0]),          Other,  Bytes(0x40),      None),
        row(0x00f, "HW2SW_MPT",       In(&[0]),          Other,  NO,               None),
        row(0x011, "WRITE_MTT",       In(&[0]),          Other,  WriteMtt,         None),
        row(0x012, "MAP_EQ",          In(&[0]),          Number, NO,               None),
        row(0x013, "SW2HW_EQ",        In(&[0]),          Number, Bytes(0x40),      None),
        row(0x014, "HW2SW_EQ",        In(&[0]),          Number, NO,               None),
        row(0x016, "SW2HW_CQ",        In(&[0]),          Number, Bytes(0x40),      None),
        row(0x017, "HW2SW_CQ",        In(&[0]),          Number, NO,               None),
        row(0x02c, "RESIZE_CQ",       Any,               Number, Bytes(8),         None),
        row(0x019, "RST2INIT_QPEE",   In(&[0]),          Number, Bytes(0xc0),      None),
        row(0x02d, "INIT2INIT_QPEE",  In(&[0]),          Number, Bytes(0xc0),      None),
        row(0x01a, "INIT2RTR_QPEE",   In(&[0]),          Number, Bytes(0xc0),      None),
        row(0x01b, "RTR2RTS_QPEE",    In(&[0]),          Number, Bytes(0xc0),      None),
        row(0x01c, "RTS2RTS_QPEE",    In(&[0]),          Number, Bytes(0xc0),      None),
        row(0x01d, "SQERR2RTS_QPEE",  In(&[0]),          Number, Bytes(0xc0),      None),
        row(0x01e, "2ERR_QPEE",       In(&[0, 2, 3]),    Number, Unmodified(0xc0), None),
        row(0x01f, "RTS2SQD_QPEE",    In(&[0]),          Number, Bytes(0xc0),      None),
        row(0x038, "SQD2SQD_QPEE",    In(&[0]),          Number, Bytes(0xc0),      None),
        row(0x020, "SQD2RTS_QPEE",    In(&[0]),          Number, Bytes(0xc0),      None),
        row(0x021, "ERR2RST_QPEE",    In(&[0, 2, 3]),    Number, Unmodified(0xc0), None),
        row(0x022, "QUERY_QP",        In(&[0]),          Number, NO,               Some(0xc0)),
        row(0x023, "CONF_SPECIAL_QP", In(&[0, 1, 2, 3]), Number, NO,               None),
        row(0x024, "MAD_IFC",         In(&[1]),          Other,  NO,               Some(0x20)),
        row(0x031, "NOP",             In(&[0]),          Other,  NO,               None),
    ]
};

/// Opcodes that drivers define but no device supports (section 2).
pub(super) const UNSUPPORTED: [(u16, &str); 11] = [
    (0x009, "INIT_IB"),
    (0x00a, "CLOSE_IB"),
    (0x00c, "SET_IB"),
    (0x025, "multicast"),
    (0x026, "multicast"),
    (0x027, "multicast"),
    (0x02a, "debug"),
    (0x02b, "debug"),
    (0x030, "DIAG_RPRT"),
    (0x032, "SUSPEND"),
    (0x033, "UNSUSPEND"),
];

/// Commands that a device accepts before INIT_HCA (section 2, check d).
const BEFORE_INIT_HCA: [u16; 5] = [0x003, 0x006, 0x007, 0x008, 0x031];

/// The form in which a command is issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Form {
    /// A valid form. The text distinguishes a command's valid forms if there are several.
    Good(&'static str),
    /// A form with an unlisted op_modifier (check b).
    OpModifier,
    /// A form whose required input mailbox is at address 0 (check c).
    NoInbox,
    /// A form whose required output mailbox is at address 0 (check c).
    NoOutbox,
    /// A form issued before INIT_HCA (check d).
    BeforeInitHca,
    /// A form whose input mailbox is not in memory (check e).
    InboxNowhere,
    /// A form whose input mailbox ends outside memory (check e).
    InboxCut,
    /// A form whose output mailbox is not in memory (check e).
    OutboxNowhere,
    /// A form whose output mailbox ends outside memory (check e).
    OutboxCut,
    /// A form with a QPN, CQN or EQN above FFFFFFh.
    NumberOver24Bits,
    /// A form with an error listed in section 3.
    Bad(&'static str),
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Good("") => "good",
            Self::Good(how) => how,
            Self::OpModifier => "op_modifier not listed",
            Self::NoInbox => "no inbox",
            Self::NoOutbox => "no outbox",
            Self::BeforeInitHca => "before INIT_HCA",
            Self::InboxNowhere => "inbox outside memory",
            Self::InboxCut => "inbox across the end of memory",
            Self::OutboxNowhere => "outbox outside memory",
            Self::OutboxCut => "outbox across the end of memory",
            Self::NumberOver24Bits => "number above FFFFFFh",
            Self::Bad(what) => what,
        })
    }
}

impl Row {
    /// Returns, for each of the two devices, whether it supports the command (section 3.14).
    fn supported(&self) -> [bool; 2] {
        match self.op {
            0x023 => [false, false],
            0x024 => [false, true],
            _ => [true, true],
        }
    }

    /// Returns the statuses that the generic checks of section 2 require for each form.
    fn generic(self) -> impl Iterator<Item = Expected> {
        use status::{BAD_INDEX, BAD_PARAM, BAD_SYS_STATE, INTERNAL_ERR, OK};
        let early = if BEFORE_INIT_HCA.contains(&self.op) { OK } else { BAD_SYS_STATE };
        let limited = matches!(self.op_modifier, OpModifier::In(_));
        let (inbox, outbox) = (self.inbox.bytes().is_some(), self.outbox.is_some());
        let number = self.in_modifier == InModifier::Number;
        [
            (limited, Form::OpModifier, "2 b", [BAD_PARAM; 2]),
            (inbox, Form::NoInbox, "2 c", [BAD_PARAM; 2]),
            (outbox, Form::NoOutbox, "2 c", [BAD_PARAM; 2]),
            (true, Form::BeforeInitHca, "2 d", [early; 2]),
            (inbox, Form::InboxNowhere, "2 e", [INTERNAL_ERR; 2]),
            (inbox, Form::InboxCut, "2 e", [INTERNAL_ERR; 2]),
            (outbox, Form::OutboxNowhere, "2 e", [INTERNAL_ERR; 2]),
            (outbox, Form::OutboxCut, "2 e", [INTERNAL_ERR; 2]),
            (number, Form::NumberOver24Bits, "2", [BAD_PARAM, BAD_INDEX]),
        ]
        .into_iter()
        .filter(|(applies, ..)| *applies)
        .map(move |(_, form, section, status)| Expected { op: self.op, form, section, status })
        .map(move |expected| self.unless_unsupported(expected))
    }

    /// Returns `expected`, but with BAD_OP for each device that does not support the opcode. The opcode check (check a)
    /// precedes all others.
    fn unless_unsupported(&self, expected: Expected) -> Expected {
        let mut status = expected.status;
        for (status, supported) in status.iter_mut().zip(self.supported()) {
            if !supported {
                *status = status::BAD_OP;
            }
        }
        Expected { status, ..expected }
    }
}

/// Returns the statuses that section 2 requires for all commands and forms.
pub(super) fn section_2() -> impl Iterator<Item = Expected> {
    let unsupported = UNSUPPORTED.into_iter().flat_map(|(op, _)| {
        [Form::Good(""), Form::BeforeInitHca].map(|form| Expected {
            op,
            form,
            section: "2 a",
            status: [status::BAD_OP; 2],
        })
    });
    SECTION_2.into_iter().flat_map(Row::generic).chain(unsupported)
}

pub(super) fn row_of(op: u16) -> Option<&'static Row> {
    const { &SECTION_2 }.iter().find(|row| row.op == op)
}

pub(super) fn name_of(op: u16) -> &'static str {
    let unsupported = || UNSUPPORTED.iter().find(|(code, _)| *code == op).map(|(_, name)| *name);
    row_of(op).map(|row| row.name).or_else(unsupported).unwrap_or("not defined")
}
