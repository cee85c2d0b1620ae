//! Reports of loss recovery by a requester: the NAKs that it receives and its retransmissions.

use std::time::Duration;

use protocol::Psn;
use protocol::ids::Qpn;
use protocol::roce::NakCode;

/// A NAK that a requester handles. Duplicate and late NAKs are not reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedNak {
    /// QP that received the NAK.
    pub qpn: Qpn,
    /// PSN of the packet that the peer rejected or did not receive.
    pub psn: Psn,
    /// Reason for the NAK, from its syndrome.
    pub kind: NakKind,
}

/// The kind of NAK received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum NakKind {
    /// A packet was lost on its way to the peer.
    Sequence,
    InvalidRequest,
    RemoteAccess,
    RemoteOperational,
    InvalidRdRequest,
    /// The peer has no receive request posted.
    Rnr {
        /// Wait requested by the peer.
        wait: Duration,
    },
    /// A reserved syndrome, which moves the QP to ERR.
    Reserved,
}

impl NakKind {
    /// Returns the name of the NAK, which is also the name of its counter in [`Naks`](crate::Naks).
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sequence => "sequence",
            Self::InvalidRequest => "invalid_request",
            Self::RemoteAccess => "remote_access",
            Self::RemoteOperational => "remote_operational",
            Self::InvalidRdRequest => "invalid_rd_request",
            Self::Rnr { .. } => "rnr",
            Self::Reserved => "reserved",
        }
    }
}

impl From<NakCode> for NakKind {
    fn from(code: NakCode) -> Self {
        match code {
            NakCode::PsnSequence => Self::Sequence,
            NakCode::InvalidRequest => Self::InvalidRequest,
            NakCode::RemoteAccess => Self::RemoteAccess,
            NakCode::RemoteOperational => Self::RemoteOperational,
            NakCode::InvalidRdRequest => Self::InvalidRdRequest,
            NakCode::Reserved(_) => Self::Reserved,
        }
    }
}

/// The start of a retransmission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// QP that retransmits packets.
    pub qpn: Qpn,
    /// Event that triggers the retry.
    pub cause: RetryCause,
    /// Oldest unacknowledged PSN, where the retransmission starts.
    pub psn: Psn,
    /// Number of unacknowledged packets.
    pub packets: u32,
    /// Number of consecutive retries, including this one. Retries after RNR NAKs are counted separately from all other
    /// retries.
    pub count: u32,
    /// Maximum value of `count`, or `None` if unlimited.
    pub limit: Option<u8>,
}

/// Cause of a retransmission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryCause {
    /// The ACK timer has expired.
    AckTimeout,
    /// The peer reported a missing packet.
    SequenceNak,
    /// A response that the oldest request needs is missing.
    ImpliedNak,
    /// The wait after an RNR NAK is over.
    RnrNak,
}

impl RetryCause {
    /// Returns the name of the cause in traces.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AckTimeout => "ack_timeout",
            Self::SequenceNak => "sequence_nak",
            Self::ImpliedNak => "implied_nak",
            Self::RnrNak => "rnr_nak",
        }
    }
}
