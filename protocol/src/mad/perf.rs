//! Performance management: port counters.
//!
//! # Spec
//! IBTA volume 1, section 16.1.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute_mut, transmute_ref};

use super::Mad;
use super::field::attribute;

/// Performance management attribute IDs.
pub mod attribute {
    #![expect(missing_docs, reason = "the names are the specification's (section 16.1.3)")]

    pub const PORT_COUNTERS: u16 = 0x12;
    pub const PORT_COUNTERS_EXTENDED: u16 = 0x1d;
}

/// Capability bit in ClassPortInfo: port number 255 selects all ports.
pub const ALL_PORT_SELECT: u16 = 1 << 8;
/// Capability bit in ClassPortInfo: PortCountersExtended is supported with all its counters.
pub const EXTENDED_WIDTH: u16 = 1 << 9;
/// Port number that selects all ports.
pub const ALL_PORTS: u8 = 0xff;

/// Layout of a performance management MAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)]
pub struct PerfMad {
    header: [u8; 24],
    reserved: [u8; 40],
    pub data: [u8; 192],
}

impl PerfMad {
    /// Interprets a MAD as a performance management MAD.
    pub fn of(mad: &Mad) -> &Self {
        transmute_ref!(mad)
    }

    /// Mutable version of [`PerfMad::of`].
    pub fn of_mut(mad: &mut Mad) -> &mut Self {
        transmute_mut!(mad)
    }
}

attribute! {
    /// The PortCounters attribute. Its counters saturate at their maximum.
    pub struct PortCounters[44] {
        port: u8 = 8, 8;
        /// CounterSelect, a mask of the counters that Set writes: `symbol_errors` (bit 0) to `receive_packets` (bit
        /// 15), in the order of the fields.
        select: u16 = 16, 16;
        /// Minor link errors, counted in symbols.
        symbol_errors: u16 = 32, 16;
        /// Successful link error recoveries.
        link_recovered: u8 = 48, 8;
        /// Failed link error recoveries, after which the link went down.
        link_downed: u8 = 56, 8;
        /// Packets received with errors.
        receive_errors: u16 = 64, 16;
        /// Packets received with the EBP delimiter, marked bad by an upstream port.
        remote_physical_errors: u16 = 80, 16;
        /// Packets that a switch could not forward.
        switch_relay_errors: u16 = 96, 16;
        /// Outbound packets dropped because the port was down or congested.
        transmit_discards: u16 = 112, 16;
        /// Outbound packets dropped because of a P_Key or raw packet constraint.
        transmit_constraint_errors: u8 = 128, 8;
        /// Inbound packets dropped because of a P_Key or raw packet constraint.
        receive_constraint_errors: u8 = 136, 8;
        /// Number of times local physical errors exceeded the LocalPhyErrors threshold.
        local_integrity_errors: u8 = 152, 4;
        /// Number of times buffer overruns exceeded the OverrunErrors threshold.
        buffer_overruns: u8 = 156, 4;
        /// VL15 (subnet management) packets dropped for lack of buffers.
        vl15_dropped: u16 = 176, 16;
        /// Data sent, in units of 4 bytes.
        transmit_data: u32 = 192, 32;
        /// Data received, in units of 4 bytes.
        receive_data: u32 = 224, 32;
        transmit_packets: u32 = 256, 32;
        receive_packets: u32 = 288, 32;
        /// Ticks during which data was waiting but could not be sent.
        transmit_wait: u32 = 320, 32;
    }
}

attribute! {
    /// The PortCountersExtended attribute. Its counters wrap around.
    pub struct PortCountersExtended[72] {
        port: u8 = 8, 8;
        /// CounterSelect, a mask of the counters that Set writes. It has one bit per counter, in the order of the
        /// fields.
        select: u16 = 16, 16;
        /// Data sent, in units of 4 bytes.
        transmit_data: u64 = 64, 64;
        /// Data received, in units of 4 bytes.
        receive_data: u64 = 128, 64;
        transmit_packets: u64 = 192, 64;
        receive_packets: u64 = 256, 64;
        unicast_transmit_packets: u64 = 320, 64;
        unicast_receive_packets: u64 = 384, 64;
        multicast_transmit_packets: u64 = 448, 64;
        multicast_receive_packets: u64 = 512, 64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Section 8.6 of the mthca interface lists the offsets.
    #[test]
    fn port_counters_are_at_specified_offsets() {
        let counters = PortCounters {
            port: 1,
            link_downed: 2,
            receive_errors: 0x0304,
            transmit_discards: 0x0506,
            receive_constraint_errors: 7,
            vl15_dropped: 0x0809,
            transmit_data: 0x0a0b_0c0d,
            receive_data: 0x0e0f_1011,
            transmit_packets: 0x1213_1415,
            receive_packets: 0x1617_1819,
            transmit_wait: 0x1a1b_1c1d,
            ..PortCounters::default()
        };
        let mut bytes = [0; 44];
        bytes[1] = 1;
        bytes[7..10].copy_from_slice(&[2, 3, 4]);
        bytes[14..16].copy_from_slice(&[5, 6]);
        bytes[17] = 7;
        for (at, value) in (22..24).zip(8..).chain((24..44).zip(0x0a..)) {
            bytes[at] = value;
        }
        assert_eq!(counters.emit(), bytes);
        assert_eq!(PortCounters::parse(&bytes), counters);
    }

    #[test]
    fn extended_port_counters_are_at_specified_offsets() {
        let counters = PortCountersExtended {
            port: 1,
            transmit_data: 1,
            receive_data: 2,
            transmit_packets: 3,
            receive_packets: 4,
            unicast_transmit_packets: 5,
            unicast_receive_packets: 6,
            multicast_transmit_packets: 7,
            multicast_receive_packets: 8,
            ..PortCountersExtended::default()
        };
        let mut bytes = [0; 72];
        bytes[1] = 1;
        for (at, value) in (15..72).step_by(8).zip(1..) {
            bytes[at] = value;
        }
        assert_eq!(counters.emit(), bytes);
        assert_eq!(PortCountersExtended::parse(&bytes), counters);
    }
}
