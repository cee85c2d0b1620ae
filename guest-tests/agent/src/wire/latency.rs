//! Latency without the host in the loop.

use serde::{Deserialize, Serialize};

use super::{MrId, QpId, Remote};

/// Exchange one message `rounds` times with a peer that runs the same step: an inline RDMA WRITE whose last byte the
/// receiver waits for in its memory. One side begins; the other answers each message with one of its own.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct PingPong {
    /// Queue pair, in RTS.
    pub qp: QpId,
    /// Region whose first `len` bytes the peer writes. The last of them must be 0, and is again afterwards.
    pub mr: MrId,
    /// The same bytes of the peer's region.
    pub remote: Remote,
    /// Bytes of a message: 1 to what fits a WQE inline.
    pub len: u32,
    /// Messages each way.
    pub rounds: u32,
    /// This side begins.
    pub first: bool,
    /// Fail when the peer is silent for so long.
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

/// Answer of [`PingPong`]: times from a message to the peer's answer in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundTrips {
    /// The shortest, nanoseconds.
    pub min_ns: u64,
    /// The middle one.
    pub median_ns: u64,
    /// 99 of 100 were not longer.
    pub p99_ns: u64,
}
