//! Work queue entries (WQE).
//!
//! # Spec
//! mlx5 interface, sections 11, 12.1 and 16.1.

mod frame;
mod opcode;
mod recv;
mod segments;
mod send;

pub use frame::{EthernetSegment, FrameOperation, FrameWqe};
pub use opcode::Opcode;
pub use recv::{RecvWqe, SrqEntry};
pub use segments::{
    AtomicSegment, ControlSegment, DataItem, DataItems, DataSegment, DatagramSegment, Fence, RemoteSegment,
    XrcSegment,
};
pub use send::{Operation, SendWqe, Translation, Umr, WqeError};

/// Unit of WQE sizes, in bytes.
pub const UNIT: usize = 16;
/// Size of a basic block of the send queue (WQEBB) in bytes. Queue lengths and WQE counters count these blocks.
pub const BLOCK: usize = 64;
/// Maximum send WQE size in bytes.
pub const MAX_SEND: usize = 63 * UNIT;

#[cfg(test)]
mod tests;
