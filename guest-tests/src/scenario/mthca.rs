//! Tests an HCA in guests, using the stock driver `ib_mthca` and Debian's RDMA tools.

mod counters;
pub(super) mod errors;
pub(super) mod ipoib;
pub(super) mod opensm;
pub(super) mod perftest;
pub(super) mod pingpong;
pub(super) mod probe;
pub(super) mod pyverbs;
pub(super) mod strict;
pub(super) mod strict_kernel;

use crate::daemon::Explained;

/// Driver violations that occur when a program reuses a doorbell record page after destroying all queues on it
/// (mthca interface, section 12, T55).
pub(crate) const DOORBELL_RECORD_REMAPS: [Explained; 2] = [
    Explained {
        rule: "map_over_mapped",
        why: "the driver maps a program's page of doorbell records again without unmapping it first (T55)",
    },
    Explained { rule: "map_same_page", why: "the driver maps the same page again at the same address (T55)" },
];
