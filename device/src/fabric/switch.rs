//! Which peer has which MAC: a learning switch without ports of its own.

use std::collections::HashMap;
use std::net::SocketAddr;

use protocol::ids::MacAddr;

use crate::config::UdpPeer;

/// Addresses that can be learned. Bound: a peer can invent source MACs; beyond this many they are flooded to.
const MAX_LEARNED: usize = 4096;

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// To one peer.
    Peer(SocketAddr),
    /// To every peer.
    Flood,
}

/// The peers and what is known of them.
#[derive(Debug)]
pub(super) struct Switch {
    peers: Vec<SocketAddr>,
    fixed: HashMap<MacAddr, SocketAddr>,
    learned: HashMap<MacAddr, SocketAddr>,
}

impl Switch {
    pub(super) fn new(peers: &[UdpPeer]) -> Self {
        Self {
            peers: peers.iter().map(|peer| peer.addr).collect(),
            fixed: peers.iter().filter_map(|peer| Some((peer.mac?, peer.addr))).collect(),
            learned: HashMap::new(),
        }
    }

    pub(super) fn peers(&self) -> &[SocketAddr] {
        &self.peers
    }

    /// Notes that `src` is reached through `from`. False if `from` is nobody we talk to.
    ///
    /// Only configured peers are believed: anybody can send to a UDP port, and whoever may teach us addresses may
    /// redirect traffic.
    pub(super) fn learn(&mut self, src: MacAddr, from: SocketAddr) -> bool {
        if !self.peers.contains(&from) {
            return false;
        }
        let known = self.fixed.contains_key(&src);
        if !known
            && !src.is_multicast()
            && (self.learned.len() < MAX_LEARNED || self.learned.contains_key(&src))
        {
            self.learned.insert(src, from);
        }
        true
    }

    pub(super) fn route(&self, dst: MacAddr) -> Route {
        let known = || self.fixed.get(&dst).or_else(|| self.learned.get(&dst));
        match (self.peers.as_slice(), dst.is_multicast()) {
            // With one peer there is nothing to choose, and no flood to pay for.
            ([only], _) => Route::Peer(*only),
            (_, true) => Route::Flood,
            (_, false) => known().map_or(Route::Flood, |addr| Route::Peer(*addr)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const B: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

    fn addr(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    fn switch() -> Switch {
        Switch::new(&[UdpPeer { addr: addr(1), mac: Some(A) }, UdpPeer { addr: addr(2), mac: None }])
    }

    #[test]
    fn unknown_and_group_addresses_are_flooded() {
        let switch = switch();
        assert_eq!(switch.route(B), Route::Flood);
        assert_eq!(switch.route(MacAddr::BROADCAST), Route::Flood);
        assert_eq!(switch.route(A), Route::Peer(addr(1)));
    }

    #[test]
    fn sources_are_learned_and_follow_their_owner() {
        let mut switch = switch();
        assert!(switch.learn(B, addr(2)));
        assert_eq!(switch.route(B), Route::Peer(addr(2)));
        assert!(switch.learn(B, addr(1)));
        assert_eq!(switch.route(B), Route::Peer(addr(1)));
    }

    #[test]
    fn strangers_teach_nothing() {
        let mut switch = switch();
        assert!(!switch.learn(B, addr(9)));
        assert_eq!(switch.route(B), Route::Flood);
    }

    #[test]
    fn configured_addresses_cannot_be_taken_over() {
        let mut switch = switch();
        assert!(switch.learn(A, addr(2)));
        assert_eq!(switch.route(A), Route::Peer(addr(1)));
    }

    #[test]
    fn invented_addresses_cannot_exhaust_memory() {
        let mut switch = switch();
        for n in 0..10_000u32 {
            let [_, _, hi, lo] = n.to_be_bytes();
            switch.learn(MacAddr([6, 0, 0, 0, hi, lo]), addr(2));
        }
        assert_eq!(switch.learned.len(), MAX_LEARNED);
    }
}
