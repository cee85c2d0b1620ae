//! MAD_IFC: passes a MAD to the device's management agents.
//!
//! # Spec
//! mthca interface, section 8.2.

/// Length of a MAD in bytes.
pub const MAD_LEN: usize = 256;

/// Inbox of MAD_IFC. For a MAD received from the wire, the driver appends the MAD's GRH and fields from the receive
/// completion (QP numbers, SL, path bits, source LID and P_Key index). This device ignores the appended data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadIfc;

impl MadIfc {
    /// Length in bytes of the outbox, and of the part of the inbox that the device reads.
    pub const LEN: usize = MAD_LEN;
}
