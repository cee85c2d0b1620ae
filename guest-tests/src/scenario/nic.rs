//! Tests a NIC in guests, using its stock driver and Debian's network, RDMA and storage tools. The NIC is an E810 or a
//! ConnectX.

mod bridge;
pub(super) mod cm;
pub(super) mod content;
pub(super) mod dpdk;
pub(super) mod effort;
mod ethtool;
pub(super) mod features;
pub(super) mod filter;
mod flows;
mod jumbo;
pub(super) mod kselftest;
pub(super) mod net;
pub(super) mod ping;
pub(super) mod roce;
pub(super) mod soak;
pub(super) mod speed;
pub(super) mod station;
pub(super) mod storage;
mod streams;
mod tunnels;
mod vlan;
mod xdp;
