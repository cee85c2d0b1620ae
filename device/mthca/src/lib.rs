//! Front-end for the Mellanox InfiniHost III Lx (MT25204), as driven by Linux's `ib_mthca` and rdma-core's `libmthca`.
//!
//! [`Mthca`] decodes BAR accesses. A write to the command register executes a command ([`cmd`]) on the device's
//! [`resources`]. A doorbell ([`doorbell`]) notifies the engine, which fetches work requests and accesses memory
//! through [`host`]. The engine's completions and events become entries in completion and event queues ([`completion`],
//! [`events`]). The device reports its decisions as events (`observed`) to the counters, strict mode and the trace
//! (`observers`).
//!
//! # Spec
//! The mthca interface is described in `protocol/interfaces/mthca.md`. Each file cites the sections that it implements.
//! Labels such as T41 refer to the traps listed in section 12.

pub mod address;
pub mod cmd;
pub mod completion;
pub mod completion_queue;
pub mod device;
pub mod doorbell;
pub mod event_queue;
pub mod events;
pub mod groups;
pub mod host;
pub mod limits;
pub mod mpt;
mod observed;
mod observers;
pub mod options;
pub mod qp;
pub mod reason;
pub mod recv_queue;
pub mod regions;
pub mod resources;
pub mod send_queue;
mod snapshot;
pub mod srq;
pub mod strict;
#[cfg(test)]
mod tests;
mod trace;
pub mod uar;
pub mod work_queue;

pub use device::{Counters, Mthca, Mthca as Device};
pub use options::{Options, Setup};
