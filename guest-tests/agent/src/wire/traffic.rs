//! Steps that transfer many messages without involving the host.
//!
//! A flow sends or receives `count` messages of `len` bytes on one queue pair, with up to `depth` messages outstanding.
//! Message `i` uses slot `i % slots` of the flow's buffer, at `off + slot * stride`. The message contains the pattern
//! stream for seed `seed + i % slots` or, if `fresh` is set, for seed `seed + i`.
//!
//! | operation | content checked by |
//! | --- | --- |
//! | SEND, SEND_IMM | the peer's receive flow |
//! | WRITE_IMM | the peer's receive flow; a slot must not be reused before its content has been checked |
//! | WRITE | [`super::Verify`] steps at the peer after the flow, one for each slot |
//! | READ | the send flow itself; it expects the data that [`super::Fill`] wrote to the peer's memory |

use serde::{Deserialize, Serialize};

use super::{MrId, QpId, Remote, SendOp};

/// Runs flows concurrently until all have finished.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Traffic {
    /// The flows to run. Each queue pair may appear once as sender and once as receiver.
    pub flows: Vec<Flow>,
    /// Timeout for all flows together, in milliseconds.
    pub timeout_ms: u32,
}

/// One direction of traffic on one queue pair.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Flow {
    Send(SendFlow),
    Receive(ReceiveFlow),
}

/// Layout of a message in its slot: `pieces` segments of nearly equal length, `gap` bytes apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Scatter {
    /// Number of segments, at least 1. If a message has fewer bytes than segments, some segments are empty.
    pub pieces: u32,
    /// Number of bytes between segments. These bytes must stay unchanged.
    pub gap: u32,
}

impl Default for Scatter {
    fn default() -> Self {
        Self { pieces: 1, gap: 0 }
    }
}

impl Scatter {
    /// For a message of `len` bytes, yields each segment's offset in the slot and its length.
    pub fn layout(self, len: u32) -> impl Iterator<Item = (u64, u32)> {
        let pieces = u64::from(self.pieces.max(1));
        let border = move |k: u64| u64::from(len) * k / pieces;
        (0..pieces).map(move |k| {
            let piece = u32::try_from(border(k + 1) - border(k)).unwrap_or(u32::MAX);
            (border(k) + k * u64::from(self.gap), piece)
        })
    }

    /// Returns the number of bytes that a message of `len` bytes occupies in its slot, including gaps.
    pub fn span(self, len: u32) -> u64 {
        u64::from(len) + u64::from(self.gap) * u64::from(self.pieces.max(1) - 1)
    }
}

/// Posts sends, keeps up to `depth` of them outstanding, and polls their completions.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct SendFlow {
    /// Queue pair, which must be in state RTS.
    pub qp: QpId,
    /// Operation used for all messages: SEND, SEND_IMM, WRITE, WRITE_IMM or READ.
    pub op: SendOp,
    pub count: u32,
    /// Length of each message, in bytes.
    pub len: u32,
    /// Maximum number of outstanding work requests. It must not exceed the number of slots in the queue.
    pub depth: u32,
    /// Number of work requests per doorbell, at least 1.
    pub batch: u32,
    /// Whether to carry the payload inline in the WQE.
    pub inline: bool,
    pub mr: MrId,
    /// Offset of slot 0 in the buffer.
    pub off: u64,
    /// Distance between slots, in bytes. If the flow does not verify content, the distance may be 0, so that all
    /// messages share the same memory.
    pub stride: u64,
    pub slots: u32,
    pub scatter: Scatter,
    /// Address of slot 0 at the peer, for WRITE and READ. At the peer, each message is contiguous.
    pub remote: Option<Remote>,
    /// Distance between slots at the peer, in bytes.
    pub remote_stride: u64,
    /// Regions that share the memory of `mr`. Messages use the keys of these regions in turn.
    pub mrs: Vec<MrId>,
    /// The peer's regions, which messages use in turn instead of `remote`.
    pub remotes: Vec<Remote>,
    /// Base of the immediate data: message `i` carries the little-endian number `imm + i`.
    pub imm: u32,
    /// Seed of the first message.
    pub seed: u64,
    /// If set, each message has new content; otherwise, the content of each slot is fixed.
    pub fresh: bool,
    /// Whether to check the content received by a READ.
    pub verify: bool,
}

impl Default for SendFlow {
    fn default() -> Self {
        Self {
            qp: QpId(0),
            op: SendOp::Send,
            count: 1,
            len: 0,
            depth: 1,
            batch: 1,
            inline: false,
            mr: MrId(0),
            off: 0,
            stride: 0,
            slots: 1,
            scatter: Scatter::default(),
            remote: None,
            remote_stride: 0,
            mrs: Vec::new(),
            remotes: Vec::new(),
            imm: 0,
            seed: 0,
            fresh: false,
            verify: true,
        }
    }
}

/// Keeps up to `depth` receives posted and polls `count` completions. Checks the length, immediate data and content of
/// each message.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct ReceiveFlow {
    /// Queue pair, which must be in state RTR or later.
    pub qp: QpId,
    /// Operation of the peer's messages: SEND, SEND_IMM or WRITE_IMM.
    pub op: SendOp,
    pub count: u32,
    /// Length of each message, in bytes.
    pub len: u32,
    /// Number of receives posted in advance. It must not exceed the number of slots in the queue.
    pub depth: u32,
    pub mr: MrId,
    /// Offset of slot 0 in the buffer.
    pub off: u64,
    /// Distance between slots, in bytes. If the flow does not verify content, the distance may be 0, so that all
    /// messages share the same memory.
    pub stride: u64,
    /// Number of slots in the buffer. It must be at least `depth`.
    pub slots: u32,
    /// Layout of a message in its slot. WRITE_IMM requires a contiguous layout, since the sender writes each message to
    /// one contiguous range.
    pub scatter: Scatter,
    /// Base of the expected immediate data: message `i` carries the little-endian number `imm + i`.
    pub imm: u32,
    /// Seed of the first message.
    pub seed: u64,
    /// If set, each message has new content; otherwise, the content of each slot is fixed.
    pub fresh: bool,
    /// Whether to check that the content is correct and that the gaps between segments are unchanged.
    pub verify: bool,
}

impl Default for ReceiveFlow {
    fn default() -> Self {
        Self {
            qp: QpId(0),
            op: SendOp::Send,
            count: 1,
            len: 0,
            depth: 1,
            mr: MrId(0),
            off: 0,
            stride: 0,
            slots: 1,
            scatter: Scatter::default(),
            imm: 0,
            seed: 0,
            fresh: false,
            verify: true,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrafficReport {
    /// One report for each flow, in the order of [`Traffic::flows`].
    pub flows: Vec<FlowReport>,
    /// Time from the first post to the last completion across all flows, in nanoseconds.
    pub elapsed_ns: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowReport {
    pub messages: u64,
    /// Total payload of all messages, in bytes.
    pub bytes: u64,
    /// Time from the flow's first post to its last completion, in nanoseconds. It includes filling and checking
    /// content.
    pub elapsed_ns: u64,
    /// Time spent filling and checking content, in nanoseconds.
    pub content_ns: u64,
    /// Number of messages whose content was checked.
    pub verified: u64,
}
