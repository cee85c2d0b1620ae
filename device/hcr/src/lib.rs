//! The common part of interfaces of the HCR lineage: a command register with mailboxes (HCR), context memory mapped by
//! the guest (ICM) with page tables in it (MTT), queues whose entries have an owner bit, and doorbell pages.
//!
//! `jingzhao` and `mthca` implement interfaces of this lineage. The rest of the HCA does not depend on this crate.

pub mod command;
pub mod counters;
pub mod doorbell;
pub mod entry_ring;
pub mod host;
pub mod icm;
pub mod mtt;
pub mod notify;
pub mod reason;
pub mod registers;
pub mod snapshot;
pub mod strict;
pub mod verbs;
