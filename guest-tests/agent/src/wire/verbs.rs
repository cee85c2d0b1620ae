//! Steps about memory regions, completion queues and single work requests.

use serde::{Deserialize, Serialize};

use super::{EqId, Hex, Path, QpId};

/// Names a memory region of the agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MrId(pub u32);

/// Names a completion queue of the agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CqId(pub u32);

/// Rights of a memory region. Local read is always allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Access {
    /// Scatter of receives, READ responses and atomic results.
    pub local_write: bool,
    /// RDMA WRITE of a peer.
    pub remote_write: bool,
    /// RDMA READ of a peer.
    pub remote_read: bool,
    /// Atomics of a peer.
    pub remote_atomic: bool,
}

impl Access {
    /// Every right.
    pub const ALL: Self =
        Self { local_write: true, remote_write: true, remote_read: true, remote_atomic: true };
}

/// Register memory: WRITE_MTT, SW2HW_MPT. The memory is filled with zeros.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct CreateMr {
    /// Bytes.
    pub len: u64,
    /// Rights.
    pub access: Access,
    /// Protection domain.
    pub pd: u32,
    /// Page size in bytes, a power of two from 4096 on: both the unit of translation and the MPT's field.
    pub page_size: u32,
    /// Byte of the first page the region starts at, below the page size.
    pub page_offset: u32,
    /// First virtual address, whose bits below the page size must be `page_offset`; chosen by the agent without it,
    /// and never equal to the bus address.
    pub va: Option<u64>,
    /// Let neighbouring pages of the region have bus addresses that do not follow each other.
    pub scattered: bool,
    /// Addresses given to the device count from 0 instead of `va`.
    pub zero_based: bool,
    /// Value of the MPT's page_size field, when it is not `page_size` itself.
    pub page_size_field: Option<u32>,
    /// Take no memory, but enter another key for all of this region's, through its translation entries. Of the rest of the
    /// step only the rights, the protection domain and `zero_based` count then. To be destroyed before that region.
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

/// Answer of [`CreateMr`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MrInfo {
    /// Name for later steps.
    pub id: MrId,
    /// lkey and rkey.
    pub key: u32,
    /// Address of the first byte as a work request names it: 0 for a zero-based region.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// Bus address of the first byte.
    pub iova: u64,
}

impl MrInfo {
    /// A scatter/gather element of `len` bytes from byte `off` of the region.
    pub const fn sge(&self, off: u64, len: u32) -> Sge {
        Sge { lkey: self.key, addr: self.addr.wrapping_add(off), len }
    }

    /// The region from byte `off` on, as a peer addresses it.
    pub const fn remote(&self, off: u64) -> Remote {
        Remote { va: self.addr.wrapping_add(off), rkey: self.key }
    }
}

/// HW2SW_MPT, and free the memory.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct DestroyMr {
    /// Region.
    pub mr: MrId,
}

/// Fill part of a region with the stream of a seed ([`crate::pattern`]).
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Fill {
    /// Region.
    pub mr: MrId,
    /// First byte of the part, counted from the region's start.
    pub off: u64,
    /// Bytes.
    pub len: u64,
    /// Seed.
    pub seed: u64,
    /// Byte of the stream the part starts with.
    pub position: u64,
}

/// Does part of a region hold the stream of a seed?
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Verify {
    /// Region.
    pub mr: MrId,
    /// First byte of the part, counted from the region's start.
    pub off: u64,
    /// Bytes.
    pub len: u64,
    /// Seed.
    pub seed: u64,
    /// Byte of the stream the part starts with.
    pub position: u64,
}

/// Answer of [`Verify`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verified {
    /// First byte that differs, counted from the part's start; none when all is as expected.
    pub first_difference: Option<u64>,
}

/// Digest of part of a region, to see whether anything changed.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Digest {
    /// Region.
    pub mr: MrId,
    /// First byte of the part, counted from the region's start.
    pub off: u64,
    /// Bytes.
    pub len: u64,
}

/// Answer of [`Digest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DigestValue {
    /// [`crate::pattern::Digest`] of the bytes.
    pub digest: u64,
}

/// Bytes of a region.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Peek {
    /// Region.
    pub mr: MrId,
    /// First byte, counted from the region's start.
    pub off: u64,
    /// Bytes, at most 65536.
    pub len: u32,
}

/// Write bytes into a region.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Poke {
    /// Region.
    pub mr: MrId,
    /// First byte, counted from the region's start.
    pub off: u64,
    /// The bytes.
    pub bytes: Hex,
}

/// Create a completion queue: its buffer's region, then SW2HW_CQ.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct CreateCq {
    /// log2 of the number of entries.
    pub log_entries: u8,
    /// Protection domain of the buffer.
    pub pd: u32,
    /// Protection domain the buffer is registered in, when it is another: the device cannot write entries then.
    pub buffer_pd: Option<u32>,
    /// Bits of the number above the table's mask.
    pub high_bits: u32,
    /// Event queue of its completion events; event queue 0 without one.
    pub eq: Option<EqId>,
    /// What raises its first event.
    pub arm: CqArm,
}

impl Default for CreateCq {
    fn default() -> Self {
        Self { log_entries: 8, pd: 1, buffer_pd: None, high_bits: 0, eq: None, arm: CqArm::Disarmed }
    }
}

/// What raises the next event of a completion queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CqArm {
    /// Nothing.
    #[default]
    Disarmed,
    /// Any entry.
    Any,
    /// An entry that is solicited or an error.
    Solicited,
}

/// Store a completion queue's number into the ARM_CQ register.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ArmCq {
    /// Queue.
    pub cq: CqId,
}

/// Answer of [`CreateCq`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CqInfo {
    /// Name for later steps.
    pub id: CqId,
    /// Full number.
    pub cqn: u32,
    /// lkey of the buffer.
    pub lkey: u32,
}

/// HW2SW_CQ, and free the buffer.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct DestroyCq {
    /// Queue.
    pub cq: CqId,
}

/// A scatter/gather element.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sge {
    /// Key.
    pub lkey: u32,
    /// Address.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
}

/// A place in a peer's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Remote {
    /// Virtual address.
    pub va: u64,
    /// Key.
    pub rkey: u32,
}

/// Operations of the send queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SendOp {
    /// SEND.
    #[default]
    Send,
    /// SEND with immediate.
    SendImm,
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE with immediate.
    WriteImm,
    /// RDMA READ.
    Read,
    /// Compare and swap.
    CmpSwap {
        /// Value compared with.
        compare: u64,
        /// Value stored when equal.
        swap: u64,
    },
    /// Fetch and add.
    FetchAdd {
        /// Value added.
        add: u64,
    },
    /// Any 5-bit opcode, laid out like a SEND.
    Raw(u8),
}

/// Payload of a send work request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Data {
    /// Elements to gather from (or to scatter to, for READ and atomics).
    Sges(Vec<Sge>),
    /// Bytes inside the WQE.
    Inline(Hex),
}

impl Default for Data {
    fn default() -> Self {
        Self::Sges(Vec::new())
    }
}

/// A send work request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SendRequest {
    /// Operation.
    pub op: SendOp,
    /// Payload.
    pub data: Data,
    /// Peer's memory, for everything but SEND.
    pub remote: Option<Remote>,
    /// Immediate, four bytes as they appear in memory and on the wire.
    pub imm: [u8; 4],
    /// Wait for earlier READs and atomics.
    pub fence: bool,
    /// Solicited event at the peer.
    pub solicited: bool,
    /// Destination of a UD message.
    pub datagram: Option<Datagram>,
}

/// Where a UD message goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Datagram {
    /// Number of the peer's queue pair.
    pub qpn: u32,
    /// Q_Key.
    pub qkey: u32,
    /// Where the peer is; its GID and service level are not part of a UD work request.
    pub path: Path,
}

/// How the doorbell is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ring {
    /// One 64-bit store.
    #[default]
    Once,
    /// Two 32-bit stores.
    Halves,
    /// Not at all.
    Never,
}

/// Write send work requests as one linked chain and ring once, for the first of them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PostSend {
    /// Queue pair.
    pub qp: QpId,
    /// The requests, in order.
    pub requests: Vec<SendRequest>,
    /// Doorbell.
    pub ring: Ring,
}

/// Write receive work requests. There is no doorbell.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PostRecv {
    /// Queue pair.
    pub qp: QpId,
    /// The scatter list of each request, in order.
    pub requests: Vec<Vec<Sge>>,
}

/// Answer of [`PostSend`] and [`PostRecv`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Posted {
    /// Byte offset of each WQE in its queue; completions repeat it.
    pub wqes: Vec<u32>,
}

/// Wait for completions.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Poll {
    /// Completion queue.
    pub cq: CqId,
    /// Return when there are so many.
    pub count: u32,
    /// Return what there is after so long.
    pub timeout_ms: u32,
}

/// Answer of [`Poll`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Completions {
    /// In the order the device wrote them; fewer than asked for when time ran out.
    pub cqes: Vec<Cqe>,
    /// Time waited, nanoseconds.
    pub waited_ns: u64,
}

/// A completion queue entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cqe {
    /// Local queue pair number, in full.
    pub qpn: u32,
    /// Peer's number; 0 in an error.
    pub remote_qpn: u32,
    /// Peer's LID; 0 in an error.
    pub remote_lid: u16,
    /// Immediate, four bytes; zeros in an error.
    pub imm: [u8; 4],
    /// Bytes moved; 0 in an error.
    pub byte_count: u32,
    /// Byte offset of the WQE in its queue.
    pub wqe: u32,
    /// Opcode field.
    pub opcode: u8,
    /// Belongs to the send queue.
    pub is_send: bool,
    /// Syndrome, for an error.
    pub syndrome: Option<u8>,
    /// Vendor error byte, for an error.
    pub vendor_error: u8,
    /// All of it.
    pub raw: Hex<[u8; 32]>,
}
