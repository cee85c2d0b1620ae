//! Multicast groups.
//!
//! # Spec
//! E810 interface, sections 10.3 and 13.8.

use super::number::{IpNumber, MacNumber};
use crate::ids::{Iova, Qpn};
use crate::layout;

/// Queue pairs that a group can have.
pub const MAX_MEMBERS: usize = 8;

layout! {
    /// "Create", "modify" and "destroy multicast group".
    pub struct GroupCommand[64] {
        /// The group's MAC.
        @0[47:0]    mac: MacNumber as u64,
        /// Set of queues.
        @16[9:0]    set: u16,
        /// VLAN of its datagrams.
        @16[43:32]  vlan: u16,
        /// Which one.
        @24[12:0]   group: u16,
        /// Its datagrams have a VLAN.
        @24[59]     vlan_valid: bool,
        /// Its address is of IPv4.
        @24[60]     ipv4: bool,
        /// Its members: [`MAX_MEMBERS`] times [`Member`].
        @32         members: Iova,
        /// Its address.
        @48         address: IpNumber,
    }
}

layout! {
    /// A place for a member.
    pub struct Member[8] {
        /// The queue pair.
        [17:0]   qpn: Qpn,
        /// There is one in this place.
        [31]     valid: bool,
        /// UDP port.
        [47:32]  port: u16,
    }
}
