//! Reasons for dropping or rejecting packets. One table defines the variants, their names and their counters.

use protocol::Psn;
use protocol::ids::Qpn;
use protocol::roce::Opcode;
use serde::{Deserialize, Serialize};

use crate::{AccessError, ReceivedPacket};

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $reason:ident $counter:ident,)+) => {
        /// Reason for dropping or rejecting a packet.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum DropReason {
            $($(#[doc = $doc])+ $reason,)+
        }

        impl DropReason {
            /// All reasons, in declaration order.
            pub const ALL: &[Self] = &[$(Self::$reason,)+];

            /// Returns the reason's name, which is stable and also the name of its counter.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$reason => stringify!($counter),)+
                }
            }
        }

        /// Packets dropped or rejected, by reason.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[non_exhaustive]
        pub struct Drops {
            $($(#[doc = $doc])+ pub $counter: u64,)+
        }

        impl Drops {
            /// Returns the counter for one reason.
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
    /// No QP has the destination number.
    UnknownQp unknown_qp,
    /// No QP is attached to the multicast group.
    UnknownGroup unknown_group,
    /// The opcode does not belong to the QP's service. On XRC, this includes opcodes of the other role: a request sent
    /// to an initiator, or a response sent to a target.
    WrongService wrong_service,
    /// The QP does not accept packets in its current state.
    WrongState wrong_state,
    /// The P_Key does not match.
    WrongPkey wrong_pkey,
    /// The packet's source address is not that of the connected peer, or a datagram for QP0 was not sent by QP0.
    WrongSource wrong_source,
    /// The packet's destination address is not that of the connected QP.
    WrongDestination wrong_destination,
    /// The datagram's Q_Key does not match.
    WrongQkey wrong_qkey,
    /// RC and XRC: the request's PSN is ahead of the expected PSN. UC: the packet neither begins a message nor
    /// continues the message in progress.
    OutOfSequence out_of_sequence,
    /// The request's PSN is behind the expected PSN, but the request was never executed, or its result is no longer
    /// stored.
    StaleDuplicate stale_duplicate,
    /// No outstanding request expects a response with the packet's PSN.
    GhostResponse ghost_response,
    /// An earlier READ response or atomic acknowledge is missing.
    ResponseGap response_gap,
    /// No receive request is posted. On RC and XRC, the peer receives an RNR NAK and retries.
    NoReceive no_receive,
    /// No receive request is posted for a subnet management datagram (QP0).
    Vl15Dropped vl15_dropped,
    /// The message is longer than the receive request.
    TooLong too_long,
    /// The packet has an invalid opcode, opcode sequence or length (UC, UD), or is an acknowledgement with a payload
    /// (RC, XRC).
    Malformed malformed,
    /// The request is invalid, is not allowed by the QP, or specifies an SRQ that it must not use. On RC and XRC, the
    /// QP moves to ERR.
    InvalidRequest invalid_request,
    /// The R_Key does not permit the access: the key is unknown, lacks the permission or does not cover the range.
    NoAccess no_access,
    /// The posted receive request cannot be executed.
    BadReceive bad_receive,
    /// The receive queue cannot be read.
    BrokenQueue broken_queue,
    /// The queue of pending replies is full. The request is dropped as if it had been lost on the wire.
    ReplyOverflow reply_overflow,
}

/// A packet that was dropped or rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// QPN of the destination QP, or the number in the packet if no such QP exists.
    pub qpn: Qpn,
    /// BTH opcode of the dropped packet.
    pub opcode: Opcode,
    /// PSN of the packet. For a response that could not be sent, this is the PSN of the request.
    pub psn: Psn,
    /// Reason for dropping or rejecting the packet.
    pub reason: DropReason,
    /// The denied memory access, if one caused the drop.
    pub cause: Option<AccessError>,
}

impl Dropped {
    pub(crate) fn new(qpn: Qpn, packet: &ReceivedPacket<'_>, reason: DropReason) -> Self {
        Self { qpn, opcode: packet.bth.opcode, psn: packet.bth.psn, reason, cause: None }
    }
}
