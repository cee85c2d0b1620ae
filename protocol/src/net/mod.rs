//! The layers under RoCEv2, as far as a port needs them: Ethernet II, IPv4 and IPv6 without options, UDP; ARP and ICMP
//! echo, which a port answers. And what a NIC sees of any frame: [`layers`], and the hash it spreads flows by, [`toeplitz`].

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
