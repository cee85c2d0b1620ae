//! One port on the fabric: which frames are ours, what it answers by itself, who its neighbours are.
//!
//! Nothing here owns a socket or a clock: frames, time and the batch for answers come with each call.

mod limit;
mod neighbour;
mod port;
mod stats;
mod waiting;

pub use neighbour::Resolved;
pub use port::Port;
use protocol::ids::MacAddr;
pub use stats::{DropReason, PortStats, Traffic};

/// Destination MAC of frames whose sender knows the IP address only: the port finds it out (ARP, neighbour discovery).
pub const UNRESOLVED: MacAddr = MacAddr([0; 6]);
