//! Inbox of MAD_IFC: a MAD for the device itself, and the origin of the MAD.
//!
//! # Spec
//! mthca interface, section 8.2.

/// Length of a MAD in bytes.
pub const MAD_LEN: usize = 256;

/// Inbox of MAD_IFC. If the MAD arrived from the wire, the driver appends its origin. The responses of this device do
/// not depend on the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadIfc;

impl MadIfc {
    /// Length in bytes of the outbox, and of the part of the inbox that the device reads.
    pub const LEN: usize = MAD_LEN;
}
