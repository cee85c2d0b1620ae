//! Front-end for the NVIDIA ConnectX with an Ethernet or InfiniBand port, as driven by Linux's `mlx5_core` and
//! `mlx5_ib` and rdma-core's `libmlx5`.
//!
//! [`Mlx5`] decodes accesses to BAR0. On a store to the command doorbell, it fetches commands from the slots of the
//! [`command_queue`] and executes them ([`commands`]) on the [`function`]. A store to a UAR page is a [`doorbell`]. If
//! UAR pages are mapped into the guest, the device polls doorbell records instead ([`mapped`]). Events become entries
//! of event queues ([`events`]). Contexts are kept in the device. Only queues and doorbell records are in guest memory.
//!
//! The engine fetches work requests through the [`host`], which converts them ([`work`]). Completions from the engine
//! become CQEs ([`completion`]). Work requests that change memory keys are executed in this crate ([`umr`]) rather than
//! in the engine.
//!
//! # Spec
//! The mlx5 interface is described in `protocol/interfaces/mlx5.md`. Each file cites the sections that it implements.
//! Section 20 defines the numbers that start with "M-".

pub mod address;
pub mod buffer;
pub mod capabilities;
pub mod check;
pub mod command_queue;
pub mod commands;
pub mod completion;
pub mod completion_queue;
mod counter_sets;
pub mod delayed_events;
pub mod device;
pub mod doorbell;
pub mod event_queue;
pub mod events;
pub mod failure;
pub mod function;
pub mod groups;
pub mod health;
pub mod host;
pub mod init_segment;
pub mod limits;
pub mod mapped;
pub mod mkey;
pub mod netdev;
pub mod numbered;
pub mod options;
pub mod pages;
pub mod port;
pub mod queue_pair;
pub mod quota;
pub mod reason;
pub mod recv_queue;
pub mod resources;
pub mod send_queue;
mod snapshot;
pub mod srq;
pub mod steering;
pub mod strict;
#[cfg(test)]
mod tests;
mod trace;
pub mod uar;
pub mod umr;
pub mod uses;
pub mod work;
pub mod work_queue;

pub mod umem;
pub mod user;

pub use device::{Counters, Mlx5, Mlx5 as Device};
pub use options::{Options, Setup};
