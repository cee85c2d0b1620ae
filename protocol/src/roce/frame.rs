//! The shell around a packet: Ethernet, IP and UDP.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::ids::MacAddr;

/// Source and destination of one IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IpAddrs {
    /// IPv4.
    V4 {
        /// Source.
        src: Ipv4Addr,
        /// Destination.
        dst: Ipv4Addr,
    },
    /// IPv6.
    V6 {
        /// Source.
        src: Ipv6Addr,
        /// Destination.
        dst: Ipv6Addr,
    },
}

/// Everything of a RoCEv2 frame that is outside of the transport headers and not computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shell {
    /// Ethernet source.
    pub src_mac: MacAddr,
    /// Ethernet destination.
    pub dst_mac: MacAddr,
    /// IP addresses.
    pub ip: IpAddrs,
    /// IPv4 TOS or IPv6 traffic class, ECN bits included.
    pub traffic_class: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// UDP source port; the destination is always 4791.
    pub src_port: u16,
}

/// Writes one frame at the end of a buffer: headers first, then the caller fills the payload in place, then
/// [`FrameWriter::finish`] adds pad and ICRC. Dropped without `finish`, it takes back what it wrote.
pub struct FrameWriter<'a> {
    out: &'a mut Vec<u8>,
}
