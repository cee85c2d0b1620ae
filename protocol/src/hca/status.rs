//! How commands end: the status codes of the Mellanox lineage.

use std::fmt;

use thiserror::Error;

use crate::describe::Code;

/// Result code of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CmdStatus {
    /// 00h
    Ok,
    /// 01h: DMA to a mailbox failed.
    InternalErr,
    /// 02h: unknown or unsupported opcode.
    BadOp,
    /// 03h: bad parameter or address; of devices that know no more codes, any index or state, too.
    BadParam,
    /// 04h: not allowed before INIT_HCA.
    BadSysState,
    /// 06h: the resource is in use by another. Extended.
    ResourceBusy,
    /// 08h: beyond a limit of the device. Extended.
    ExceedLim,
    /// 09h: the resource is in use or not in use. Extended.
    BadResState,
    /// 0Ah: the index is outside its table. Extended.
    BadIndex,
    /// 10h: the QP is not in the state the opcode presumes. Extended.
    BadQpState,
    /// 22h: the device has no memory of its own. Extended.
    NoLocalMemory,
    /// 30h: the management datagram is to be dropped. Extended.
    BadPacket,
    /// 40h: a CQ has more unread entries than the new buffer. Extended.
    BadSize,
}

impl CmdStatus {
    /// The code.
    pub const fn code(self) -> u8 {
        match self {
            Self::Ok => 0x00,
            Self::InternalErr => 0x01,
            Self::BadOp => 0x02,
            Self::BadParam => 0x03,
            Self::BadSysState => 0x04,
            Self::ResourceBusy => 0x06,
            Self::ExceedLim => 0x08,
            Self::BadResState => 0x09,
            Self::BadIndex => 0x0a,
            Self::BadQpState => 0x10,
            Self::NoLocalMemory => 0x22,
            Self::BadPacket => 0x30,
            Self::BadSize => 0x40,
        }
    }

    /// The status of a device that knows 00h to 04h only, and answers 03h for the rest.
    #[must_use]
    pub const fn basic(self) -> Self {
        match self {
            Self::Ok | Self::InternalErr | Self::BadOp | Self::BadParam | Self::BadSysState => self,
            _ => Self::BadParam,
        }
    }

    /// A code as traces show it.
    pub fn word(code: u8) -> Code {
        let status = STATUSES.into_iter().find(|status| status.code() == code);
        Code(code.into(), status.map(Self::name))
    }

    /// The name software gives the code.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::InternalErr => "INTERNAL_ERR",
            Self::BadOp => "BAD_OP",
            Self::BadParam => "BAD_PARAM",
            Self::BadSysState => "BAD_SYS_STATE",
            Self::ResourceBusy => "RESOURCE_BUSY",
            Self::ExceedLim => "EXCEED_LIM",
            Self::BadResState => "BAD_RES_STATE",
            Self::BadIndex => "BAD_INDEX",
            Self::BadQpState => "BAD_QPEE_STATE",
            Self::NoLocalMemory => "LAM_NOT_PRE",
            Self::BadPacket => "BAD_PKT",
            Self::BadSize => "BAD_SIZE",
        }
    }
}

/// All of them.
const STATUSES: [CmdStatus; 13] = [
    CmdStatus::Ok,
    CmdStatus::InternalErr,
    CmdStatus::BadOp,
    CmdStatus::BadParam,
    CmdStatus::BadSysState,
    CmdStatus::ResourceBusy,
    CmdStatus::ExceedLim,
    CmdStatus::BadResState,
    CmdStatus::BadIndex,
    CmdStatus::BadQpState,
    CmdStatus::NoLocalMemory,
    CmdStatus::BadPacket,
    CmdStatus::BadSize,
];

impl fmt::Display for CmdStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a command is refused. `status` is the precise code, to be passed through [`CmdStatus::basic`] by a device
/// without extended codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{status}: {what} {value:#x}")]
pub struct CmdError {
    /// The code to answer.
    pub status: CmdStatus,
    /// What is wrong.
    pub what: &'static str,
    /// The offending value.
    pub value: u64,
}

impl CmdError {
    /// A refusal with `status`.
    pub const fn new(status: CmdStatus, what: &'static str, value: u64) -> Self {
        Self { status, what, value }
    }

    /// The usual refusal, BAD_PARAM.
    pub const fn param(what: &'static str, value: u64) -> Self {
        Self::new(CmdStatus::BadParam, what, value)
    }
}
