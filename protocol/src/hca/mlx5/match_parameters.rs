//! Match parameters: the header fields that flow groups mask and that flow table entries compare.
//!
//! # Spec
//! mlx5 interface, section 16.4.

use super::code::codes;
use crate::ids::MacAddr;
use crate::layout;

layout! {
    /// Fields of the outermost headers of a frame. Absent fields are 0.
    pub struct OuterHeaders[64] big_endian {
        @0x00         src_mac: MacAddr,
        /// EtherType of the data after the VLAN tags.
        @0x06         ether_type: u16 => Hex,
        @0x08         dst_mac: MacAddr,
        /// Priority in the first VLAN tag.
        @0x0c[15:13]  vlan_priority: u8,
        /// Drop eligible indicator in the first VLAN tag.
        @0x0c[12]     vlan_drop_eligible: bool,
        /// VLAN identifier in the first tag.
        @0x0c[11:0]   vlan_id: u16,
        /// Protocol of the IP payload, which starts after the extension headers of IPv6.
        @0x10[31:24]  ip_protocol: u8,
        @0x10[23:18]  dscp: u8,
        @0x10[17:16]  ecn: u8,
        /// Whether the first VLAN tag is a C-TAG.
        @0x10[15]     customer_tag: bool,
        /// Whether the first VLAN tag is an S-TAG.
        @0x10[14]     service_tag: bool,
        /// Whether the IP datagram is a fragment.
        @0x10[13]     fragment: bool,
        /// IP version, 4 or 6, or 0 if the frame has no valid IP header.
        @0x10[12:9]   ip_version: u8,
        /// TCP header flags, from NS in bit 8 down to FIN in bit 0.
        @0x10[8:0]    tcp_flags: u16 => Hex,
        @0x14         tcp_src_port: u16,
        @0x16         tcp_dst_port: u16,
        /// Fields that this device does not evaluate.
        @0x18[31:8]   unsupported: u32 => Hex,
        /// Time to live of IPv4, or hop limit of IPv6.
        @0x18[7:0]    ttl: u8,
        @0x1c         udp_src_port: u16,
        @0x1e         udp_dst_port: u16,
        /// Source address. An IPv4 address is in the last four bytes.
        @0x20         src_ip: [u8; 16],
        /// Destination address. An IPv4 address is in the last four bytes.
        @0x30         dst_ip: [u8; 16],
    }
}

layout! {
    /// All sets of match parameters: either the values of an entry or the mask of a group.
    pub struct MatchParameters[512] big_endian {
        @0x00  outer: OuterHeaders,
        /// The other sets, 64 bytes each, in the order of their bits in [`Criteria`].
        @0x40  others: [u8; 448],
    }
}

impl MatchParameters {
    /// Length of each set of parameters in bytes.
    pub const SET_LEN: usize = 64;
}

codes! {
    /// Set of match parameters. Its code is the number of the bit that enables it in a flow group.
    pub enum Criteria(u8) {
        /// The set [`OuterHeaders`], which all drivers use.
        Outer = 0 "outer",
        /// Second VLAN tags, tunnel keys and flow labels.
        Misc = 1 "misc",
        /// Headers inside a tunnel.
        Inner = 2 "inner",
        /// MPLS labels and metadata registers.
        Misc2 = 3 "misc2",
    }
}

impl Criteria {
    /// Returns whether the criteria of a group enable this set.
    pub const fn is_in(self, criteria: u8) -> bool {
        criteria >> self.code() & 1 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::words;
    use super::*;

    #[test]
    fn outer_header_fields_are_at_specified_offsets() {
        let outer = OuterHeaders {
            src_mac: MacAddr([2, 0, 0, 0x55, 0, 1]),
            ether_type: 0x86dd,
            dst_mac: MacAddr([0x33, 0x33, 0, 0, 0, 1]),
            vlan_priority: 5,
            vlan_id: 0x123,
            ip_protocol: 6,
            dscp: 1,
            ecn: 2,
            customer_tag: true,
            ip_version: 4,
            tcp_flags: 0x110,
            tcp_dst_port: 80,
            ttl: 64,
            udp_src_port: 7,
            ..OuterHeaders::default()
        };
        let expected = [
            (0x00, 0x0200_0055),
            (0x04, 0x0001_86dd),
            (0x08, 0x3333_0000),
            (0x0c, 0x0001_a123),
            (0x10, 0x0606_8910),
            (0x14, 80),
            (0x18, 64),
            (0x1c, 7 << 16),
        ];
        assert_eq!(outer.emit(), words(&expected));
    }

    #[test]
    fn other_sets_follow_outer_headers() {
        let mut bytes = [0; MatchParameters::LEN];
        bytes[MatchParameters::SET_LEN] = 7;
        let parameters = MatchParameters::parse(&bytes);
        assert_eq!((parameters.outer, parameters.others[0]), (OuterHeaders::default(), 7));
        assert!(Criteria::Misc.is_in(2) && !Criteria::Outer.is_in(2));
    }
}
