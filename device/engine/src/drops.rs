//! Why packets change nothing or are refused: one table, from which come the reason's name and its counter.

use protocol::Psn;
use protocol::ids::Qpn;
use protocol::roce::{Opcode, Packet};
use serde::{Deserialize, Serialize};

use crate::AccessError;

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $reason:ident $counter:ident,)+) => {
        /// Why a packet changed nothing, or was refused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum DropReason {
            $($(#[doc = $doc])+ $reason,)+
        }

        impl DropReason {
            /// All reasons, in the order of their declaration.
            pub const ALL: &[Self] = &[$(Self::$reason,)+];

            /// Short stable name, which is that of its counter.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$reason => stringify!($counter),)+
                }
            }
        }

        /// Packets that changed nothing or were refused, by reason.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[non_exhaustive]
        pub struct Drops {
            $($(#[doc = $doc])+ pub $counter: u64,)+
        }

        impl Drops {
            /// Those of one reason.
            pub const fn of(&self, reason: DropReason) -> u64 {
                match reason {
                    $(DropReason::$reason => self.$counter,)+
                }
            }

            pub(crate) fn count(&mut self, reason: DropReason) {
                match reason {
                    $(DropReason::$reason => self.$counter += 1,)+
                }
            }
        }
    };
}

reasons! {
    /// No such QP.
    UnknownQp unknown_qp,
    /// For a group that no QP is attached to.
    UnknownGroup unknown_group,
    /// The opcode's service is not the QP's.
    WrongService wrong_service,
    /// The QP is in a state without reception.
    WrongState wrong_state,
    /// The partition key does not match.
    WrongPkey wrong_pkey,
    /// A connected QP's packet from somebody else's address.
    WrongSource wrong_source,
    /// A connected QP's packet to another address than its own.
    WrongDestination wrong_destination,
    /// The queue key does not match (UD).
    WrongQkey wrong_qkey,
    /// Request beyond the expected PSN.
    OutOfSequence out_of_sequence,
    /// Request behind the expected PSN that was never executed, or whose record is gone.
    StaleDuplicate stale_duplicate,
    /// Response for a PSN nobody waits for.
    GhostResponse ghost_response,
    /// READ response or atomic acknowledge behind a missing one.
    ResponseGap response_gap,
    /// No receive request was posted. The peer of a reliable connection is told to come again.
    NoReceive no_receive,
    /// No receive request was posted for a datagram of subnet management (QP0).
    Vl15Dropped vl15_dropped,
    /// Longer than the receive request.
    TooLong too_long,
    /// Not a legal packet of its service, part of a message that was given up (UC, UD), or an acknowledge with a payload
    /// (RC).
    Malformed malformed,
    /// Not a legal request, or not one that the QP allows (RC); it ends the connection.
    InvalidRequest invalid_request,
    /// A key of its own was refused to the peer: unknown to us, without the right, or not for this range.
    NoAccess no_access,
    /// The receive request that was posted for it cannot be executed.
    BadReceive bad_receive,
    /// The receive queue cannot be read.
    BrokenQueue broken_queue,
    /// The peer has more requests under way than any limit allows.
    ReplyOverflow reply_overflow,
}

/// A packet that changed nothing, or was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// The QP it was for; as the packet says, where there is none.
    pub qpn: Qpn,
    /// What it was.
    pub opcode: Opcode,
    /// Its number; of an answer the request's.
    pub psn: Psn,
    /// Why.
    pub reason: DropReason,
    /// Why an access was refused, where one was.
    pub cause: Option<AccessError>,
}

impl Dropped {
    pub(crate) fn new(qpn: Qpn, packet: &Packet<'_>, reason: DropReason) -> Self {
        Self { qpn, opcode: packet.bth.opcode, psn: packet.bth.psn, reason, cause: None }
    }
}
