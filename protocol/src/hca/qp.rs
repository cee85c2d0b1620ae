//! Queue pairs as the contexts and commands of the Mellanox lineage know them: services, states, and the commands that
//! lead from state to state.

use super::status::{CmdError, CmdStatus};
use crate::describe::Code;

/// Transport service of a QP. Reliable datagram (code 2) is not supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ServiceType {
    /// 0: reliable connection.
    Rc,
    /// 1: unreliable connection.
    Uc,
    /// 3: unreliable datagram.
    Ud,
}

impl ServiceType {
    /// The service with this code.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Rc),
            1 => Some(Self::Uc),
            3 => Some(Self::Ud),
            _ => None,
        }
    }

    /// The code.
    pub const fn code(self) -> u8 {
        match self {
            Self::Rc => 0,
            Self::Uc => 1,
            Self::Ud => 3,
        }
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
        }
    }

    /// A code as traces show it.
    pub fn word(code: u8) -> Code {
        Code(code.into(), Self::from_code(code).map(Self::name))
    }
}

/// State of a QP, as contexts say it.
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
    /// SQD and not yet drained. Only QUERY_QP says this.
    Draining,
}

impl QpState {
    /// The state with this code.
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

    /// The code.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Its name.
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

    /// A code as traces show it.
    pub fn word(code: u8) -> Code {
        Code(code.into(), Self::from_code(code).map(Self::name))
    }
}

/// A command that moves a QP.
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
    /// All of them.
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

    /// The state it leads to.
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

    /// Whether a QP of this service may make it from this state. The service counts only where the table has no row
    /// for one; a QP in RESET has none yet.
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

    /// Refuses what is not [`Transition::allowed`]. A state that does not exist counts as ERR.
    ///
    /// # Errors
    /// BAD_QP_STATE.
    pub fn check(self, from: Option<QpState>, service: ServiceType) -> Result<(), CmdError> {
        let from = from.unwrap_or(QpState::Err);
        if self.allowed(from, service) {
            return Ok(());
        }
        Err(CmdError::new(CmdStatus::BadQpState, "invalid transition from QP state", from.code().into()))
    }
}
