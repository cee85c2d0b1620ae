//! Send and receive WQEs, and the segments that they consist of.
//!
//! A WQE is a sequence of 16-byte granules. A send WQE does not contain its own opcode and size. They are in the
//! [`NextSegment`] of the WQE in the previous slot or, for the first WQE of a doorbell, in the doorbell. The caller of
//! [`SendWqe::parse`] therefore passes exactly the bytes of the WQE, and its opcode.
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

/// Largest send WQE in granules. The size field cannot hold a larger value.
pub const MAX_SIZE: u8 = 63;

type RawData = crate::hca::segment::RawData<zerocopy::BigEndian>;

#[cfg(test)]
mod tests;
