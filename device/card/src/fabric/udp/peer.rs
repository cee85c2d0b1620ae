//! Peers of a `udp` fabric.

use std::net::SocketAddr;
use std::num::NonZeroU32;

use protocol::ids::MacAddr;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpPeer {
    pub addr: SocketAddr,
    pub mac: Option<MacAddr>,
    /// Whether the peer sends only to this HCA.
    pub leaf: bool,
    /// Rate limit for frames from the peer.
    pub max_frames_per_second: Option<NonZeroU32>,
}

impl UdpPeer {
    /// Creates a peer with default settings.
    pub const fn at(addr: SocketAddr) -> Self {
        Self { addr, mac: None, leaf: false, max_frames_per_second: None }
    }
}
