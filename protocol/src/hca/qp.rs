//! QP service types, states and state transitions, common to the HCR interfaces.

use super::status::{CmdError, CmdStatus};
use crate::describe::Code;

/// Transport service type of a QP. Reliable datagram (code 2) is not supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ServiceType {
    /// Code 0: reliable connection (RC).
    Rc,
    /// Code 1: unreliable connection (UC).
    Uc,
    /// Code 3: unreliable datagram (UD).
    Ud,
}

impl ServiceType {
    /// Decodes a service type. Returns `None` for RD and unknown codes.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Rc),
            1 => Some(Self::Uc),
            3 => Some(Self::Ud),
            _ => None,
        }
    }

    /// Returns the code in the QP context.
    pub const fn code(self) -> u8 {
        match self {
            Self::Rc => 0,
            Self::Uc => 1,
            Self::Ud => 3,
        }
    }

    /// Returns the name that appears in traces.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
        }
    }

    /// Returns the code together with its name, for traces.
    pub fn word(code: u8) -> Code {
        Code(code.into(), Self::from_code(code).map(Self::name))
    }
}

/// State of a QP, as it appears in a context.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpState {
    Reset,
    Init,
    Rtr,
    Rts,
    Sqe,
    Sqd,
    Err,
    /// The QP is in SQD but has not drained yet. Only QUERY_QP reports this state.
    Draining,
}

impl QpState {
    /// Decodes a state. Returns `None` for an unknown code.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::Reset,
            1 => Self::Init,
            2 => Self::Rtr,
            3 => Self::Rts,
            4 => Self::Sqe,
            5 => Self::Sqd,
            6 => Self::Err,
            7 => Self::Draining,
            _ => return None,
        })
    }

    /// Returns the code in the QP context.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Returns the name that appears in traces.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::Sqe => "SQE",
            Self::Sqd => "SQD",
            Self::Err => "ERR",
            Self::Draining => "SQD_DRAINING",
        }
    }

    /// Returns the code together with its name, for traces.
    pub fn word(code: u8) -> Code {
        Code(code.into(), Self::from_code(code).map(Self::name))
    }
}

/// A command that changes the QP state.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transition {
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
    ToRst,
}

impl Transition {
    /// All transitions, in declaration order.
    pub const ALL: [Self; 11] = [
        Self::Rst2Init,
        Self::Init2Init,
        Self::Init2Rtr,
        Self::Rtr2Rts,
        Self::Rts2Rts,
        Self::SqErr2Rts,
        Self::ToErr,
        Self::Rts2Sqd,
        Self::Sqd2Sqd,
        Self::Sqd2Rts,
        Self::ToRst,
    ];

    /// Returns the state after the transition.
    pub const fn target(self) -> QpState {
        match self {
            Self::ToRst => QpState::Reset,
            Self::Rst2Init | Self::Init2Init => QpState::Init,
            Self::Init2Rtr => QpState::Rtr,
            Self::Rtr2Rts | Self::Rts2Rts | Self::SqErr2Rts | Self::Sqd2Rts => QpState::Rts,
            Self::Rts2Sqd | Self::Sqd2Sqd => QpState::Sqd,
            Self::ToErr => QpState::Err,
        }
    }

    /// Returns whether the transition is allowed in state `from`. The service type matters only for
    /// [`Transition::SqErr2Rts`].
    pub const fn allowed(self, from: QpState, service: ServiceType) -> bool {
        match self {
            Self::ToRst | Self::ToErr => true,
            Self::Rst2Init => matches!(from, QpState::Reset),
            Self::Init2Init | Self::Init2Rtr => matches!(from, QpState::Init),
            Self::Rtr2Rts => matches!(from, QpState::Rtr),
            Self::Rts2Rts | Self::Rts2Sqd => matches!(from, QpState::Rts),
            Self::SqErr2Rts => matches!(from, QpState::Sqe) && !matches!(service, ServiceType::Rc),
            Self::Sqd2Sqd | Self::Sqd2Rts => matches!(from, QpState::Sqd | QpState::Draining),
        }
    }

    /// Checks that the transition is allowed; see [`Transition::allowed`]. An unknown state is treated as ERR.
    ///
    /// # Errors
    /// BAD_QP_STATE if the transition is not allowed.
    pub fn check(self, from: Option<QpState>, service: ServiceType) -> Result<(), CmdError> {
        let from = from.unwrap_or(QpState::Err);
        if self.allowed(from, service) {
            return Ok(());
        }
        Err(CmdError::new(CmdStatus::BadQpState, "invalid transition from QP state", from.code().into()))
    }
}
