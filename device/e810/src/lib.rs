//! Front-end for the Intel E810-C, a NIC with an RDMA half. Linux drives it with `ice` and `irdma`.
//!
//! [`E810`] decodes accesses to BAR0. A write to the tail of the admin send queue executes commands ([`admin`]).
//! Commands act on the device's `state`, most of which is defined in [`function`]. Interrupts are delivered to the
//! guest by [`vectors`]. `traffic` moves frames between the wire and the queues (`lan`). The switch (`switch`, `vsi`)
//! selects the VSIs that receive a frame, and receive side scaling (`rss`) selects the queue within a VSI. The RDMA
//! half (`rdma`) has its own registers and control queue.
//!
//! # Spec
//! E810 interface; each file cites its sections. Section 16 defines the numbers that start with "E-".

pub mod admin;
mod buffer;
pub mod device;
pub mod function;
mod id_pool;
mod lan;
pub mod limits;
pub mod link;
pub mod nvm;
pub mod options;
pub mod package;
mod pf_config;
#[allow(dead_code, reason = "accessors for listing objects")]
mod rdma;
pub mod reason;
mod registers;
mod resources;
mod rss;
#[allow(dead_code, reason = "accessors for listing objects")]
mod scheduler;
mod snapshot;
mod state;
pub mod strict;
mod switch;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod trace;
mod traffic;
pub mod vectors;
#[allow(dead_code, reason = "accessors for listing objects")]
mod vsi;

pub use device::{Counters, E810, E810 as Device};
pub use options::{Options, Setup};
