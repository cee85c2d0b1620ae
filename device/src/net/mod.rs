//! One port on the fabric: its link, who has which address, which frames are ours, what it answers by itself.
//!
//! Nothing here owns a socket or a clock: frames, time and the batch for answers come with each call.

pub mod address;
pub(crate) mod classify;
pub mod lid;
mod link;
mod port;
mod station;
mod stats;

pub use link::Link;
pub use port::Port;
use protocol::ids::MacAddr;
pub use station::Resolved;
pub use stats::{DropReason, PortStats, Traffic};

/// Destination MAC of frames whose sender knows the IP address only: the port finds it out (ARP, neighbour discovery).
pub const UNRESOLVED: MacAddr = MacAddr([0; 6]);
