//! Packets on the wire, and the interfaces between guest driver and device.
//!
//! Every object has two representations. The raw layout consists of exactly the bytes of the object; the parsed value
//! holds only the meaningful fields. `parse` accepts untrusted bytes and never panics. `emit` writes every byte,
//! including reserved bytes.
//!
//! - [`roce`]: RoCEv2 frames (Ethernet, IP, UDP, BTH and its extensions, ICRC).
//! - [`net`]: other protocols that carry or accompany RoCEv2 (Ethernet, ARP, IPv4, IPv6, ICMP, UDP).
//! - [`mad`]: management datagrams (MADs).
//! - [`hca`]: one folder for each device interface (registers, mailboxes, contexts, queue entries).
//! - [`describe`]: names and values of fields, for traces.
//! - [`mod@layout`], [`mod@register_map`]: table-driven definitions of objects and registers.
//!
//! This crate performs no I/O, reads no clock and writes no logs.
#![forbid(unsafe_code)]
// Fields and codes that are named as in a specification need no documentation. Their types, and the macros that define
// them, allow missing documentation.
#![warn(missing_docs)]

pub mod describe;
mod error;
pub mod hca;
pub mod ids;
pub mod layout;
pub mod mad;
pub mod net;
mod psn;
pub mod register_map;
pub mod roce;
mod view;

pub use error::WireError;
pub use psn::Psn;
