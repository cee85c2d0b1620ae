//! Mellanox InfiniHost III Lx (MT25204, "Sinai"), the HCA without memory of its own that Linux's `ib_mthca` and
//! rdma-core's `libmthca` drive: registers, command mailboxes, contexts and queue entries.
//!
//! Each file holds one object of the interface: a private raw layout that is exactly the bytes, and a public value
//! with `parse` and `emit`, as far as a device needs them. `parse` refuses what the device refuses, with the status it
//! answers ([`CmdError`](super::status::CmdError)).
//!
//! Every field of more than one byte is big-endian, registers included.
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

/// Bytes of a command mailbox, of a page of context memory and of a UAR page.
pub const PAGE: usize = 4096;
