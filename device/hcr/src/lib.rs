//! Code shared by HCR interfaces. These have a command register with mailboxes (HCR), context memory mapped by the
//! guest (ICM), page tables in that memory (MTT), queues whose entries have an owner bit, and doorbell pages.
//!
//! `jingzhao` and `mthca` implement such interfaces. The rest of the HCA does not depend on this crate.

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
