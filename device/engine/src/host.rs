//! Interface from the engine to the work queues and memory of its owner.

use std::fmt;

use protocol::ids::{Lkey, MacAddr, Pdn, Qpn, Rkey, Va};
use protocol::net::layers::Tci;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::{Dropped, LocalToken, RecvRequest, SendRequest, Status};

/// Result of fetching the next request from a work queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fetch<T> {
    /// The next request, now removed from the queue.
    Ready(T),
    /// The queue is empty.
    Empty,
    /// The next request cannot be executed (malformed, unsupported operation, too long). It is removed from the
    /// queue; the engine completes it with `status` and handles the error like any other.
    Refused {
        /// Identifier of the request.
        wr_id: u64,
        /// Status to complete it with.
        status: Status,
    },
    /// The queue cannot be read. No completion is possible; the QP moves to ERR with
    /// [`AsyncEvent::WqCatastrophic`](crate::AsyncEvent::WqCatastrophic), or
    /// [`AsyncEvent::SrqCatastrophic`](crate::AsyncEvent::SrqCatastrophic) for a shared queue.
    Broken,
}

/// Identity that a memory access is checked against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Initiator {
    /// Protection domain of the QP.
    pub pd: Pdn,
    /// The QP; windows of type 2B are bound to one QP.
    pub qpn: Qpn,
    /// Whether key 0 (the reserved L_Key) gives access to bus addresses. Applies to the QP's own work requests only,
    /// never to requests of the peer.
    pub reserved_lkey: bool,
}

/// Kind of a memory access, and the permission it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Gather; always permitted.
    LocalRead,
    /// Scatter.
    LocalWrite,
    /// RDMA READ by the peer.
    RemoteRead,
    /// RDMA WRITE by the peer.
    RemoteWrite,
    /// Atomic operation by the peer.
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
    /// Returns whether the access belongs to a work request of the QP itself.
    pub const fn is_local(self) -> bool {
        matches!(self, Self::LocalRead | Self::LocalWrite)
    }
}

/// Why a memory access or a key operation was denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AccessError {
    /// No region or window has this key.
    Key,
    /// The key is allocated but not valid.
    Invalid,
    /// The operation does not apply to this kind of key, such as a window in a local work request, or invalidation of
    /// a region that only a command can invalidate.
    Kind,
    /// The region or window belongs to another protection domain.
    Pd,
    /// The window belongs to another QP.
    Qp,
    /// The permission is not granted.
    Right,
    /// The range exceeds the region.
    Bounds,
    /// A page of the region is not backed by memory the device can access.
    Unmapped,
    /// The key is still valid and must be invalidated first.
    Valid,
    /// Memory windows are bound to the region.
    Bound,
}

impl AccessError {
    /// Returns a short name that never changes.
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
            Self::Right => "the key does not grant the required access",
            Self::Bounds => "the range is not inside the region",
            Self::Unmapped => "the region's memory is not mapped for the device",
            Self::Valid => "the key is still valid and must be invalidated first",
            Self::Bound => "memory windows are still bound to the region",
        })
    }
}

/// Atomic operation on a 64-bit word in guest byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Stores `swap` if the word equals `compare`.
    CompareSwap {
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Adds `add`, modulo 2^64.
    FetchAdd {
        /// Addend.
        add: u64,
    },
}

/// Addresses of a multicast datagram, for finding the attached QPs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupDatagram {
    /// MGID of the group: an IPv6 address, or an IPv4-mapped one.
    pub gid: [u8; 16],
    /// Destination MAC address.
    pub dst_mac: MacAddr,
    /// VLAN tag, if present.
    pub tag: Option<Tci>,
    /// Source MAC address; our own for a copy looped back inside the port.
    pub src_mac: MacAddr,
    /// QP number of the sender.
    pub src_qp: Qpn,
}

/// Work queues and memory, provided by the owner of the engine.
///
/// Ranges passed to `read`, `write` and `atomic` can cross pages; the implementation splits them. Length 0 is never
/// passed. Each call checks key, PD, permission and bounds again, because a key can be invalidated between two calls.
pub trait Host {
    /// Fetches the next request of the send queue of `qpn`.
    fn next_send(&mut self, qpn: Qpn) -> Fetch<SendRequest>;

    /// Fetches the next request of the receive queue of `qpn`, or of its SRQ. The request then belongs to the QP.
    fn next_recv(&mut self, qpn: Qpn) -> Fetch<RecvRequest>;

    /// Like [`Host::next_recv`], for a request that completes as flushed. Its scatter list is not used.
    fn next_flushed_recv(&mut self, qpn: Qpn) -> Fetch<RecvRequest> {
        self.next_recv(qpn)
    }

    /// Returns the number of receive requests posted to `qpn` and not fetched, if counting them is cheap. An RC
    /// responder advertises them as end-to-end credits. Returns `None` if posting only writes guest memory; the
    /// requester is then not limited.
    fn posted_receives(&self, qpn: Qpn) -> Option<u32> {
        let _ = qpn;
        None
    }

    /// Returns the QPs attached to the multicast group of a datagram. Only the first 64 receive a copy.
    fn group_members(&self, datagram: &GroupDatagram) -> SmallVec<[Qpn; 8]> {
        let _ = datagram;
        SmallVec::new()
    }

    /// Checks whether `access` to the whole range is permitted.
    ///
    /// # Errors
    /// The first violation found, in the order key, PD, permission, bounds.
    fn check(
        &self,
        initiator: Initiator,
        key: Lkey,
        va: Va,
        len: u64,
        access: Access,
    ) -> Result<(), AccessError>;

    /// Appends `len` bytes of a region to `out`.
    ///
    /// # Errors
    /// Those of `check`, or [`AccessError::Unmapped`]. Part of the range may have been appended.
    fn read(
        &self,
        initiator: Initiator,
        key: Lkey,
        va: Va,
        len: usize,
        out: &mut Vec<u8>,
        access: Access,
    ) -> Result<(), AccessError>;

    /// Copies `data` into a region.
    ///
    /// # Errors
    /// Those of `read`. Nothing is written outside the permitted range.
    fn write(
        &mut self,
        initiator: Initiator,
        key: Lkey,
        va: Va,
        data: &[u8],
        access: Access,
    ) -> Result<(), AccessError>;

    /// Executes `op` on the aligned 64-bit word at `va` and returns the original value. The word is in guest byte
    /// order; the values are plain integers.
    ///
    /// # Errors
    /// Those of `read`.
    fn atomic(&mut self, initiator: Initiator, key: Lkey, va: Va, op: AtomicOp) -> Result<u64, AccessError>;

    /// Executes a local operation. It affects every later access.
    ///
    /// # Errors
    /// Nothing has changed.
    fn run_local(&mut self, initiator: Initiator, token: &LocalToken) -> Result<(), AccessError> {
        let _ = (initiator, token);
        Err(AccessError::Kind)
    }

    /// Invalidates the local key of a READ with invalidate, after its data has arrived.
    ///
    /// # Errors
    /// The key stays as it was.
    fn invalidate(&mut self, initiator: Initiator, key: Lkey) -> Result<(), AccessError> {
        let _ = (initiator, key);
        Err(AccessError::Kind)
    }

    /// Invalidates the key named by a SEND with invalidate, on behalf of the QP that received it. No later access
    /// through the key succeeds.
    ///
    /// # Errors
    /// The key must not be invalidated by peers. It is unchanged.
    fn remote_invalidate(&mut self, initiator: Initiator, key: Rkey) -> Result<(), AccessError> {
        let _ = (initiator, key);
        Err(AccessError::Kind)
    }

    /// Called for each packet that was dropped or rejected. The engine has counted it.
    fn dropped(&mut self, dropped: &Dropped) {
        let _ = dropped;
    }
}
