//! Guests that use an E810 with the stock drivers `ice` and `irdma`, and test it with Debian's network, RDMA and
//! storage tools.

mod answers;
mod bridge;
pub(super) mod cm;
mod content;
pub(super) mod dpdk;
mod effort;
pub(super) mod errors;
mod filter;
mod flows;
mod jumbo;
mod lifecycle;
pub(super) mod limits;
mod messages;
pub(super) mod middleware;
pub(super) mod net;
mod package;
pub(super) mod paths;
pub(super) mod perftest;
mod ping;
pub(super) mod pingpong;
pub(super) mod probe;
pub(super) mod pyverbs;
pub(super) mod rdma_probe;
pub(super) mod roce;
pub(super) mod selftest;
pub(super) mod speed;
pub(super) mod station;
pub(super) mod storage;
mod streams;
mod vlan;
