//! Mellanox InfiniHost III Lx (MT25204, "Sinai"), an HCA without local memory: registers, command mailboxes,
//! contexts and queue entries. Its drivers are `ib_mthca` in Linux and `libmthca` in rdma-core.
//!
//! Each module defines one object of the interface. A private struct describes the raw bytes, and a public type holds
//! the parsed value. The public type has `parse`, `emit` or both, as the device requires. If the device must reject a
//! value, `parse` returns the command status in a [`CmdError`](super::status::CmdError).
//!
//! All multi-byte fields and registers are big-endian.
//!
//! # Spec
//! Section numbers refer to `protocol/interfaces/mthca.md`.

pub mod caps;
pub mod cmd;
pub mod cqc;
pub mod cqe;
pub mod doorbell;
pub mod eqc;
pub mod eqe;
pub mod icm;
pub mod init;
pub mod mad_ifc;
pub mod mailbox;
pub mod mgm;
pub mod modify;
pub mod mpt;
pub mod path;
pub mod pci;
pub mod port;
pub mod qpc;
pub mod regs;
pub mod srqc;
pub mod wqe;

/// Length in bytes of a command mailbox, an ICM page and a UAR page.
pub const PAGE: usize = 4096;
