//! Command status codes of the HCR interfaces.

use std::fmt;

use thiserror::Error;

use crate::describe::Code;

/// Status of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CmdStatus {
    /// 00h: the command has succeeded.
    Ok,
    /// 01h: DMA to a mailbox failed.
    InternalErr,
    /// 02h: unknown or unsupported opcode.
    BadOp,
    /// 03h: invalid parameter or address. Devices without extended codes also use it for invalid indices and states.
    BadParam,
    /// 04h: not allowed before INIT_HCA.
    BadSysState,
    /// 06h: the resource is in use. Extended code.
    ResourceBusy,
    /// 08h: a device limit is exceeded. Extended code.
    ExceedLim,
    /// 09h: the resource is in the wrong state for the command. Extended code.
    BadResState,
    /// 0Ah: the index is out of range. Extended code.
    BadIndex,
    /// 10h: the opcode is not allowed in the current QP state. Extended code.
    BadQpState,
    /// 22h: the device has no local memory. Extended code.
    NoLocalMemory,
    /// 30h: the MAD must be dropped. Extended code.
    BadPacket,
    /// 40h: the CQ has more unread entries than fit in the new buffer. Extended code.
    BadSize,
}

impl CmdStatus {
    /// Returns the status byte that the HCR reports.
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

    /// Returns the status that a device without extended codes reports. Extended codes become 03h.
    #[must_use]
    pub const fn basic(self) -> Self {
        match self {
            Self::Ok | Self::InternalErr | Self::BadOp | Self::BadParam | Self::BadSysState => self,
            _ => Self::BadParam,
        }
    }

    /// Returns the code together with its name, for traces.
    pub fn word(code: u8) -> Code {
        let status = STATUSES.into_iter().find(|status| status.code() == code);
        Code(code.into(), status.map(Self::name))
    }

    /// Returns the name that the drivers use.
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

/// A command error. If `status` is an extended code, devices without extended codes report [`CmdStatus::basic`]
/// instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{status}: {field} {value:#x}", field = what)]
#[allow(missing_docs)]
pub struct CmdError {
    pub status: CmdStatus,
    /// Name of the field or object at fault.
    pub what: &'static str,
    /// Value of the field, or number of the object.
    pub value: u64,
}

impl CmdError {
    /// Creates an error with the given status.
    pub const fn new(status: CmdStatus, what: &'static str, value: u64) -> Self {
        Self { status, what, value }
    }

    /// Creates an error with the status BAD_PARAM.
    pub const fn param(what: &'static str, value: u64) -> Self {
        Self::new(CmdStatus::BadParam, what, value)
    }
}
