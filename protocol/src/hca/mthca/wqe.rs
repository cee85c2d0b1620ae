//! Send and receive WQEs, and the segments that they consist of.
//!
//! A WQE is a sequence of 16-byte granules. The opcode and size of a send WQE are not in the WQE itself, but in the
//! [`NextSegment`] of the previous WQE, or in the doorbell if the WQE is the first that the doorbell posts. The caller
//! of [`SendWqe::parse`] therefore passes the opcode and exactly the bytes of the WQE.
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
