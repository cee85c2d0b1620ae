//! A learning switch. Its ports are the peers of a `udp` fabric and this device's HCA.
//!
//! Frames from the HCA go to the peer that owns the destination MAC, or to all peers if the owner is unknown. Frames
//! from peers are delivered to the HCA or forwarded. A leaf is a peer that sends only to this HCA, so this switch
//! forwards frames between a leaf and any other peer. All other peers send to each other directly. The switch never
//! forwards frames between them, so the mesh has no loops.
//!
//! The table of MACs and their owners is implemented in `macs`.

use std::collections::HashMap;
use std::net::SocketAddr;

use engine::Instant;
use protocol::ids::MacAddr;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::macs::{MacTable, REFRESH};
use super::udp::UdpPeer;
use crate::rate::Bucket;

/// Maximum number of peers. A flooded frame is sent to each of them.
const MAX_PEERS: usize = 256;

/// Maximum number of MACs listed per peer.
const MACS_SHOWN: usize = 16;

/// Destination of a frame from the HCA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    Peer(usize),
    Flood,
    /// The HCA itself. The frame does not leave the device.
    Own,
}

/// Why a frame is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmitError {
    /// The sender is not a peer.
    Stranger,
    /// The peer exceeds its rate limit.
    OverRate,
    /// The source MAC belongs to another peer.
    ForeignMac,
}

/// Why the list of peers was not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PeerError {
    #[error("{0} is already a peer")]
    Known(SocketAddr),
    #[error("{0} is not a peer")]
    Unknown(SocketAddr),
    #[error("peer address {0} must have the same IP version as this device's own address")]
    IpVersion(SocketAddr),
    #[error("MAC {0} is already reserved for peer {1}")]
    KnownMac(MacAddr, SocketAddr),
    #[error("too many peers (maximum {MAX_PEERS})")]
    TooMany,
}

/// A peer and its counters, as listed by `hcactl`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerRow {
    /// Address and UDP port on which the peer receives.
    pub addr: SocketAddr,
    /// Whether the peer sends only to this HCA.
    pub leaf: bool,
    /// MACs reached through the peer, at most 16: the configured MAC and learned ones.
    pub macs: Vec<String>,
    /// Number of frames received from the peer.
    pub rx_frames: u64,
    /// Number of frames from the peer that were dropped because the peer exceeded its rate limit.
    pub rx_over_rate: u64,
    /// Number of frames from the peer that were dropped because their source MAC belongs to another peer.
    pub rx_foreign_mac: u64,
    /// Number of frames sent to the peer.
    pub tx_frames: u64,
}

/// The peers and the owners of MACs.
#[derive(Debug)]
pub struct Switch {
    ipv4: bool,
    peers: Vec<Peer>,
    by_addr: HashMap<SocketAddr, usize>,
    macs: MacTable<Owner>,
    leaves: usize,
    last: Option<Last>,
    /// Source MAC of the last frame from the HCA's NIC, and the time at which this MAC was looked up.
    last_own: Option<(MacAddr, Instant)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Owner {
    /// This HCA. It also owns the MACs that its NIC's driver uses.
    Own,
    Peer(usize),
}

/// The last admitted sender. Most frames have the same sender as the preceding frame.
#[derive(Clone, Copy, Debug)]
struct Last {
    from: SocketAddr,
    src: MacAddr,
    peer: usize,
    /// Time at which the MAC was looked up.
    at: Instant,
}

#[derive(Debug)]
struct Peer {
    config: UdpPeer,
    bucket: Option<Bucket>,
    rx_frames: u64,
    rx_over_rate: u64,
    rx_foreign_mac: u64,
    tx_frames: u64,
}

impl Switch {
    /// Creates a switch with these peers. `ipv4` selects the IP version that peer addresses must have.
    ///
    /// # Errors
    /// [`PeerError`].
    pub fn new(ipv4: bool, peers: &[UdpPeer]) -> Result<Self, PeerError> {
        let mut switch = Self {
            ipv4,
            peers: Vec::new(),
            by_addr: HashMap::new(),
            macs: MacTable::default(),
            leaves: 0,
            last: None,
            last_own: None,
        };
        peers.iter().try_for_each(|peer| switch.add(*peer))?;
        Ok(switch)
    }

    /// Adds a peer.
    ///
    /// # Errors
    /// [`PeerError`].
    pub fn add(&mut self, peer: UdpPeer) -> Result<(), PeerError> {
        if peer.addr.is_ipv4() != self.ipv4 {
            return Err(PeerError::IpVersion(peer.addr));
        }
        if self.by_addr.contains_key(&peer.addr) {
            return Err(PeerError::Known(peer.addr));
        }
        if self.peers.len() >= MAX_PEERS {
            return Err(PeerError::TooMany);
        }
        let fixed = |mac| match self.macs.fixed(mac)? {
            Owner::Own => None,
            Owner::Peer(peer) => self.addr(peer),
        };
        let owner = peer.mac.and_then(|mac| Some((mac, fixed(mac)?)));
        if let Some((mac, owner)) = owner {
            return Err(PeerError::KnownMac(mac, owner));
        }
        let index = self.peers.len();
        self.by_addr.insert(peer.addr, index);
        if let Some(mac) = peer.mac {
            self.macs.set_fixed(mac, Owner::Peer(index));
            self.last_own = None;
        }
        self.leaves += usize::from(peer.leaf);
        self.peers.push(Peer {
            config: peer,
            bucket: peer.max_frames_per_second.map(Bucket::new),
            rx_frames: 0,
            rx_over_rate: 0,
            rx_foreign_mac: 0,
            tx_frames: 0,
        });
        self.last = None;
        Ok(())
    }

    /// Removes and returns a peer. From then on, it counts as an unknown sender.
    ///
    /// # Errors
    /// [`PeerError::Unknown`].
    pub fn remove(&mut self, addr: SocketAddr) -> Result<UdpPeer, PeerError> {
        let gone = self.by_addr.remove(&addr).ok_or(PeerError::Unknown(addr))?;
        let peer = self.peers.remove(gone);
        self.leaves -= usize::from(peer.config.leaf);
        // The indices of the following peers decrease by one.
        self.by_addr.values_mut().filter(|index| **index > gone).for_each(|index| *index -= 1);
        self.macs.map_owners(|owner| match owner {
            Owner::Peer(peer) if peer == gone => None,
            Owner::Peer(peer) if peer > gone => Some(Owner::Peer(peer - 1)),
            other => Some(other),
        });
        self.last = None;
        Ok(peer.config)
    }

    /// Returns the peers and their counters.
    pub fn rows(&self) -> Vec<PeerRow> {
        let mut macs = vec![Vec::new(); self.peers.len()];
        for (mac, owner) in self.macs.iter() {
            if let Owner::Peer(peer) = owner
                && let Some(macs) = macs.get_mut(peer)
            {
                macs.push(mac);
            }
        }
        let row = |(peer, mut macs): (&Peer, Vec<MacAddr>)| {
            macs.sort_unstable_by_key(|mac| mac.0);
            PeerRow {
                addr: peer.config.addr,
                leaf: peer.config.leaf,
                macs: macs.iter().take(MACS_SHOWN).map(MacAddr::to_string).collect(),
                rx_frames: peer.rx_frames,
                rx_over_rate: peer.rx_over_rate,
                rx_foreign_mac: peer.rx_foreign_mac,
                tx_frames: peer.tx_frames,
            }
        };
        self.peers.iter().zip(macs).map(row).collect()
    }

    /// Returns the number of peers. Peer indices start at 0.
    pub fn peer_count(&self) -> usize {
        self.peers.len()
    }

    /// Returns the configured MACs of peers.
    pub fn configured_macs(&self) -> impl Iterator<Item = MacAddr> {
        self.macs.all_fixed()
    }

    /// Returns the number of MACs with a known owner.
    pub fn known_macs(&self) -> usize {
        self.macs.len()
    }

    /// Returns the address on which a peer receives.
    pub fn addr(&self, peer: usize) -> Option<SocketAddr> {
        self.peers.get(peer).map(|peer| peer.config.addr)
    }

    pub(super) fn count_sent(&mut self, peer: usize, frames: usize) {
        if let Some(peer) = self.peers.get_mut(peer) {
            peer.tx_frames += frames as u64;
        }
    }

    /// Checks a frame with source MAC `src` that arrived from address `from`, learns the MAC, and returns the
    /// index of the peer.
    ///
    /// Only peers are trusted, because anyone can send to a UDP port, and learned addresses redirect traffic.
    ///
    /// # Errors
    /// [`AdmitError`].
    pub fn admit(&mut self, now: Instant, src: MacAddr, from: SocketAddr) -> Result<usize, AdmitError> {
        let is_alike =
            |last: &Last| (last.from, last.src) == (from, src) && now.saturating_since(last.at) < REFRESH;
        let alike = self.last.filter(is_alike);
        let index = match alike {
            Some(last) => last.peer,
            None => *self.by_addr.get(&from).ok_or(AdmitError::Stranger)?,
        };
        let Some(peer) = self.peers.get_mut(index) else { return Err(AdmitError::Stranger) };
        if peer.bucket.as_mut().is_some_and(|bucket| !bucket.take(now)) {
            peer.rx_over_rate += 1;
            return Err(AdmitError::OverRate);
        }
        if alike.is_none() {
            if !self.macs.learn(now, src, Owner::Peer(index)) {
                peer.rx_foreign_mac += 1;
                return Err(AdmitError::ForeignMac);
            }
            self.last = Some(Last { from, src, peer: index, at: now });
        }
        peer.rx_frames += 1;
        Ok(index)
    }

    /// Returns whether the HCA's NIC may send from `src`, a MAC chosen by the NIC's driver. The NIC may use any
    /// MAC that does not belong to a peer, and the switch then learns it.
    pub fn admit_own(&mut self, now: Instant, src: MacAddr) -> bool {
        let is_alike = |(last, at): (MacAddr, Instant)| last == src && now.saturating_since(at) < REFRESH;
        if self.last_own.is_some_and(is_alike) {
            return true;
        }
        let admitted = self.macs.learn(now, src, Owner::Own);
        if admitted {
            self.last_own = Some((src, now));
        }
        admitted
    }

    /// Returns the destination of a frame from the HCA.
    pub fn route(&self, now: Instant, dst: MacAddr) -> Route {
        // If there is only one peer, every frame goes to it. Flooding would cost more.
        if self.peers.len() == 1 {
            return Route::Peer(0);
        }
        match self.macs.owner(now, dst) {
            Some(Owner::Peer(peer)) => Route::Peer(peer),
            Some(Owner::Own) => Route::Own,
            None => Route::Flood,
        }
    }

    /// Returns whether frames from the peer `from` may be forwarded to at least one other peer.
    pub(super) fn may_pass(&self, from: usize) -> bool {
        if self.is_leaf(from) { self.peer_count() > 1 } else { self.leaves > 0 }
    }

    /// Returns whether frames are forwarded between two peers.
    pub(super) fn passes(&self, from: usize, to: usize) -> bool {
        from != to && (self.is_leaf(from) || self.is_leaf(to))
    }

    fn is_leaf(&self, peer: usize) -> bool {
        self.peers.get(peer).is_some_and(|peer| peer.config.leaf)
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::fabric::macs::MAX_LEARNED;

    const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const B: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

    fn addr(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    fn peer(port: u16) -> UdpPeer {
        UdpPeer::at(addr(port))
    }

    fn switch() -> Switch {
        Switch::new(true, &[UdpPeer { mac: Some(A), ..peer(1) }, peer(2)]).unwrap()
    }

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    fn admit(switch: &mut Switch, src: MacAddr, from: u16) -> Result<usize, AdmitError> {
        switch.admit(at(0), src, addr(from))
    }

    fn route(switch: &Switch, dst: MacAddr) -> Route {
        switch.route(at(0), dst)
    }

    #[test]
    fn frames_to_unknown_and_group_addresses_are_flooded() {
        let switch = switch();
        assert_eq!(route(&switch, B), Route::Flood);
        assert_eq!(route(&switch, MacAddr::BROADCAST), Route::Flood);
        assert_eq!(route(&switch, A), Route::Peer(0));
    }

    #[test]
    fn learned_mac_moves_after_hold_time() {
        let mut switch = switch();
        // The frames at 100 and 400 ms do not refresh the entry of B, but the frame at 900 ms does.
        for millis in [0, 100, 400, 900] {
            assert_eq!(switch.admit(at(millis), B, addr(2)), Ok(1));
        }
        assert_eq!(route(&switch, B), Route::Peer(1));
        for millis in [901, 2300] {
            assert_eq!(switch.admit(at(millis), B, addr(1)), Err(AdmitError::ForeignMac), "{millis}");
            assert_eq!(route(&switch, B), Route::Peer(1));
        }
        assert_eq!((switch.rows()[0].rx_frames, switch.rows()[0].rx_foreign_mac), (0, 2));
        assert_eq!(switch.admit(at(2900), B, addr(1)), Ok(0));
        assert_eq!(route(&switch, B), Route::Peer(0));
        assert_eq!(switch.admit(at(2900), B, addr(2)), Err(AdmitError::ForeignMac));
    }

    #[test]
    fn learned_mac_ages_out() {
        let mut switch = switch();
        switch.admit(at(0), B, addr(2)).unwrap();
        switch.admit(at(1000), B, addr(2)).unwrap();
        assert_eq!(switch.route(at(300_999), B), Route::Peer(1));
        assert_eq!(switch.route(at(301_000), B), Route::Flood);
        assert_eq!(switch.route(at(301_000), A), Route::Peer(0), "configured MACs do not age out");
        switch.admit(at(400_000), B, addr(2)).unwrap();
        assert_eq!(switch.route(at(400_000), B), Route::Peer(1));
    }

    #[test]
    fn unknown_senders_are_not_learned() {
        let mut switch = switch();
        assert_eq!(admit(&mut switch, B, 9), Err(AdmitError::Stranger));
        assert_eq!(route(&switch, B), Route::Flood);
    }

    #[test]
    fn configured_mac_cannot_be_taken_over() {
        let mut switch = switch();
        for millis in [0, 1_000_000] {
            assert_eq!(switch.admit(at(millis), A, addr(2)), Err(AdmitError::ForeignMac));
            assert_eq!(switch.route(at(millis), A), Route::Peer(0));
        }
        assert_eq!(admit(&mut switch, A, 1), Ok(0));
        assert_eq!(switch.rows()[1].rx_foreign_mac, 2);
    }

    #[test]
    fn sender_of_random_macs_evicts_only_its_own_entries() {
        let mut switch = switch();
        admit(&mut switch, B, 1).unwrap();
        let invented = |n: u16| {
            let [hi, lo] = n.to_be_bytes();
            MacAddr([6, 0, 0, 0, hi, lo])
        };
        for n in 0..10_000 {
            admit(&mut switch, invented(n), 2).unwrap();
            assert_eq!(route(&switch, invented(n)), Route::Peer(1), "the last sender is known");
        }
        assert_eq!((switch.macs.len(), switch.macs.learned(Owner::Peer(1))), (MAX_LEARNED + 2, MAX_LEARNED));
        assert_eq!(route(&switch, invented(9_487)), Route::Flood, "the oldest entry was evicted");
        assert_eq!(route(&switch, B), Route::Peer(0), "another's address is kept");
    }

    #[test]
    fn removed_peer_loses_its_macs() {
        let mut switch = Switch::new(true, &[peer(1), peer(2), peer(3)]).unwrap();
        admit(&mut switch, A, 1).unwrap();
        admit(&mut switch, B, 3).unwrap();
        switch.remove(addr(1)).unwrap();
        assert_eq!(switch.remove(addr(1)), Err(PeerError::Unknown(addr(1))));
        assert_eq!((route(&switch, A), route(&switch, B)), (Route::Flood, Route::Peer(1)));
        assert_eq!(admit(&mut switch, A, 1), Err(AdmitError::Stranger));
        assert_eq!(admit(&mut switch, B, 3), Ok(1));
        switch.add(peer(1)).unwrap();
        assert_eq!(admit(&mut switch, A, 1), Ok(2));
        assert_eq!(switch.addr(2), Some(addr(1)));
    }

    #[test]
    fn invalid_peers_are_rejected() {
        let mut switch = switch();
        let v6: SocketAddr = "[::1]:5".parse().unwrap();
        assert_eq!(switch.add(peer(2)), Err(PeerError::Known(addr(2))));
        assert_eq!(switch.add(UdpPeer::at(v6)), Err(PeerError::IpVersion(v6)));
        let twin = UdpPeer { mac: Some(A), ..peer(3) };
        assert_eq!(switch.add(twin), Err(PeerError::KnownMac(A, addr(1))));
        assert_eq!((switch.peer_count(), route(&switch, A)), (2, Route::Peer(0)));
        while switch.peer_count() < MAX_PEERS {
            switch.add(peer(1000 + u16::try_from(switch.peer_count()).unwrap())).unwrap();
        }
        assert_eq!(switch.add(peer(9)), Err(PeerError::TooMany));
    }

    #[test]
    fn configured_mac_replaces_learned_one() {
        let mut switch = switch();
        admit(&mut switch, B, 1).unwrap();
        switch.add(UdpPeer { mac: Some(B), ..peer(3) }).unwrap();
        assert_eq!(route(&switch, B), Route::Peer(2));
        assert_eq!(switch.macs.learned(Owner::Peer(0)), 0);
    }

    #[test]
    fn rate_limit_drops_excess_frames() {
        let limit = NonZeroU32::new(100);
        let mut switch =
            Switch::new(true, &[UdpPeer { max_frames_per_second: limit, ..peer(1) }, peer(2)]).unwrap();
        let admitted = (0..50).filter(|_| admit(&mut switch, A, 1).is_ok()).count();
        assert_eq!(admitted, 10);
        assert_eq!(admit(&mut switch, A, 1), Err(AdmitError::OverRate));
        assert!((0..50).all(|_| admit(&mut switch, B, 2).is_ok()));
        let rows = switch.rows();
        assert_eq!((rows[0].rx_frames, rows[0].rx_over_rate), (10, 41));
        assert_eq!((rows[1].rx_frames, rows[1].macs.clone()), (50, vec![B.to_string()]));
    }

    #[test]
    fn frames_are_forwarded_only_from_or_to_leaves() {
        let leaf = |port| UdpPeer { leaf: true, ..peer(port) };
        let switch = Switch::new(true, &[peer(1), peer(2), leaf(3), leaf(4)]).unwrap();
        for (from, to, passes) in
            [(0, 1, false), (0, 2, true), (2, 0, true), (2, 3, true), (2, 2, false), (1, 0, false)]
        {
            assert_eq!(switch.passes(from, to), passes, "{from} to {to}");
        }
        assert!(switch.may_pass(0) && switch.may_pass(2));
        let mesh = Switch::new(true, &[peer(1), peer(2)]).unwrap();
        assert!(!mesh.may_pass(0));
        let one_nic = Switch::new(true, &[leaf(1)]).unwrap();
        assert!(!one_nic.may_pass(0));
    }
}
