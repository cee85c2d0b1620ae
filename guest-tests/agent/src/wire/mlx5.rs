//! Steps for a ConnectX function that the agent drives itself, without a kernel driver.

use serde::{Deserialize, Serialize};

use super::{DeviceSelector, Remote};

/// Initialises a ConnectX function, which must be bound to vfio-pci, and connects a queue pair to itself.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OpenMlx5 {
    pub device: DeviceSelector,
    /// Size of the copy buffer in MiB. 0 selects 1 MiB.
    pub data_mib: u32,
    /// Whether to request huge pages for the device's memory.
    pub huge_pages: bool,
}

/// Properties of the function, as read during its initialisation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Mlx5Info {
    /// Firmware version, as `mlx5_core` prints it.
    pub firmware: String,
    pub lid: u16,
    /// Bus address of the copy buffer.
    pub data_iova: u64,
    /// Length of the copy buffer in bytes.
    pub data_len: u64,
    /// Number of pages that the device requested.
    pub given_pages: u32,
}

/// Fills the source, copies it by RDMA WRITE, and checks the destination. After a failure, the queue pair is reset and
/// reconnected.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CopyByWrite {
    /// Bus address of the source. Memory that is not mapped is not filled.
    pub from: u64,
    /// Bus address of the destination. Memory that is not mapped is not checked.
    pub to: u64,
    /// Length of the copy in bytes.
    pub len: u32,
    /// Number of WRITE requests.
    pub parts: u32,
    pub seed: u64,
    /// Whether to request an interrupt for the completion and wait for it.
    pub interrupt: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mlx5Copied {
    /// Syndrome of the error completion, or 0 if all requests succeeded.
    pub syndrome: u8,
    /// Offset of the first byte of the destination that differs from the source.
    pub first_difference: Option<u64>,
    /// Number of interrupts, if the copy requested one.
    pub interrupts: u64,
}

/// Writes `count` messages from one half of the copy buffer to the other half and measures the time. Each batch has one
/// doorbell and one completion, and up to two batches are outstanding.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamWrites {
    /// Length of a message in bytes.
    pub len: u32,
    pub count: u32,
    /// Number of messages in a batch, 1 to 32.
    pub batch: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mlx5Streamed {
    /// Time from the first post to the last completion, in nanoseconds.
    pub elapsed_ns: u64,
}

/// Writes one message at a time and measures the time from the doorbell until the driver finds the last byte at the
/// destination.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PingByWrite {
    /// Length of a message in bytes, at least 1.
    pub len: u32,
    pub rounds: u32,
}

/// Creates queue pairs for messages to and from a peer, and a region that covers the copy buffer. The copy buffer must
/// not exceed 16 MiB. Messages are sent from its first half and arrive in its second half. This step can be executed
/// only once. If it fails, the function can only be closed abruptly.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CreateMlx5Qps {
    /// Number of queue pairs, at least 1. They share one completion queue for sends and one for receives.
    pub count: u32,
    /// Maximum number of outstanding sends per queue pair. A queue pair can have up to twice as many outstanding
    /// receives.
    pub depth: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mlx5Qps {
    pub qpns: Vec<u32>,
    /// Destination of the peer's messages.
    pub destination: Remote,
}

/// Connects each queue pair to the peer's queue pair with the same index.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ConnectMlx5Qps {
    /// LID of the peer.
    pub lid: u16,
    /// QPNs of the peer, one for each queue pair.
    pub qpns: Vec<u32>,
}

/// Sends messages on the first `qps` queue pairs and waits for their completions. Every message is sent from the same
/// memory and requests a completion.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SendOverMlx5 {
    pub qps: u32,
    /// Number of messages per queue pair.
    pub count: u32,
    /// Length of a message in bytes, at most half the size of the copy buffer.
    pub len: u32,
    /// Maximum number of outstanding messages per queue pair.
    pub depth: u32,
    /// Number of messages per doorbell.
    pub batch: u32,
    /// Destination of the first queue pair's RDMA WRITEs. `None` selects SENDs.
    pub remote: Option<Remote>,
    /// Distance in bytes between the destinations of two consecutive queue pairs.
    pub remote_stride: u32,
    /// Seed of the content, which is the same for all messages.
    pub seed: u64,
}

/// Receives SENDs on the first `qps` queue pairs. The peer executes [`SendOverMlx5`] with the same `qps`, `count` and
/// `len`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ReceiveOverMlx5 {
    pub qps: u32,
    /// Number of messages per queue pair.
    pub count: u32,
    /// Length of a message in bytes.
    pub len: u32,
    /// Number of receives posted in advance, per queue pair.
    pub depth: u32,
    /// Distance in bytes between the destinations of two consecutive queue pairs.
    pub stride: u32,
}

/// Sends messages on the first `qps` queue pairs, each of which is connected to itself, and receives them there.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SendToSelfMlx5 {
    pub qps: u32,
    /// Number of messages per queue pair, all outstanding at once.
    pub count: u32,
    /// Length of a message in bytes, at most half the size of the copy buffer.
    pub len: u32,
    /// Distance in bytes between the destinations of two consecutive queue pairs.
    pub stride: u32,
    /// Seed of the content, which is the same for all messages.
    pub seed: u64,
}

/// Compares the memory at a message's destination with the content that [`SendOverMlx5`] and [`SendToSelfMlx5`] send.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct VerifyMlx5 {
    /// Offset of the message in the second half of the copy buffer, in bytes.
    pub off: u32,
    /// Length of a message in bytes.
    pub len: u32,
    pub seed: u64,
}

/// Stops the device and closes the function.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CloseMlx5 {
    /// Whether to close the function without stopping the device.
    pub abrupt: bool,
}
