//! CQP operations on queue pairs. [`super::qp_context`] defines the context of a queue pair.
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
    /// The send queue is drained, and the QP sends no further requests (SQD).
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
    /// Layout of the operations "Create QP" and "Modify QP".
    pub struct QpCommand[64] {
        /// In "Modify QP": new maximum segment size.
        @8[45:32]   mss: u16,
        /// Address of the context, 256 bytes.
        @16         context: Iova,
        /// QP number, 24 bits.
        @24[23:0]   qpn: Qpn,
        /// The maximum number of outstanding READs in the context is valid.
        @24[42]     ord_valid: bool,
        /// The context is valid.
        @24[43]     context_valid: bool,
        /// In "Modify QP": also reread fields cached by the device.
        @24[44]     cached_valid: bool,
        /// The queues are described by page lists.
        @24[45]     in_pages: bool,
        /// All packets are looped back to the device.
        @24[46]     loopback: bool,
        /// The CQs in the context are valid.
        @24[47]     cqs_valid: bool,
        /// Type of the QP.
        @24[50:48]  kind: QpKind as u8,
        /// The source MAC address in the context is valid.
        @24[51]     mac_valid: bool,
        /// In "Modify QP": the segment size is valid.
        @24[52]     mss_valid: bool,
        /// In "Modify QP": remove the connection from the hash table (iWARP only).
        @24[55]     remove_hash: bool,
        /// In "Modify QP": how to terminate the connection (iWARP only).
        @24[57:56]  terminate: u8,
        /// In "Modify QP": reset the connection (iWARP only).
        @24[58]     reset: bool,
        /// The ARP index in the context is valid.
        @24[59]     arp_valid: bool,
        /// State after the operation.
        @24[62:60]  state: QpState as u8,
        /// Address of the shadow area, where the device reports its progress.
        @40         shadow: Iova,
    }
}

layout! {
    /// Layout of the operation "Destroy QP".
    pub struct DestroyQp[64] {
        /// Address of the context.
        @16         context: Iova,
        /// QP number, 24 bits.
        @24[23:0]   qpn: Qpn,
        /// Type of the QP.
        @24[50:48]  kind: QpKind as u8,
        /// Ignore bound memory windows.
        @24[54]     ignore_windows: bool,
        /// Remove the connection from the hash table (iWARP only).
        @24[55]     remove_hash: bool,
        /// Address of the shadow area.
        @40         shadow: Iova,
    }
}

layout! {
    /// Layout of the operation "Flush WQEs". The operation can also generate an asynchronous event.
    pub struct FlushQp[64] {
        /// Type of the event.
        @8[15:0]    event: u16 => Hex,
        /// Source of the event.
        @8[19:16]   source: u8,
        /// Minor code of flushed receives.
        @16         rq_minor: u16,
        /// Major code of flushed receives.
        @18         rq_major: u16,
        /// Minor code of flushed sends.
        @20         sq_minor: u16,
        /// Major code of flushed sends.
        @22         sq_major: u16,
        /// QP number, 24 bits.
        @24[23:0]   qpn: Qpn,
        @24[59]     generate_event: bool,
        /// The codes are valid.
        @24[60]     codes_valid: bool,
        /// Flush the send queue.
        @24[61]     sq: bool,
        /// Flush the receive queue.
        @24[62]     rq: bool,
    }
}

/// The queues in which "Flush WQEs" has found requests. The completion reports them in its minor code. If the code is
/// [`FlushedQueues::Neither`] although the driver has posted requests, the driver assumes that the flush failed.
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
    /// Combines the results for both queues.
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
    /// Layout of the operations "Suspend QP" and "Resume QP".
    pub struct SuspendQp[64] {
        /// In "Resume QP": new queue set of the QP.
        @16         set: u16,
        /// QP number, 24 bits.
        @24[23:0]   qpn: Qpn,
    }
}
