//! Send and receive WQEs, and the units that make them up.
//!
//! A WQE is a sequence of 16-byte granules. A send WQE's opcode and size are not in the WQE itself, but in the doorbell
//! or in the [`NextUnit`] of the previous WQE. The caller of [`SendWqe::parse`] therefore passes the opcode and exactly
//! the bytes of the WQE.
//!
//! # Spec
//! JingZhao interface, sections 6.1 to 6.6, 6.8 and 7.3.

mod recv;
mod send;
mod units;

pub use recv::{CONSUMED, End, Extent, RECV_VALID, RecvWqe, UNTOUCHED};
pub use send::{MAX_SIZE, Operation, SendWqe, WqeData, WqeOpcode};
pub use units::{Link, NextUnit, UdUnit};

pub use crate::hca::segment::{DataSegment, DataSegments, GRANULE, WqeError};

type RawData = crate::hca::segment::RawData<zerocopy::LittleEndian>;

/// Unit that terminates a scatter list, as written by the public kernel driver.
pub const TERMINATOR: [u8; GRANULE] = [0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

#[cfg(test)]
mod tests;
