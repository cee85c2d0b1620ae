//! Work queue entries: the units they are made of, and whole send and receive WQEs.
//!
//! A WQE is a sequence of 16-byte granules. It does not hold its own opcode and size: they come from the doorbell or
//! from the next unit of the WQE before it, so [`SendWqe::parse`] takes both from its caller.
//!
//! # Spec
//! JingZhao interface, sections 6.1 to 6.6, 6.8 and 7.3.

use thiserror::Error;

mod recv;
mod send;
mod units;

pub use recv::{Posted, RECV_VALID, RecvWqe};
pub use send::{MAX_SIZE, Operation, SendWqe, WqeData, WqeOpcode};
pub use units::{DataUnit, DataUnits, Link, NextUnit, UdUnit};

/// Bytes of a unit, and the unit of sizes and positions.
pub const GRANULE: usize = 16;

/// Why a WQE cannot be executed. It completes with LOCAL_QP_OP_ERR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WqeError {
    /// The opcode is unknown, or the service does not have it.
    #[error("opcode {0:#04x} is not supported")]
    Opcode(u8),
    /// The WQE ends inside a unit that its operation needs.
    #[error("the WQE ends inside its {0}")]
    Truncated(&'static str),
    /// Inline data where the operation scatters, or behind another data unit.
    #[error("inline data is not allowed here")]
    Inline,
    /// An atomic operation needs exactly one data unit of eight bytes.
    #[error("the result of an atomic operation is not one unit of eight bytes")]
    AtomicResult,
}

#[cfg(test)]
mod tests;
