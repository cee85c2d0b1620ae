//! Tests an E810 in guests, using the stock drivers `ice` and `irdma` and Debian's network, RDMA and storage tools.

mod answers;
pub(super) mod errors;
mod lifecycle;
pub(super) mod limits;
pub(super) mod messages;
pub(super) mod middleware;
pub(super) mod package;
pub(super) mod paths;
pub(super) mod perftest;
pub(super) mod pingpong;
pub(super) mod probe;
pub(super) mod pyverbs;
pub(super) mod rdma_probe;
pub(super) mod selftest;
