//! The JingZhao (HanGu) HCA: registers, command mailboxes, contexts and queue entries.
//!
//! Each file holds one object of the interface: a private raw layout that is exactly the bytes, and a public value
//! with `parse` and `emit`. `parse` refuses what the device refuses, with the status it answers
//! ([`cmd::CmdError`]); `emit` returns the whole object, so that no byte of a recycled buffer can show through.
//!
//! Byte order is that of the object: registers, doorbells, work, completion and event queue entries are
//! little-endian, mailboxes and contexts are big-endian.
//!
//! # Spec
//! JingZhao software/hardware interface V1.3-b; section numbers are those of `protocol/interfaces/jingzhao.md`.

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

/// Bytes of a command mailbox, and of a page of context memory.
pub const PAGE: usize = 4096;
