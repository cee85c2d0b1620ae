//! Rows for a NIC's queues and its link.

use serde::{Deserialize, Serialize};

use crate::frontend::table::{Row, TableSpec, hex, or_dash, yes};

/// Row for a NIC queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueRow {
    /// Queue number within its direction.
    pub queue: u16,
    /// Direction of the queue's frames.
    pub direction: QueueDirection,
    pub state: QueueState,
    /// VSI that sends through this queue; `None` for a receive queue, which is listed in the row of its VSI.
    pub vsi: Option<u16>,
    /// Bus address of the ring.
    pub ring: u64,
    pub entries: u16,
    /// Index of the descriptor that the device processes next.
    pub head: u16,
    /// Index of the descriptor that software writes next.
    pub tail: u16,
    /// MSI-X vector; `None` if the queue does not raise interrupts.
    pub vector: Option<u16>,
    /// Number of frames sent or received since the queue was enabled.
    pub frames: u64,
    /// Total length of the sent or received frames on the wire, in bytes.
    pub bytes: u64,
    /// Number of frames dropped because they were too long or because no descriptor was free.
    pub dropped: u64,
}

/// Direction of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueDirection {
    /// From guest memory to the wire.
    Transmit,
    /// From the wire to guest memory.
    Receive,
}

/// State of a NIC queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueState {
    Enabled,
    /// Stopped after a violation by the driver, until the driver disables the queue.
    Stopped,
}

/// State of a NIC's link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkRow {
    /// Whether software has enabled the link.
    pub enabled: bool,
    /// Reported speed in Gbit/s.
    pub gbps: u16,
    pub mac: String,
    /// Maximum frame length, including the frame check sequence.
    pub max_frame: u16,
    pub received: u64,
    pub sent: u64,
    /// Number of frames dropped on transmission because the link was down.
    pub lost: u64,
}

impl Row for QueueRow {
    const TABLE: &'static TableSpec = &TableSpec {
        name: "queues",
        help: "NIC queues: state, ring, frame counts",
        columns: &[
            "QUEUE",
            "DIRECTION",
            "STATE",
            "VSI",
            "RING",
            "ENTRIES",
            "HEAD",
            "TAIL",
            "VECTOR",
            "FRAMES",
            "BYTES",
            "DROPPED",
        ],
    };

    fn cells(&self) -> Vec<String> {
        vec![
            self.queue.to_string(),
            match self.direction {
                QueueDirection::Transmit => "transmit",
                QueueDirection::Receive => "receive",
            }
            .to_owned(),
            match self.state {
                QueueState::Enabled => "enabled",
                QueueState::Stopped => "stopped",
            }
            .to_owned(),
            or_dash(self.vsi),
            hex(self.ring),
            self.entries.to_string(),
            self.head.to_string(),
            self.tail.to_string(),
            or_dash(self.vector),
            self.frames.to_string(),
            self.bytes.to_string(),
            self.dropped.to_string(),
        ]
    }
}

impl Row for LinkRow {
    const TABLE: &'static TableSpec = &TableSpec {
        name: "link",
        help: "the NIC link: speed, MAC, maximum frame size, frame counts",
        columns: &["ENABLED", "GBPS", "MAC", "MAX-FRAME", "RECEIVED", "SENT", "LOST"],
    };

    fn cells(&self) -> Vec<String> {
        vec![
            yes(self.enabled),
            self.gbps.to_string(),
            self.mac.clone(),
            self.max_frame.to_string(),
            self.received.to_string(),
            self.sent.to_string(),
            self.lost.to_string(),
        ]
    }
}
