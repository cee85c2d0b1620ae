//! CQP operations on multicast groups.
//!
//! # Spec
//! E810 interface, sections 10.3 and 13.8.

use super::number::{IpNumber, MacNumber};
use crate::ids::{Iova, Qpn};
use crate::layout;

/// Maximum number of QPs in a group.
pub const MAX_MEMBERS: usize = 8;

layout! {
    /// CQP WQE that creates, modifies or destroys a multicast group.
    pub struct GroupCommand[64] {
        /// MAC address of the group.
        @0[47:0]    mac: MacNumber as u64,
        /// Queue set of the group.
        @16[9:0]    set: u16,
        /// VLAN identifier of the group's datagrams.
        @16[43:32]  vlan: u16,
        /// Group number, 13 bits.
        @24[12:0]   group: u16,
        /// Whether the group's datagrams are VLAN-tagged.
        @24[59]     vlan_valid: bool,
        /// Whether the group's address is an IPv4 address.
        @24[60]     ipv4: bool,
        /// Address of the member list, an array of [`MAX_MEMBERS`] slots; see [`Member`].
        @32         members: Iova,
        /// IP address of the group.
        @48         address: IpNumber,
    }
}

layout! {
    /// A slot in a group's member list.
    pub struct Member[8] {
        /// QP number of the member.
        [17:0]   qpn: Qpn,
        /// Whether the slot is in use.
        [31]     valid: bool,
        /// UDP port of the member.
        [47:32]  port: u16,
    }
}
