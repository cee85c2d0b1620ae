//! Paths of connected QPs, as they appear in QP contexts.
//!
//! # Spec
//! mlx5 interface, section 10.3.

use crate::ids::{FlowLabel, Lid, MacAddr};
use crate::layout;

layout! {
    /// Path to a peer. InfiniBand ports do not use the Ethernet fields.
    pub struct Path[44] big_endian {
        /// Whether packets to the device's own port are looped back inside the device.
        @0x00[31]     force_loopback: bool,
        /// Whether adaptive routing is allowed.
        @0x00[30]     free_adaptive_routing: bool,
        @0x00[15:0]   pkey_index: u16,
        /// Whether packets have a GRH.
        @0x04[23]     grh: bool,
        /// Low bits of the source LID. The LMC is the number of these bits.
        @0x04[22:16]  path_bits: u8,
        @0x04[15:0]   lid: Lid,
        /// ACK timeout code. Code n means 4.096 µs · 2^n, and code 0 disables the timeout.
        @0x08[31:27]  ack_timeout: u8,
        /// Index of the source GID.
        @0x08[23:16]  gid_index: u8,
        /// Static rate code of the path.
        @0x08[11:8]   static_rate: u8,
        /// Hop limit of the GRH.
        @0x08[7:0]    hop_limit: u8,
        /// Traffic class of the GRH.
        @0x0c[27:20]  traffic_class: u8,
        /// Flow label of the GRH.
        @0x0c[19:0]   flow_label: FlowLabel,
        @0x10         gid: [u8; 16],
        /// On Ethernet: whether to use the value of `dscp`.
        @0x20[27]     force_dscp: bool,
        /// On Ethernet: whether to use the value of `ecn`.
        @0x20[26]     force_ecn: bool,
        /// On Ethernet: whether to use the value of `priority`.
        @0x20[24]     force_priority: bool,
        /// On Ethernet: ECN bits of packets.
        @0x20[23:22]  ecn: u8,
        /// On Ethernet: DSCP value of packets.
        @0x20[21:16]  dscp: u8,
        /// On Ethernet: UDP source port.
        @0x20[15:0]   udp_port: u16,
        /// On Ethernet: VLAN priority of packets.
        @0x24[30:28]  priority: u8,
        @0x24[27:24]  service_level: u8,
        /// Port number, starting at 1.
        @0x24[23:16]  port: u8,
        /// On Ethernet: destination MAC address.
        @0x26         mac: MacAddr,
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::words;
    use super::*;

    #[test]
    fn address_path_fields_are_at_specified_offsets() {
        let path = Path {
            force_loopback: true,
            free_adaptive_routing: true,
            pkey_index: 0x1234,
            grh: true,
            path_bits: 0x55,
            lid: Lid::new(0x11),
            ack_timeout: 14,
            gid_index: 3,
            static_rate: 5,
            hop_limit: 64,
            traffic_class: 0xab,
            flow_label: FlowLabel::new(0xc_def0),
            gid: [9; 16],
            force_dscp: true,
            force_ecn: true,
            force_priority: true,
            ecn: 2,
            dscp: 0x2a,
            udp_port: 0xc001,
            priority: 6,
            service_level: 9,
            port: 1,
            mac: MacAddr([2, 0, 0, 0x55, 0, 1]),
        };
        let mut bytes = words(&[
            (0x00, 0xc000_1234),
            (0x04, 0x00d5_0011),
            (0x08, 0x7003_0540),
            (0x0c, 0x0abc_def0),
            (0x20, 0x0daa_c001),
            (0x24, 0x6901_0200),
            (0x28, 0x0055_0001),
        ]);
        bytes[0x10..0x20].fill(9);
        assert_eq!(path.emit(), bytes);
        assert_eq!(Path::parse(&bytes), path);
    }
}
