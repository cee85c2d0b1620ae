//! What the engine reports to its owner.

use protocol::ids::{MacAddr, Qpn, Rkey};
use protocol::net::layers::Tci;
use protocol::roce::{Imm, Opcode};

use serde::{Deserialize, Serialize};

use crate::{AccessError, SendOp};

/// Which queue of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Queue {
    /// Send queue.
    Send,
    /// Receive queue.
    Recv,
}

/// Why a request failed, in the words of verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Status {
    LocalLength,
    LocalQpOperation,
    LocalProtection(AccessError),
    /// A local invalidate, a fast registration or the binding of a window was refused.
    MemoryManagement(AccessError),
    Flushed,
    BadResponse,
    RemoteInvalidRequest,
    RemoteAccess,
    RemoteOperational,
    RetryExceeded,
    RnrRetryExceeded,
    RemoteInvalidRdRequest,
}

/// A send request that succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendDone {
    /// The operation.
    pub op: SendOp,
    /// Bytes of the message.
    pub byte_len: u32,
    /// Peer QP: the connected one, or the datagram's destination.
    pub remote_qpn: Qpn,
    /// Where it went.
    pub remote_mac: MacAddr,
}

/// A receive request that succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvDone {
    /// BTH OpCode of the message's last packet.
    pub opcode: Opcode,
    /// Bytes received (for WRITE with immediate: bytes written).
    pub byte_len: u32,
    /// Immediate data.
    pub imm: Option<Imm>,
    /// QP of the sender: the connected one, or DETH's.
    pub remote_qpn: Qpn,
    /// Where it came from.
    pub remote_mac: MacAddr,
    /// Tag control information of its VLAN tag, if it had one.
    pub tag: Option<Tci>,
    /// The sender asked for a solicited event.
    pub solicited: bool,
    /// IPv4 TOS or IPv6 traffic class of the message's last packet.
    pub traffic_class: u8,
    /// A datagram with a global route header, which is in the GRH area if there is one.
    pub grh: bool,
    /// The entry of the P_Key table that the message was received for.
    pub pkey_index: u16,
    /// The key that the sender asked to invalidate, which is done.
    pub invalidated: Option<Rkey>,
}

/// Success of either queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Success {
    Send(SendDone),
    Recv(RecvDone),
}

/// One work request is done: exactly one of these per request, in queue order, unless its owner flushes
/// ([`Flush::Owner`](crate::Flush::Owner)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The QP.
    pub qpn: Qpn,
    /// Its queue.
    pub queue: Queue,
    /// As given in the request.
    pub wr_id: u64,
    /// How it ended.
    pub result: Result<Success, Status>,
}

/// Something happened to a QP that no completion tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    /// First packet accepted in RTR.
    CommunicationEstablished,
    /// The send queue is drained, and software had asked to be told.
    SqDrained,
    /// A work queue could not be read.
    WqCatastrophic,
    /// The responder refused a request as invalid.
    InvalidRequest,
    /// The responder refused a request for lack of rights.
    AccessError(AccessError),
    /// The shared receive queue of this QP could not be read. It concerns the queue, so each of its QPs may say so.
    SrqCatastrophic,
    /// The QP is in ERR, and holds no request of its shared receive queue any more: none will complete for it.
    LastWqeReached,
}

/// Output of [`Engine::poll_event`](crate::Engine::poll_event).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Event {
    Completion(Completion),
    Async { qpn: Qpn, event: AsyncEvent },
}
