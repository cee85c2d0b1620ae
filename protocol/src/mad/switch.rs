//! SwitchInfo: what a switch can do.
//!
//! # Spec
//! IBTA volume 1, section 14.2.5.4.

use super::field::attribute;

attribute! {
    /// SwitchInfo.
    pub struct SwitchInfo[20] {
        /// Entries of the linear forwarding table.
        linear_cap: u16 = 0, 16;
        /// Entries of the random forwarding table.
        random_cap: u16 = 16, 16;
        /// Entries of the multicast forwarding table.
        multicast_cap: u16 = 32, 16;
        /// Highest LID the linear table knows.
        linear_top: u16 = 48, 16;
        /// Port of LIDs the table does not know.
        default_port: u8 = 64, 8;
        /// Port of multicast LIDs the table does not know.
        default_multicast_primary: u8 = 72, 8;
        /// Port of those that come from the primary one.
        default_multicast_not_primary: u8 = 80, 8;
        /// Longest life of a packet.
        life_time: u8 = 88, 5;
        /// A port changed its state.
        state_change: bool = 93, 1;
        /// LIDs a port may have.
        lids_per_port: u16 = 96, 16;
        /// Entries of the P_Key table of a port that enforces partitions.
        partition_enforcement_cap: u16 = 112, 16;
        /// Enforces partitions on packets that arrive.
        inbound_enforcement: bool = 128, 1;
        /// Enforces partitions on packets that leave.
        outbound_enforcement: bool = 129, 1;
        /// Filters raw packets that arrive.
        filter_raw_inbound: bool = 130, 1;
        /// Filters raw packets that leave.
        filter_raw_outbound: bool = 131, 1;
        /// Port 0 is a full port.
        enhanced_port_0: bool = 132, 1;
    }
}
