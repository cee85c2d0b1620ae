//! The MAC table of a learning switch.
//!
//! A configured MAC belongs to its owner permanently. Any other MAC is learned from frames and belongs to the owner
//! that uses it. No other owner may use it until it has been idle for [`HOLD`]. It then moves to an owner that tried to
//! use it in the meantime, so a single gratuitous ARP is enough after a failover. A learned entry ages out after
//! [`AGEING`], or is evicted when [`MAX_LEARNED`] newer MACs have been learned from the same owner.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::time::Duration;

use engine::Instant;
use protocol::ids::MacAddr;

/// Maximum number of MACs learned per owner. An owner can invent source MACs, but each one beyond this limit
/// only replaces the owner's oldest entry.
pub(super) const MAX_LEARNED: usize = 512;

/// Ageing time of a learned MAC (IEEE 802.1Q-2018, table 8-6).
const AGEING: Duration = Duration::from_secs(300);

/// Idle time after which another owner may take over a learned MAC. It is longer than typical pauses in traffic, but
/// shorter than the live migration of a virtual machine.
const HOLD: Duration = Duration::from_secs(2);

/// Minimum interval between refreshes of an active MAC's entry.
pub(super) const REFRESH: Duration = Duration::from_millis(500);

/// The MAC table. `O` identifies an owner.
#[derive(Debug)]
pub(super) struct MacTable<O> {
    entries: HashMap<MacAddr, Entry<O>>,
    /// MACs learned per owner, oldest first.
    learned: HashMap<O, VecDeque<MacAddr>>,
}

#[derive(Clone, Copy, Debug)]
struct Entry<O> {
    owner: O,
    kind: Kind,
    /// Another owner that has used the MAC since it was last learned, and the time of that use.
    claim: Option<(O, Instant)>,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Fixed,
    /// The MAC was learned and was last used at this time.
    Learned(Instant),
}

impl<O> Entry<O> {
    /// Returns how long the MAC has been idle, or zero if it is configured.
    fn idle_time(&self, now: Instant) -> Duration {
        match self.kind {
            Kind::Fixed => Duration::ZERO,
            Kind::Learned(at) => now.saturating_since(at),
        }
    }
}

impl<O> Default for MacTable<O> {
    fn default() -> Self {
        Self { entries: HashMap::new(), learned: HashMap::new() }
    }
}

impl<O: Copy + Eq + Hash> MacTable<O> {
    /// Assigns a MAC to an owner permanently.
    pub(super) fn set_fixed(&mut self, mac: MacAddr, owner: O) {
        self.unlearn(mac);
        self.entries.insert(mac, Entry { owner, kind: Kind::Fixed, claim: None });
    }

    pub(super) fn all_fixed(&self) -> impl Iterator<Item = MacAddr> {
        let fixed = self.entries.iter().filter(|(_, entry)| matches!(entry.kind, Kind::Fixed));
        fixed.map(|(mac, _)| *mac)
    }

    /// Returns the configured owner of a MAC, if any.
    pub(super) fn fixed(&self, mac: MacAddr) -> Option<O> {
        self.entries.get(&mac).filter(|entry| matches!(entry.kind, Kind::Fixed)).map(|entry| entry.owner)
    }

    /// Returns the owner of a MAC. Multicast addresses have none.
    pub(super) fn owner(&self, now: Instant, mac: MacAddr) -> Option<O> {
        let entry = self.entries.get(&mac).filter(|_| !mac.is_multicast())?;
        match entry.claim {
            Some((owner, at)) if entry.idle_time(now) >= HOLD && now.saturating_since(at) < AGEING => {
                Some(owner)
            }
            _ => (entry.idle_time(now) < AGEING).then_some(entry.owner),
        }
    }

    /// Learns the source MAC of a frame from `owner`. Returns false if the MAC belongs to another owner.
    #[must_use]
    pub(super) fn learn(&mut self, now: Instant, mac: MacAddr, owner: O) -> bool {
        // A multicast address is not a valid source and is never learned.
        if mac.is_multicast() {
            return true;
        }
        match self.entries.get_mut(&mac) {
            Some(entry) if entry.owner == owner => {
                if let Kind::Learned(at) = &mut entry.kind {
                    *at = now;
                }
                entry.claim = None;
                return true;
            }
            Some(entry) if entry.idle_time(now) < HOLD => {
                entry.claim = Some((owner, now));
                return false;
            }
            // The MAC has moved to this owner.
            Some(_) => self.unlearn(mac),
            None => {}
        }
        let learned = self.learned.entry(owner).or_default();
        if learned.len() >= MAX_LEARNED
            && let Some(oldest) = learned.pop_front()
        {
            self.entries.remove(&oldest);
        }
        learned.push_back(mac);
        self.entries.insert(mac, Entry { owner, kind: Kind::Learned(now), claim: None });
        true
    }

    /// Replaces each owner with the result of `new_owner`. If the result is `None`, removes the owner's MACs.
    pub(super) fn map_owners(&mut self, new_owner: impl Fn(O) -> Option<O>) {
        self.entries.retain(|_, entry| match new_owner(entry.owner) {
            Some(owner) => {
                entry.owner = owner;
                entry.claim = entry.claim.and_then(|(owner, at)| Some((new_owner(owner)?, at)));
                true
            }
            None => false,
        });
        let learned = std::mem::take(&mut self.learned);
        self.learned =
            learned.into_iter().filter_map(|(owner, macs)| Some((new_owner(owner)?, macs))).collect();
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (MacAddr, O)> {
        self.entries.iter().map(|(mac, entry)| (*mac, entry.owner))
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    #[cfg(test)]
    pub(super) fn learned(&self, owner: O) -> usize {
        self.learned.get(&owner).map_or(0, VecDeque::len)
    }

    fn unlearn(&mut self, mac: MacAddr) {
        if let Some(Entry { owner, kind: Kind::Learned(_), .. }) = self.entries.remove(&mac)
            && let Some(learned) = self.learned.get_mut(&owner)
        {
            learned.retain(|other| *other != mac);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn claimed_mac_moves_after_owner_falls_silent() {
        let mut table = MacTable::default();
        assert!(table.learn(at(0), MAC, 'a'));
        assert!(!table.learn(at(100), MAC, 'b'));
        assert_eq!(table.owner(at(1999), MAC), Some('a'));
        assert_eq!(table.owner(at(2000), MAC), Some('b'));
        assert!(table.learn(at(2000), MAC, 'b'));
        assert_eq!(table.owner(at(2000), MAC), Some('b'));
    }

    #[test]
    fn active_owner_keeps_claimed_mac() {
        let mut table = MacTable::default();
        assert!(table.learn(at(0), MAC, 'a'));
        assert!(!table.learn(at(100), MAC, 'b'));
        assert!(table.learn(at(200), MAC, 'a'));
        assert_eq!(table.owner(at(10_000), MAC), Some('a'));
    }

    #[test]
    fn configured_mac_cannot_be_claimed() {
        let mut table = MacTable::default();
        table.set_fixed(MAC, 'a');
        assert!(!table.learn(at(100), MAC, 'b'));
        assert_eq!(table.owner(at(1_000_000), MAC), Some('a'));
    }

    #[test]
    fn claim_of_removed_owner_is_dropped() {
        let mut table = MacTable::default();
        assert!(table.learn(at(0), MAC, 'a'));
        assert!(!table.learn(at(100), MAC, 'b'));
        table.map_owners(|owner| Some(owner).filter(|owner| *owner != 'b'));
        assert_eq!(table.owner(at(10_000), MAC), Some('a'));
    }
}
