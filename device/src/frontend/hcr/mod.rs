//! What interfaces of the Mellanox lineage have in common: a command register with mailboxes (HCR), context memory that the
//! guest lends (ICM) with page tables in it (MTT), queues whose entries have an owner bit, doorbell pages.
//!
//! JingZhao is of this lineage as ib_mthca's device is. The seam, one folder up, knows nothing of it.

pub mod command;
pub mod doorbell;
pub mod entry_ring;
pub mod host;
pub mod icm;
pub mod mtt;
pub mod notify;
pub mod registers;
pub mod snapshot;
pub mod strict;
pub mod verbs;
