//! Work queue entries (WQE).
//!
//! # Spec
//! mlx5 interface, sections 11 and 12.1.

mod opcode;
mod recv;
mod segments;
mod send;

pub use opcode::Opcode;
pub use recv::{RecvWqe, SrqEntry};
pub use segments::{
    AtomicSegment, ControlSegment, DataItem, DataItems, DataSegment, DatagramSegment, Fence, RemoteSegment,
    XrcSegment,
};
pub use send::{Operation, SendWqe, Translation, Umr, WqeError};

/// WQE sizes are given in units of this many bytes.
pub const UNIT: usize = 16;
/// Send queue lengths and counters are given in blocks of this many bytes.
pub const BLOCK: usize = 64;
/// Maximum send WQE size in bytes.
pub const MAX_SEND: usize = 63 * UNIT;

#[cfg(test)]
mod tests;
