//! Layouts and meanings of what an HCA exchanges with its peers and with its guest.
//!
//! Two levels per object, as everywhere in this crate: a raw layout that is exactly the bytes, and a parsed value
//! that holds only what is meaningful. `parse` takes bytes from a stranger and never panics; `emit` writes every
//! byte, reserved ones included.
//!
//! - [`roce`]: RoCEv2 frames (Ethernet, IP, UDP, BTH and its extensions, ICRC).
//! - [`net`]: what carries them and what a port answers besides (Ethernet, ARP, IPv4, IPv6, ICMP, UDP).
//! - [`mad`]: management datagrams.
//! - [`hca`]: one folder per device interface (registers, mailboxes, contexts, queue entries).
//! - [`describe`]: names and values of their fields, for traces.
//! - [`mod@layout`], [`mod@register_map`]: objects and registers of little-endian interfaces, each said in one table.
//!
//! No I/O, no clock, no logging.
#![forbid(unsafe_code)]

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
