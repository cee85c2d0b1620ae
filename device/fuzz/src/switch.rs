//! Fuzzes the switch of a `udp` fabric. Peers come and go, send frames, go silent and forge addresses. Frames must go
//! only to existing peers, and a reply to the last sender must not be flooded. No peer may take over another peer's
//! MAC, and the state stored for each peer must stay bounded.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use card::fabric::switch::{AdmitError, PeerError, Route, Switch};
use card::fabric::udp::UdpPeer;
use engine::Instant;
use protocol::ids::MacAddr;

use super::OPERATIONS;
use super::input::Input;

/// Maximum number of MACs learned from one peer.
const LEARNED: usize = 512;
/// Time until a learned MAC ages out.
const AGEING: Duration = Duration::from_secs(300);
/// Time during which a recently used MAC cannot move to another peer: the hold time of 2 s, minus the refresh interval
/// of 500 ms.
const HELD: Duration = Duration::from_millis(1500);

/// Number of sender addresses. Only some of them belong to peers.
const ADDRESSES: u8 = 8;
/// Number of MACs that inputs can select. Other MACs are only used to fill the table.
const MACS: u8 = 16;

/// The last peer that sent from a MAC, and when it did so.
#[derive(Clone, Copy)]
struct LastSender {
    from: SocketAddr,
    at: Instant,
    /// Whether the switch must still have this entry: the peer has not used enough other MACs since `at` to evict it.
    kept: bool,
    /// The last other sender whose frame from this MAC was rejected since `at`.
    claim: Option<SocketAddr>,
}

#[derive(Default)]
struct Model {
    /// Peers in order of their indices, with the number of frames from each.
    peers: Vec<(UdpPeer, u64)>,
    senders: HashMap<MacAddr, LastSender>,
}

struct Bench {
    switch: Switch,
    model: Model,
    now: Instant,
}

pub fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let switch = Switch::new(true, &[]).expect("an empty list of peers has no conflicts");
    let mut bench = Bench { switch, model: Model::default(), now: Instant::ZERO };
    for _ in 0..OPERATIONS {
        let Some(operation) = input.next_byte() else { break };
        match operation % 16 {
            0 | 1 => bench.add(&mut input),
            2 => bench.remove(&mut input),
            3..=8 => bench.frame(address(input.byte()), mac(input.byte())),
            9 => bench.flood_macs(&mut input),
            10..=12 => bench.pass(Duration::from_millis(u64::from(input.byte()) * 10)),
            13 => bench.pass(Duration::from_secs(u64::from(input.byte()) * 2)),
            _ => bench.own_frame(mac(input.byte())),
        }
        bench.check();
    }
}

fn address(choice: u8) -> SocketAddr {
    ([127, 0, 0, 1], 1000 + u16::from(choice % ADDRESSES)).into()
}

/// Returns the sender address that represents the HCA.
fn own() -> SocketAddr {
    ([127, 0, 0, 1], 1).into()
}

/// Returns one of a few MACs. Some of them are group addresses.
fn mac(choice: u8) -> MacAddr {
    match choice % MACS {
        0 => MacAddr::BROADCAST,
        1 => MacAddr([0x33, 0x33, 0, 0, 0, 1]),
        choice => MacAddr([2, 0, 0, 0, 0, choice]),
    }
}

impl Bench {
    fn add(&mut self, input: &mut Input<'_>) {
        let (addr, choice) = (address(input.byte()), input.byte());
        let peer = UdpPeer {
            addr,
            mac: (choice & 1 == 0).then(|| mac(input.byte())).filter(|mac| !mac.is_multicast()),
            leaf: choice & 2 == 0,
            max_frames_per_second: NonZeroU32::new(u32::from(choice >> 2) * 100),
        };
        let expected = if self.model.number(addr).is_some() {
            Err(PeerError::Known(addr))
        } else if let Some((mac, owner)) = peer.mac.and_then(|mac| Some((mac, self.model.owner(mac)?))) {
            Err(PeerError::KnownMac(mac, self.model.peers[owner].0.addr))
        } else {
            Ok(())
        };
        assert_eq!(self.switch.add(peer), expected);
        if expected.is_ok() {
            self.model.peers.push((peer, 0));
            if let Some(mac) = peer.mac {
                self.model.senders.remove(&mac);
            }
        }
    }

    fn remove(&mut self, input: &mut Input<'_>) {
        let addr = address(input.byte());
        let number = self.model.number(addr);
        let peer = number.map(|number| self.model.peers[number].0);
        assert_eq!(self.switch.remove(addr), peer.ok_or(PeerError::Unknown(addr)));
        if let Some(number) = number {
            self.model.peers.remove(number);
            self.model.senders.retain(|_, sender| sender.from != addr);
            for sender in self.model.senders.values_mut() {
                sender.claim = sender.claim.filter(|claim| *claim != addr);
            }
        }
    }

    /// Sends frames from one peer with more source MACs than the switch stores per peer.
    fn flood_macs(&mut self, input: &mut Input<'_>) {
        let (from, first) = (address(input.byte()), input.byte());
        for number in 0..LEARNED as u16 + 8 {
            let [high, low] = number.to_be_bytes();
            self.frame(from, MacAddr([6, 0, 0, first, high, low]));
        }
        self.model
            .senders
            .values_mut()
            .filter(|sender| sender.from == from)
            .for_each(|sender| sender.kept = false);
    }

    fn frame(&mut self, from: SocketAddr, src: MacAddr) {
        let admitted = self.switch.admit(self.now, src, from);
        let Some(number) = self.model.number(from) else {
            return assert_eq!(admitted, Err(AdmitError::Stranger));
        };
        let (peer, frames) = &mut self.model.peers[number];
        *frames += 1;
        let limited = peer.max_frames_per_second.is_some();
        let owner = self.model.owner(src);
        match admitted {
            Ok(index) => {
                assert_eq!(index, number);
                assert!(
                    owner.is_none_or(|owner| owner == number),
                    "{src} is configured for a different peer"
                );
                if src.is_multicast() {
                    return;
                }
                let now = self.now;
                let sender =
                    self.model.senders.insert(src, LastSender { from, at: now, kept: true, claim: None });
                let before = sender.filter(|sender| sender.from != from && sender.kept);
                assert!(
                    before.is_none_or(|before| now.saturating_since(before.at) >= HELD),
                    "{src} moved to a new peer during its hold time"
                );
                assert_eq!(
                    self.switch.route(now, src),
                    Route::Peer(number),
                    "a reply must go to the last sender"
                );
            }
            Err(AdmitError::OverRate) => assert!(limited),
            Err(AdmitError::ForeignMac) => {
                let sender = self.model.senders.get_mut(&src).filter(|sender| sender.from != from);
                let another = sender.is_some();
                sender.into_iter().for_each(|sender| sender.claim = Some(from));
                assert!(
                    another || owner.is_some_and(|owner| owner != number),
                    "{src} was rejected although it was free"
                );
            }
            Err(AdmitError::Stranger) => panic!("the existing peer {from} was rejected as unknown"),
        }
    }

    /// Sends a frame from the HCA's NIC.
    fn own_frame(&mut self, src: MacAddr) {
        let (now, owner) = (self.now, self.model.owner(src));
        let is_anothers = |sender: &LastSender| sender.from != own() && sender.kept;
        if !self.switch.admit_own(now, src) {
            let sender = self.model.senders.get_mut(&src).filter(|sender| sender.from != own());
            let another = sender.is_some();
            sender.into_iter().for_each(|sender| sender.claim = Some(own()));
            return assert!(another || owner.is_some(), "{src} was rejected although it was free");
        }
        if src.is_multicast() {
            return;
        }
        assert_eq!(owner, None, "{src} is configured for a peer");
        let before =
            self.model.senders.insert(src, LastSender { from: own(), at: now, kept: true, claim: None });
        let held = before.filter(is_anothers).is_some_and(|before| now.saturating_since(before.at) < HELD);
        assert!(!held, "{src} moved to the HCA during its hold time");
        if self.model.peers.len() != 1 {
            assert_eq!(
                self.switch.route(now, src),
                Route::Own,
                "frames to the HCA's own MAC must not go to a peer"
            );
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
    }

    fn check(&self) {
        let count = self.model.peers.len();
        assert_eq!(self.switch.peer_count(), count);
        assert!(
            self.switch.known_macs() <= (count + 1) * (LEARNED + 1),
            "the switch stores {} MACs",
            self.switch.known_macs()
        );
        for (number, ((peer, frames), row)) in self.model.peers.iter().zip(self.switch.rows()).enumerate() {
            assert_eq!(self.switch.addr(number), Some(peer.addr));
            let counted = row.rx_frames + row.rx_over_rate + row.rx_foreign_mac;
            assert_eq!((row.addr, counted), (peer.addr, *frames), "every frame must be counted once");
        }
        for choice in 0..MACS {
            let mac = mac(choice);
            let route = self.switch.route(self.now, mac);
            match (route, self.model.owner(mac)) {
                _ if count == 1 => assert_eq!(route, Route::Peer(0)),
                (_, Some(owner)) => assert_eq!(route, Route::Peer(owner), "{mac} is configured for a peer"),
                (Route::Flood, None) => {}
                (Route::Absent, None) => panic!("{mac} is reserved, but no peer is specified by name"),
                (Route::Own | Route::Peer(_), None) => {
                    let sender = self.model.senders.get(&mac).expect("a peer must have sent from the MAC");
                    let route_to = |addr| self.model.number(addr).map_or(Route::Own, Route::Peer);
                    let idle = self.now.saturating_since(sender.at);
                    if route == route_to(sender.from) {
                        assert!(idle < AGEING, "{mac} must have aged out");
                    } else {
                        assert_eq!(Some(route), sender.claim.map(route_to));
                        assert!(idle >= HELD, "{mac} moved to a new peer during its hold time");
                    }
                }
            }
        }
    }
}

impl Model {
    fn number(&self, addr: SocketAddr) -> Option<usize> {
        self.peers.iter().position(|(peer, _)| peer.addr == addr)
    }

    /// Returns the index of the peer that the MAC is configured for, if any.
    fn owner(&self, mac: MacAddr) -> Option<usize> {
        self.peers.iter().position(|(peer, _)| peer.mac == Some(mac))
    }
}
