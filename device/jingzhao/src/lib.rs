//! Front-end for the JingZhao (HanGu) HCA.
//!
//! [`JingZhao`] decodes BAR accesses. A write to the command register executes a command ([`cmd`]) on the device's
//! [`resources`]: context memory, regions, queues and QPs. A doorbell goes to the send queue of its QP and notifies the
//! engine, which fetches work requests and accesses memory through [`host`]. The engine's completions and events become
//! entries in completion and event queues ([`events`]). Each decision is reported as an event (`observed`) to the
//! counters, the trace and strict mode (`observers`).
//!
//! # Spec
//! JingZhao interface; each file cites its sections. Section 12 defines the numbers that start with "J-".

pub mod address;
pub mod cmd;
pub mod completion;
pub mod completion_queue;
pub mod ctxmgt;
pub mod device;
pub mod doorbell;
pub mod event_queue;
pub mod events;
pub mod host;
pub mod limits;
pub mod mpt;
mod observed;
mod observers;
pub mod options;
pub mod qp;
pub mod queue_start;
pub mod reason;
pub mod recv_queue;
mod recv_watch;
pub mod resources;
pub mod ring;
pub mod send_queue;
mod snapshot;
pub mod strict;
#[cfg(test)]
mod tests;
mod trace;

pub use device::{Counters, JingZhao, JingZhao as Device};
pub use options::{Options, Setup};
