//! Stock guests whose kernel's own `ice` drives the NIC half of an E810, judged by the tools Debian has for NICs.

mod answers;
mod bridge;
pub(super) mod cm;
mod content;
mod effort;
pub(super) mod errors;
mod filter;
mod flows;
mod jumbo;
mod lifecycle;
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
pub(super) mod speed;
mod station;
pub(super) mod storage;
mod streams;
mod vlan;
