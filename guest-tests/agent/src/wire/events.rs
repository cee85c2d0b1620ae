//! Steps for event queues and interrupts.

use serde::{Deserialize, Serialize};

use super::Hex;

/// Identifies one of the agent's event queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EqId(pub u32);

/// Creates an event queue by registering its buffer and issuing SW2HW_EQ. The queue does not receive asynchronous
/// events until a [`MapEq`] step adds their types.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct CreateEq {
    /// Log2 of the number of entries.
    pub log_entries: u8,
    /// Protection domain of the queue.
    pub pd: u32,
    /// Protection domain of the buffer's region. Defaults to `pd`. If the two differ, the device cannot write entries.
    pub buffer_pd: Option<u32>,
    pub vector: u16,
    /// Whether the queue is armed after creation.
    pub armed: bool,
    /// Whether to pass ownership of all entries to the device before creating the queue, so that overruns are detected.
    pub prepared: bool,
}

impl Default for CreateEq {
    fn default() -> Self {
        Self { log_entries: 6, pd: 1, buffer_pd: None, vector: 0, armed: true, prepared: true }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EqInfo {
    /// Identifier of the queue in later steps.
    pub id: EqId,
    pub eqn: u32,
    /// lkey of the buffer.
    pub lkey: u32,
}

/// Destroys an event queue with HW2SW_EQ and frees its buffer.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct DestroyEq {
    pub eq: EqId,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct MapEq {
    pub eq: EqId,
    /// Bitmap of event types: bit t selects events of type t.
    pub events: u64,
    /// Whether to remove the events from the queue instead of adding them.
    #[serde(default)]
    pub remove: bool,
}

/// Arms an event queue by writing its number to the ARM_EQ register.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ArmEq {
    pub eq: EqId,
}

/// Waits for events and returns their entries to the device.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct PollEq {
    pub eq: EqId,
    /// Number of events to wait for.
    pub count: u32,
    /// Timeout in milliseconds, after which the events received so far are returned.
    pub timeout_ms: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Events {
    /// Events in the order in which the device wrote them. After a timeout, there are fewer than requested.
    pub eqes: Vec<Eqe>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Eqe {
    /// Type field of the EQE.
    pub event: u8,
    /// Subtype field of the EQE.
    pub subtype: u8,
    /// Number of the affected queue or port, or the token of a command.
    pub number: u32,
    pub detail: u32,
    /// out_param of a completed command.
    pub param: u64,
    /// All 32 bytes of the EQE.
    pub raw: Hex,
}

/// Enables MSI-X, with an interrupt counter for each of the first `vectors` vectors.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct EnableInterrupts {
    pub vectors: u16,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct DisableInterrupts {}

/// Waits for an interrupt on one vector.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct WaitInterrupt {
    pub vector: u16,
    /// Timeout for the wait in milliseconds.
    pub timeout_ms: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interrupts {
    /// Number of interrupts since the last [`WaitInterrupt`] step, or 0 after a timeout.
    pub count: u64,
}

/// Masks or unmasks interrupts.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct MaskInterrupts {
    pub mask: Mask,
    /// Whether to mask interrupts, so that they stay pending.
    pub masked: bool,
}

/// The masks that can keep interrupts pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mask {
    /// The Function Mask bit of the MSI-X capability.
    Function,
    /// The mask bit in a vector's MSI-X table entry.
    Entry(u16),
    /// The VMM's mask for a vector. Available only for a function behind a socket, where this program is the VMM.
    Vmm(u16),
}

/// Reads the pending bits of the first 64 vectors.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct PendingInterrupts {}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingBits {
    /// Bitmap of pending vectors: bit v is set if vector v is pending.
    pub bits: u64,
}
