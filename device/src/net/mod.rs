//! One port on the fabric: which frames are ours, what it answers by itself, who its neighbours are.
//!
//! Nothing here owns a socket or a clock: frames, time and the batch for answers come with each call.

mod neighbour;
mod port;
mod stats;

pub use neighbour::Neighbours;
pub use port::Port;
pub use stats::{DropReason, PortStats};
