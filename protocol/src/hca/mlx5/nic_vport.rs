//! The vport of an Ethernet port: its state and its NIC vport context.
//!
//! # Spec
//! mlx5 interface, sections 5.5, 15.1 and 15.2.

use bitflags::bitflags;

use super::code::codes;
use crate::ids::MacAddr;
use crate::layout;

codes! {
    /// Administrative state of a vport, which software sets.
    pub enum AdminState(u8) {
        Down = 0 "down",
        Up = 1 "up",
        /// The vport follows the state of the port.
        Follow = 2 "follow",
    }
}

layout! {
    /// Output of the QUERY_VPORT_STATE command.
    pub struct VportState[16] big_endian {
        /// A value of [`AdminState`].
        @0x0c[7:4]  admin: u8 => AdminState::word,
        /// Whether the link is up.
        @0x0c[0]    up: bool,
    }
}

layout! {
    /// Input of the MODIFY_VPORT_STATE command.
    pub struct ModifyVportState[16] big_endian {
        /// A value of [`AdminState`].
        @0x0c[7:4]  admin: u8 => AdminState::word,
    }
}

codes! {
    /// Type of the list that follows a NIC vport context.
    pub enum ListType(u8) {
        /// Unicast MAC addresses. The first address belongs to the network device.
        Unicast = 0 "unicast",
        /// Multicast MAC addresses to receive.
        Multicast = 1 "multicast",
        /// VLAN identifiers to receive.
        Vlan = 2 "vlan",
    }
}

layout! {
    /// Fixed part of a NIC vport context. A list follows.
    pub struct NicVportContext[0x100] big_endian {
        /// Headers that a send WQE must contain inline. Applies only if the `inline_mode` capability is 1.
        @0x00[26:24]  min_inline_mode: u8,
        @0x00[2]      disable_multicast_loopback: bool,
        @0x00[1]      disable_unicast_loopback: bool,
        /// Whether RoCE is enabled.
        @0x00[0]      roce: bool,
        /// Context changes that the driver requests events for. This device never sends them.
        @0x04         event_arming: u32 => Hex,
        /// Maximum frame length in bytes, with the same overhead as in the PMTU register.
        @0x24[15:0]   mtu: u16,
        @0x28         system_guid: u64 => Hex,
        @0x30         port_guid: u64 => Hex,
        @0x38         node_guid: u64 => Hex,
        /// Whether the driver requests all unicast frames.
        @0xf0[31]     promiscuous_unicast: bool,
        /// Whether the driver requests all multicast frames.
        @0xf0[30]     promiscuous_multicast: bool,
        /// Whether the driver requests all frames.
        @0xf0[29]     promiscuous_all: bool,
        /// A value of [`ListType`].
        @0xf0[26:24]  list_type: u8 => ListType::word,
        /// Number of entries in the list.
        @0xf0[15:0]   list_len: u16,
        /// Permanent MAC address of the port. Drivers can change it.
        @0xf6         permanent_mac: MacAddr,
    }
}

/// Length of a list entry in a NIC vport context, in bytes. A MAC address is in the last six bytes of its entry.
pub const LIST_ENTRY_LEN: usize = 8;

layout! {
    /// Input of the QUERY_NIC_VPORT_CONTEXT command.
    pub struct QueryNicVport[16] big_endian {
        /// A value of [`ListType`].
        @0x0c[26:24]  list_type: u8 => ListType::word,
    }
}

layout! {
    /// Output of the QUERY_NIC_VPORT_CONTEXT command, without the list.
    pub struct QueriedNicVport[0x110] big_endian {
        @0x10  context: NicVportContext,
    }
}

bitflags! {
    /// Fields that MODIFY_NIC_VPORT_CONTEXT changes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct VportFields: u32 {
        /// Whether RoCE is enabled.
        const ROCE = 1 << 1;
        /// The list that follows the context.
        const LIST = 1 << 2;
        /// The permanent MAC address.
        const PERMANENT_MAC = 1 << 3;
        /// The three promiscuous modes.
        const PROMISCUOUS = 1 << 4;
        /// Changes that raise events.
        const EVENT_ARMING = 1 << 5;
        /// The maximum frame length.
        const MTU = 1 << 6;
        /// The minimum inline mode.
        const MIN_INLINE_MODE = 1 << 7;
        /// GUID of the port.
        const PORT_GUID = 1 << 8;
        /// GUID of the node.
        const NODE_GUID = 1 << 9;
        /// Loopback of multicast frames.
        const MULTICAST_LOOPBACK = 1 << 10;
        /// Loopback of unicast frames.
        const UNICAST_LOOPBACK = 1 << 11;
        const _ = !0;
    }
}

layout! {
    /// Input of the MODIFY_NIC_VPORT_CONTEXT command, without the list.
    pub struct ModifyNicVport[0x200] big_endian {
        /// Fields to change: bits of [`VportFields`].
        @0x0c   fields: u32 => Hex,
        /// New values of the selected fields.
        @0x100  context: NicVportContext,
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::words;
    use super::*;

    /// Examples from golden traces eth-1 and eth-3.
    #[test]
    fn nic_vport_context_matches_traces() {
        let context = NicVportContext {
            min_inline_mode: 1,
            mtu: 1500,
            system_guid: 0x0002_c903_00a0_0000,
            port_guid: 0x0002_c903_00a0_0001,
            node_guid: 0x0002_c903_00a0_0000,
            permanent_mac: MacAddr([2, 0, 0, 0x55, 0, 1]),
            ..NicVportContext::default()
        };
        let expected = words(&[
            (0, 0x0100_0000),
            (0x24, 0x05dc),
            (0x28, 0x0002_c903),
            (0x2c, 0x00a0_0000),
            (0x30, 0x0002_c903),
            (0x34, 0x00a0_0001),
            (0x38, 0x0002_c903),
            (0x3c, 0x00a0_0000),
            (0xf4, 0x200),
            (0xf8, 0x0055_0001),
        ]);
        assert_eq!(context.emit(), expected);
        let list_type = ListType::Multicast.code();
        let lists = NicVportContext { list_type, list_len: 3, ..NicVportContext::default() };
        let modify = ModifyNicVport { fields: VportFields::LIST.bits(), context: lists }.emit();
        assert_eq!((modify[0x0f], &modify[0x1f0..0x1f4]), (4, &[1, 0, 0, 3][..]));
        assert_eq!(modify.len(), 512);
        assert_eq!(QueryNicVport { list_type: 2 }.emit()[0x0c], 2);
    }

    #[test]
    fn vport_state_matches_trace() {
        let state = VportState { admin: AdminState::Up.code(), up: true };
        assert_eq!(state.emit(), words(&[(0x0c, 0x11)]));
        assert_eq!(ModifyVportState { admin: 2 }.emit()[0x0f], 0x20);
    }
}
