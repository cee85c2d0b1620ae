//! A learning switch. Its ports are the peers of a `udp` fabric and this device's HCA.
//!
//! Frames from the HCA go to the peer that owns the destination MAC, or to all peers if the owner is unknown. Frames
//! from peers are delivered to the HCA or forwarded. A leaf is a peer that sends only to this HCA, and the switch
//! forwards frames between it and any other peer. All other peers send to each other directly. To keep the mesh free of
//! loops, the switch never forwards frames between them.
//!
//! The table of MACs and their owners is implemented in `macs`.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;

use engine::Instant;
use protocol::ids::MacAddr;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::macs::{MacTable, REFRESH};
use super::udp::{Agreement, RunLimit, UdpPeer};
use crate::rate::Bucket;

/// Maximum number of peers. A flooded frame is sent to each of them.
pub const MAX_PEERS: usize = 256;

/// Maximum number of MACs listed per peer.
const MACS_SHOWN: usize = 16;

/// Destination of a frame from the HCA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    Peer(usize),
    Flood,
    /// The HCA itself. The frame does not leave the device.
    Own,
    /// A peer that is specified by name and currently has no address. The frame is dropped.
    Absent,
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
    #[error("{0} is this device's own address")]
    Own(SocketAddr),
    #[error("peer address {0} must have the same IP version as this device's own address")]
    IpVersion(SocketAddr),
    #[error("MAC {0} is already reserved for peer {1}")]
    KnownMac(MacAddr, SocketAddr),
    #[error("MAC {0} is reserved for a peer that the configuration specifies by name")]
    NamedMac(MacAddr),
    #[error("{0} was found through DNS and can only be removed from DNS or from the configuration")]
    Resolved(SocketAddr),
    #[error("too many peers (maximum {MAX_PEERS})")]
    TooMany,
}

/// A peer found through DNS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedPeer {
    pub peer: UdpPeer,
    /// Name that resolves to the peer's address.
    pub name: Arc<str>,
}

/// A peer and its counters, as listed by `hcactl`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerRow {
    /// Address and UDP port at which the peer receives.
    pub addr: SocketAddr,
    /// DNS name that resolved to the peer, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Whether the peer sends only to this HCA.
    pub leaf: bool,
    /// MACs reached through the peer, at most 16: the configured MAC and learned ones.
    pub macs: Vec<String>,
    /// Number of frames received from the peer, including padding requests and acceptances.
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
    /// Address on which this device receives, if it is known.
    bound: Option<SocketAddr>,
    peers: Vec<Peer>,
    by_addr: HashMap<SocketAddr, usize>,
    macs: MacTable<Owner>,
    /// MACs of the peers that the configuration specifies by name. While such a peer has no address, its MAC stays
    /// reserved, and no other peer can use it.
    reserved: BTreeSet<MacAddr>,
    /// Number of reserved MACs whose peer has no address.
    absent: usize,
    leaves: usize,
    last: Option<Last>,
    /// Source MAC of the last frame from the HCA's NIC, and the time of its look-up.
    last_own: Option<(MacAddr, Instant)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Owner {
    /// This HCA. It also owns the MACs that its NIC's driver uses.
    Own,
    Peer(usize),
    /// A peer that is specified by name and currently has no address.
    Absent,
}

/// Cache of the last admitted sender. Most frames come from the same sender as the previous one.
#[derive(Clone, Copy, Debug)]
struct Last {
    from: SocketAddr,
    src: MacAddr,
    peer: usize,
    /// Time of the MAC look-up.
    at: Instant,
}

#[derive(Debug)]
struct Peer {
    config: UdpPeer,
    /// Name of a peer found through DNS.
    name: Option<Arc<str>>,
    bucket: Option<Bucket>,
    rx_frames: u64,
    rx_over_rate: u64,
    rx_foreign_mac: u64,
    tx_frames: u64,
    agreement: Agreement,
    run_limit: RunLimit,
}

impl Switch {
    /// Creates a switch with the given peers. `ipv4` selects the IP version that peer addresses must have.
    ///
    /// # Errors
    /// Fails if one of the peers cannot be added.
    pub fn new(ipv4: bool, peers: &[UdpPeer]) -> Result<Self, PeerError> {
        let mut switch = Self {
            ipv4,
            bound: None,
            peers: Vec::new(),
            by_addr: HashMap::new(),
            macs: MacTable::default(),
            reserved: BTreeSet::new(),
            absent: 0,
            leaves: 0,
            last: None,
            last_own: None,
        };
        peers.iter().try_for_each(|peer| switch.add(*peer))?;
        Ok(switch)
    }

    /// Sets the address on which this device receives. It cannot be added as a peer.
    #[must_use]
    pub fn with_bound(self, bound: SocketAddr) -> Self {
        Self { bound: Some(bound), ..self }
    }

    /// Reserves the MAC of a peer that is specified by name. Until the peer has an address, frames from this MAC are
    /// rejected and frames to it are dropped.
    ///
    /// # Errors
    /// Fails with [`PeerError::KnownMac`] if the MAC belongs to another peer.
    pub fn reserve(&mut self, mac: MacAddr) -> Result<(), PeerError> {
        match self.macs.fixed(mac) {
            Some(Owner::Peer(peer)) => {
                self.addr(peer).map_or(Ok(()), |addr| Err(PeerError::KnownMac(mac, addr)))?
            }
            Some(Owner::Own | Owner::Absent) | None => {}
        }
        self.reserved.insert(mac);
        self.set_absent(mac);
        self.count_absent();
        Ok(())
    }

    /// Adds a peer.
    ///
    /// # Errors
    /// Fails with a [`PeerError`] that states why the peer was not added.
    pub fn add(&mut self, peer: UdpPeer) -> Result<(), PeerError> {
        match peer.mac {
            Some(mac) if self.reserved.contains(&mac) => Err(PeerError::NamedMac(mac)),
            _ if self.is_own(peer.addr) => Err(PeerError::Own(peer.addr)),
            _ => self.insert(peer, None),
        }
    }

    fn is_own(&self, addr: SocketAddr) -> bool {
        // A socket bound to the unspecified address also receives on loopback addresses.
        let receives = |bound: SocketAddr| {
            addr.port() == bound.port()
                && (addr.ip() == bound.ip() || bound.ip().is_unspecified() && addr.ip().is_loopback())
        };
        self.bound.is_some_and(receives)
    }

    /// Replaces the peers found through DNS. A peer that DNS still returns keeps its learned MACs and its counters.
    /// Peers added with [`Switch::add`] take precedence: they stay unchanged even if DNS returns their addresses.
    /// Returns an error for each peer that could not be added.
    pub fn set_resolved(&mut self, resolved: &[ResolvedPeer]) -> Vec<PeerError> {
        let by_addr: HashMap<_, _> = resolved.iter().map(|found| (found.peer.addr, found)).collect();
        let is_same = |peer: &Peer| {
            let found = by_addr.get(&peer.config.addr);
            found.is_some_and(|found| found.peer == peer.config && peer.name.as_ref() == Some(&found.name))
        };
        let gone = self.peers.iter().filter(|peer| peer.name.is_some() && !is_same(peer));
        // Remove the old peers first so that a peer that has moved to another address can keep its MAC.
        for addr in gone.map(|peer| peer.config.addr).collect::<Vec<_>>() {
            let _ = self.take(addr);
        }
        let mut left_out = Vec::new();
        for found in resolved {
            if !self.by_addr.contains_key(&found.peer.addr) {
                left_out.extend(self.insert(found.peer, Some(found.name.clone())).err());
            }
        }
        self.count_absent();
        left_out
    }

    fn insert(&mut self, peer: UdpPeer, name: Option<Arc<str>>) -> Result<(), PeerError> {
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
            Owner::Own | Owner::Absent => None,
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
            name,
            bucket: peer.max_frames_per_second.map(Bucket::new),
            rx_frames: 0,
            rx_over_rate: 0,
            rx_foreign_mac: 0,
            tx_frames: 0,
            agreement: Agreement::default(),
            run_limit: RunLimit::default(),
        });
        self.last = None;
        Ok(())
    }

    /// Removes and returns a peer. After its removal, frames from its address are dropped.
    ///
    /// # Errors
    /// Fails with [`PeerError::Unknown`] if no peer has the address, or with [`PeerError::Resolved`] if the peer was
    /// found through DNS.
    pub fn remove(&mut self, addr: SocketAddr) -> Result<UdpPeer, PeerError> {
        let peer = self.by_addr.get(&addr).and_then(|index| self.peers.get(*index));
        match peer.is_some_and(|peer| peer.name.is_some()) {
            true => Err(PeerError::Resolved(addr)),
            false => self.take(addr),
        }
    }

    fn take(&mut self, addr: SocketAddr) -> Result<UdpPeer, PeerError> {
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
        if let Some(mac) = peer.config.mac.filter(|mac| self.reserved.contains(mac)) {
            self.set_absent(mac);
        }
        self.last = None;
        Ok(peer.config)
    }

    fn set_absent(&mut self, mac: MacAddr) {
        self.macs.set_fixed(mac, Owner::Absent);
        (self.last, self.last_own) = (None, None);
    }

    fn count_absent(&mut self) {
        let is_absent = |mac: &&MacAddr| self.macs.fixed(**mac) == Some(Owner::Absent);
        self.absent = self.reserved.iter().filter(is_absent).count();
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
                name: peer.name.as_deref().map(str::to_owned),
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

    /// Returns the configured MACs of peers, including those of absent peers.
    pub fn configured_macs(&self) -> impl Iterator<Item = MacAddr> {
        self.macs.all_fixed()
    }

    /// Returns the number of MACs with a known owner.
    pub fn known_macs(&self) -> usize {
        self.macs.len()
    }

    /// Returns the address at which a peer receives.
    pub fn addr(&self, peer: usize) -> Option<SocketAddr> {
        self.peers.get(peer).map(|peer| peer.config.addr)
    }

    /// Returns the padding agreement with a peer, or `None` for a leaf, which is usually not an HCA.
    pub(super) fn agreement(&mut self, peer: usize) -> Option<&mut Agreement> {
        self.peers.get_mut(peer).filter(|peer| !peer.config.leaf).map(|peer| &mut peer.agreement)
    }

    /// Returns the limit on runs of frames to a peer.
    pub(super) fn run_limit(&mut self, peer: usize) -> Option<&mut RunLimit> {
        self.peers.get_mut(peer).map(|peer| &mut peer.run_limit)
    }

    pub(super) fn count_sent(&mut self, peer: usize, frames: usize) {
        if let Some(peer) = self.peers.get_mut(peer) {
            peer.tx_frames += frames as u64;
        }
    }

    /// Checks a frame with source MAC `src` that arrived from address `from`, learns the MAC, and returns the
    /// index of the peer.
    ///
    /// Only peers are trusted, because anyone can send to a UDP port, and a learned MAC redirects traffic.
    ///
    /// # Errors
    /// Fails with an [`AdmitError`] that states why the frame must be dropped.
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
                self.relearn(src);
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
        } else {
            self.relearn(src);
        }
        admitted
    }

    /// Removes `mac` from the caches after a frame with this source MAC was rejected because its sender does not own
    /// the MAC. The owner's next frame then refreshes the MAC's entry, which discards the rejected sender's claim (see
    /// `macs`).
    fn relearn(&mut self, mac: MacAddr) {
        self.last = self.last.filter(|last| last.src != mac);
        self.last_own = self.last_own.filter(|(last, _)| *last != mac);
    }

    /// Returns the destination of a frame from the HCA.
    pub fn route(&self, now: Instant, dst: MacAddr) -> Route {
        // If there is only one peer, route every frame to it. Frames to a known peer are sent in batches, whereas
        // flooded frames are sent one at a time, which is slower. While a peer specified by name is absent, however,
        // frames for it must not go to the only present peer.
        if self.peers.len() == 1 && self.absent == 0 {
            return Route::Peer(0);
        }
        match self.macs.owner(now, dst) {
            Some(Owner::Peer(peer)) => Route::Peer(peer),
            Some(Owner::Own) => Route::Own,
            Some(Owner::Absent) => Route::Absent,
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
mod tests;
