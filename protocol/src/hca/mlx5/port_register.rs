//! Registers of an Ethernet port, accessed with the ACCESS_REG command.
//!
//! # Spec
//! mlx5 interface, sections 15.1, 15.4 and 17.1.

use super::code::codes;
use crate::layout;

layout! {
    /// Contents of the PMTU register. Lengths are in bytes and include 22 bytes for the Ethernet header, a VLAN tag and
    /// the frame check sequence.
    pub struct Pmtu[16] big_endian {
        /// Port number, starting at 1.
        @0x00[23:16]  port: u8,
        /// Maximum length that a driver can set.
        @0x04         max: u16,
        /// Length set by the driver.
        @0x08         admin: u16,
        /// Maximum frame length in effect.
        @0x0c         operational: u16,
    }
}

layout! {
    /// Contents of the PTYS register, without the fields for InfiniBand and extended link modes.
    pub struct Ptys[64] big_endian {
        /// Whether the driver has disabled autonegotiation.
        @0x00[30]     autoneg_disabled: bool,
        /// Whether autonegotiation can be disabled. Otherwise, the driver rejects `autoneg off` itself.
        @0x00[29]     autoneg_disable_supported: bool,
        /// Port number, starting at 1.
        @0x00[23:16]  port: u8,
        /// Protocol whose link modes are accessed: bit 0 for InfiniBand, bit 2 for Ethernet.
        @0x00[2:0]    protocol: u8,
        /// Mask of the Ethernet link modes that the port supports.
        @0x0c         supported: u32 => Hex,
        /// Mask of the Ethernet link modes that the driver has enabled.
        @0x18         admin: u32 => Hex,
        /// Ethernet link mode in use, or 0 if the link is down.
        @0x24         operational: u32 => Hex,
    }
}

impl Ptys {
    /// Value of `protocol` for Ethernet.
    pub const ETHERNET: u8 = 4;
}

codes! {
    /// Port state, either set by the driver or in effect.
    pub enum PortStatus(u8) {
        Up = 1 "up",
        Down = 2 "down",
    }
}

layout! {
    /// Contents of the PAOS register: the state of a port.
    pub struct Paos[16] big_endian {
        /// Port number, starting at 1.
        @0x00[23:16]  port: u8,
        /// State set by the driver; a value of [`PortStatus`].
        @0x00[11:8]   admin: u8 => PortStatus::word,
        /// State in effect; a value of [`PortStatus`].
        @0x00[3:0]    operational: u8 => PortStatus::word,
        /// Whether a write sets the state.
        @0x04[31]     set_admin: bool,
    }
}

layout! {
    /// Contents of the PFCC register. Only the port number is defined here, since this device has no flow control.
    pub struct Pfcc[32] big_endian {
        /// Port number, starting at 1.
        @0x00[23:16]  port: u8,
    }
}

layout! {
    /// Contents of the PMLP register. Only the port number is defined here, since this device has no pluggable module.
    pub struct Pmlp[64] big_endian {
        /// Port number, starting at 1.
        @0x00[23:16]  port: u8,
    }
}

layout! {
    /// Contents of the PDDR register: diagnostics of a port. Its pages are zero on this device.
    pub struct Pddr[256] big_endian {
        /// Port number, starting at 1.
        @0x00[23:16]  port: u8,
        /// Page of diagnostics that follows.
        @0x04[7:0]    page: u8,
    }
}

layout! {
    /// Fixed part of the MCIA register, which accesses the EEPROM of a pluggable module. The data follows.
    pub struct Mcia[16] big_endian {
        /// Number of the module.
        @0x00[23:16]  module: u8,
        /// Result of the access; 0 means success.
        @0x00[7:0]    status: u8,
        @0x04[31:24]  i2c_address: u8 => Hex,
        @0x04[23:16]  page: u8,
        /// Offset of the first byte in the page.
        @0x04[15:0]   offset: u16,
        /// Number of bytes to access.
        @0x08[15:0]   data_len: u16,
    }
}

impl Mcia {
    /// Value of `status` for a cage without a module.
    pub const NOT_CONNECTED: u8 = 3;
}

codes! {
    /// Counter group in the PPCNT register.
    pub enum CounterGroup(u8) {
        /// Counters defined by IEEE 802.3.
        Ieee = 0x00 "ieee_802_3",
        /// Counters defined by RFC 2863.
        Rfc2863 = 0x01 "rfc_2863",
        /// Counters defined by RFC 2819.
        Rfc2819 = 0x02 "rfc_2819",
        /// Counters for one priority.
        Priority = 0x10 "priority",
        /// Counters for the physical layer.
        Physical = 0x12 "physical",
        /// Counters of the PortCounters attribute, as in [`crate::mad::perf::PortCounters`].
        InfiniBand = 0x20 "infiniband",
    }
}

layout! {
    /// Contents of the PPCNT register. The meaning of the counters depends on the group.
    pub struct PortCounters[256] big_endian {
        /// Port number, starting at 1.
        @0x00[23:16]  port: u8,
        /// A value of [`CounterGroup`].
        @0x00[5:0]    group: u8 => CounterGroup::word,
        /// Whether to reset the counters after the access.
        @0x04[31]     clear: bool,
        /// Priority or traffic class that the counters apply to.
        @0x04[4:0]    priority: u8,
        /// Counters, as in [`IeeeCounters`], [`Rfc2819Counters`], [`PriorityCounters`] or [`PhysicalCounters`]. Those
        /// of [`CounterGroup::InfiniBand`] are the PortCounters attribute from byte 4 on.
        @0x08         counters: [u64; 31] => _,
    }
}

layout! {
    /// Counters in group [`CounterGroup::Ieee`], at byte 8 of PPCNT. Byte counts include the frame check sequence.
    pub struct IeeeCounters[248] big_endian {
        @0x00  tx_packets: u64,
        @0x08  rx_packets: u64,
        @0x10  rx_crc_errors: u64,
        @0x20  tx_bytes: u64,
        @0x28  rx_bytes: u64,
        @0x30  tx_multicast: u64,
        @0x38  tx_broadcast: u64,
        @0x40  rx_multicast: u64,
        @0x48  rx_broadcast: u64,
        /// Received frames that exceed the port's MTU.
        @0x60  rx_too_long: u64,
    }
}

layout! {
    /// Counters in group [`CounterGroup::Rfc2819`], at byte 8 of PPCNT: the number of received frames by length.
    pub struct Rfc2819Counters[248] big_endian {
        /// Frames of 64 bytes, 65 to 127, 128 to 255, 256 to 511, 512 to 1023, 1024 to 1518, 1519 to 2047, 2048 to
        /// 4095, 4096 to 8191, and 8192 to 10239.
        @0x58  rx_by_length: [u64; 10] => _,
    }
}

layout! {
    /// Counters in group [`CounterGroup::Priority`], at byte 8 of PPCNT.
    pub struct PriorityCounters[248] big_endian {
        @0x00  rx_bytes: u64,
        @0x20  rx_packets: u64,
        @0x28  tx_bytes: u64,
        @0x48  tx_packets: u64,
        @0x50  rx_pause: u64,
    }
}

layout! {
    /// Counters in group [`CounterGroup::Physical`], at byte 8 of PPCNT.
    pub struct PhysicalCounters[248] big_endian {
        /// Number of times that the link went down.
        @0xc0  link_down_events: u32,
    }
}

impl PortCounters {
    /// Sets the counters from the bytes of a group.
    #[must_use]
    pub fn with(self, group: &[u8; 248]) -> Self {
        let mut counters = [0; 31];
        let words = group.as_chunks::<8>().0;
        counters.iter_mut().zip(words).for_each(|(to, word)| *to = u64::from_be_bytes(*word));
        Self { counters, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::words;
    use super::*;

    /// Examples from golden traces eth-1 and eth-8.
    #[test]
    fn port_registers_match_traces() {
        let mtu = Pmtu { port: 1, max: 9978, admin: 1522, operational: 1522 };
        let expected = words(&[(0, 0x0001_0000), (4, 0x26fa_0000), (8, 0x05f2_0000), (12, 0x05f2_0000)]);
        assert_eq!(mtu.emit(), expected);
        let down = Paos { port: 1, admin: PortStatus::Down.code(), operational: 0, set_admin: true };
        assert_eq!(down.emit(), words(&[(0, 0x0001_0200), (4, 0x8000_0000)]));
        let modes = Ptys {
            port: 1,
            protocol: Ptys::ETHERNET,
            supported: 0xf880_0000,
            admin: 0x0080_0000,
            operational: 0x0080_0000,
            ..Ptys::default()
        };
        let expected = [(0, 0x0001_0004), (0x0c, 0xf880_0000), (0x18, 0x0080_0000), (0x24, 0x0080_0000)];
        assert_eq!(modes.emit(), words(&expected));
        let forced = Ptys { autoneg_disabled: true, autoneg_disable_supported: true, ..Ptys::default() };
        assert_eq!(forced.emit(), words(&[(0, 0x6000_0000)]));
        let eeprom = Mcia { module: 1, status: 3, i2c_address: 0x50, page: 2, offset: 128, data_len: 48 };
        assert_eq!(eeprom.emit(), words(&[(0, 0x0001_0003), (4, 0x5002_0080), (8, 48)]));
        let query = PortCounters { port: 1, group: 0x10, priority: 2, ..PortCounters::default() };
        assert_eq!(query.emit(), words(&[(0, 0x0001_0010), (4, 2)]));
    }

    /// The offsets are those in the tables in section 17.1, relative to the start of PPCNT.
    #[test]
    fn counters_are_at_published_offsets() {
        let ieee = IeeeCounters { rx_bytes: 1, rx_broadcast: 2, rx_too_long: 3, ..IeeeCounters::default() };
        let bytes = PortCounters::default().with(&ieee.emit()).emit();
        assert_eq!((bytes[0x37], bytes[0x57], bytes[0x6f]), (1, 2, 3));
        let sizes = Rfc2819Counters { rx_by_length: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10] };
        let bytes = PortCounters::default().with(&sizes.emit()).emit();
        assert_eq!((bytes[0x67], bytes[0xaf]), (1, 10));
        let priority =
            PriorityCounters { rx_packets: 1, tx_packets: 2, rx_pause: 3, ..PriorityCounters::default() };
        let bytes = PortCounters::default().with(&priority.emit()).emit();
        assert_eq!((bytes[0x2f], bytes[0x57], bytes[0x5f]), (1, 2, 3));
    }
}
