//! Where datagrams and connections go: the ARP table and address handles.
//!
//! # Spec
//! E810 interface, sections 10.3 and 13.6.

use super::index::{AhIndex, ArpIndex};
use super::number::{IpNumber, MacNumber};
use crate::ids::FlowLabel;
use crate::layout;
use crate::roce::IpAddrs;

layout! {
    /// "Manage ARP".
    pub struct ManageArp[64] {
        /// The neighbour's MAC.
        @16[47:0]  mac: MacNumber as u64,
        /// Entry of the table.
        @24[11:0]  index: ArpIndex,
        /// It is to be there; otherwise it goes.
        @24[42]    valid: bool,
        /// It never ages.
        @24[43]    permanent: bool,
    }
}

layout! {
    /// "Create AH" and "modify AH".
    pub struct AddressHandleCommand[64] {
        /// Where datagrams come from.
        @0[63:16]   source_mac: MacNumber as u64,
        /// VLAN tag.
        @8          vlan_tag: u16 => Hex,
        /// Traffic class.
        @8[39:32]   traffic_class: u8,
        /// Protection domain, low bits.
        @8[63:48]   pd_low: u16,
        /// Flow label.
        @16[19:0]   flow_label: FlowLabel,
        /// Protection domain, high bits.
        @16[27:20]  pd_high: u8,
        /// Hop limit.
        @16[39:32]  hop_limit: u8,
        /// Entry of the ARP table.
        @16[63:48]  arp: ArpIndex,
        /// The handle.
        @24[23:0]   index: AhIndex,
        /// The addresses are of IPv4.
        @24[59]     ipv4: bool,
        /// Datagrams get the VLAN tag.
        @24[60]     insert_vlan: bool,
        /// Datagrams are for the device itself too.
        @24[62]     loopback: bool,
        /// Where they go.
        @32         destination: IpNumber,
        /// Where they come from.
        @48         source: IpNumber,
    }
}

impl AddressHandleCommand {
    /// From the source to the destination.
    pub fn addresses(&self) -> IpAddrs {
        self.source.towards(self.destination, self.ipv4)
    }
}

layout! {
    /// "Destroy AH".
    pub struct DestroyAddressHandle[64] {
        /// The handle.
        @24[23:0]  index: AhIndex,
    }
}
