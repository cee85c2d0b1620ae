//! What the engine borrows from its owner: work queues and memory.

use std::fmt;

use protocol::ids::{Lkey, MacAddr, Pdn, Qpn, Rkey, Va};
use protocol::net::layers::Tci;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::{Dropped, LocalOp, RecvRequest, SendRequest, Status};

/// Result of asking a work queue for its next request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fetch<T> {
    /// The next request; the queue has moved on.
    Ready(T),
    /// Nothing posted.
    Empty,
    /// A request was posted but cannot be executed (malformed, unsupported operation, too long). The queue has
    /// moved on; the engine completes it with `status` and moves the QP as for any such error.
    Refused {
        /// Of the request.
        wr_id: u64,
        /// Completion status.
        status: Status,
    },
    /// The queue itself cannot be read. No completion is possible; the QP goes to ERR with
    /// [`AsyncEvent::WqCatastrophic`](crate::AsyncEvent::WqCatastrophic), or, where the queue is shared,
    /// [`AsyncEvent::SrqCatastrophic`](crate::AsyncEvent::SrqCatastrophic).
    Broken,
}

/// In whose name memory is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accessor {
    /// Protection domain.
    pub pd: Pdn,
    /// The QP, which windows of type 2B belong to.
    pub qpn: Qpn,
    /// Key 0 stands for bus addresses in its own work requests (the reserved L_Key), never in those of its peer.
    pub reserved_lkey: bool,
}

/// The right an access needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Gather: always allowed.
    LocalRead,
    /// Scatter.
    LocalWrite,
    /// RDMA READ by a peer.
    RemoteRead,
    /// RDMA WRITE by a peer.
    RemoteWrite,
    /// Atomic by a peer.
    RemoteAtomic,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::LocalRead => "local read",
            Self::LocalWrite => "local write",
            Self::RemoteRead => "remote read",
            Self::RemoteWrite => "remote write",
            Self::RemoteAtomic => "remote atomic",
        })
    }
}

impl Access {
    /// Whether the QP's own work request asks for it.
    pub const fn is_local(self) -> bool {
        matches!(self, Self::LocalRead | Self::LocalWrite)
    }
}

/// Why an access, or work on a key, was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AccessError {
    /// No region and no window has this key.
    Key,
    /// The key is allocated, and not valid now.
    Invalid,
    /// It is of a kind that this is not for: a window in an own work request, a region that only a command ends.
    Kind,
    /// The region or window belongs to another protection domain.
    Pd,
    /// The window belongs to another QP.
    Qp,
    /// The right is not granted.
    Right,
    /// The range is not inside the region.
    Bounds,
    /// The region's page is not backed by memory the device can reach.
    Unmapped,
    /// The key is valid, and has to be invalidated first.
    Valid,
    /// Windows are bound to the region.
    Bound,
}

impl AccessError {
    /// Short stable name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::Invalid => "invalid",
            Self::Kind => "kind",
            Self::Pd => "pd",
            Self::Qp => "qp",
            Self::Right => "right",
            Self::Bounds => "bounds",
            Self::Unmapped => "unmapped",
            Self::Valid => "valid",
            Self::Bound => "bound",
        }
    }
}

/// The cause, for the end of a sentence.
impl fmt::Display for AccessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Key => "no region or window has the key",
            Self::Invalid => "the key is allocated but not valid",
            Self::Kind => "the key has the wrong type for this operation",
            Self::Pd => "the key belongs to another protection domain",
            Self::Qp => "the window belongs to another QP",
            Self::Right => "the key does not grant the right",
            Self::Bounds => "the range is not inside the region",
            Self::Unmapped => "the region's memory is not mapped for the device",
            Self::Valid => "the key is still valid and must be invalidated first",
            Self::Bound => "memory windows are still bound to the region",
        })
    }
}

/// A read-modify-write of one big-endian-independent 64-bit word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Store `swap` if the word equals `compare`.
    CompareSwap {
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Add, modulo 2^64.
    FetchAdd {
        /// Addend.
        add: u64,
    },
}

/// What a datagram to a multicast group says of where it goes and where it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupDatagram {
    /// The group: an IPv6 address, or a mapped IPv4 address.
    pub gid: [u8; 16],
    /// MAC that it came to.
    pub dst_mac: MacAddr,
    /// The tag it came with.
    pub tag: Option<Tci>,
    /// MAC of the sender's port. Our own of a copy that never left.
    pub src_mac: MacAddr,
    /// The sender.
    pub src_qp: Qpn,
}

/// Work queues and memory of the engine's owner.
///
/// A range passed to `read`, `write` or `atomic` may cross pages; the implementation splits it. Length 0 is never
/// passed. Each call checks key, PD, right and bounds on its own: regions can vanish between two calls.
pub trait Host {
    /// Takes the next request of `qpn`'s send queue.
    fn next_send(&mut self, qpn: Qpn) -> Fetch<SendRequest>;

    /// Takes the next request of `qpn`'s receive queue, or of the one it shares. From then on the request is the QP's.
    fn next_recv(&mut self, qpn: Qpn) -> Fetch<RecvRequest>;

    /// As [`Host::next_recv`], for a request that completes as flushed: its list is not used.
    fn next_flushed_recv(&mut self, qpn: Qpn) -> Fetch<RecvRequest> {
        self.next_recv(qpn)
    }

    /// Receive requests of `qpn` that are posted and not taken, if counting them costs next to nothing. They are told to
    /// the peer of a reliable connection, who then need not try in vain. `None`, where posting leaves no trace but in
    /// guest memory: the peer is told that it is not limited.
    fn posted_receives(&self, qpn: Qpn) -> Option<u32> {
        let _ = qpn;
        None
    }

    /// QPs that are attached to the group a datagram goes to, and get it. Only the first 64 are served.
    fn group_members(&self, datagram: &GroupDatagram) -> SmallVec<[Qpn; 8]> {
        let _ = datagram;
        SmallVec::new()
    }

    /// Whether `access` to the whole range would be granted.
    ///
    /// # Errors
    /// The first reason found, in the order key, PD, right, bounds.
    fn check(&self, who: Accessor, key: Lkey, va: Va, len: u64, access: Access) -> Result<(), AccessError>;

    /// Appends a range of a region, `len` bytes, to `out`.
    ///
    /// # Errors
    /// As `check`, or [`AccessError::Unmapped`]; some of the range may then have been appended.
    fn read(
        &self,
        who: Accessor,
        key: Lkey,
        va: Va,
        len: usize,
        out: &mut Vec<u8>,
        access: Access,
    ) -> Result<(), AccessError>;

    /// Copies `data` into a region.
    ///
    /// # Errors
    /// As `read`; nothing is written outside the granted range.
    fn write(
        &mut self,
        who: Accessor,
        key: Lkey,
        va: Va,
        data: &[u8],
        access: Access,
    ) -> Result<(), AccessError>;

    /// Executes `op` on the aligned 64-bit word at `va` and returns the original value. The word is in the guest's
    /// byte order; values are plain integers.
    ///
    /// # Errors
    /// As `read`.
    fn atomic(&mut self, who: Accessor, key: Lkey, va: Va, op: AtomicOp) -> Result<u64, AccessError>;

    /// Executes work on a key. From then on every access is judged by it.
    ///
    /// # Errors
    /// The key stays as it was.
    fn run_local(&mut self, who: Accessor, op: &LocalOp) -> Result<(), AccessError> {
        let _ = (who, op);
        Err(AccessError::Kind)
    }

    /// Invalidates the key that a SEND with invalidate names, in the name of the QP that received it. No byte is read or
    /// written through it from then on.
    ///
    /// # Errors
    /// The key stays as it was: it is not one that peers may invalidate.
    fn remote_invalidate(&mut self, who: Accessor, key: Rkey) -> Result<(), AccessError> {
        let _ = (who, key);
        Err(AccessError::Kind)
    }

    /// A packet changed nothing, or was refused. It is counted already.
    fn dropped(&mut self, dropped: &Dropped) {
        let _ = dropped;
    }
}
