//! SwitchInfo: capabilities and configuration of a switch.
//!
//! # Spec
//! IBTA volume 1, section 14.2.5.4.

use super::field::attribute;

attribute! {
    /// A switch's SwitchInfo attribute.
    pub struct SwitchInfo[20] {
        /// Size of the linear forwarding table, in entries.
        linear_cap: u16 = 0, 16;
        /// Size of the random forwarding table, in entries.
        random_cap: u16 = 16, 16;
        /// Size of the multicast forwarding table, in entries.
        multicast_cap: u16 = 32, 16;
        /// Highest LID in the linear forwarding table.
        linear_top: u16 = 48, 16;
        /// Egress port for unicast LIDs that are not in the table.
        default_port: u8 = 64, 8;
        /// Egress port for multicast LIDs that are not in the table.
        default_multicast_primary: u8 = 72, 8;
        /// Egress port for multicast LIDs that are not in the table, if the packet arrived on the primary default port.
        default_multicast_not_primary: u8 = 80, 8;
        /// Packet lifetime in the switch: 4.096 us * 2^n.
        life_time: u8 = 88, 5;
        /// Whether the state of a port has changed.
        state_change: bool = 93, 1;
        lids_per_port: u16 = 96, 16;
        /// Size of the P_Key table for partition enforcement, in entries.
        partition_enforcement_cap: u16 = 112, 16;
        /// Whether partitions are enforced on inbound packets.
        inbound_enforcement: bool = 128, 1;
        /// Whether partitions are enforced on outbound packets.
        outbound_enforcement: bool = 129, 1;
        /// Whether inbound raw packets can be filtered.
        filter_raw_inbound: bool = 130, 1;
        /// Whether outbound raw packets can be filtered.
        filter_raw_outbound: bool = 131, 1;
        /// Whether port 0 is an enhanced port.
        enhanced_port_0: bool = 132, 1;
    }
}
