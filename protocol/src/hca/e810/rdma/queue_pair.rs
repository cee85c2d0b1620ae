//! Operations on queue pairs. What a queue pair is, its context says.
//!
//! # Spec
//! E810 interface, sections 10.3 and 13.

use std::fmt;

use crate::describe::{Code, Field, Visitor};
use crate::ids::{Iova, Qpn};
use crate::layout;

/// Kind of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpKind {
    /// Reliable connection.
    Rc,
    /// Datagrams.
    Ud,
    /// None of them.
    Other(u8),
}

impl From<u8> for QpKind {
    fn from(code: u8) -> Self {
        match code {
            3 => Self::Rc,
            4 => Self::Ud,
            other => Self::Other(other),
        }
    }
}

impl From<QpKind> for u8 {
    fn from(kind: QpKind) -> Self {
        match kind {
            QpKind::Rc => 3,
            QpKind::Ud => 4,
            QpKind::Other(code) => code,
        }
    }
}

impl Field for QpKind {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        let word = match self {
            Self::Rc => Some("rc"),
            Self::Ud => Some("ud"),
            Self::Other(_) => None,
        };
        Code(u8::from(*self).into(), word).show(name, to);
    }
}

/// State of a queue pair, as commands ask for it and events tell it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QpState {
    /// As it is.
    #[default]
    Same,
    /// Nothing is sent or received.
    Idle,
    /// It sends and receives.
    Rts,
    /// It sends no more.
    Sqd,
    /// It receives.
    Rtr,
    /// The connection ends, of iWARP only.
    Terminate,
    /// It is of no more use.
    Error,
    /// None of them.
    Other(u8),
}

impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Same => f.pad("same"),
            Self::Idle => f.pad("idle"),
            Self::Rts => f.pad("rts"),
            Self::Sqd => f.pad("sqd"),
            Self::Rtr => f.pad("rtr"),
            Self::Terminate => f.pad("terminate"),
            Self::Error => f.pad("error"),
            Self::Other(code) => write!(f, "{code:#x}"),
        }
    }
}

impl From<u8> for QpState {
    fn from(code: u8) -> Self {
        match code {
            0 => Self::Same,
            1 => Self::Idle,
            2 => Self::Rts,
            3 => Self::Sqd,
            4 => Self::Rtr,
            5 => Self::Terminate,
            6 => Self::Error,
            other => Self::Other(other),
        }
    }
}

impl From<QpState> for u8 {
    fn from(state: QpState) -> Self {
        match state {
            QpState::Same => 0,
            QpState::Idle => 1,
            QpState::Rts => 2,
            QpState::Sqd => 3,
            QpState::Rtr => 4,
            QpState::Terminate => 5,
            QpState::Error => 6,
            QpState::Other(code) => code,
        }
    }
}

impl Field for QpState {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        let word = match self {
            Self::Same => Some("same"),
            Self::Idle => Some("idle"),
            Self::Rts => Some("rts"),
            Self::Sqd => Some("sqd"),
            Self::Rtr => Some("rtr"),
            Self::Terminate => Some("terminate"),
            Self::Error => Some("error"),
            Self::Other(_) => None,
        };
        Code(u8::from(*self).into(), word).show(name, to);
    }
}

layout! {
    /// "Create QP" and "modify QP".
    pub struct QpCommand[64] {
        /// Modify: another maximum segment size.
        @8[45:32]   mss: u16,
        /// Its context, of 256 bytes.
        @16         context: Iova,
        /// The queue pair.
        @24[23:0]   qpn: Qpn,
        /// The context's number of outstanding reads counts.
        @24[42]     ord_valid: bool,
        /// The context counts.
        @24[43]     context_valid: bool,
        /// Modify: what the device keeps for itself is to be read from the context too.
        @24[44]     cached_valid: bool,
        /// The queues lie in pages, which PBLEs list.
        @24[45]     in_pages: bool,
        /// Everything goes to the device itself.
        @24[46]     loopback: bool,
        /// The context's completion queues count.
        @24[47]     cqs_valid: bool,
        /// Kind of queue pair.
        @24[50:48]  kind: QpKind as u8,
        /// The context's source MAC counts.
        @24[51]     mac_valid: bool,
        /// Modify: the segment size counts.
        @24[52]     mss_valid: bool,
        /// Modify: take the connection out of the hash table, of iWARP only.
        @24[55]     remove_hash: bool,
        /// Modify: how the connection ends, of iWARP only.
        @24[57:56]  terminate: u8,
        /// Modify: reset the connection, of iWARP only.
        @24[58]     reset: bool,
        /// The context's index of the destination counts.
        @24[59]     arp_valid: bool,
        /// The state to go to.
        @24[62:60]  state: QpState as u8,
        /// Its shadow area, which tells software how far the device is.
        @40         shadow: Iova,
    }
}

layout! {
    /// "Destroy QP".
    pub struct DestroyQp[64] {
        /// Its context.
        @16         context: Iova,
        /// The queue pair.
        @24[23:0]   qpn: Qpn,
        /// Kind of queue pair.
        @24[50:48]  kind: QpKind as u8,
        /// It does not matter that windows are bound to it.
        @24[54]     ignore_windows: bool,
        /// Take the connection out of the hash table, of iWARP only.
        @24[55]     remove_hash: bool,
        /// Its shadow area.
        @40         shadow: Iova,
    }
}

layout! {
    /// "Flush WQEs", which can also make an asynchronous event.
    pub struct FlushQp[64] {
        /// Code of the event.
        @8[15:0]    event: u16 => Hex,
        /// Its source.
        @8[19:16]   source: u8,
        /// Codes of the receives.
        @16         rq_minor: u16,
        /// The same.
        @18         rq_major: u16,
        /// Codes of the sends.
        @20         sq_minor: u16,
        /// The same.
        @22         sq_major: u16,
        /// The queue pair.
        @24[23:0]   qpn: Qpn,
        /// Make an event.
        @24[59]     generate_event: bool,
        /// The codes count.
        @24[60]     codes_valid: bool,
        /// Flush the send queue.
        @24[61]     sq: bool,
        /// Flush the receive queue.
        @24[62]     rq: bool,
    }
}

layout! {
    /// "Suspend QP" and "resume QP".
    pub struct SuspendQp[64] {
        /// Resume: the set of queues that it belongs to now.
        @16         set: u16,
        /// The queue pair.
        @24[23:0]   qpn: Qpn,
    }
}
