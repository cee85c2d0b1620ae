//! RDMA statistics and the operation that gathers them.
//!
//! # Spec
//! E810 interface, section 10.7.

use crate::ids::Iova;
use crate::layout;

layout! {
    /// CQP WQE for the "Gather statistics" operation.
    pub struct GatherStatistics[64] {
        @24[6:0]  instance: u8,
        /// Whether `instance` is valid.
        @24[61]   use_instance: bool,
        @32       buffer: Iova,
        @40       function: u16,
    }
}

layout! {
    /// Contents of the "Gather statistics" buffer.
    pub struct Statistics[1024] {
        @8[47:0]     ipv4_bytes_received: u64,
        @16[47:0]    ipv4_packets_received: u64,
        /// Received IPv4 packets that were discarded.
        @28          ipv4_discarded: u32,
        @40[47:0]    ipv4_multicast_bytes_received: u64,
        @48[47:0]    ipv4_multicast_packets_received: u64,
        @56[47:0]    ipv6_bytes_received: u64,
        @64[47:0]    ipv6_packets_received: u64,
        /// Received IPv6 packets that were discarded.
        @76          ipv6_discarded: u32,
        @104[47:0]   ipv4_bytes_sent: u64,
        @112[47:0]   ipv4_packets_sent: u64,
        @144[47:0]   ipv6_bytes_sent: u64,
        @152[47:0]   ipv6_packets_sent: u64,
        @88[47:0]    ipv6_multicast_bytes_received: u64,
        @96[47:0]    ipv6_multicast_packets_received: u64,
        @128[47:0]   ipv4_multicast_bytes_sent: u64,
        @136[47:0]   ipv4_multicast_packets_sent: u64,
        @168[47:0]   ipv6_multicast_bytes_sent: u64,
        @176[47:0]   ipv6_multicast_packets_sent: u64,
        /// Received requests that violate the protocol. The driver reports this counter under a TCP name.
        @200[23:0]   protocol_errors: u32,
        @220         retransmitted: u32,
        @224[47:0]   udp_received: u64,
        @232[47:0]   udp_sent: u64,
        @240[47:0]   writes_received: u64,
        @248[47:0]   reads_received: u64,
        @256[47:0]   sends_received: u64,
        @264[47:0]   writes_sent: u64,
        @272[47:0]   reads_sent: u64,
        @280[47:0]   sends_sent: u64,
        @288[47:0]   binds: u64,
        @296[47:0]   invalidates: u64,
        /// Received packets with an ECN congestion mark.
        @304[47:0]   ecn_marked: u64,
        @312         cnp_handled: u32,
        @320[47:0]   cnp_sent: u64,
    }
}
