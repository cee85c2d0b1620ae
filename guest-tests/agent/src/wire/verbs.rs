//! Steps about memory regions, queues and single work requests.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use super::Hex;

/// Names a memory region of the agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MrId(pub u32);

/// Names a completion queue of the agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CqId(pub u32);

/// Names a queue pair of the agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct QpId(pub u32);

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
    /// Bits of the number above the table's mask.
    pub high_bits: u32,
}

impl Default for CreateCq {
    fn default() -> Self {
        Self { log_entries: 8, pd: 1, high_bits: 0 }
    }
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

/// Transport services.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Service {
    /// Reliable connected.
    #[default]
    Rc,
    /// Unreliable connected.
    Uc,
    /// Unreliable datagram.
    Ud,
}

/// How software marks a receive slot as posted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecvStyle {
    /// The V bit, zeros after consumption: the user library.
    #[default]
    Valid,
    /// Links between all slots, lkey 100h as terminator: the kernel driver.
    Terminated,
}

/// Allocate a number and the queues' buffers with their regions. The queue pair stays in RESET.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct CreateQp {
    /// Completion queue of the send queue.
    pub send_cq: CqId,
    /// Completion queue of the receive queue.
    pub recv_cq: CqId,
    /// Protection domain.
    pub pd: u32,
    /// Service.
    pub service: Service,
    /// log2 of the number of send slots.
    pub log_sq_slots: u8,
    /// log2 of the bytes of a send slot.
    pub log_sq_slot_bytes: u8,
    /// log2 of the number of receive slots.
    pub log_rq_slots: u8,
    /// log2 of the bytes of a receive slot.
    pub log_rq_slot_bytes: u8,
    /// Style of receive work requests.
    pub recv_style: RecvStyle,
    /// UAR page the doorbells go to.
    pub uar_page: u16,
    /// Bits of the number above the table's mask.
    pub high_bits: u32,
}

impl Default for CreateQp {
    fn default() -> Self {
        Self {
            send_cq: CqId(0),
            recv_cq: CqId(0),
            pd: 1,
            service: Service::Rc,
            log_sq_slots: 6,
            log_sq_slot_bytes: 9,
            log_rq_slots: 6,
            log_rq_slot_bytes: 9,
            recv_style: RecvStyle::Valid,
            uar_page: 1,
            high_bits: 0,
        }
    }
}

/// Answer of [`CreateQp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpInfo {
    /// Name for later steps.
    pub id: QpId,
    /// Full number.
    pub qpn: u32,
    /// lkey of the send queue's buffer.
    pub sq_lkey: u32,
    /// lkey of the receive queue's buffer.
    pub rq_lkey: u32,
}

/// Move to RESET, and free number and buffers.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct DestroyQp {
    /// Queue pair.
    pub qp: QpId,
}

/// One command of the MODIFY_QP family.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ModifyQp {
    /// Queue pair.
    pub qp: QpId,
    /// Which one.
    pub transition: Transition,
}

/// Transitions and their attributes. The whole context image goes with each, as the public driver sends it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transition {
    /// RST2INIT.
    ToInit {
        /// Index in the P_Key table.
        pkey_index: u8,
        /// Q_Key of a UD queue pair.
        qkey: u32,
    },
    /// INIT2RTR.
    ToRtr {
        /// Number of the peer's queue pair.
        remote_qpn: u32,
        /// Path MTU in bytes: 256, 512, 1024, 2048 or 4096.
        mtu: u16,
        /// PSN expected first.
        psn: u32,
        /// RNR NAK timer code this side sends.
        rnr_timer: u8,
        /// Where the peer is.
        path: Path,
    },
    /// RTR2RTS.
    ToRts {
        /// PSN sent first.
        psn: u32,
        /// ACK timeout code.
        timeout: u8,
        /// Retries after timeouts and sequence NAKs, 0 to 7.
        retry: u8,
        /// Retries after RNR NAKs, 0 to 7, 7 without end.
        rnr_retry: u8,
    },
    /// 2ERR, without mailbox.
    ToErr,
    /// ERR2RST, without mailbox. Both rings are cleared.
    ToReset,
}

/// Address of a peer; with nothing set the device uses its default peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Path {
    /// Destination LID.
    pub dlid: Option<u16>,
    /// Source LID.
    pub slid: Option<u16>,
    /// Destination MAC.
    pub dmac: Option<[u8; 6]>,
    /// Source MAC.
    pub smac: Option<[u8; 6]>,
    /// Destination IPv4 address.
    pub dip: Option<Ipv4Addr>,
    /// Source IPv4 address.
    pub sip: Option<Ipv4Addr>,
    /// Destination GID.
    pub dgid: Option<[u8; 16]>,
    /// Service level.
    pub sl: u8,
}

/// QUERY_QP.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct QueryQp {
    /// Queue pair.
    pub qp: QpId,
}

/// Answer of [`QueryQp`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpAttributes {
    /// State code: 0 RESET, 1 INIT, 2 RTR, 3 RTS, 4 SQE, 5 SQD, 6 ERR, 7 draining.
    pub state: u8,
    /// Path MTU code.
    pub mtu_code: u8,
    /// Peer's number.
    pub remote_qpn: u32,
    /// Next PSN to send.
    pub next_send_psn: u32,
    /// Oldest PSN not acknowledged.
    pub unacked_psn: u32,
    /// Next PSN expected.
    pub expected_psn: u32,
    /// The outbox, C0h bytes.
    pub raw: Hex,
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
    /// All 32 bytes.
    pub raw: Hex,
}
