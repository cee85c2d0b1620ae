//! Formats of packets on the wire and of the interfaces between guest driver and device.
//!
//! Every object has two representations: the raw bytes, and a parsed value with only the meaningful fields. `parse`
//! accepts untrusted bytes and never panics. `emit` writes every byte, including reserved bytes.
//!
//! - [`roce`]: RoCEv2 frames (Ethernet, IP, UDP, BTH and its extensions, ICRC).
//! - [`net`]: other protocols that carry or accompany RoCEv2 (Ethernet, ARP, IPv4, IPv6, ICMP, UDP).
//! - [`mad`]: management datagrams (MADs).
//! - [`hca`]: one module for each device interface (registers, mailboxes, contexts, queue entries).
//! - [`describe`]: names and values of fields, for traces.
//! - [`mod@layout`], [`mod@register_map`]: table-driven definitions of objects and registers.
//!
//! This crate does not perform I/O, read clocks or write logs.
#![forbid(unsafe_code)]
// Fields and codes named as in a specification do not need documentation. Their types and the macros that define them
// allow `missing_docs`.
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
