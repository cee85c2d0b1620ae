//! Work requests, as defined by RDMA verbs.

use protocol::Psn;
use protocol::ids::{Lkey, Pkey, Qkey, Qpn, Rkey, Srqn, Va};
use protocol::roce::{Encap, Imm};
use smallvec::SmallVec;

use crate::LocalOp;

/// Scatter/gather element. An element of length 0 is ignored, and its key is not checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sge {
    /// Virtual address of the first byte.
    pub va: Va,
    /// L_Key of the region.
    pub lkey: Lkey,
    /// Length of the buffer in bytes.
    pub len: u32,
}

/// Scatter/gather list; short lists are stored inline.
pub type SgeList = SmallVec<[Sge; 4]>;

/// Data of a send request: the data to send or, for READs and atomics, the buffers for the result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// List of scatter/gather elements.
    Sges(SgeList),
    /// Inline data, copied from the work request.
    Inline(SmallVec<[u8; 64]>),
    /// Inline data and scatter/gather elements, in the order of the work request. Never used for READs and atomics.
    Mixed(Box<[Piece]>),
}

/// Part of a [`Payload::Mixed`] message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Data that the engine reads from memory when it sends the message.
    Sge(Sge),
    /// Inline data, copied from the work request.
    Inline(Box<[u8]>),
}

impl Piece {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Sge(sge) => sge.len as usize,
            Self::Inline(bytes) => bytes.len(),
        }
    }
}

impl Payload {
    /// Returns the message length in bytes. The sum cannot overflow, because lists are short and each length is at most
    /// 32 bits wide.
    pub fn len(&self) -> u64 {
        match self {
            Self::Sges(sges) => sges.iter().map(|sge| u64::from(sge.len)).sum(),
            Self::Inline(bytes) => bytes.len() as u64,
            Self::Mixed(pieces) => pieces.iter().map(|piece| piece.len() as u64).sum(),
        }
    }

    /// Returns whether the message is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Remote memory that an RDMA or atomic request accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Virtual address at the peer.
    pub va: Va,
    /// R_Key of the region or window.
    pub rkey: Rkey,
}

/// Operation of a send request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// SEND, with or without immediate data.
    Send {
        /// Immediate data for the peer's completion.
        imm: Option<Imm>,
    },
    /// SEND with invalidate: after the last packet, the receiver invalidates one of its keys.
    SendInvalidate {
        /// Key that the peer invalidates.
        rkey: Rkey,
    },
    /// RDMA WRITE, with or without immediate data.
    Write {
        /// Memory at the peer to write to.
        remote: Remote,
        /// Immediate data for the peer's completion.
        imm: Option<Imm>,
    },
    /// RDMA READ. The payload is the scatter list.
    Read {
        /// Source memory at the peer.
        remote: Remote,
        /// Local key to invalidate after the data has arrived.
        invalidate: Option<Lkey>,
    },
    /// Compare and swap of a 64-bit word. The payload receives the original value.
    CompareSwap {
        /// Target address and key; the address is 8-byte aligned.
        remote: Remote,
        /// Value to compare with.
        compare: u64,
        /// Value to store if the word equals `compare`.
        swap: u64,
    },
    /// Fetch and add to a 64-bit word. The payload receives the original value.
    FetchAdd {
        /// Target address and key; the address is 8-byte aligned.
        remote: Remote,
        /// Value to add to the target.
        add: u64,
    },
    /// Local operation; no packet is sent.
    Local(LocalOp),
    /// No operation; completes in queue order.
    Nop,
}

impl SendOp {
    /// Returns whether the operation sends packets. All do except NOPs and local key operations.
    pub(crate) const fn sends_packets(&self) -> bool {
        !matches!(self, Self::Nop | Self::Local(_))
    }

    /// Returns whether the message consumes a receive request. Only such messages can request a solicited event.
    pub fn consumes_receive(&self) -> bool {
        matches!(self, Self::Send { .. } | Self::SendInvalidate { .. } | Self::Write { imm: Some(_), .. })
    }
}

/// The earlier requests in the same send queue that a request waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fence {
    /// Does not wait for earlier requests.
    #[default]
    None,
    /// Waits for earlier READs and atomics (IBTA volume 1, section 10.8.3.3).
    Reads,
    /// Waits for all earlier requests.
    All,
}

impl Fence {
    /// Returns the fence for an interface that has a single fence bit.
    pub const fn reads(set: bool) -> Self {
        if set { Self::Reads } else { Self::None }
    }
}

/// Destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdDestination {
    /// Path, resolved by the front-end.
    pub path: Encap,
    /// QP number of the destination.
    pub qpn: Qpn,
    /// Q_Key from the work request. If it is a controlled Q_Key (bit 31), the QP's Q_Key is sent instead.
    pub qkey: Qkey,
    /// Header fields supplied by software; QP0 and QP1 only.
    pub header: Option<ReadyHeader>,
}

/// Header fields that software supplies for QP0 and QP1, on interfaces where management WQEs carry packet headers. With
/// such a header, the work request's Q_Key is sent unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyHeader {
    /// P_Key of the packet's BTH.
    pub pkey: Pkey,
    /// PSN of the packet's BTH.
    pub psn: Psn,
    /// Source QP number on the wire.
    pub src_qp: Qpn,
}

/// Work request for a send queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendRequest {
    /// Identifier returned in the completion. The engine does not interpret it.
    pub wr_id: u64,
    /// Operation and its operands.
    pub op: SendOp,
    /// Gather list or inline data; for READs and atomics, the scatter list.
    pub payload: Payload,
    /// Earlier requests that this request waits for.
    pub fence: Fence,
    /// Whether to request a solicited event at the receiver.
    pub solicited: bool,
    /// Destination; datagram services only.
    pub ud: Option<UdDestination>,
    /// SRQ at the target (XRC only). Required for every operation that sends packets.
    pub remote_srq: Option<Srqn>,
}

impl SendRequest {
    /// Returns a placeholder for a request that failed validation.
    pub(crate) fn refused(wr_id: u64) -> Self {
        let payload = Payload::Sges(SgeList::new());
        Self {
            wr_id,
            op: SendOp::Nop,
            payload,
            fence: Fence::None,
            solicited: false,
            ud: None,
            remote_srq: None,
        }
    }
}

/// Work request for a receive queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecvRequest {
    /// Identifier returned in the completion. The engine does not interpret it.
    pub wr_id: u64,
    /// Buffers that receive the message.
    pub sges: SgeList,
}
