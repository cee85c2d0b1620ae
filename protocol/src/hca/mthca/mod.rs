//! Mellanox InfiniHost III Lx (MT25204, "Sinai"), an HCA without local memory: registers, command mailboxes,
//! contexts and queue entries. Its drivers are `ib_mthca` in Linux and `libmthca` in rdma-core.
//!
//! Each file defines one object of the interface. A private struct describes its raw bytes, and a public type holds its
//! value. The public type has `parse`, `emit` or both, depending on what a device requires. `parse` rejects the same
//! values as the device, with the same status ([`CmdError`](super::status::CmdError)).
//!
//! All multi-byte fields are big-endian, including registers.
//!
//! # Spec
//! Section numbers are those of `protocol/interfaces/mthca.md`.

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
