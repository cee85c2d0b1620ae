//! Work requests, as verbs know them.

use protocol::Psn;
use protocol::ids::{Lkey, Pkey, Qkey, Qpn, Rkey, Va};
use protocol::roce::{Encap, Imm};
use smallvec::SmallVec;

use crate::LocalOp;

/// One element of a gather or scatter list. `len` 0 contributes nothing and is not checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sge {
    /// First address inside the region.
    pub va: Va,
    /// Key of the region.
    pub lkey: Lkey,
    /// Bytes.
    pub len: u32,
}

/// A gather or scatter list; short ones live inside the request.
pub type SgeList = SmallVec<[Sge; 4]>;

/// Where a send request's bytes come from, or a READ's go to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Regions of the QP's protection domain.
    Sges(SgeList),
    /// Bytes copied out of the work request itself.
    Inline(SmallVec<[u8; 64]>),
}

impl Payload {
    /// Bytes of the whole message. Lists are short and lengths 31 bits, so the sum cannot wrap.
    pub fn len(&self) -> u64 {
        match self {
            Self::Sges(sges) => sges.iter().map(|sge| u64::from(sge.len)).sum(),
            Self::Inline(bytes) => bytes.len() as u64,
        }
    }

    /// Whether the message has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Target of an RDMA or atomic request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// First address inside the peer's region.
    pub va: Va,
    /// Its key.
    pub rkey: Rkey,
}

/// What a send request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// SEND, with or without immediate data.
    Send {
        /// Immediate data.
        imm: Option<Imm>,
    },
    /// SEND that invalidates a key of the receiver's once all of it is there.
    SendInvalidate {
        /// The key.
        rkey: Rkey,
    },
    /// RDMA WRITE, with or without immediate data.
    Write {
        /// Target.
        remote: Remote,
        /// Immediate data.
        imm: Option<Imm>,
    },
    /// RDMA READ; the payload list is the scatter list.
    Read {
        /// Source at the peer.
        remote: Remote,
        /// Own key that is invalidated once the data is there.
        invalidate: Option<Lkey>,
    },
    /// Compare and swap of a 64-bit word; the payload list takes the original value.
    CompareSwap {
        /// Target, 8-byte aligned.
        remote: Remote,
        /// Value that must be there.
        compare: u64,
        /// Value to store then.
        swap: u64,
    },
    /// Add to a 64-bit word; the payload list takes the original value.
    FetchAdd {
        /// Target, 8-byte aligned.
        remote: Remote,
        /// Value to add.
        add: u64,
    },
    /// Work on keys, without a message.
    Local(LocalOp),
    /// Nothing: completes in its turn.
    Nop,
}

impl SendOp {
    /// Whether the message takes a receive request at its end, so that a solicited event makes sense.
    pub(crate) fn consumes_receive(&self) -> bool {
        matches!(self, Self::Send { .. } | Self::SendInvalidate { .. } | Self::Write { imm: Some(_), .. })
    }
}

/// Which older requests of its queue a request waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fence {
    /// None.
    #[default]
    None,
    /// READs and atomics (IBTA volume 1, section 10.8.3.3: fence).
    Reads,
    /// All.
    All,
}

impl Fence {
    /// The fence of interfaces that know one kind.
    pub const fn reads(set: bool) -> Self {
        if set { Self::Reads } else { Self::None }
    }
}

/// Destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdDestination {
    /// Addresses, resolved by the front-end.
    pub path: Encap,
    /// QP at the destination.
    pub qpn: Qpn,
    /// Key to send with, before the rule for controlled keys (bit 31) is applied.
    pub qkey: Qkey,
    /// What software of QP0 and QP1 says itself; not for others.
    pub header: Option<ReadyHeader>,
}

/// Header fields that software of QP0 and QP1 makes where the interface has it bring the headers of its packets. The
/// queue key is then sent as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyHeader {
    /// Partition.
    pub pkey: Pkey,
    /// Packet sequence number.
    pub psn: Psn,
    /// Source QP, as others know it.
    pub src_qp: Qpn,
}

/// A request of a send queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendRequest {
    /// Returned in the completion; the front-end's business.
    pub wr_id: u64,
    /// Operation.
    pub op: SendOp,
    /// Gather list, scatter list (READ, atomics) or inline bytes.
    pub payload: Payload,
    /// Which older requests must be done before it begins.
    pub fence: Fence,
    /// Ask for a solicited event at the receiver.
    pub solicited: bool,
    /// Destination, for UD only.
    pub ud: Option<UdDestination>,
}

impl SendRequest {
    /// Place holder for a request that could not be read.
    pub(crate) fn refused(wr_id: u64) -> Self {
        let payload = Payload::Sges(SgeList::new());
        Self { wr_id, op: SendOp::Nop, payload, fence: Fence::None, solicited: false, ud: None }
    }
}

/// A request of a receive queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecvRequest {
    /// Returned in the completion; the front-end's business.
    pub wr_id: u64,
    /// Scatter list.
    pub sges: SgeList,
}
