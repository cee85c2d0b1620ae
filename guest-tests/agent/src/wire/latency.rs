//! A step that measures message latency without involving the host.

use serde::{Deserialize, Serialize};

use super::{MrId, QpId, Remote};

/// Exchanges `rounds` messages with a peer that runs the same step. Each message is an inline RDMA WRITE, and the
/// receiver polls its memory for the last byte. One side sends the first message, and the other side replies to each
/// message.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct PingPong {
    /// Queue pair, which must be in state RTS.
    pub qp: QpId,
    /// Region whose first `len` bytes the peer writes. The last of these bytes must be 0 before the step and is 0 again
    /// afterwards.
    pub mr: MrId,
    /// The corresponding bytes in the peer's region.
    pub remote: Remote,
    /// Length of a message in bytes. It must be at least 1, and the message must fit inline in a WQE.
    pub len: u32,
    /// Number of messages in each direction.
    pub rounds: u32,
    /// Whether this side sends the first message.
    pub first: bool,
    /// Timeout for each message from the peer, in milliseconds.
    pub timeout_ms: u32,
}

impl Default for PingPong {
    fn default() -> Self {
        Self {
            qp: QpId(0),
            mr: MrId(0),
            remote: Remote::default(),
            len: 64,
            rounds: 1,
            first: false,
            timeout_ms: 10_000,
        }
    }
}

/// Answer to [`PingPong`]: times from sending a message to receiving the peer's next message. Also the answer to
/// [`PingByWrite`](super::PingByWrite), whose messages return to their sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundTrips {
    /// Shortest round trip, in nanoseconds.
    pub min_ns: u64,
    /// Median of the round trips, in nanoseconds.
    pub median_ns: u64,
    /// 99th percentile of the round trips, in nanoseconds.
    pub p99_ns: u64,
}
