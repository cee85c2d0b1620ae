//! The `local` fabric: HCAs of one process, each on its own thread, hand frames to each other in memory.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use protocol::ids::MacAddr;
use rustix::event::{EventfdFlags, eventfd};

use super::batch::Frames;
use super::{Fabric, FabricStats, RxBatch, Sent, TxBatch};

/// Bound: frames that wait for one HCA, and their bytes. It takes them all in one turn; what comes beyond is lost, as in
/// a socket's buffer.
const MAX_FRAMES: usize = 4096;
const MAX_BYTES: usize = 16 << 20;

/// Networks by name. Those with the same name are the same.
#[derive(Debug, Default)]
pub struct Networks(HashMap<String, Arc<Network>>);

/// Where HCAs hand frames to each other.
#[derive(Debug, Default)]
pub struct Network {
    members: RwLock<HashMap<MacAddr, Arc<Member>>>,
}

#[derive(Debug)]
struct Member {
    /// Readable when there are arrivals.
    bell: OwnedFd,
    arrivals: Mutex<Frames>,
}

/// See the module.
#[derive(Debug)]
pub struct LocalFabric {
    mac: MacAddr,
    network: Arc<Network>,
    own: Arc<Member>,
    stats: FabricStats,
}

impl Networks {
    /// The network of this name.
    pub fn network(&mut self, name: &str) -> Arc<Network> {
        self.0.entry(name.to_owned()).or_default().clone()
    }
}

impl Network {
    /// Plugs the HCA with a MAC into the network, until the fabric is dropped.
    ///
    /// # Errors
    /// The host has no descriptors left.
    pub fn join(self: &Arc<Self>, mac: MacAddr) -> io::Result<LocalFabric> {
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let own = Arc::new(Member { bell, arrivals: Mutex::default() });
        self.members.write().unwrap_or_else(PoisonError::into_inner).insert(mac, own.clone());
        tracing::info!(%mac, "local fabric");
        Ok(LocalFabric { mac, network: self.clone(), own, stats: FabricStats::default() })
    }
}

impl Member {
    /// Never poisoned in a way that matters: each change leaves the frames whole.
    fn arrivals(&self) -> MutexGuard<'_, Frames> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives it frames, and returns how many it took.
    fn deliver<'a>(&self, frames: impl Iterator<Item = &'a [u8]>) -> u64 {
        let mut taken = 0;
        let mut arrivals = self.arrivals();
        let was_empty = arrivals.is_empty();
        for frame in frames {
            if arrivals.len() >= MAX_FRAMES || arrivals.bytes() + frame.len() > MAX_BYTES {
                break;
            }
            arrivals.push(frame);
            taken += 1;
        }
        drop(arrivals);
        if was_empty && taken > 0 {
            // Fails only when the counter is full, and then it rings already.
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }
        taken
    }
}

impl Fabric for LocalFabric {
    fn send(&mut self, batch: &mut TxBatch) -> Sent {
        let members = self.network.members.read().unwrap_or_else(PoisonError::into_inner);
        while let Some(first) = batch.front() {
            let dst = first.dst;
            let count = batch.iter().take_while(|(other, _)| *other == dst).count();
            let mut found = false;
            for (mac, member) in members.iter() {
                if *mac == dst || dst.is_multicast() && *mac != self.mac {
                    let taken = member.deliver(batch.iter().take(count).map(|(_, frame)| frame));
                    self.stats.tx_calls += 1;
                    self.stats.tx_frames += taken;
                    self.stats.tx_refused += count as u64 - taken;
                    found = true;
                }
            }
            if !found {
                self.stats.tx_no_peer += count as u64;
            }
            batch.advance(count);
        }
        Sent::All
    }

    fn recv(&mut self, batch: &mut RxBatch) -> io::Result<()> {
        // Before the frames are taken: who adds to none rings after this.
        let _ = rustix::io::read(&self.own.bell, &mut [0_u8; 8]);
        batch.swap(&mut self.own.arrivals());
        self.stats.rx_frames += batch.len() as u64;
        Ok(())
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.own.bell.as_fd()
    }

    fn stats(&mut self) -> FabricStats {
        self.stats
    }
}

impl Drop for LocalFabric {
    fn drop(&mut self) {
        self.network.members.write().unwrap_or_else(PoisonError::into_inner).remove(&self.mac);
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    const MACS: [MacAddr; 3] =
        [MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]), MacAddr([2, 0, 0, 0, 0, 3])];

    fn network() -> [LocalFabric; 3] {
        let mut networks = Networks::default();
        MACS.map(|mac| networks.network("a").join(mac).unwrap())
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

    /// Tags of the frames that arrived.
    fn received(fabric: &mut LocalFabric) -> Vec<u8> {
        let mut batch = RxBatch::new();
        fabric.recv(&mut batch).unwrap();
        batch.iter().map(|frame| frame[6]).collect()
    }

    #[test]
    fn frames_arrive_where_their_destination_is_in_order() {
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
    fn groups_reach_everybody_else_and_nobody_is_asked_for_what_is_nobodys() {
        let [mut a, mut b, mut c] = network();
        a.send(&mut batch(&[(MacAddr::BROADCAST, 1), (MacAddr([2, 0, 0, 0, 0, 9]), 2)]));
        assert_eq!((received(&mut a), received(&mut b), received(&mut c)), (vec![], vec![1], vec![1]));
        assert_eq!(a.stats().tx_no_peer, 1);
    }

    #[test]
    fn networks_are_apart_and_members_leave_them() {
        let mut networks = Networks::default();
        let mut a = networks.network("a").join(MACS[0]).unwrap();
        let b = networks.network("b").join(MACS[1]).unwrap();
        a.send(&mut batch(&[(MACS[1], 1)]));
        assert_eq!(a.stats().tx_no_peer, 1);
        drop(b);
        let mut b = networks.network("a").join(MACS[1]).unwrap();
        a.send(&mut batch(&[(MACS[1], 2)]));
        assert_eq!(received(&mut b), [2]);
        drop(b);
        a.send(&mut batch(&[(MACS[1], 3)]));
        assert_eq!(a.stats().tx_no_peer, 2);
    }

    #[test]
    fn who_does_not_take_its_frames_loses_those_beyond_a_bound() {
        let [mut a, mut b, _c] = network();
        for _ in 0..5 {
            a.send(&mut batch(&[(MACS[1], 7); 1000]));
        }
        assert_eq!(received(&mut b).len(), MAX_FRAMES);
        assert_eq!((a.stats().tx_frames, a.stats().tx_refused), (4096, 904));
    }
}
