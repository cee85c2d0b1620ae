//! Counters of frames that do not pass through the port. [`FrameCounters`](crate::port::counters::FrameCounters) counts
//! those that do.
//!
//! # Spec
//! mlx5 interface, section 17.1.

use protocol::hca::mlx5::counter::TrafficCounter;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetdevCounters {
    /// Frames from an SQ that were delivered to a TIR of this device. The byte count excludes the frame check sequence.
    pub loopback: TrafficCounter,
    /// Frames from an SQ that exceed the port's MTU.
    pub tx_oversize: u64,
    /// Frames from an SQ that were dropped because the link was down.
    pub tx_link_down: u64,
}

impl NetdevCounters {
    pub fn looped(&mut self, frame: &[u8]) {
        self.loopback.packets += 1;
        self.loopback.bytes += frame.len() as u64;
    }
}
