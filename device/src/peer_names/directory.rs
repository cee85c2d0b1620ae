//! Tracks the peers that a device's DNS names resolve to, and when to look up each name again.
//!
//! The directory does not perform I/O or read clocks. Its owner polls it for the next [`Question`], looks up the name,
//! and passes back the answer and the time. [`Directory::refresh`] then returns the peers that have joined or left.
//!
//! An answer is used until the next answer to the same question, even if lookups fail in between (RFC 8767, section 4).
//! A response without records is an answer, not a failure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use card::fabric::switch::{MAX_PEERS, ResolvedPeer};
use engine::Instant;

use crate::config::{NamedPeer, PeerName, is_unicast};

/// Maximum number of records used from one answer. A fabric cannot have more peers.
pub(super) const MAX_RECORDS: usize = MAX_PEERS;

/// Minimum time between lookups of a name, even if its TTL is 0.
const MIN_TTL: Duration = Duration::from_secs(1);

/// Maximum time before a name with records is looked up again. It limits how long a mistake in a zone persists.
const MAX_TTL: Duration = Duration::from_secs(3600);

/// Maximum time before a name without records is looked up again. A short limit lets new peers join quickly. RFC 2308,
/// section 5, permits any limit.
const MAX_NEGATIVE_TTL: Duration = Duration::from_secs(30);

/// Pause after the first failed lookup. Each subsequent failure doubles the pause, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// Maximum pause after a failed lookup (RFC 8767, section 5, recommends at least 30 seconds).
const LONGEST_PAUSE: Duration = Duration::from_secs(32);

/// A name to look up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Question {
    /// The addresses of a host.
    Host(Arc<str>),
    /// The targets of a service.
    Service(Arc<str>),
}

/// The answer to a question. It has no records if the name has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer<T> {
    pub(super) records: Vec<T>,
    /// How long the answer is valid, or `None` if the server did not specify it. For a name without records, the time
    /// comes from the zone's SOA record, which may be missing.
    pub(super) ttl: Option<Duration>,
}

/// The target of an SRV record. Priorities and weights are ignored, since every target is a peer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Target {
    pub(super) host: Arc<str>,
    pub(super) port: u16,
}

/// Result of a lookup, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Answered {
        /// Whether the previous lookup failed.
        recovered: bool,
        /// Number of records beyond [`MAX_RECORDS`], which are ignored. 0 if the previous answer also had too many, so
        /// that the excess is logged only once.
        ignored: usize,
    },
    /// The lookup failed. The previous answer is still used.
    Failed {
        /// Whether the previous lookup succeeded.
        is_first: bool,
    },
    /// No peer depends on the name any more.
    Obsolete,
}

/// Peers that have joined or left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) joined: Vec<ResolvedPeer>,
    pub(super) left: Vec<ResolvedPeer>,
}

/// The lookup state of a device's names.
#[derive(Debug)]
pub(super) struct Directory {
    entries: Vec<NamedPeer>,
    hosts: BTreeMap<Arc<str>, Lookup<IpAddr>>,
    services: BTreeMap<Arc<str>, Lookup<Target>>,
    peers: BTreeMap<SocketAddr, ResolvedPeer>,
}

/// State of one name's repeated lookups.
#[derive(Debug)]
struct Lookup<T> {
    /// Records of the last answer, in order and without duplicates.
    records: Vec<T>,
    /// Time of the next lookup. `None` while a lookup is in progress.
    due: Option<Instant>,
    /// Number of failures since the last answer.
    failures: u32,
    has_ignored: bool,
}

impl<T: Ord> Lookup<T> {
    fn new(now: Instant) -> Self {
        Self { records: Vec::new(), due: Some(now), failures: 0, has_ignored: false }
    }

    fn start(&mut self, now: Instant) -> bool {
        let is_due = self.due.is_some_and(|due| due <= now);
        if is_due {
            self.due = None;
        }
        is_due
    }

    fn finish(&mut self, now: Instant, answer: Option<Answer<T>>) -> Outcome {
        let Some(Answer { mut records, ttl }) = answer else {
            let pause = FIRST_PAUSE.saturating_mul(1 << self.failures.min(16)).min(LONGEST_PAUSE);
            let is_first = self.failures == 0;
            self.failures = self.failures.saturating_add(1);
            self.due = Some(now + pause);
            return Outcome::Failed { is_first };
        };
        let longest = if records.is_empty() { MAX_NEGATIVE_TTL } else { MAX_TTL };
        self.due = Some(now + ttl.unwrap_or(longest).clamp(MIN_TTL, longest));
        // Servers rotate their records. Sort them, so that the selection below is the same each time.
        records.sort_unstable();
        records.dedup();
        let ignored = records.len().saturating_sub(MAX_RECORDS);
        records.truncate(MAX_RECORDS);
        self.records = records;
        let is_new = ignored > 0 && !self.has_ignored;
        self.has_ignored = ignored > 0;
        let recovered = std::mem::take(&mut self.failures) > 0;
        Outcome::Answered { recovered, ignored: if is_new { ignored } else { 0 } }
    }
}

impl Directory {
    /// Creates a directory whose names are all due for lookup.
    pub(super) fn new(entries: &[NamedPeer], now: Instant) -> Self {
        let (mut hosts, mut services) = (BTreeMap::new(), BTreeMap::new());
        for entry in entries {
            match &entry.name {
                PeerName::Host { host, .. } => drop(hosts.insert(host.clone(), Lookup::new(now))),
                PeerName::Service(name) => drop(services.insert(name.clone(), Lookup::new(now))),
            }
        }
        let mut entries = entries.to_vec();
        // If several names resolve to the same address, the name with a configured MAC takes precedence. The MAC then
        // stays reserved for that address.
        entries.sort_by_key(|entry| entry.mac.is_none());
        Self { entries, hosts, services, peers: BTreeMap::new() }
    }

    /// Returns a name that is due for lookup. The name is not returned again before its lookup has finished.
    pub(super) fn poll_question(&mut self, now: Instant) -> Option<Question> {
        let service = self.services.iter_mut().find_map(|(name, lookup)| lookup.start(now).then_some(name));
        if let Some(name) = service {
            return Some(Question::Service(name.clone()));
        }
        let host = self.hosts.iter_mut().find_map(|(name, lookup)| lookup.start(now).then_some(name));
        host.map(|name| Question::Host(name.clone()))
    }

    /// Returns the time of the next lookup. `None` while all lookups are in progress.
    pub(super) fn next_lookup(&self) -> Option<Instant> {
        let hosts = self.hosts.values().filter_map(|lookup| lookup.due);
        hosts.chain(self.services.values().filter_map(|lookup| lookup.due)).min()
    }

    /// Handles the result of a host's lookup: its addresses, or `None` if the lookup failed.
    pub(super) fn handle_addresses(
        &mut self,
        now: Instant,
        host: &str,
        answer: Option<Answer<IpAddr>>,
    ) -> Outcome {
        self.hosts.get_mut(host).map_or(Outcome::Obsolete, |lookup| lookup.finish(now, answer))
    }

    /// Handles the result of a service's lookup: its targets, or `None` if the lookup failed.
    pub(super) fn handle_targets(
        &mut self,
        now: Instant,
        service: &str,
        answer: Option<Answer<Target>>,
    ) -> Outcome {
        let Some(lookup) = self.services.get_mut(service) else { return Outcome::Obsolete };
        let outcome = lookup.finish(now, answer);
        let targets = self.services.values().flat_map(|lookup| &lookup.records).map(|target| &target.host);
        let configured = self.entries.iter().filter_map(|entry| match &entry.name {
            PeerName::Host { host, .. } => Some(host),
            PeerName::Service(_) => None,
        });
        let needed: BTreeSet<_> = targets.chain(configured).cloned().collect();
        self.hosts.retain(|host, _| needed.contains(host));
        for host in needed {
            self.hosts.entry(host).or_insert_with(|| Lookup::new(now));
        }
        outcome
    }

    /// Returns the current peers, sorted by address.
    pub(super) fn peers(&self) -> Vec<ResolvedPeer> {
        self.peers.values().cloned().collect()
    }

    /// Derives the peers from all answers. Returns the changes since the last call, if any. `is_own` returns whether an
    /// address belongs to the device itself.
    pub(super) fn refresh(&mut self, is_own: impl Fn(SocketAddr) -> bool) -> Option<Change> {
        let mut peers = BTreeMap::new();
        for entry in &self.entries {
            let found = self.addresses(entry);
            let usable =
                |(addr, _): &(SocketAddr, _)| is_unicast(addr.ip()) && addr.port() != 0 && !is_own(*addr);
            let limit = if entry.mac.is_some() { 1 } else { MAX_RECORDS };
            for (addr, name) in found.into_iter().filter(usable).take(limit) {
                peers.entry(addr).or_insert_with(|| ResolvedPeer { peer: entry.at(addr), name });
            }
        }
        let before = std::mem::replace(&mut self.peers, peers);
        let is_in = |peers: &BTreeMap<_, _>, found: &ResolvedPeer| peers.get(&found.peer.addr) == Some(found);
        let change = Change {
            joined: self.peers.values().filter(|found| !is_in(&before, found)).cloned().collect(),
            left: before.values().filter(|found| !is_in(&self.peers, found)).cloned().collect(),
        };
        Some(change).filter(|change| *change != Change::default())
    }

    /// Returns the addresses that an entry resolves to, each with the host name that it was resolved from.
    fn addresses(&self, entry: &NamedPeer) -> Vec<(SocketAddr, Arc<str>)> {
        let of_host = |host: &Arc<str>, port: u16| {
            let addresses = self.hosts.get(host).map(|lookup| lookup.records.as_slice()).unwrap_or_default();
            let host = host.clone();
            addresses.iter().map(move |ip| (SocketAddr::new(*ip, port), host.clone()))
        };
        match &entry.name {
            PeerName::Host { host, port } => of_host(host, *port).collect(),
            PeerName::Service(name) => {
                let targets =
                    self.services.get(name).map(|lookup| lookup.records.as_slice()).unwrap_or_default();
                targets.iter().flat_map(|target| of_host(&target.host, target.port)).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests;
