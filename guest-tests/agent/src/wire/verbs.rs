//! Steps for memory regions, completion queues and single work requests.

use serde::{Deserialize, Serialize};

use super::{EqId, Hex, Path, QpId};

/// Identifies one of the agent's memory regions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MrId(pub u32);

/// Identifies one of the agent's completion queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CqId(pub u32);

/// Access rights to a memory region. Local read access is always permitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Access {
    /// The device may write received messages, READ responses and atomic results to the region.
    pub local_write: bool,
    /// Peers may execute RDMA WRITE.
    pub remote_write: bool,
    /// Peers may execute RDMA READ.
    pub remote_read: bool,
    /// Peers may execute atomic operations.
    pub remote_atomic: bool,
}

impl Access {
    pub const ALL: Self =
        Self { local_write: true, remote_write: true, remote_read: true, remote_atomic: true };
}

/// Registers memory with WRITE_MTT and SW2HW_MPT. The memory is filled with zeros.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct CreateMr {
    pub len: u64,
    pub access: Access,
    pub pd: u32,
    /// Page size in bytes, a power of two that is at least 4096. It is the unit of translation and, unless
    /// `page_size_field` is set, the value of the MPT's page_size field.
    pub page_size: u32,
    /// Offset of the region's start within its first page.
    pub page_offset: u32,
    /// First virtual address. Its offset within its page must equal `page_offset`, unless `page_offset` is 0. `None`
    /// means that the agent chooses an address that differs from the bus address.
    pub va: Option<u64>,
    /// Whether adjacent pages of the region have non-adjacent bus addresses.
    pub scattered: bool,
    /// Whether addresses in work requests start at 0 instead of `va`.
    pub zero_based: bool,
    /// Value of the MPT's page_size field, or `None` if it equals `page_size`.
    pub page_size_field: Option<u32>,
    /// Existing region to share. The step registers an additional key for that region's memory and translation entries.
    /// Only the fields `access`, `pd`, `page_size_field` and `zero_based` apply. The new region must be destroyed
    /// before the existing one.
    pub over: Option<MrId>,
}

impl Default for CreateMr {
    fn default() -> Self {
        Self {
            len: 4096,
            access: Access::ALL,
            pd: 1,
            page_size: 4096,
            page_offset: 0,
            va: None,
            scattered: true,
            zero_based: false,
            page_size_field: None,
            over: None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MrInfo {
    /// Identifier for later steps.
    pub id: MrId,
    /// Key for both local and remote access.
    pub key: u32,
    /// Address of the first byte, as used in work requests. It is 0 for a zero-based region.
    pub addr: u64,
    pub len: u64,
    /// Bus address of the first byte.
    pub iova: u64,
}

impl MrInfo {
    /// Returns a scatter/gather element of `len` bytes at offset `off` of the region.
    pub const fn sge(&self, off: u64, len: u32) -> Sge {
        Sge { lkey: self.key, addr: self.addr.wrapping_add(off), len }
    }

    /// Returns the remote address and key of the byte at offset `off`.
    pub const fn remote(&self, off: u64) -> Remote {
        Remote { va: self.addr.wrapping_add(off), rkey: self.key }
    }
}

/// Destroys a region with HW2SW_MPT and frees its memory.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct DestroyMr {
    pub mr: MrId,
}

/// Fills part of a region with a pattern stream ([`crate::pattern`]).
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Fill {
    pub mr: MrId,
    /// Offset of the part in the region.
    pub off: u64,
    pub len: u64,
    pub seed: u64,
    /// Position of the part's first byte in the stream.
    pub position: u64,
}

/// Compares part of a region with a pattern stream.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Verify {
    pub mr: MrId,
    /// Offset of the part in the region.
    pub off: u64,
    pub len: u64,
    pub seed: u64,
    /// Position of the part's first byte in the stream.
    pub position: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verified {
    /// Offset of the first byte that differs, if any, relative to the start of the part.
    pub first_difference: Option<u64>,
}

/// Returns a digest of part of a region so that changes can be detected.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Digest {
    pub mr: MrId,
    /// Offset of the part in the region.
    pub off: u64,
    pub len: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DigestValue {
    /// The [`crate::pattern::Digest`] of the bytes.
    pub digest: u64,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Peek {
    pub mr: MrId,
    /// Offset of the first byte in the region.
    pub off: u64,
    /// Number of bytes, at most 65536.
    pub len: u32,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Poke {
    pub mr: MrId,
    /// Offset of the first byte in the region.
    pub off: u64,
    pub bytes: Hex,
}

/// Creates a completion queue by registering its buffer and issuing SW2HW_CQ.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct CreateCq {
    /// Log2 of the number of entries.
    pub log_entries: u8,
    /// Protection domain of the queue.
    pub pd: u32,
    /// Protection domain of the buffer's region. Defaults to `pd`. If the two differ, the device cannot write entries.
    pub buffer_pd: Option<u32>,
    /// Value of the CQ number's bits above the table's index mask.
    pub high_bits: u32,
    /// Event queue that receives the completion events, or `None` for event queue 0.
    pub eq: Option<EqId>,
    /// Condition for raising the first event.
    pub arm: CqArm,
}

impl Default for CreateCq {
    fn default() -> Self {
        Self { log_entries: 8, pd: 1, buffer_pd: None, high_bits: 0, eq: None, arm: CqArm::Disarmed }
    }
}

/// Condition for a completion queue to raise its next event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CqArm {
    /// CQEs do not raise events.
    #[default]
    Disarmed,
    /// Any CQE raises an event.
    Any,
    /// Only a solicited CQE or an error CQE raises an event.
    Solicited,
}

/// Arms a completion queue by writing its number to the ARM_CQ register.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ArmCq {
    pub cq: CqId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CqInfo {
    /// Identifier for later steps.
    pub id: CqId,
    /// CQN, including the bits above the table's index mask.
    pub cqn: u32,
    /// lkey of the buffer.
    pub lkey: u32,
}

/// Destroys a completion queue with HW2SW_CQ and frees its buffer.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct DestroyCq {
    pub cq: CqId,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sge {
    pub lkey: u32,
    pub addr: u64,
    pub len: u32,
}

/// Address and key of a location in a peer's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Remote {
    pub va: u64,
    pub rkey: u32,
}

/// Operations on the send queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SendOp {
    #[default]
    Send,
    SendImm,
    Write,
    /// Performs an RDMA WRITE with immediate data.
    WriteImm,
    Read,
    CmpSwap {
        compare: u64,
        /// Value to store if the comparison succeeds.
        swap: u64,
    },
    FetchAdd {
        add: u64,
    },
    /// Uses the given 5-bit opcode, with the layout of a SEND.
    Raw(u8),
}

/// Payload of a send work request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Data {
    /// Memory segments that hold the data to send or, for READ and atomics, receive the result.
    Sges(Vec<Sge>),
    /// Bytes carried inline in the WQE.
    Inline(Hex),
}

impl Default for Data {
    fn default() -> Self {
        Self::Sges(Vec::new())
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SendRequest {
    pub op: SendOp,
    pub data: Data,
    /// Remote address and key, for RDMA and atomic operations.
    pub remote: Option<Remote>,
    /// Immediate data: four bytes, in the same order in memory and on the wire.
    pub imm: [u8; 4],
    /// Whether to wait for earlier READs and atomics to complete.
    pub fence: bool,
    /// Whether to request a solicited event at the peer.
    pub solicited: bool,
    pub datagram: Option<Datagram>,
}

/// Destination of a UD message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Datagram {
    /// QP number of the peer.
    pub qpn: u32,
    pub qkey: u32,
    /// Path to the peer. A UD WQE lacks fields for `dgid` and `sl`, which are ignored.
    pub path: Path,
}

/// How the doorbell is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ring {
    /// Writes the doorbell with one 64-bit store.
    #[default]
    Once,
    /// Writes the doorbell with two 32-bit stores.
    Halves,
    /// Does not write the doorbell.
    Never,
}

/// Posts send work requests as one linked chain. A single doorbell starts the chain.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PostSend {
    pub qp: QpId,
    pub requests: Vec<SendRequest>,
    pub ring: Ring,
}

/// Posts receive work requests. They need no doorbell.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PostRecv {
    pub qp: QpId,
    /// The scatter list of each request, in order.
    pub requests: Vec<Vec<Sge>>,
}

/// Reply to [`PostSend`] and [`PostRecv`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Posted {
    /// Byte offset of each WQE in its queue. Completions contain the same offsets.
    pub wqes: Vec<u32>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Poll {
    pub cq: CqId,
    /// Number of completions to wait for.
    pub count: u32,
    /// Timeout in milliseconds, after which the completions received so far are returned.
    pub timeout_ms: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Completions {
    /// CQEs in the order that the device wrote them. After a timeout, there are fewer than requested.
    pub cqes: Vec<Cqe>,
    /// Time spent waiting, in nanoseconds.
    pub waited_ns: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cqe {
    /// Local QP number, including the bits above the table's index mask.
    pub qpn: u32,
    /// QP number of the peer; 0 in an error CQE.
    pub remote_qpn: u32,
    /// LID of the peer; 0 in an error CQE.
    pub remote_lid: u16,
    /// Immediate data; zeros in an error CQE.
    pub imm: [u8; 4],
    /// Number of bytes transferred; 0 in an error CQE.
    pub byte_count: u32,
    /// Byte offset of the WQE in its queue.
    pub wqe: u32,
    pub opcode: u8,
    /// Whether the CQE belongs to the send queue.
    pub is_send: bool,
    /// Syndrome, if this is an error CQE.
    pub syndrome: Option<u8>,
    /// Vendor syndrome of an error CQE.
    pub vendor_error: u8,
    /// All 32 bytes of the CQE.
    pub raw: Hex<[u8; 32]>,
}
