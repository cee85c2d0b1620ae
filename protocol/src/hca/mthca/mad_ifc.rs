//! Inbox of MAD_IFC, which executes a MAD on the device itself.
//!
//! # Spec
//! mthca interface, section 8.2.

/// Length of a MAD in bytes.
pub const MAD_LEN: usize = 256;

/// Inbox of MAD_IFC. For a MAD that arrived from the wire, the driver appends information about its sender, which this
/// device ignores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadIfc;

impl MadIfc {
    /// Length in bytes of the outbox, and of the part of the inbox that the device reads.
    pub const LEN: usize = MAD_LEN;
}
