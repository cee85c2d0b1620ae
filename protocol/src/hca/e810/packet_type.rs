//! Packet types in receive descriptors.
//!
//! # Spec
//! E810 interface, section 8.5.

use crate::describe::{Field, Value, Visitor};
use crate::net::layers::{Addresses, Ip, Layers, Transport};

/// Packet type (PTYPE) in a receive descriptor, ten bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketType(u16);

impl PacketType {
    /// Ethernet frame with an unknown payload.
    pub const ETHERNET: Self = Self(1);

    /// Returns the packet type of a frame.
    pub const fn of(layers: &Layers) -> Self {
        let Some(Ip { addresses, fragment, transport, .. }) = layers.ip else { return Self::ETHERNET };
        let v4 = match (fragment, transport) {
            (true, _) => 22,
            (false, Transport::Other) => 23,
            (false, Transport::Udp(_)) => 24,
            (false, Transport::Tcp(_)) => 26,
            (false, Transport::Sctp(_)) => 27,
            (false, Transport::Icmp) => 28,
        };
        match addresses {
            Addresses::V4 { .. } => Self(v4),
            // The IPv6 types are in the same order as the IPv4 types.
            Addresses::V6 { .. } => Self(v4 + 66),
        }
    }

    /// Returns the packet type as an integer.
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl Field for PacketType {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        to.value(name, Value::Number(self.0.into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::icmp;

    fn packet_type(ip: &[u8], payload: &[u8]) -> u16 {
        let frame = [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1][..], ip, payload].concat();
        PacketType::of(&Layers::parse(&frame).unwrap()).get()
    }

    /// The expected numbers are from the drivers' packet type tables.
    #[test]
    fn packet_types_match_driver_tables() {
        let v4 = |protocol: u8, more: u8| {
            let header =
                [0x08, 0, 0x45, 0, 0, 40, 0, 0, more, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
            packet_type(&header, &[0; 20])
        };
        assert_eq!(v4(6, 0x20), 22);
        let numbers = [(47, 23), (17, 24), (6, 26), (132, 27), (icmp::PROTOCOL, 28)];
        for (protocol, expected) in numbers {
            assert_eq!(v4(protocol, 0), expected, "protocol {protocol} in IPv4");
        }
        let v6 = |next_header: u8, payload: &[u8]| {
            let len = u8::try_from(payload.len()).unwrap();
            let header = [&[0x86, 0xdd, 0x60, 0, 0, 0, 0, len, next_header, 64][..], &[0xfe; 32]].concat();
            packet_type(&header, payload)
        };
        assert_eq!(v6(44, &[17, 0, 0, 1, 0, 0, 0, 1]), 88);
        for (protocol, expected) in [(47, 89), (17, 90), (6, 92), (132, 93), (58, 94)] {
            assert_eq!(v6(protocol, &[0; 20]), expected, "protocol {protocol} in IPv6");
        }
        assert_eq!(packet_type(&[0x08, 0x06], &[0; 46]), 1, "ARP");
    }
}
