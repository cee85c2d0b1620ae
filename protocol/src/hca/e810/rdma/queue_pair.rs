//! CQP operations on queue pairs. The QP context is in [`super::qp_context`].
//!
//! # Spec
//! E810 interface, sections 10.3 and 13.

use std::fmt;

use crate::describe::{Code, Field, Visitor};
use crate::ids::{Iova, Qpn};
use crate::layout;

/// Type of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum QpKind {
    /// QP for reliable connections (RC).
    Rc,
    /// QP for unreliable datagrams (UD).
    Ud,
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

/// State of a QP in commands and events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum QpState {
    /// The state does not change.
    #[default]
    Same,
    /// The QP neither sends nor receives.
    Idle,
    /// The QP sends and receives (RTS).
    Rts,
    /// The send queue is drained, and the QP does not send further requests (SQD).
    Sqd,
    /// The QP can receive (RTR).
    Rtr,
    /// The connection is terminating (iWARP only).
    Terminate,
    /// The QP is in the error state.
    Error,
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
    /// CQP WQE for "Create QP" and "Modify QP".
    pub struct QpCommand[64] {
        /// In "Modify QP": new maximum segment size.
        @8[45:32]   mss: u16,
        /// Address of the 256-byte context.
        @16         context: Iova,
        @24[23:0]   qpn: Qpn,
        /// Whether the maximum number of outstanding READs in the context is valid.
        @24[42]     ord_valid: bool,
        /// Whether the context is valid.
        @24[43]     context_valid: bool,
        /// In "Modify QP": whether to reread fields cached by the device.
        @24[44]     cached_valid: bool,
        /// Whether page lists describe the queues.
        @24[45]     in_pages: bool,
        /// Whether all packets are looped back to the device.
        @24[46]     loopback: bool,
        /// Whether the CQs in the context are valid.
        @24[47]     cqs_valid: bool,
        @24[50:48]  kind: QpKind as u8,
        /// Whether the source MAC address in the context is valid.
        @24[51]     mac_valid: bool,
        /// In "Modify QP": whether `mss` is valid.
        @24[52]     mss_valid: bool,
        /// In "Modify QP": whether to remove the connection from the hash table (iWARP only).
        @24[55]     remove_hash: bool,
        /// In "Modify QP": how to terminate the connection (iWARP only).
        @24[57:56]  terminate: u8,
        /// In "Modify QP": whether to reset the connection (iWARP only).
        @24[58]     reset: bool,
        /// Whether the ARP index in the context is valid.
        @24[59]     arp_valid: bool,
        /// State after the operation.
        @24[62:60]  state: QpState as u8,
        /// Address of the shadow area, where the device reports its progress.
        @40         shadow: Iova,
    }
}

layout! {
    /// CQP WQE for "Destroy QP".
    pub struct DestroyQp[64] {
        /// Address of the context.
        @16         context: Iova,
        @24[23:0]   qpn: Qpn,
        @24[50:48]  kind: QpKind as u8,
        /// Whether to ignore bound memory windows.
        @24[54]     ignore_windows: bool,
        /// Whether to remove the connection from the hash table (iWARP only).
        @24[55]     remove_hash: bool,
        /// Address of the shadow area.
        @40         shadow: Iova,
    }
}

layout! {
    /// CQP WQE for "Flush WQEs", which can also generate an asynchronous event.
    pub struct FlushQp[64] {
        /// Type of the event.
        @8[15:0]    event: u16 => Hex,
        /// Source of the event.
        @8[19:16]   source: u8,
        /// Minor error code for flushed receives.
        @16         rq_minor: u16,
        /// Major error code for flushed receives.
        @18         rq_major: u16,
        /// Minor error code for flushed sends.
        @20         sq_minor: u16,
        /// Major error code for flushed sends.
        @22         sq_major: u16,
        @24[23:0]   qpn: Qpn,
        @24[59]     generate_event: bool,
        /// Whether the error codes are valid.
        @24[60]     codes_valid: bool,
        /// Whether to flush the send queue.
        @24[61]     sq: bool,
        /// Whether to flush the receive queue.
        @24[62]     rq: bool,
    }
}

/// Queues in which "Flush WQEs" found requests, as reported in the minor code of the completion. A driver that has
/// posted requests but gets [`FlushedQueues::Neither`] assumes that the flush failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushedQueues {
    /// Neither queue had requests.
    Neither,
    /// Only the receive queue had requests.
    Receive,
    /// Only the send queue had requests.
    Send,
    /// Both queues had requests.
    Both,
}

impl FlushedQueues {
    /// Returns the variant for the given queues. `send` and `receive` are true for the queues that had requests.
    pub const fn new(send: bool, receive: bool) -> Self {
        match (send, receive) {
            (false, false) => Self::Neither,
            (false, true) => Self::Receive,
            (true, false) => Self::Send,
            (true, true) => Self::Both,
        }
    }

    /// Returns the minor code (E810 interface, section 14.2).
    pub const fn code(self) -> u16 {
        match self {
            Self::Neither => 0,
            Self::Receive => 2,
            Self::Send => 3,
            Self::Both => 4,
        }
    }

    /// Returns the name used in traces.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Neither => "neither",
            Self::Receive => "receive",
            Self::Send => "send",
            Self::Both => "both",
        }
    }
}

layout! {
    /// CQP WQE for "Suspend QP" and "Resume QP".
    pub struct SuspendQp[64] {
        /// In "Resume QP": the QP's new queue set.
        @16         set: u16,
        @24[23:0]   qpn: Qpn,
    }
}
