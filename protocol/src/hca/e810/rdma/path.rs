//! CQP operations on the ARP table and on address handles.
//!
//! # Spec
//! E810 interface, sections 10.3 and 13.6.

use super::index::{AhIndex, ArpIndex};
use super::number::{IpNumber, MacNumber};
use crate::ids::FlowLabel;
use crate::layout;
use crate::roce::IpAddrs;

layout! {
    /// CQP WQE of "Manage ARP".
    pub struct ManageArp[64] {
        /// MAC address of the neighbour.
        @16[47:0]  mac: MacNumber as u64,
        @24[11:0]  index: ArpIndex,
        /// Whether to add the entry rather than delete it.
        @24[42]    valid: bool,
        /// Whether the entry never ages out.
        @24[43]    permanent: bool,
    }
}

layout! {
    /// CQP WQE of "Create AH" and "Modify AH".
    pub struct AddressHandleCommand[64] {
        @0[63:16]   source_mac: MacNumber as u64,
        @8          vlan_tag: u16 => Hex,
        /// IPv4 TOS or IPv6 traffic class.
        @8[39:32]   traffic_class: u8,
        /// Protection domain, bits 15:0.
        @8[63:48]   pd_low: u16,
        @16[19:0]   flow_label: FlowLabel,
        /// Protection domain, bits 23:16.
        @16[27:20]  pd_high: u8,
        /// TTL or hop limit.
        @16[39:32]  hop_limit: u8,
        /// ARP table entry of the destination.
        @16[63:48]  arp: ArpIndex,
        @24[23:0]   index: AhIndex,
        /// Whether the addresses are IPv4 addresses.
        @24[59]     ipv4: bool,
        /// Whether to insert the VLAN tag into datagrams.
        @24[60]     insert_vlan: bool,
        /// Whether datagrams are also delivered to the device itself.
        @24[62]     loopback: bool,
        @32         destination: IpNumber,
        @48         source: IpNumber,
    }
}

impl AddressHandleCommand {
    /// Returns the source and destination addresses.
    pub fn addresses(&self) -> IpAddrs {
        self.source.towards(self.destination, self.ipv4)
    }
}

layout! {
    /// CQP WQE of "Destroy AH".
    pub struct DestroyAddressHandle[64] {
        @24[23:0]  index: AhIndex,
    }
}
