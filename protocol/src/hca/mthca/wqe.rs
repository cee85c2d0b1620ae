//! Send and receive WQEs, and the segments that make them up.
//!
//! A WQE is a sequence of 16-byte granules. A send WQE's opcode and size are not in the WQE itself, but in the
//! [`NextSegment`] of the previous WQE or, for the first WQE that a doorbell posts, in the doorbell. The caller of
//! [`SendWqe::parse`] therefore passes the opcode and exactly the bytes of the WQE.
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

/// Largest send WQE in granules, limited by the width of the size field.
pub const MAX_SIZE: u8 = 63;

type RawData = crate::hca::segment::RawData<zerocopy::BigEndian>;

#[cfg(test)]
mod tests;
