//! The protocols that a port requires in addition to RoCEv2: Ethernet II, IPv4 without options, IPv6, UDP, ARP, ICMP
//! echo and ICMPv6.
//!
//! [`layers`] locates the headers of an arbitrary frame for the NIC, and [`toeplitz`] hashes flows for RSS.

pub mod arp;
pub mod checksum;
pub mod ether;
pub mod icmp;
pub mod icmpv6;
pub mod ipv4;
pub mod ipv6;
pub mod layers;
pub mod toeplitz;
pub mod udp;
