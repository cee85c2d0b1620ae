//! Stock guests whose kernel's own `ib_mthca` drives the HCA, judged by the tools Debian has for RDMA hardware.

mod counters;
pub(super) mod errors;
pub(super) mod ipoib;
pub(super) mod opensm;
pub(super) mod perftest;
pub(super) mod pingpong;
pub(super) mod probe;
pub(super) mod pyverbs;
pub(super) mod strict;
