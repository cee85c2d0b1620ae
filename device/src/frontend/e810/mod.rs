//! Front-end of Intel's E810-C, which Linux's `ice` drives: a NIC with an RDMA half.
//!
//! [`E810`] decodes BAR0. A write to the tail of the admin send queue executes commands ([`admin`]) on the [`function`]; what
//! fires goes through the [`vectors`] to the guest. Frames go between the wire and the queues (`lan`) as the switch says
//! (`switching`, of which `switch` has the rules, `vsi` and `rss` who takes a frame and in which queue); `traffic` joins them. The
//! RDMA half (`rdma`) has registers and a control queue of its own.
//!
//! # Spec
//! E810 interface; the files name their sections.

pub mod admin;
mod buffer;
pub mod device;
pub mod function;
mod lan;
pub mod limits;
pub mod link;
mod numbers;
pub mod nvm;
pub mod options;
pub mod package;
#[allow(dead_code, reason = "for who lists objects")]
mod rdma;
mod registers;
mod resources;
mod rss;
#[allow(dead_code, reason = "for who lists objects")]
mod scheduler;
mod snapshot;
pub mod strict;
mod switch;
mod switching;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod trace;
mod traffic;
pub mod vectors;
#[allow(dead_code, reason = "for who lists objects")]
mod vsi;

pub use device::{Counters, E810, E810 as Device, Setup};
pub use options::Options;
