//! What the function and the device can do: 000A and 000B.
//!
//! # Spec
//! E810 interface, section 6.1.

use crate::layout;

layout! {
    /// Parameters of both commands.
    pub struct Capabilities[16] {
        /// Records in the buffer.
        @4   count: u32,
    }
}

layout! {
    /// One record of the list.
    pub struct Capability[32] {
        /// What it is about.
        @0   id: u16 => Hex,
        /// Version of the record.
        @2   major: u8,
        /// Version of the record.
        @3   minor: u8,
        /// How much there is.
        @4   number: u32,
        /// Depends on the record.
        @8   logical_id: u32,
        /// Depends on the record; of queues and vectors, the first.
        @12  physical_id: u32,
    }
}

/// What records are about.
pub mod id {
    /// Functions there are, a bit each.
    pub const VALID_FUNCTIONS: u16 = 0x0005;
    /// VSIs.
    pub const VSI: u16 = 0x0017;
    /// Data center bridging.
    pub const DCB: u16 = 0x0018;
    /// Receive side scaling: size of the table, width of its entries.
    pub const RSS: u16 = 0x0040;
    /// Receive queues.
    pub const RX_QUEUES: u16 = 0x0041;
    /// Transmit queues.
    pub const TX_QUEUES: u16 = 0x0042;
    /// MSI-X vectors.
    pub const MSIX: u16 = 0x0043;
    /// Flow director: guaranteed and best-effort filters.
    pub const FLOW_DIRECTOR: u16 = 0x0045;
    /// Longest frame.
    pub const MAX_MTU: u16 = 0x0047;
    /// RDMA.
    pub const RDMA: u16 = 0x0051;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 000B of `probe-synth-fd.aq.gz`, its third record.
    #[test]
    fn a_record_is_as_recorded() {
        let mut golden = [0; 32];
        golden[..8].copy_from_slice(&[0x41, 0, 1, 0, 0x10, 0, 0, 0]);
        let queues = Capability { id: id::RX_QUEUES, major: 1, number: 16, ..Capability::default() };
        assert_eq!(queues.emit(), golden);
    }
}
