//! Who on a network has which MAC: the table of a learning switch.
//!
//! A MAC that the configuration gives to somebody is its own for good. Any other is learned from frames and stays with
//! who shows it while that one talks: nobody else may use it until it has been quiet for [`HOLD`]. What is learned is
//! forgotten after [`AGEING`], or when its owner has shown too many others since.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::time::Duration;

use engine::Instant;
use protocol::ids::MacAddr;

/// Bound: MACs learned of one owner. It can invent source MACs; with each beyond these it loses the oldest of its own.
pub(super) const MAX_LEARNED: usize = 512;

/// A learned MAC that was not heard of for this long is forgotten, as in other bridges (IEEE 802.1Q-2018, table 8-6).
const AGEING: Duration = Duration::from_secs(300);

/// How long a learned MAC stays with an owner that is quiet when another shows it. Long against the pauses of traffic,
/// short against the time that people need to move a machine from one host to another.
const HOLD: Duration = Duration::from_secs(2);

/// What is known of a MAC is brought up to date this often while its frames follow each other.
pub(super) const REFRESH: Duration = Duration::from_millis(500);

/// See the module. `O` names an owner.
#[derive(Debug)]
pub(super) struct MacTable<O> {
    entries: HashMap<MacAddr, Entry<O>>,
    /// MACs learned of each owner, the oldest first.
    learned: HashMap<O, VecDeque<MacAddr>>,
}

#[derive(Clone, Copy, Debug)]
struct Entry<O> {
    owner: O,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Configured.
    Fixed,
    /// Learned, and last heard of then.
    Learned(Instant),
}

impl<O> Entry<O> {
    /// How long its MAC has been quiet; a configured one never is.
    fn quiet(&self, now: Instant) -> Duration {
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
    /// Gives a MAC to an owner for good, whoever has shown it.
    pub(super) fn fix(&mut self, mac: MacAddr, owner: O) {
        self.unlearn(mac);
        self.entries.insert(mac, Entry { owner, kind: Kind::Fixed });
    }

    /// MACs that are somebody's for good.
    pub(super) fn all_fixed(&self) -> impl Iterator<Item = MacAddr> {
        let fixed = self.entries.iter().filter(|(_, entry)| matches!(entry.kind, Kind::Fixed));
        fixed.map(|(mac, _)| *mac)
    }

    /// Whom the configuration gives a MAC to.
    pub(super) fn fixed(&self, mac: MacAddr) -> Option<O> {
        self.entries.get(&mac).filter(|entry| matches!(entry.kind, Kind::Fixed)).map(|entry| entry.owner)
    }

    /// Where frames to a MAC go. Nobody has a group's address.
    pub(super) fn owner(&self, now: Instant, mac: MacAddr) -> Option<O> {
        let known = self.entries.get(&mac).filter(|entry| !mac.is_multicast() && entry.quiet(now) < AGEING);
        known.map(|entry| entry.owner)
    }

    /// A frame of `owner` comes from this MAC, which is learned. False: it is another's.
    #[must_use]
    pub(super) fn show(&mut self, now: Instant, mac: MacAddr, owner: O) -> bool {
        // No station has a group's address.
        if mac.is_multicast() {
            return true;
        }
        match self.entries.get_mut(&mac) {
            Some(entry) if entry.owner == owner => {
                if let Kind::Learned(at) = &mut entry.kind {
                    *at = now;
                }
                return true;
            }
            Some(entry) if entry.quiet(now) < HOLD => return false,
            // It has moved here.
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
        self.entries.insert(mac, Entry { owner, kind: Kind::Learned(now) });
        true
    }

    /// Gives each owner another name, or forgets it where there is none.
    pub(super) fn rename(&mut self, name: impl Fn(O) -> Option<O>) {
        self.entries.retain(|_, entry| match name(entry.owner) {
            Some(owner) => {
                entry.owner = owner;
                true
            }
            None => false,
        });
        let learned = std::mem::take(&mut self.learned);
        self.learned = learned.into_iter().filter_map(|(owner, macs)| Some((name(owner)?, macs))).collect();
    }

    /// All MACs with their owners.
    pub(super) fn iter(&self) -> impl Iterator<Item = (MacAddr, O)> {
        self.entries.iter().map(|(mac, entry)| (*mac, entry.owner))
    }

    /// How many MACs are known, of all owners.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// How many were learned of an owner.
    #[cfg(test)]
    pub(super) fn learned(&self, owner: O) -> usize {
        self.learned.get(&owner).map_or(0, VecDeque::len)
    }

    fn unlearn(&mut self, mac: MacAddr) {
        if let Some(Entry { owner, kind: Kind::Learned(_) }) = self.entries.remove(&mac)
            && let Some(learned) = self.learned.get_mut(&owner)
        {
            learned.retain(|other| *other != mac);
        }
    }
}
