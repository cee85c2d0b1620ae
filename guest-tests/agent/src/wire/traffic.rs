//! Many messages without the host in the loop.
//!
//! A flow sends or receives `count` messages of `len` bytes on one queue pair with up to `depth` outstanding. Message
//! `i` uses slot `i % slots` of the flow's buffer, at `off + slot * stride`, and holds the stream of seed
//! `seed + i % slots` when slots are filled once, or `seed + i` when each message is fresh.
//!
//! | operation | content checked by |
//! | --- | --- |
//! | SEND, SEND_IMM | the peer's receive flow |
//! | WRITE_IMM | the peer's receive flow; slots must not be reused while it checks |
//! | WRITE | [`super::Verify`] at the peer afterwards, slot by slot |
//! | READ | the send flow itself, against what [`super::Fill`] put into the peer's memory |

use serde::{Deserialize, Serialize};

use super::{MrId, QpId, Remote, SendOp};

/// Run flows side by side until all are done.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Traffic {
    /// The flows. Queue pairs may appear once as sender and once as receiver.
    pub flows: Vec<Flow>,
    /// Fail when a flow is not done after so long.
    pub timeout_ms: u32,
}

/// One direction of one queue pair.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Flow {
    /// Post sends.
    Send(SendFlow),
    /// Post receives.
    Receive(ReceiveFlow),
}

/// How the bytes of a message lie in its slot: `pieces` elements of nearly equal length, `gap` bytes apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Scatter {
    /// Elements, at least 1. A message shorter than that has empty ones.
    pub pieces: u32,
    /// Bytes between them, which nobody may write.
    pub gap: u32,
}

impl Default for Scatter {
    fn default() -> Self {
        Self { pieces: 1, gap: 0 }
    }
}

impl Scatter {
    /// Offset in the slot and length of each piece of a message of `len` bytes.
    pub fn layout(self, len: u32) -> impl Iterator<Item = (u64, u32)> {
        let pieces = u64::from(self.pieces.max(1));
        let border = move |k: u64| u64::from(len) * k / pieces;
        (0..pieces).map(move |k| {
            let piece = u32::try_from(border(k + 1) - border(k)).unwrap_or(u32::MAX);
            (border(k) + k * u64::from(self.gap), piece)
        })
    }

    /// Bytes of a slot that a message of `len` bytes spans, gaps included.
    pub fn span(self, len: u32) -> u64 {
        u64::from(len) + u64::from(self.gap) * u64::from(self.pieces.max(1) - 1)
    }
}

/// Post sends, keep up to `depth` outstanding, take their completions.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct SendFlow {
    /// Queue pair, in RTS.
    pub qp: QpId,
    /// SEND, SEND_IMM, WRITE, WRITE_IMM or READ.
    pub op: SendOp,
    /// Messages.
    pub count: u32,
    /// Bytes of a message.
    pub len: u32,
    /// Outstanding work requests, at most the queue's slots.
    pub depth: u32,
    /// Work requests linked under one doorbell, at least 1.
    pub batch: u32,
    /// Put the payload into the WQE.
    pub inline: bool,
    /// Buffer.
    pub mr: MrId,
    /// First byte of slot 0 in the buffer.
    pub off: u64,
    /// Bytes from slot to slot; 0 puts all messages into one place, for flows that verify nothing.
    pub stride: u64,
    /// Slots.
    pub slots: u32,
    /// Where the bytes of a message lie in its slot.
    pub scatter: Scatter,
    /// Slot 0 at the peer, for WRITE and READ; there a message is one piece.
    pub remote: Option<Remote>,
    /// Bytes from slot to slot at the peer.
    pub remote_stride: u64,
    /// Regions over the same memory as `mr`, by whose keys the messages go in turns, instead of its.
    pub mrs: Vec<MrId>,
    /// The same at the peer, instead of `remote`.
    pub remotes: Vec<Remote>,
    /// Immediate of message `i` is the little-endian number `imm + i`.
    pub imm: u32,
    /// Seed of the first message.
    pub seed: u64,
    /// New content for each message instead of each slot.
    pub fresh: bool,
    /// READ: check what arrived.
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

/// Keep up to `depth` receives posted, take `count` completions, check length, immediate and content of each.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct ReceiveFlow {
    /// Queue pair, in RTR or later.
    pub qp: QpId,
    /// What the peer sends: SEND, SEND_IMM or WRITE_IMM.
    pub op: SendOp,
    /// Messages.
    pub count: u32,
    /// Bytes of a message.
    pub len: u32,
    /// Receives posted ahead, at most the queue's slots.
    pub depth: u32,
    /// Buffer.
    pub mr: MrId,
    /// First byte of slot 0 in the buffer.
    pub off: u64,
    /// Bytes from slot to slot; 0 puts all messages into one place, for flows that verify nothing.
    pub stride: u64,
    /// Slots, at least `depth`.
    pub slots: u32,
    /// Where the bytes of a message lie in its slot. For WRITE_IMM the sender decides: one piece.
    pub scatter: Scatter,
    /// Immediate expected of message `i`: the little-endian number `imm + i`.
    pub imm: u32,
    /// Seed of the first message.
    pub seed: u64,
    /// New content for each message instead of each slot.
    pub fresh: bool,
    /// Check content, and that gaps between pieces stayed as they were.
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

/// Answer of [`Traffic`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrafficReport {
    /// One for each flow, in their order.
    pub flows: Vec<FlowReport>,
    /// From the first post to the last completion of all flows, nanoseconds.
    pub elapsed_ns: u64,
}

/// What one flow did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowReport {
    /// Messages completed.
    pub messages: u64,
    /// Payload bytes of them.
    pub bytes: u64,
    /// From the flow's first post to its last completion, nanoseconds, filling and checking included.
    pub elapsed_ns: u64,
    /// Part of that spent filling and checking content.
    pub content_ns: u64,
    /// Messages whose content was checked.
    pub verified: u64,
}
