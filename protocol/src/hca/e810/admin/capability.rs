//! Function capabilities (000A) and device capabilities (000B).
//!
//! # Spec
//! E810 interface, section 6.1.

use crate::layout;

layout! {
    /// Parameters of "list function capabilities" and "list device capabilities".
    pub struct Capabilities[16] {
        /// Number of records in the buffer.
        @4   count: u32,
    }
}

layout! {
    /// One record of a capability list.
    pub struct Capability[32] {
        /// Capability ID; see [`id`].
        @0   id: u16 => Hex,
        /// Major version of the record.
        @2   major: u8,
        /// Minor version of the record.
        @3   minor: u8,
        /// A count or a value, depending on the capability.
        @4   number: u32,
        /// The meaning depends on the capability.
        @8   logical_id: u32,
        /// The meaning depends on the capability. For queues and vectors, this is the number of the first queue or
        /// vector.
        @12  physical_id: u32,
    }
}

/// Capability IDs that the device reports.
#[allow(missing_docs)]
pub mod id {
    /// Valid functions, one bit each.
    pub const VALID_FUNCTIONS: u16 = 0x0005;
    pub const VSI: u16 = 0x0017;
    /// Data center bridging (DCB) features.
    pub const DCB: u16 = 0x0018;
    /// Receive side scaling (RSS): table size and entry width.
    pub const RSS: u16 = 0x0040;
    pub const RX_QUEUES: u16 = 0x0041;
    pub const TX_QUEUES: u16 = 0x0042;
    pub const MSIX: u16 = 0x0043;
    /// Flow director: guaranteed and best-effort filters.
    pub const FLOW_DIRECTOR: u16 = 0x0045;
    /// Maximum frame size in bytes.
    pub const MAX_MTU: u16 = 0x0047;
    pub const RDMA: u16 = 0x0051;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Uses the third record of the 000B response in the recording `probe-synth-fd.aq.gz`.
    #[test]
    fn capability_record_matches_recorded_bytes() {
        let mut golden = [0; 32];
        golden[..8].copy_from_slice(&[0x41, 0, 1, 0, 0x10, 0, 0, 0]);
        let queues = Capability { id: id::RX_QUEUES, major: 1, number: 16, ..Capability::default() };
        assert_eq!(queues.emit(), golden);
    }
}
