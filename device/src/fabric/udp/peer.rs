//! Whom a `udp` fabric talks to.

use std::net::SocketAddr;
use std::num::NonZeroU32;

use protocol::ids::MacAddr;

/// A peer of the `udp` fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpPeer {
    /// Address and port.
    pub addr: SocketAddr,
    /// MAC, if configured.
    pub mac: Option<MacAddr>,
    /// Whether it knows us only.
    pub leaf: bool,
    /// Frames it may send.
    pub max_frames_per_second: Option<NonZeroU32>,
}

impl UdpPeer {
    /// A peer of which nothing but its address is known.
    pub const fn at(addr: SocketAddr) -> Self {
        Self { addr, mac: None, leaf: false, max_frames_per_second: None }
    }
}
