//! One port on the fabric: its link, its addresses, frame classification, and the protocols that the port handles
//! itself.
//!
//! This module does no I/O and does not read the clock. Callers pass in frames, the current time and the batch that
//! receives replies.

pub mod address;
pub(crate) mod classify;
mod host_stack;
pub mod lid;
mod link;
mod port;
mod rdma_half;
mod stats;

pub use host_stack::Resolved;
pub use link::Link;
pub use port::Port;
use protocol::ids::MacAddr;
pub use rdma_half::RoceAddress;
pub use stats::{DropReason, PortStats, Traffic};

/// Placeholder for a destination MAC that is not known yet. The port resolves the destination IP address by ARP or
/// neighbour discovery.
pub const UNRESOLVED: MacAddr = MacAddr([0; 6]);
