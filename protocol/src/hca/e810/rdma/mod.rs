//! The RDMA half, which Linux's `irdma` drives: its control queue (CQP), event queues and context memory.
//!
//! Offsets are those of 64-bit words, as the interface names them: `@24[37:32]` are bits 37 to 32 of the word at byte 24.
//!
//! # Spec
//! E810 interface, sections 9 to 14; the files name theirs.

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
