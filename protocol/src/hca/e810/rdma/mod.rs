//! RDMA block, driven by `irdma` in Linux: control queue pair (CQP), event queues, work queues and host memory cache
//! (HMC).
//!
//! As in the interface document, offsets refer to 64-bit words: `@24[37:32]` means bits 37:32 of the word at byte 24.
//!
//! # Spec
//! E810 interface, sections 9 to 14; each file cites its sections.

pub mod completion_queue;
pub mod control;
pub mod cqe;
pub mod error;
pub mod event_queue;
pub mod features;
pub mod fragment;
pub mod group;
pub mod hmc;
pub mod index;
pub mod node;
pub mod number;
pub mod operation;
pub mod page_list;
pub mod path;
pub mod qp_context;
pub mod queue_pair;
pub mod receive_wqe;
pub mod region;
pub mod send_wqe;
pub mod statistics;
#[cfg(test)]
pub(crate) mod testing;

pub use operation::{Opcode, Operation, WQE_LEN};
