//! Counters of the RDMA half, which software collects.
//!
//! # Spec
//! E810 interface, section 10.7.

use crate::ids::Iova;
use crate::layout;

layout! {
    /// "Gather statistics".
    pub struct GatherStatistics[64] {
        /// Of which instance.
        @24[6:0]  instance: u8,
        /// The instance counts.
        @24[61]   use_instance: bool,
        /// The buffer.
        @32       buffer: Iova,
        /// Of which function.
        @40       function: u16,
    }
}

layout! {
    /// What it writes.
    pub struct Statistics[1024] {
        /// IPv4, received: bytes.
        @8[47:0]     ipv4_bytes_received: u64,
        /// IPv4, received: packets.
        @16[47:0]    ipv4_packets_received: u64,
        /// IPv4, received: packets thrown away.
        @28          ipv4_discarded: u32,
        /// IPv4, received: multicast bytes.
        @40[47:0]    ipv4_multicast_bytes_received: u64,
        /// IPv4, received: multicast packets.
        @48[47:0]    ipv4_multicast_packets_received: u64,
        /// IPv6, received: bytes.
        @56[47:0]    ipv6_bytes_received: u64,
        /// IPv6, received: packets.
        @64[47:0]    ipv6_packets_received: u64,
        /// IPv6, received: packets thrown away.
        @76          ipv6_discarded: u32,
        /// IPv4, sent: bytes.
        @104[47:0]   ipv4_bytes_sent: u64,
        /// IPv4, sent: packets.
        @112[47:0]   ipv4_packets_sent: u64,
        /// IPv6, sent: bytes.
        @144[47:0]   ipv6_bytes_sent: u64,
        /// IPv6, sent: packets.
        @152[47:0]   ipv6_packets_sent: u64,
        /// IPv6, received: multicast bytes.
        @88[47:0]    ipv6_multicast_bytes_received: u64,
        /// IPv6, received: multicast packets.
        @96[47:0]    ipv6_multicast_packets_received: u64,
        /// IPv4, sent: multicast bytes.
        @128[47:0]   ipv4_multicast_bytes_sent: u64,
        /// IPv4, sent: multicast packets.
        @136[47:0]   ipv4_multicast_packets_sent: u64,
        /// IPv6, sent: multicast bytes.
        @168[47:0]   ipv6_multicast_bytes_sent: u64,
        /// IPv6, sent: multicast packets.
        @176[47:0]   ipv6_multicast_packets_sent: u64,
        /// Requests received that break the protocol; the driver's name for them is of TCP.
        @200[23:0]   protocol_errors: u32,
        /// Packets sent anew.
        @220         retransmitted: u32,
        /// UDP packets received.
        @224[47:0]   udp_received: u64,
        /// UDP packets sent.
        @232[47:0]   udp_sent: u64,
        /// RDMA writes received.
        @240[47:0]   writes_received: u64,
        /// RDMA reads received.
        @248[47:0]   reads_received: u64,
        /// Sends received.
        @256[47:0]   sends_received: u64,
        /// RDMA writes sent.
        @264[47:0]   writes_sent: u64,
        /// RDMA reads sent.
        @272[47:0]   reads_sent: u64,
        /// Sends sent.
        @280[47:0]   sends_sent: u64,
        /// Windows bound.
        @288[47:0]   binds: u64,
        /// Keys invalidated.
        @296[47:0]   invalidates: u64,
        /// Packets received that are marked as congested.
        @304[47:0]   ecn_marked: u64,
        /// Notices of congestion received.
        @312         cnp_handled: u32,
        /// Notices of congestion sent.
        @320[47:0]   cnp_sent: u64,
    }
}
