//! Protocols below and beside RoCEv2, as far as a port needs them: Ethernet II, IPv4 without options, IPv6, UDP,
//! ARP, ICMP echo and ICMPv6.
//!
//! [`layers`] locates the headers of an arbitrary frame for the NIC, and [`toeplitz`] hashes its flow for RSS.

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
