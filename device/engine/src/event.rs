//! Completions and asynchronous events reported to the engine's owner.

use protocol::ids::{MacAddr, Qpn, Rkey, Srqn};
use protocol::net::layers::Tci;
use protocol::roce::{Imm, Opcode};

use serde::{Deserialize, Serialize};

use crate::{AccessError, SendOp};

/// A work queue of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Queue {
    /// The send queue of a QP.
    Send,
    /// The receive queue of a QP, or its SRQ.
    Recv,
}

/// Completion status of a failed request, as defined by RDMA verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Status {
    LocalLength,
    LocalQpOperation,
    LocalProtection(AccessError),
    /// A local invalidation, fast registration or window bind failed.
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

/// Completion of a successful send request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendDone {
    /// Operation of the request.
    pub op: SendOp,
    /// Message length in bytes.
    pub byte_len: u32,
    /// QP number of the connected peer or of the datagram's destination.
    pub remote_qpn: Qpn,
    /// Destination MAC address of the packets that carried the message.
    pub remote_mac: MacAddr,
}

/// Completion of a successful receive request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvDone {
    /// BTH opcode of the message's last packet.
    pub opcode: Opcode,
    /// Bytes received, or bytes written by a WRITE with immediate.
    pub byte_len: u32,
    /// Immediate data, if the packet carried any.
    pub imm: Option<Imm>,
    /// QP number of the sender: the connected peer's, or the one in the DETH.
    pub remote_qpn: Qpn,
    /// Source MAC address of the received packet.
    pub remote_mac: MacAddr,
    /// Tag control information of the VLAN tag, if present.
    pub tag: Option<Tci>,
    /// Whether the message requested a solicited event.
    pub solicited: bool,
    /// IPv4 TOS or IPv6 traffic class of the message's last packet.
    pub traffic_class: u8,
    /// Whether the datagram had a GRH. If the QP has a GRH area, the GRH is stored in that area.
    pub grh: bool,
    /// Index of the P_Key table entry that matched.
    pub pkey_index: u16,
    /// Key invalidated by a SEND with invalidate.
    pub invalidated: Option<Rkey>,
}

/// Result of a successful send or receive request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Success {
    Send(SendDone),
    Recv(RecvDone),
}

/// Completion of one work request. Each request completes exactly once, in queue order, unless its QP is reset or
/// destroyed. With [`Flush::Owner`](crate::Flush::Owner), the owner completes flushed requests itself, and the engine
/// does not report them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// QP that the request was posted to.
    pub qpn: Qpn,
    /// Queue that the request came from.
    pub queue: Queue,
    /// SRQ that the receive request came from (XRC).
    pub srqn: Option<Srqn>,
    /// Identifier given in the request.
    pub wr_id: u64,
    /// Result of the request.
    pub result: Result<Success, Status>,
}

/// An asynchronous event on a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    /// The first packet was accepted in RTR.
    CommunicationEstablished,
    /// The send queue is drained. Raised only if software requested this event.
    SqDrained,
    /// A work queue could not be read.
    WqCatastrophic,
    /// The responder rejected an invalid request.
    InvalidRequest,
    /// The responder rejected a request whose memory access was denied.
    AccessError(AccessError),
    /// The QP's SRQ could not be read. The event concerns the SRQ, but each QP that uses the SRQ may report it.
    SrqCatastrophic,
    /// The QP is in ERR and no longer holds any request from its SRQ or from an XRC SRQ. No more of their requests will
    /// complete on this QP.
    LastWqeReached,
    /// XRC target: a request specified an SRQ that does not exist or is not an XRC SRQ.
    InvalidXrceth(Srqn),
    /// XRC target: a request specified an SRQ in another XRC domain.
    XrcDomainViolation(Srqn),
    /// XRC target: the SRQ specified by a message could not be read. As with `SrqCatastrophic`, several QPs may report
    /// the event.
    XrcSrqCatastrophic(Srqn),
}

/// Completions and asynchronous events, returned by [`Engine::poll_event`](crate::Engine::poll_event).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Event {
    Completion(Completion),
    Async { qpn: Qpn, event: AsyncEvent },
}

const _: () = assert!(size_of::<Event>() <= 88, "the table in `limits` gives the size of an event");
