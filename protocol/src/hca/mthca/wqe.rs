//! Work queue entries: the segments they are made of, and whole send and receive WQEs.
//!
//! A WQE is a sequence of 16-byte granules. A send WQE does not hold its own opcode and size: they are in the next
//! segment of the WQE in the slot before it, and, of the first WQE of a doorbell, in the doorbell. So
//! [`SendWqe::parse`] takes both from its caller.
//!
//! # Spec
//! mthca interface, sections 7.1 to 7.4 and 8.3.

use thiserror::Error;

mod mlx;
mod recv;
mod segments;
mod send;

pub use mlx::MlxWqe;
pub use recv::RecvWqe;
pub use segments::{DataSegment, DataSegments, Link, NextSegment, UdSegment};
pub use send::{Operation, SendWqe, WqeData};

/// Bytes of a segment, and the unit of sizes.
pub const GRANULE: usize = 16;

/// Most granules of a send WQE: what the size field holds.
pub const MAX_SIZE: u8 = 63;

/// Why a WQE cannot be executed. It completes with LOCAL_QP_OP_ERR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WqeError {
    /// The opcode is unknown, or the service does not have it.
    #[error("opcode {0:#04x} is not supported")]
    Opcode(u8),
    /// The WQE ends inside a segment that its operation needs.
    #[error("the WQE ends inside its {0}")]
    Truncated(&'static str),
    /// Inline data where the operation scatters, or beside data in regions.
    #[error("inline data is not allowed here")]
    Inline,
    /// An atomic operation needs exactly one data segment of eight bytes.
    #[error("the result of an atomic operation is not one segment of eight bytes")]
    AtomicResult,
}

#[cfg(test)]
mod tests;
