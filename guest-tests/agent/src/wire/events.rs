//! Steps about event queues and interrupts.

use serde::{Deserialize, Serialize};

use super::Hex;

/// Names an event queue of the agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EqId(pub u32);

/// Create an event queue: its buffer's region, then SW2HW_EQ. It takes no asynchronous events until [`MapEq`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct CreateEq {
    /// log2 of the number of entries.
    pub log_entries: u8,
    /// Protection domain of the buffer.
    pub pd: u32,
    /// Protection domain the buffer is registered in, when it is another: the device cannot write entries then.
    pub buffer_pd: Option<u32>,
    /// MSI-X vector.
    pub vector: u16,
    /// Interrupt at events from the start.
    pub armed: bool,
    /// Give all entries to the device before the queue is created, as software that wants overruns noticed does.
    pub prepared: bool,
}

impl Default for CreateEq {
    fn default() -> Self {
        Self { log_entries: 6, pd: 1, buffer_pd: None, vector: 0, armed: true, prepared: true }
    }
}

/// Answer of [`CreateEq`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EqInfo {
    /// Name for later steps.
    pub id: EqId,
    /// Number.
    pub eqn: u32,
    /// lkey of the buffer.
    pub lkey: u32,
}

/// HW2SW_EQ, and free the buffer.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct DestroyEq {
    /// Queue.
    pub eq: EqId,
}

/// MAP_EQ.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct MapEq {
    /// Queue.
    pub eq: EqId,
    /// Bit t: events of type t.
    pub events: u64,
    /// Take these events from the queue instead of adding them.
    #[serde(default)]
    pub remove: bool,
}

/// Store an event queue's number into the ARM_EQ register.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ArmEq {
    /// Queue.
    pub eq: EqId,
}

/// Wait for events, and give their entries back to the device.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct PollEq {
    /// Queue.
    pub eq: EqId,
    /// Return when there are so many.
    pub count: u32,
    /// Return what there is after so long.
    pub timeout_ms: u32,
}

/// Answer of [`PollEq`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Events {
    /// In the order the device wrote them; fewer than asked for when time ran out.
    pub eqes: Vec<Eqe>,
}

/// An event queue entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Eqe {
    /// Type.
    pub event: u8,
    /// Subtype.
    pub subtype: u8,
    /// What it is about: the number of a queue or a port, or the token of a command.
    pub number: u32,
    /// Details.
    pub detail: u32,
    /// out_param of a command.
    pub param: u64,
    /// All 32 bytes.
    pub raw: Hex,
}

/// Give each of the first `vectors` MSI-X vectors a counter of its interrupts, and enable MSI-X.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct EnableInterrupts {
    /// Vectors.
    pub vectors: u16,
}

/// Disable MSI-X.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct DisableInterrupts {}

/// Wait until a vector has interrupted.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct WaitInterrupt {
    /// Vector.
    pub vector: u16,
    /// Give up after so long.
    pub timeout_ms: u32,
}

/// Answer of [`WaitInterrupt`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interrupts {
    /// Interrupts of the vector since it was asked for last; 0 when time ran out.
    pub count: u64,
}

/// Hold interrupts back, or let them go.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct MaskInterrupts {
    /// Where.
    pub mask: Mask,
    /// Hold back.
    pub masked: bool,
}

/// What can hold interrupts back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mask {
    /// Function Mask in the MSI-X capability.
    Function,
    /// The mask bit of a vector's entry in the MSI-X table.
    Entry(u16),
    /// The VMM's word for a vector. Only a function behind a socket has it: here this program is the VMM.
    Vmm(u16),
}

/// Read the pending bits of the first 64 vectors.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct PendingInterrupts {}

/// Answer of [`PendingInterrupts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingBits {
    /// Bit v: vector v is pending.
    pub bits: u64,
}
