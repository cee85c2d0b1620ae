//! The engine's interface to its owner's work queues and memory.

use std::fmt;

use protocol::ids::{Lkey, MacAddr, Pdn, Qpn, Rkey, Srqn, Va};
use protocol::net::layers::Tci;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::{Dropped, Instant, LocalToken, PayloadRef, ReceivedNak, RecvRequest, Retry, SendRequest, Status};

/// Result of fetching the next request from a work queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fetch<T> {
    /// The next request, now removed from the queue.
    Ready(T),
    /// The queue is empty.
    Empty,
    /// The next request cannot be executed (malformed, unsupported operation, too long). It has been removed from the
    /// queue. The engine completes it with `status` and handles the error like any other.
    Refused {
        /// Identifier of the request.
        wr_id: u64,
        /// Completion status of the request.
        status: Status,
    },
    /// The queue cannot be read. No completion is possible; the QP moves to ERR with
    /// [`AsyncEvent::WqCatastrophic`](crate::AsyncEvent::WqCatastrophic), or
    /// [`AsyncEvent::SrqCatastrophic`](crate::AsyncEvent::SrqCatastrophic) for a shared queue.
    Broken,
}

/// Source of the receive request for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecvSource {
    /// The QP's receive queue, or the SRQ that the QP was created with.
    Qp(Qpn),
    /// The XRC SRQ specified by the message and accepted by [`Host::xrc_srq`].
    XrcSrq {
        /// XRC target that received the message. The fetched request belongs to it.
        qpn: Qpn,
        /// SRQ number from the message's XRCETH.
        srqn: Srqn,
    },
}

impl RecvSource {
    /// Returns the XRC SRQ, if the message specifies one.
    pub const fn srqn(self) -> Option<Srqn> {
        match self {
            Self::Qp(_) => None,
            Self::XrcSrq { srqn, .. } => Some(srqn),
        }
    }
}

/// Reason why an XRC request may not use the SRQ that it specifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XrcError {
    /// No SRQ has the number, or the SRQ is not an XRC SRQ.
    InvalidXrceth,
    /// The SRQ and the target belong to different XRC domains.
    DomainViolation,
}

/// Identity that memory accesses are checked against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Initiator {
    /// Protection domain that the key must belong to. This is the QP's protection domain or, if an XRC target executes
    /// the request, that of the SRQ specified by the request.
    pub pd: Pdn,
    /// QP on whose behalf memory is accessed. A type 2B window can only be used by the QP that it is bound to.
    pub qpn: Qpn,
    /// Whether key 0 (the reserved L_Key) can be used to access memory by bus address. Applies only to the QP's own
    /// work requests, never to requests from the peer.
    pub reserved_lkey: bool,
}

/// Type of a memory access, which determines the required permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Gather by a local request, which is always permitted.
    LocalRead,
    /// Scatter by a local request.
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
    /// Returns whether the access is made by one of the QP's own work requests.
    pub const fn is_local(self) -> bool {
        matches!(self, Self::LocalRead | Self::LocalWrite)
    }
}

/// Reason for denying a memory access or a key operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AccessError {
    /// No region or window has this key.
    Key,
    /// The key is allocated but not valid.
    Invalid,
    /// The operation does not apply to this type of key. For example, a local work request refers to a window, or an
    /// invalidation refers to a region that only a command can invalidate.
    Kind,
    /// The region or window belongs to another protection domain.
    Pd,
    /// The window belongs to another QP.
    Qp,
    /// The key does not grant the permission that the access requires.
    Right,
    /// The range exceeds the region.
    Bounds,
    /// A page of the region is not backed by memory that the device can access.
    Unmapped,
    /// The key is still valid and must be invalidated first.
    Valid,
    /// Memory windows are bound to the region.
    Bound,
    /// The key refers to other keys through too many nested lists, or the access spans too many list entries.
    Indirection,
}

impl AccessError {
    /// Returns a short, stable name for the error.
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
            Self::Indirection => "indirection",
        }
    }
}

/// Formats the error as a clause that can end a sentence.
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
            Self::Indirection => "the key's lists of keys are nested too deeply or are too long",
        })
    }
}

/// Atomic operation on a 64-bit word in guest byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Stores `swap` in the word if the word equals `compare`.
    CompareSwap {
        /// Value that the word is compared with.
        compare: u64,
        /// Value that replaces the word if the comparison succeeds.
        swap: u64,
    },
    /// Adds `add` to the word, modulo 2^64.
    FetchAdd {
        /// Value that is added to the word.
        add: u64,
    },
}

/// Addresses of a multicast datagram, used to find the attached QPs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupDatagram {
    /// MGID of the group: an IPv6 or IPv4-mapped address.
    pub gid: [u8; 16],
    /// Destination MAC address of the packet.
    pub dst_mac: MacAddr,
    /// VLAN tag, if present.
    pub tag: Option<Tci>,
    /// Source MAC address of the packet. For a copy looped back inside the port, this is the port's own address.
    pub src_mac: MacAddr,
    /// QP number of the sender.
    pub src_qp: Qpn,
}

/// A request executed by a responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerRequest {
    /// An RDMA WRITE, reported after its last packet.
    Write,
    /// An RDMA READ, reported before its first response.
    Read,
    /// A compare and swap or a fetch and add, reported after it has modified memory.
    Atomic,
    /// A packet of a request that had already been executed. The acknowledgement or response was sent again.
    Duplicate,
}

/// Work queues and memory, provided by the engine's owner.
///
/// Ranges passed to `read`, `write` and `atomic` can cross pages; the implementation splits them. Lengths are never 0.
/// Each call checks key, PD, permission and bounds again, because a key can be invalidated between two calls.
pub trait Host {
    /// Reference to part of a region that the device may read; see [`Host::locate`].
    type Range;

    /// Fetches the next request from the send queue of `qpn`.
    fn next_send(&mut self, qpn: Qpn) -> Fetch<SendRequest>;

    /// Fetches the next request from a receive queue or an SRQ. The request then belongs to the QP.
    fn next_recv(&mut self, source: RecvSource) -> Fetch<RecvRequest>;

    /// Fetches the next receive request of a QP without an SRQ, in order to flush it. The engine ignores its scatter
    /// list.
    fn next_flushed_recv(&mut self, qpn: Qpn) -> Fetch<RecvRequest> {
        self.next_recv(RecvSource::Qp(qpn))
    }

    /// Returns the time at which [`Host::next_recv`] can return the next receive request of `qpn`, if software is still
    /// posting it. An RNR NAK then asks the peer to wait until that time.
    fn next_recv_due(&self, qpn: Qpn) -> Option<Instant> {
        let _ = qpn;
        None
    }

    /// Checks whether requests to the XRC target `qpn` may use the SRQ `srqn`, and returns the protection domain that
    /// their memory accesses are checked against. Called for each request packet, since an SRQ can be destroyed between
    /// two packets.
    ///
    /// # Errors
    /// Fails if the SRQ does not exist, is not an XRC SRQ, or is not in the target's XRC domain.
    fn xrc_srq(&self, qpn: Qpn, srqn: Srqn) -> Result<Pdn, XrcError> {
        let _ = (qpn, srqn);
        Err(XrcError::InvalidXrceth)
    }

    /// Returns the number of receive requests posted to `qpn` but not yet fetched. An RC responder advertises them as
    /// end-to-end credits. Returns `None` if counting would be expensive, for example because software posts
    /// requests in guest memory without a doorbell. Credits then do not limit the requester.
    fn posted_receives(&self, qpn: Qpn) -> Option<u32> {
        let _ = qpn;
        None
    }

    /// Returns the QPs attached to a datagram's multicast group. Only the first 64 receive a copy.
    fn group_members(&self, datagram: &GroupDatagram) -> SmallVec<[Qpn; 8]> {
        let _ = datagram;
        SmallVec::new()
    }

    /// Checks whether `access` to the whole range is permitted.
    ///
    /// # Errors
    /// Reports the first violation found, in the order key, PD, permission, bounds.
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
    /// Returns the same errors as `check`, or [`AccessError::Unmapped`]. On error, part of the range may have been
    /// appended.
    fn read(
        &self,
        initiator: Initiator,
        key: Lkey,
        va: Va,
        len: usize,
        out: &mut Vec<u8>,
        access: Access,
    ) -> Result<(), AccessError>;

    /// Appends ranges that refer to `len` bytes of a region to `ranges`; see
    /// [`DetachedPayload`](crate::DetachedPayload). Returns false if this is not possible. The engine then removes the
    /// ranges that have been appended, and copies the payload with `read`.
    ///
    /// # Errors
    /// Returns the same errors as `read`. On error, ranges may have been appended.
    fn locate(
        &self,
        initiator: Initiator,
        key: Lkey,
        va: Va,
        len: usize,
        ranges: &mut Vec<Self::Range>,
        access: Access,
    ) -> Result<bool, AccessError> {
        let _ = (initiator, key, va, len, ranges, access);
        Ok(false)
    }

    /// Copies `data` into a region.
    ///
    /// # Errors
    /// Returns the same errors as `read`. Even on error, nothing outside the permitted range is written.
    fn write(
        &mut self,
        initiator: Initiator,
        key: Lkey,
        va: Va,
        data: PayloadRef<'_>,
        access: Access,
    ) -> Result<(), AccessError>;

    /// Executes `op` on the aligned 64-bit word at `va` and returns the original value. The word has guest byte order
    /// in memory, but `op` and the returned value are native integers.
    ///
    /// # Errors
    /// Returns the same errors as `read`.
    fn atomic(&mut self, initiator: Initiator, key: Lkey, va: Va, op: AtomicOp) -> Result<u64, AccessError>;

    /// Executes a local operation, which takes effect for all later accesses.
    ///
    /// # Errors
    /// On error, nothing changes.
    fn run_local(&mut self, initiator: Initiator, token: &LocalToken) -> Result<(), AccessError> {
        let _ = (initiator, token);
        Err(AccessError::Kind)
    }

    /// Invalidates the local key of a READ with invalidate, after the READ's data has arrived.
    ///
    /// # Errors
    /// On error, the key is unchanged.
    fn invalidate(&mut self, initiator: Initiator, key: Lkey) -> Result<(), AccessError> {
        let _ = (initiator, key);
        Err(AccessError::Kind)
    }

    /// Invalidates the key in a SEND with invalidate, on behalf of the QP that received the SEND. No later access
    /// through the key succeeds.
    ///
    /// # Errors
    /// Fails if peers may not invalidate the key, in which case the key is unchanged.
    fn remote_invalidate(&mut self, initiator: Initiator, key: Rkey) -> Result<(), AccessError> {
        let _ = (initiator, key);
        Err(AccessError::Kind)
    }

    /// Called for each packet that was dropped or rejected. The engine has already counted the packet.
    fn dropped(&mut self, dropped: &Dropped) {
        let _ = dropped;
    }

    /// Called for each request from the peer that the responder of `qpn` has executed, except SENDs, and for each
    /// duplicate that it has replied to. An unreliable QP reports only WRITEs.
    fn request_executed(&mut self, qpn: Qpn, request: PeerRequest) {
        let _ = (qpn, request);
    }

    /// Called for each NAK that a requester handles.
    fn nak_received(&mut self, nak: &ReceivedNak) {
        let _ = nak;
    }

    /// Called when a requester starts a retransmission.
    fn retrying(&mut self, retry: &Retry) {
        let _ = retry;
    }
}
