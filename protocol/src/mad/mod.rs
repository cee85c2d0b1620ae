//! Management datagrams (MADs): subnet management, subnet administration, performance management.
//!
//! A datagram is 256 bytes. A common [`mod@header`] is followed by sections that each class has of its own ([`smp`], [`sa`],
//! [`perf`]), and one of the sections is the attribute. Attributes are declared as the tables of the specification have
//! them, with offset and length of each field in bits.
//!
//! # Spec
//! IBTA volume 1, chapters 13 to 16.

mod field;

pub mod class_port_info;
pub mod header;
pub mod node;
pub mod perf;
pub mod port;
pub mod record;
pub mod rmpp;
pub mod sa;
pub mod sm;
pub mod smp;
pub mod switch;

pub use field::BitField;
pub use header::{Class, Header, MadStatus, Method};

/// Bytes of a management datagram.
pub const MAD_LEN: usize = 256;

/// A management datagram.
pub type Mad = [u8; MAD_LEN];

/// The common header of a datagram.
pub fn header(mad: &Mad) -> Header {
    smp::Smp::of(mad).header()
}

/// Replaces the common header.
pub fn set_header(mad: &mut Mad, header: &Header) {
    smp::Smp::of_mut(mad).set_header(header);
}
