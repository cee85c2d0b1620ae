//! Management datagrams (MADs): subnet management, subnet administration, performance management.
//!
//! A MAD is 256 bytes long. It consists of a common [`mod@header`] and class-specific sections ([`smp`], [`sa`],
//! [`perf`]), one of which contains the attribute. The offsets and lengths of fields are in bits, as in the tables of
//! the specification.
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

/// Length of a MAD in bytes.
pub const MAD_LEN: usize = 256;

/// A MAD as raw bytes.
pub type Mad = [u8; MAD_LEN];

/// Parses the common header of a MAD.
pub fn header(mad: &Mad) -> Header {
    smp::Smp::of(mad).header()
}

/// Replaces the common header of a MAD.
pub fn set_header(mad: &mut Mad, header: &Header) {
    smp::Smp::of_mut(mad).set_header(header);
}
