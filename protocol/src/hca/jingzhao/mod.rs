//! JingZhao (HanGu) HCA: registers, command mailboxes, contexts and queue entries.
//!
//! Each file defines one object of the interface. A private struct describes its raw bytes, and a public type with
//! `parse` and `emit` holds its value. `parse` rejects the values that the device rejects, with the same status
//! ([`cmd::CmdError`]). `emit` writes every byte, so stale data in a reused buffer is overwritten.
//!
//! Registers, doorbells, WQEs, CQEs and EQEs are little-endian. Mailboxes and contexts are big-endian.
//!
//! # Spec
//! JingZhao software/hardware interface V1.3-b, which comments call "the specification" or "the document". Section
//! numbers refer to `protocol/interfaces/jingzhao.md`. Section 12 defines the numbers that start with "J-".

pub mod caps;
pub mod cmd;
pub mod cqc;
pub mod cqe;
pub mod ctxmgt;
pub mod doorbell;
pub mod eqc;
pub mod eqe;
pub mod icm;
pub mod init;
pub mod mad_ifc;
pub mod mailbox;
pub mod modify;
pub mod mpt;
pub mod mtt;
pub mod pci;
pub mod qpc;
pub mod regs;
pub mod transition;
pub mod wqe;

/// Length of a command mailbox and of an ICM page, in bytes.
pub const PAGE: usize = 4096;
