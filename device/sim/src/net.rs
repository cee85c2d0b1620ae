//! Simulated network: one queue for each direction between two nodes, ordered by delivery time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use protocol::ids::Qpn;

use protocol::roce::{Opcode, RoceFrame};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use engine::Instant;

/// Fault rates in parts per thousand, and delays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    pub loss: u32,
    /// Flips one bit after the UDP header.
    pub corrupt: u32,
    pub duplicate: u32,
    pub reorder: u32,
    /// Marks ECN-capable packets with CE (congestion experienced).
    pub mark: u32,
    /// One-way delay of each packet.
    pub delay: Duration,
    /// Maximum extra delay of reordered or duplicated packets.
    pub detour: Duration,
}

impl Faults {
    /// Returns whether no packet is lost, corrupted, duplicated or reordered.
    pub fn is_quiet(&self) -> bool {
        (self.loss, self.corrupt, self.duplicate, self.reorder) == (0, 0, 0, 0)
    }
}

// A requester correctly gives up after eight rounds without progress. With 20 percent loss, this happens once in a few
// thousand requests. The two limits below prevent it, because the simulation requires all requests to succeed.

/// Maximum number of consecutive losses in one direction.
const LOSSES_IN_A_ROW: u32 = 3;
/// Maximum number of losses of one packet, identified by its QP, PSN and opcode.
const LOSSES_OF_ONE_PACKET: u32 = 3;

#[derive(Debug)]
struct Link {
    /// Frames ordered by delivery time, then by sending order.
    queue: BTreeMap<(Instant, u64), Vec<u8>>,
    lost_in_a_row: u32,
    losses: BTreeMap<(u32, u32, u8), u32>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetStats {
    pub sent: u64,
    pub lost: u64,
    pub corrupted: u64,
    pub duplicated: u64,
    pub reordered: u64,
    pub marked: u64,
}

#[derive(Debug)]
pub struct Net {
    rng: ChaCha8Rng,
    faults: Faults,
    links: BTreeMap<(usize, usize), Link>,
    /// Unreachable QPs. Every packet to them is dropped.
    silenced: BTreeSet<(usize, u32)>,
    sent: u64,
    stats: NetStats,
}

impl Net {
    pub fn new(seed: u64, faults: Faults) -> Self {
        let rng = ChaCha8Rng::seed_from_u64(seed);
        let (links, silenced) = (BTreeMap::new(), BTreeSet::new());
        Self { rng, faults, links, silenced, sent: 0, stats: NetStats::default() }
    }

    /// Stops injecting faults. Packets in flight still arrive as scheduled.
    pub fn heal(&mut self) {
        self.faults = Faults { delay: self.faults.delay, ..Faults::default() };
    }

    /// Starts or stops dropping every packet to a QP on `node`.
    pub fn silence(&mut self, node: usize, qpn: Qpn, silent: bool) {
        if silent {
            self.silenced.insert((node, qpn.get()));
        } else {
            self.silenced.remove(&(node, qpn.get()));
        }
    }

    pub fn stats(&self) -> NetStats {
        self.stats
    }

    /// Sends a frame from node `from` to node `to`. Returns what happened to it, for the trace.
    pub fn send(&mut self, now: Instant, from: usize, to: usize, frame: Vec<u8>) -> &'static str {
        self.stats.sent += 1;
        let silenced = |frame: &RoceFrame<'_>| self.silenced.contains(&(to, frame.packet.bth.dest_qp.get()));
        if !self.silenced.is_empty() && RoceFrame::parse(&frame).is_ok_and(|frame| silenced(&frame)) {
            self.stats.lost += 1;
            return "silenced";
        }
        let link = self.links.entry((from, to)).or_insert_with(|| Link {
            queue: BTreeMap::new(),
            lost_in_a_row: 0,
            losses: BTreeMap::new(),
        });
        let faults = self.faults;
        let mut hits = |per_mille: u32| per_mille > 0 && self.rng.random_range(0..1000) < per_mille;
        let (lose, corrupt) = (hits(faults.loss), hits(faults.corrupt));
        let (duplicate, reorder) = (hits(faults.duplicate), hits(faults.reorder));
        let mut frame = frame;
        if (lose || corrupt) && link.may_lose(&frame) {
            if lose {
                self.stats.lost += 1;
                return "lost";
            }
            self.stats.corrupted += 1;
            let bit = self.rng.random_range(HEADERS * 8..frame.len() * 8);
            if let Some(byte) = frame.get_mut(bit / 8) {
                *byte ^= 1 << (bit % 8);
            }
            self.sent += 1;
            link.queue.insert((now + faults.delay, self.sent), frame);
            return "corrupted";
        }
        if hits(faults.mark) && mark(&mut frame) {
            self.stats.marked += 1;
        }
        link.lost_in_a_row = 0;
        let detour_ns = u64::try_from(faults.detour.as_nanos()).unwrap_or(u64::MAX);
        let mut detour = || now + faults.delay + Duration::from_nanos(self.rng.random_range(0..=detour_ns));
        if duplicate {
            self.stats.duplicated += 1;
            self.sent += 1;
            link.queue.insert((detour(), self.sent), frame.clone());
        }
        let arrival = if reorder { detour() } else { now + faults.delay };
        self.stats.reordered += u64::from(reorder);
        self.sent += 1;
        link.queue.insert((arrival, self.sent), frame);
        match (duplicate, reorder) {
            (false, false) => "",
            (true, false) => "duplicated",
            (false, true) => "delayed",
            (true, true) => "duplicated, delayed",
        }
    }

    /// Returns the next frame that has arrived by `now`, with its destination.
    pub fn receive(&mut self, now: Instant) -> Option<(usize, Vec<u8>)> {
        let next = |link: &Link| link.queue.first_key_value().map(|(&key, _)| key);
        let (&(_, to), link) = self
            .links
            .iter_mut()
            .filter(|(_, link)| next(link).is_some_and(|(at, _)| at <= now))
            .min_by_key(|(_, link)| next(link))?;
        link.queue.pop_first().map(|(_, frame)| (to, frame))
    }

    pub fn next_arrival(&self) -> Option<Instant> {
        self.links.values().filter_map(|link| link.queue.first_key_value()).map(|(&(at, _), _)| at).min()
    }
}

/// Total length of the Ethernet, IPv4 and UDP headers. They are never corrupted, since the ICRC does not cover all of
/// their bits.
const HEADERS: usize = 14 + 20 + 8;

/// Marks an IPv4 packet with CE if it is ECN-capable. Returns whether the packet was marked.
fn mark(frame: &mut [u8]) -> bool {
    const TRAFFIC_CLASS: usize = 15;
    const CHECKSUM: usize = 24;
    let old = frame[TRAFFIC_CLASS];
    if !matches!(old & 3, 1 | 2) {
        return false;
    }
    frame[TRAFFIC_CLASS] = old | 3;
    // RFC 1624: update the checksum by adding the difference.
    let sum = u32::from(u16::from_be_bytes([frame[CHECKSUM], frame[CHECKSUM + 1]]));
    let sum = (!sum & 0xffff) + u32::from((old | 3) - old);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = !u16::try_from(sum).expect("a folded sum has 16 bits");
    frame[CHECKSUM..CHECKSUM + 2].copy_from_slice(&sum.to_be_bytes());
    true
}

impl Link {
    fn may_lose(&mut self, frame: &[u8]) -> bool {
        let Ok(RoceFrame { packet, .. }) = RoceFrame::parse(frame) else { return true };
        let opcode: Opcode = packet.bth.opcode;
        let key = (packet.bth.dest_qp.get(), packet.bth.psn.get(), opcode.to_byte());
        let losses = self.losses.entry(key).or_default();
        if self.lost_in_a_row >= LOSSES_IN_A_ROW || *losses >= LOSSES_OF_ONE_PACKET {
            return false;
        }
        self.lost_in_a_row += 1;
        *losses += 1;
        true
    }
}
