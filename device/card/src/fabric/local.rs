//! The `local` fabric: HCAs in one process, each on its own thread, exchange frames in memory.
//!
//! A unicast frame goes to the member that owns the destination MAC, and a multicast frame goes to all other members. A
//! frame for an unknown MAC goes to all NICs, which filter frames themselves and may have a bridge behind them. A
//! member owns its configured MAC and IP addresses. Other MACs are learned from frames that NICs send.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Instant;

use protocol::ids::MacAddr;
use rustix::event::{EventfdFlags, eventfd};

use super::macs::{MacTable, REFRESH};
use super::rx_batch::Frames;
use super::sources::{IpOwners, Source};
use super::tx_batch::TxFrame;
use super::wake_flag::WakeFlag;
use super::{Fabric, FabricStats, Origin, RxBatch, Sent, TxBatch};
use crate::identity::Identity;
use crate::limited;
use crate::log_line;

/// Maximum number of frames queued for one HCA. `MAX_BYTES` limits their total length. Frames beyond these
/// limits are dropped, as in a socket buffer.
const MAX_FRAMES: usize = 4096;
const MAX_BYTES: usize = 16 << 20;

/// Maximum number of spare buffers. Each can hold the frames of one batch. A member that keeps up with its senders
/// never uses all of them.
const MAX_SPARES: usize = 4;

#[derive(Debug, Default)]
pub struct Networks(HashMap<String, Arc<Network>>);

/// A network that connects HCAs.
#[derive(Debug)]
pub struct Network {
    members: RwLock<Members>,
    /// Number of events so far that invalidate the cached source address checks: joins and rejected source MACs.
    revision: AtomicU64,
    /// Time zero of the clock used for address ageing.
    started: Instant,
}

impl Default for Network {
    fn default() -> Self {
        Self { members: RwLock::default(), revision: AtomicU64::new(0), started: Instant::now() }
    }
}

/// The members of a network, identified by their configured MACs.
#[derive(Debug, Default)]
struct Members {
    all: HashMap<MacAddr, Arc<Member>>,
    macs: MacTable<MacAddr>,
    ips: IpOwners,
}

#[derive(Debug)]
struct Member {
    /// Whether the member is a NIC; see [`Fabric::set_promiscuous`].
    is_promiscuous: AtomicBool,
    /// Descriptor that becomes readable when frames arrive while the member sleeps.
    wakeup: OwnedFd,
    asleep: AtomicU32,
    has_arrivals: AtomicBool,
    arrivals: Mutex<Arrivals>,
}

/// Frames queued for an HCA.
#[derive(Debug, Default)]
struct Arrivals {
    /// Runs of frames. Each run comes from a single batch of one sender.
    runs: VecDeque<Frames>,
    /// Total number of frames in all runs.
    frames: usize,
    bytes: usize,
    /// Spare buffers from runs that have been received.
    spares: Vec<Frames>,
}

/// A member of a local network.
#[derive(Debug)]
pub struct LocalFabric {
    mac: MacAddr,
    network: Arc<Network>,
    own: Arc<Member>,
    last: Option<Admitted>,
    stats: FabricStats,
}

/// Source addresses of the last NIC frame that passed the check.
#[derive(Clone, Copy, Debug)]
struct Admitted {
    source: Source,
    at: engine::Instant,
    /// Value of [`Network::revision`] at the time of the check.
    revision: u64,
}

impl Networks {
    /// Returns the network called `name`, creating it on first use.
    pub fn network(&mut self, name: &str) -> Arc<Network> {
        self.0.entry(name.to_owned()).or_default().clone()
    }
}

impl Network {
    /// Adds an HCA with the given MAC and IP addresses to the network. It leaves the network when the returned fabric
    /// is dropped.
    ///
    /// # Errors
    /// Fails if the process has no free file descriptors.
    pub fn join(self: &Arc<Self>, identity: &Identity) -> io::Result<LocalFabric> {
        let mac = identity.mac;
        let wakeup = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let own = Arc::new(Member {
            is_promiscuous: AtomicBool::new(false),
            wakeup,
            asleep: AtomicU32::new(1),
            has_arrivals: AtomicBool::new(false),
            arrivals: Mutex::default(),
        });
        let mut members = self.change();
        members.all.insert(mac, own.clone());
        members.macs.set_fixed(mac, mac);
        members.ips.add(identity);
        self.revision.fetch_add(1, Ordering::Relaxed);
        drop(members);
        log_line!(info, %mac, "joined the local fabric");
        Ok(LocalFabric { mac, network: self.clone(), own, last: None, stats: FabricStats::default() })
    }

    /// Locks the members for reading. Poisoning is ignored, since no code panics while the members are inconsistent.
    fn members(&self) -> RwLockReadGuard<'_, Members> {
        self.members.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self) -> RwLockWriteGuard<'_, Members> {
        self.members.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> engine::Instant {
        engine::Instant::ZERO + self.started.elapsed()
    }
}

impl Member {
    /// Locks the queue. Poisoning is ignored, since a thread that panics while it holds the lock leaves the queue
    /// consistent.
    fn arrivals(&self) -> MutexGuard<'_, Arrivals> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues copies of the first `count` frames of a batch. Returns the number of frames that fit.
    fn deliver(&self, batch: &TxBatch, count: usize) -> usize {
        let mut arrivals = self.arrivals();
        let mut run = arrivals.spares.pop().unwrap_or_default();
        for frame in batch.frames().take(count) {
            let bytes = batch.slice(frame.start..frame.end);
            if !arrivals.have_room(run.len() + 1, run.bytes() + bytes.len()) {
                break;
            }
            run.push(bytes, frame.offload);
        }
        let taken = run.len();
        self.add(arrivals, run);
        taken
    }

    /// Queues a whole batch without copying it and gives the batch another buffer. Returns false if there is no room.
    fn hand_over(&self, batch: &mut TxBatch) -> bool {
        let mut arrivals = self.arrivals();
        if !arrivals.have_room(batch.len(), batch.bytes()) {
            return false;
        }
        let memory = arrivals.spares.pop().unwrap_or_default();
        self.add(arrivals, batch.hand_over(memory));
        true
    }

    fn add(&self, mut arrivals: MutexGuard<'_, Arrivals>, run: Frames) {
        if run.len() == 0 {
            return arrivals.keep(run);
        }
        arrivals.frames += run.len();
        arrivals.bytes += run.bytes();
        arrivals.runs.push_back(run);
        self.has_arrivals.store(true, Ordering::Relaxed);
        drop(arrivals);
        if WakeFlag(&self.asleep).take() {
            // This fails only if the eventfd counter is full, in which case the descriptor is already readable.
            let _ = rustix::io::write(&self.wakeup, &1_u64.to_ne_bytes());
        }
    }
}

impl Arrivals {
    fn have_room(&self, frames: usize, bytes: usize) -> bool {
        self.frames + frames <= MAX_FRAMES && self.bytes + bytes <= MAX_BYTES
    }

    fn take(&mut self) -> Option<Frames> {
        let run = self.runs.pop_front()?;
        self.frames -= run.len();
        self.bytes -= run.bytes();
        Some(run)
    }

    /// Keeps the buffer of a received run for reuse.
    fn keep(&mut self, memory: Frames) {
        if self.spares.len() < MAX_SPARES {
            self.spares.push(memory);
        }
    }
}

impl Members {
    /// Returns the members, other than `from`, that receive frames for a MAC without an owner.
    fn others(&self, from: MacAddr, dst: MacAddr) -> impl Iterator<Item = &Arc<Member>> {
        let takes =
            move |member: &Member| dst.is_multicast() || member.is_promiscuous.load(Ordering::Relaxed);
        self.all.iter().filter(move |(mac, member)| **mac != from && takes(member)).map(|(_, member)| member)
    }
}

impl LocalFabric {
    /// Returns whether the NIC may send from `source`, which its driver has chosen. If so, learns the source MAC.
    fn admit(&mut self, now: engine::Instant, source: Source) -> bool {
        let revision = self.network.revision.load(Ordering::Relaxed);
        let is_alike = |last: Admitted| {
            last.source == source && last.revision == revision && now.saturating_since(last.at) < REFRESH
        };
        if self.last.is_some_and(is_alike) {
            return true;
        }
        if !self.network.members().ips.admits(&source, self.mac) {
            self.stats.tx_foreign_ip += 1;
        } else if source.mac != self.mac && !self.network.change().macs.learn(now, source.mac, self.mac) {
            // The MAC belongs to another member, and `learn` has just recorded this member's claim to it. The owner's
            // next frame must cancel the claim, so the owner's cached check must not admit it.
            self.network.revision.fetch_add(1, Ordering::Relaxed);
            self.stats.tx_foreign_mac += 1;
        } else {
            self.last = Some(Admitted { source, at: now, revision });
            return true;
        }
        limited!(warn, own = %self.mac, ?source, "dropped a frame whose source address belongs to another member of the fabric");
        false
    }

    /// Sends frames from the front of the batch and stops at the first one that does not have `source` as its
    /// [chosen source](TxBatch::chosen_source). The caller must have checked `source`.
    fn send_from(&mut self, now: engine::Instant, source: Option<Source>, batch: &mut TxBatch) {
        let members = self.network.members();
        while let Some(first) = batch.front().filter(|frame| batch.chosen_source(frame) == source) {
            let owner = members.macs.owner(now, first.dst);
            let is_unknown = owner.is_none() && !first.dst.is_multicast();
            let is_alike = |frame: &&TxFrame| {
                frame.dst == first.dst
                    && batch.chosen_source(frame) == source
                    && (!is_unknown || frame.origin == first.origin)
            };
            let count = batch.frames().take_while(is_alike).count();
            let one = owner.filter(|owner| *owner != self.mac).and_then(|owner| members.all.get(&owner));
            // A reply to an unknown MAC is dropped instead of flooded.
            let is_flooded = owner.is_none() && !(is_unknown && first.origin == Origin::Answer);
            let others = is_flooded.then(|| members.others(self.mac, first.dst)).into_iter().flatten();
            if let Some(member) = one.filter(|_| count == batch.len())
                && member.hand_over(batch)
            {
                self.stats.tx_calls += 1;
                self.stats.tx_frames += count as u64;
                return;
            }
            let mut found = false;
            for member in one.into_iter().chain(others) {
                let taken = member.deliver(batch, count);
                self.stats.tx_calls += 1;
                self.stats.tx_frames += taken as u64;
                self.stats.tx_refused += (count - taken) as u64;
                found = true;
            }
            if !found {
                self.stats.tx_no_peer += count as u64;
            }
            batch.advance(count);
        }
    }
}

impl Fabric for LocalFabric {
    fn send(&mut self, batch: &mut TxBatch) -> Sent {
        let now = self.network.now();
        while let Some(first) = batch.front() {
            let source = batch.chosen_source(&first);
            if source.is_none_or(|source| self.admit(now, source)) {
                self.send_from(now, source, batch);
            } else {
                batch.advance(1);
            }
        }
        Sent::All
    }

    fn recv(&mut self, batch: &mut RxBatch) -> io::Result<()> {
        batch.clear();
        let mut arrivals = self.own.arrivals();
        if let Some(run) = arrivals.take() {
            let memory = batch.replace(run);
            arrivals.keep(memory);
        }
        self.own.has_arrivals.store(!arrivals.runs.is_empty(), Ordering::Relaxed);
        drop(arrivals);
        self.stats.rx_frames += batch.len() as u64;
        Ok(())
    }

    fn handle_ready(&mut self) -> io::Result<()> {
        // This fails only if the eventfd counter has already been read.
        let _ = rustix::io::read(&self.own.wakeup, &mut [0_u8; 8]);
        Ok(())
    }

    fn has_frames(&self) -> bool {
        self.own.has_arrivals.load(Ordering::Relaxed)
    }

    fn is_memory(&self) -> bool {
        true
    }

    fn needs_icrc(&self) -> bool {
        false
    }

    fn enable_wakeups(&mut self) -> bool {
        WakeFlag(&self.own.asleep).request();
        !self.has_frames()
    }

    fn disable_wakeups(&mut self) {
        WakeFlag(&self.own.asleep).clear();
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.own.wakeup.as_fd()
    }

    fn stats(&mut self) -> FabricStats {
        self.stats
    }

    fn set_promiscuous(&mut self) {
        self.own.is_promiscuous.store(true, Ordering::Relaxed);
    }
}

impl Drop for LocalFabric {
    fn drop(&mut self) {
        let mut members = self.network.change();
        members.all.remove(&self.mac);
        members.macs.map_owners(|owner| Some(owner).filter(|owner| *owner != self.mac));
        members.ips.remove(self.mac);
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::super::sources::tests::{frames_from, member};
    use super::*;

    const MACS: [MacAddr; 3] =
        [MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]), MacAddr([2, 0, 0, 0, 0, 3])];

    fn join(networks: &mut Networks, name: &str, mac: MacAddr) -> LocalFabric {
        networks.network(name).join(&Identity::of_mac(mac).unwrap()).unwrap()
    }

    fn network() -> [LocalFabric; 3] {
        let mut networks = Networks::default();
        MACS.map(|mac| join(&mut networks, "a", mac))
    }

    fn batch(frames: &[(MacAddr, u8)]) -> TxBatch {
        let mut batch = TxBatch::default();
        for (dst, tag) in frames {
            batch.push(&[&dst.0[..], &[*tag; 60]].concat());
        }
        batch
    }

    fn is_ready(fabric: &LocalFabric) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&fabric.as_fd(), PollFlags::IN)], Some(&now)).unwrap() == 1
    }

    /// Returns the tag byte of each received frame.
    fn received(fabric: &mut LocalFabric) -> Vec<u8> {
        all_received(fabric).map(|frame| frame[6]).collect()
    }

    fn all_received(fabric: &mut LocalFabric) -> impl Iterator<Item = Vec<u8>> {
        fabric.handle_ready().unwrap();
        let mut batch = RxBatch::new();
        let mut frames = Vec::new();
        while fabric.has_frames() {
            fabric.recv(&mut batch).unwrap();
            assert!(!batch.is_empty());
            frames.extend(batch.iter().map(|arrival| arrival.contents().to_vec()));
        }
        frames.into_iter()
    }

    #[test]
    fn unicast_arrives_in_order() {
        let [mut a, mut b, mut c] = network();
        let mut frames = batch(&[(MACS[1], 1), (MACS[1], 2), (MACS[2], 3), (MACS[1], 4)]);
        assert_eq!(a.send(&mut frames), Sent::All);
        assert!(frames.is_empty() && is_ready(&b) && is_ready(&c) && !is_ready(&a));
        assert_eq!((received(&mut b), received(&mut c)), (vec![1, 2, 4], vec![3]));
        assert!(!is_ready(&b));
        assert!(received(&mut b).is_empty());
        assert_eq!((a.stats().tx_frames, b.stats().rx_frames), (4, 3));
    }

    #[test]
    fn multicast_reaches_all_other_members() {
        let [mut a, mut b, mut c] = network();
        a.send(&mut batch(&[(MacAddr::BROADCAST, 1), (MacAddr([2, 0, 0, 0, 0, 9]), 2)]));
        assert_eq!((received(&mut a), received(&mut b), received(&mut c)), (vec![], vec![1], vec![1]));
        assert_eq!(a.stats().tx_no_peer, 1);
    }

    #[test]
    fn frames_reach_only_current_members_of_same_network() {
        let mut networks = Networks::default();
        let mut a = join(&mut networks, "a", MACS[0]);
        let b = join(&mut networks, "b", MACS[1]);
        a.send(&mut batch(&[(MACS[1], 1)]));
        assert_eq!(a.stats().tx_no_peer, 1);
        drop(b);
        let mut b = join(&mut networks, "a", MACS[1]);
        a.send(&mut batch(&[(MACS[1], 2)]));
        assert_eq!(received(&mut b), [2]);
        drop(b);
        a.send(&mut batch(&[(MACS[1], 3)]));
        assert_eq!(a.stats().tx_no_peer, 2);
    }

    #[test]
    fn slow_peer_drops_frames_past_limit() {
        let [mut a, mut b, _c] = network();
        for _ in 0..5 {
            a.send(&mut batch(&[(MACS[1], 7); 1000]));
        }
        assert_eq!(received(&mut b).len(), MAX_FRAMES);
        assert_eq!((a.stats().tx_frames, a.stats().tx_refused), (4096, 904));
    }

    #[test]
    fn sleeping_member_is_woken_once() {
        let [mut a, mut b, _c] = network();
        b.disable_wakeups();
        a.send(&mut batch(&[(MACS[1], 1)]));
        assert!(
            b.has_frames() && !is_ready(&b) && !b.enable_wakeups(),
            "a member that is awake polls, so it is not woken"
        );
        b.disable_wakeups();
        assert_eq!(received(&mut b), [1]);
        assert!(b.enable_wakeups());
        a.send(&mut batch(&[(MACS[1], 2)]));
        a.send(&mut batch(&[(MACS[1], 3)]));
        assert!(is_ready(&b));
        assert_eq!(received(&mut b), [2, 3]);
        assert!(!is_ready(&b));
    }

    #[test]
    fn batch_for_one_member_is_not_copied() {
        let [mut a, mut b, _c] = network();
        let mut frames = batch(&[(MACS[1], 1), (MACS[1], 2)]);
        let address = frames.buffer().as_ptr();
        a.send(&mut frames);
        let mut arrived = RxBatch::new();
        b.recv(&mut arrived).unwrap();
        assert_eq!(arrived.iter().map(|arrival| arrival.contents().as_ptr()).next(), Some(address));
        assert!(frames.is_empty() && frames.buffer().is_empty());
    }

    /// Builds a batch of NIC frames from their destination MACs, source MACs and tags.
    fn plain(frames: &[(MacAddr, MacAddr, u8)]) -> TxBatch {
        let mut batch = TxBatch::of_nic();
        for (dst, src, tag) in frames {
            batch.buffer().extend([&dst.0[..], &src.0, &[*tag; 60]].concat());
            assert!(batch.commit_nic());
        }
        batch
    }

    /// Returns the tag byte of each received NIC frame.
    fn received_plain(fabric: &mut LocalFabric) -> Vec<u8> {
        all_received(fabric).map(|frame| frame[12]).collect()
    }

    const UNOWNED: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 1]);

    #[test]
    fn frames_to_unknown_mac_reach_only_promiscuous_members() {
        let [mut a, mut b, mut c] = network();
        c.set_promiscuous();
        a.send(&mut batch(&[(UNOWNED, 1), (MACS[1], 2), (UNOWNED, 3)]));
        let mut answer = batch(&[(UNOWNED, 4), (UNOWNED, 5)]);
        answer.mark_answer();
        a.send(&mut answer);
        assert_eq!((received(&mut b), received(&mut c)), (vec![2], vec![1, 3, 4]));
        assert_eq!(a.stats().tx_no_peer, 1, "a reply to an unknown MAC is dropped");
        c.send(&mut batch(&[(UNOWNED, 6), (MACS[2], 7)]));
        assert_eq!((received(&mut a), received(&mut c)), (vec![], vec![]));
        assert_eq!(c.stats().tx_no_peer, 2, "a frame is not sent back to its sender");
    }

    #[test]
    fn mac_in_use_is_not_learned_from_another_nic() {
        let [mut a, mut b, mut c] = network();
        a.set_promiscuous();
        b.set_promiscuous();
        a.send(&mut plain(&[(MacAddr::BROADCAST, UNOWNED, 1), (MACS[2], MACS[0], 2)]));
        assert_eq!((received_plain(&mut b), received_plain(&mut c)), (vec![1], vec![1, 2]));
        c.send(&mut batch(&[(UNOWNED, 3)]));
        assert_eq!(
            (received(&mut a), received(&mut b)),
            (vec![3], vec![]),
            "a frame to a learned MAC is not flooded"
        );

        // The NIC may use neither a MAC that another guest is using nor the configured MAC of another member.
        b.send(&mut plain(&[(MACS[2], UNOWNED, 4), (MACS[2], MACS[0], 5), (MACS[2], MACS[1], 6)]));
        assert_eq!((received_plain(&mut c), b.stats().tx_foreign_mac), (vec![6], 2));
        c.send(&mut batch(&[(UNOWNED, 7), (MACS[0], 8)]));
        assert_eq!(received(&mut a), [7, 8]);

        drop(a);
        b.send(&mut plain(&[(MACS[2], UNOWNED, 9)]));
        assert_eq!(
            received_plain(&mut c),
            [9],
            "another NIC may use the addresses of a member that has left"
        );
    }

    #[test]
    fn owners_next_frame_cancels_claim_to_mac() {
        let [mut a, mut b, _c] = network();
        let at = |millis: u64| engine::Instant::from_nanos(millis * 1_000_000);
        let source = Source::of(&[&MACS[2].0[..], &UNOWNED.0, &[0; 48]].concat()).unwrap();
        assert!(a.admit(at(0), source) && !b.admit(at(100), source) && a.admit(at(400), source));
        let owner = |millis| a.network.members().macs.owner(at(millis), UNOWNED);
        assert_eq!([2000, 2400, 100_000].map(owner), [Some(MACS[0]); 3]);
    }

    #[test]
    fn nic_cannot_send_from_addresses_of_another_member() {
        let [mut a, mut b, mut c] = network();
        a.set_promiscuous();
        let of = |frames: Vec<Vec<u8>>| {
            let mut batch = TxBatch::of_nic();
            frames.iter().for_each(|frame| batch.push(frame));
            batch
        };
        // A frame with another member's IP address is dropped, whether the NIC sends it from its own MAC or from a
        // different MAC, and whether or not it is a reply.
        for is_answer in [false, true] {
            for mac in [MACS[0], UNOWNED] {
                let mut frames = TxBatch::of_nic();
                for frame in frames_from(mac, MACS[1], &member(3)) {
                    frames.push(&frame);
                    if is_answer {
                        frames.mark_answer();
                    }
                }
                a.send(&mut frames);
            }
        }
        a.send(&mut of(frames_from(MACS[2], MACS[1], &member(1))));
        assert_eq!(all_received(&mut b).count(), 0);
        assert_eq!((a.stats().tx_foreign_ip, a.stats().tx_foreign_mac), (24, 6));

        // The NIC may send from its own MAC and from the MAC of a guest behind it, with its own IP address or
        // an IP address without an owner. The HCA `c`, which is not a NIC, may send as well.
        for (mac, ip) in [(MACS[0], 1), (MACS[0], 9), (UNOWNED, 8)] {
            a.send(&mut of(frames_from(mac, MACS[1], &member(ip))));
        }
        c.send(&mut batch(&[(MACS[1], 1)]));
        assert_eq!(all_received(&mut b).count(), 19);

        // Once the owner of an address has joined, no other member may send from it.
        let late = MacAddr([2, 0, 0, 0, 0, 9]);
        let _late = a.network.join(&member(9)).unwrap();
        a.send(&mut of(frames_from(MACS[0], MACS[1], &member(9))));
        a.send(&mut of(frames_from(late, MACS[1], &member(1))));
        assert_eq!(all_received(&mut b).count(), 0);
    }
}
