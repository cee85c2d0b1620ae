//! The inbox of MAD_IFC: a management datagram for the device itself, and where it came from.
//!
//! # Spec
//! mthca interface, section 8.2.

/// Bytes of a management datagram.
pub const MAD_LEN: usize = 256;

/// The inbox of MAD_IFC. Behind the datagram software tells, of one that came from the wire, where from; the answers of
/// this device do not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadIfc;

impl MadIfc {
    /// Bytes of the inbox the device reads, and of the outbox.
    pub const LEN: usize = MAD_LEN;
}
