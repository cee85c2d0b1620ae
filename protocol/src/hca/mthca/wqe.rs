//! Work queue entries: the segments they are made of, and whole send and receive WQEs.
//!
//! A WQE is a sequence of 16-byte granules. A send WQE does not hold its own opcode and size: they are in the next
//! segment of the WQE in the slot before it, and, of the first WQE of a doorbell, in the doorbell. So
//! [`SendWqe::parse`] takes both from its caller.
//!
//! # Spec
//! mthca interface, sections 7.1 to 7.4 and 8.3.

mod mlx;
mod packed;
mod recv;
mod segments;
mod send;

pub use mlx::MlxWqe;
pub use packed::{PackedGrh, PackedHeaders};
pub use recv::RecvWqe;
pub use segments::{Link, NextSegment, UdSegment};
pub use send::{Operation, SendWqe, WqeData};

pub use crate::hca::segment::{DataSegment, DataSegments, GRANULE, WqeError};

/// Most granules of a send WQE: what the size field holds.
pub const MAX_SIZE: u8 = 63;

type RawData = crate::hca::segment::RawData<zerocopy::BigEndian>;

#[cfg(test)]
mod tests;
