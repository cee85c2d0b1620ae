//! The neighbour table: MACs by IP address.

use std::cell::Cell;
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use engine::Instant;
use protocol::ids::MacAddr;

/// Maximum number of dynamic entries. The table needs a limit because a sender can invent addresses.
const MAX_ENTRIES: usize = 1024;

/// Minimum interval between requests for one address (RFC 1122, section 2.3.2.1; RFC 4861, section 10).
const REQUEST_INTERVAL: Duration = Duration::from_secs(1);

/// Age at which the use of an entry triggers a new request. The entry stays usable in the meantime.
const CONFIRM_AFTER: Duration = Duration::from_secs(60);

/// Number of unanswered requests after which a neighbour counts as unreachable (MAX_UNICAST_SOLICIT in RFC 4861,
/// section 10).
const MAX_REQUESTS: u8 = 3;

/// Result of a look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolved {
    pub mac: Option<MacAddr>,
    /// Whether to send a request.
    pub request: bool,
}

#[derive(Clone, Copy, Debug)]
enum Entry {
    /// Configured address, which is never requested and never overwritten.
    Static(MacAddr),
    /// Address learned from the neighbour.
    Learned {
        mac: MacAddr,
        at: Instant,
        requested: Option<Instant>,
        /// Requests sent since the address was learned.
        requests: u8,
        /// Whether an advertisement has contradicted the entry. If so, the next use of the entry triggers a request.
        is_stale: bool,
    },
    /// Address that has been requested but not resolved yet.
    Incomplete { requested: Instant },
}

#[derive(Debug, Default)]
pub(super) struct Neighbours {
    entries: HashMap<IpAddr, Entry>,
    dynamic_count: usize,
    /// Last pair that [`Neighbours::conflicts_with_static`] returned false for. Cached to speed up checks of successive
    /// frames from one peer. Only a new static entry can change the result.
    admitted: Cell<Option<(IpAddr, MacAddr)>>,
}

impl Neighbours {
    /// Adds a static entry, unless the address already has one with a different MAC.
    pub(super) fn add_static(&mut self, ip: IpAddr, mac: MacAddr) {
        if self.conflicts_with_static(ip, mac) {
            return;
        }
        self.admitted.set(None);
        if let Some(Entry::Learned { .. } | Entry::Incomplete { .. }) =
            self.entries.insert(ip, Entry::Static(mac))
        {
            self.dynamic_count -= 1;
        }
    }

    /// Removes the static entry for `ip` if its MAC is `mac`.
    pub(super) fn remove_static(&mut self, ip: IpAddr, mac: MacAddr) {
        if matches!(self.entries.get(&ip), Some(Entry::Static(owner)) if *owner == mac) {
            self.entries.remove(&ip);
        }
    }

    /// Returns whether `ip` has a static entry with a different MAC.
    pub(super) fn conflicts_with_static(&self, ip: IpAddr, mac: MacAddr) -> bool {
        if self.admitted.get() == Some((ip, mac)) {
            return false;
        }
        let conflicts = matches!(self.entries.get(&ip), Some(Entry::Static(owner)) if *owner != mac);
        if !conflicts {
            self.admitted.set(Some((ip, mac)));
        }
        conflicts
    }

    pub(super) fn has_static(&self) -> bool {
        self.entries.len() > self.dynamic_count
    }

    /// Looks up the MAC of `ip` and returns whether to send a request.
    pub(super) fn resolve(&mut self, now: Instant, ip: IpAddr) -> Resolved {
        let due = |since: Instant| now.saturating_since(since) >= REQUEST_INTERVAL;
        match self.entries.get_mut(&ip) {
            Some(Entry::Static(mac)) => Resolved { mac: Some(*mac), request: false },
            Some(Entry::Learned { mac, at, requested, requests, is_stale }) => {
                let unconfirmed = *is_stale || now.saturating_since(*at) >= CONFIRM_AFTER;
                let request = unconfirmed && requested.is_none_or(due);
                if request {
                    *requested = Some(now);
                    *requests = requests.saturating_add(1);
                }
                Resolved { mac: Some(*mac), request }
            }
            Some(Entry::Incomplete { requested }) => {
                let request = due(*requested);
                if request {
                    *requested = now;
                }
                Resolved { mac: None, request }
            }
            None => {
                self.insert(ip, Entry::Incomplete { requested: now });
                Resolved { mac: None, request: true }
            }
        }
    }

    /// Learns the MAC of an IP address. Updates an existing dynamic entry. Adds a new entry only if this port is the
    /// target of the message (`is_target`), because a sender that addresses this port probably intends to communicate
    /// with it (RFC 826, "Packet Reception").
    pub(super) fn learn(&mut self, now: Instant, ip: IpAddr, mac: MacAddr, is_target: bool) {
        let learned = Entry::Learned { mac, at: now, requested: None, requests: 0, is_stale: false };
        match self.entries.get_mut(&ip) {
            Some(Entry::Static(_)) => {}
            Some(entry) => *entry = learned,
            None if is_target => self.insert(ip, learned),
            None => {}
        }
    }

    /// Handles an advertisement of `mac` for `ip` without the Override flag. If another MAC has been learned, retains
    /// it, marks the entry stale (RFC 4861, section 7.2.5) and returns true. Otherwise, or if the neighbour is
    /// unreachable (section 7.3.3), returns false, and the caller can learn `mac`.
    pub(super) fn retain_mac(&mut self, ip: IpAddr, mac: MacAddr) -> bool {
        match self.entries.get_mut(&ip) {
            Some(Entry::Learned { mac: learned, requests, is_stale, .. })
                if *learned != mac && *requests < MAX_REQUESTS =>
            {
                *is_stale = true;
                true
            }
            _ => false,
        }
    }

    /// Inserts an entry. If the table is full, the new entry replaces the entry that was updated least recently.
    fn insert(&mut self, ip: IpAddr, entry: Entry) {
        if self.dynamic_count >= MAX_ENTRIES {
            let age = |entry: &Entry| match entry {
                Entry::Static(_) => None,
                Entry::Learned { at, .. } => Some(*at),
                Entry::Incomplete { requested } => Some(*requested),
            };
            let oldest = self
                .entries
                .iter()
                .filter_map(|(ip, entry)| Some((age(entry)?, *ip)))
                .min()
                .map(|(_, ip)| ip);
            if let Some(oldest) = oldest {
                self.entries.remove(&oldest);
                self.dynamic_count -= 1;
            }
        }
        self.entries.insert(ip, entry);
        self.dynamic_count += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    use protocol::ids::Lid;

    const IP: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2));

    fn mac(lid: u16) -> MacAddr {
        MacAddr::from_lid(Lid::new(lid))
    }

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    fn resolved(mac: Option<MacAddr>, request: bool) -> Resolved {
        Resolved { mac, request }
    }

    #[test]
    fn unknown_neighbour_is_requested_once_a_second() {
        let mut table = Neighbours::default();
        assert_eq!(table.resolve(at(0), IP), resolved(None, true));
        assert_eq!(table.resolve(at(999), IP), resolved(None, false));
        assert_eq!(table.resolve(at(1000), IP), resolved(None, true));
        table.learn(at(1500), IP, mac(2), true);
        assert_eq!(table.resolve(at(1600), IP), resolved(Some(mac(2)), false));
    }

    #[test]
    fn stale_neighbour_stays_usable_during_request() {
        let mut table = Neighbours::default();
        table.learn(at(0), IP, mac(2), true);
        assert_eq!(table.resolve(at(59_999), IP), resolved(Some(mac(2)), false));
        assert_eq!(table.resolve(at(60_000), IP), resolved(Some(mac(2)), true));
        assert_eq!(table.resolve(at(60_500), IP), resolved(Some(mac(2)), false));
        table.learn(at(60_600), IP, mac(3), false);
        assert_eq!(table.resolve(at(70_000), IP), resolved(Some(mac(3)), false));
    }

    #[test]
    fn contradicted_neighbour_is_requested_at_next_use() {
        let mut table = Neighbours::default();
        assert!(!table.retain_mac(IP, mac(3)), "an unknown neighbour has no MAC");
        table.resolve(at(0), IP);
        assert!(!table.retain_mac(IP, mac(3)), "an unresolved neighbour has no MAC");
        table.learn(at(0), IP, mac(2), true);
        assert!(!table.retain_mac(IP, mac(2)) && !table.resolve(at(0), IP).request);
        for second in 0..3 {
            assert!(table.retain_mac(IP, mac(3)));
            assert_eq!(table.resolve(at(1000 * second), IP), resolved(Some(mac(2)), true));
            assert_eq!(table.resolve(at(1000 * second + 999), IP), resolved(Some(mac(2)), false));
        }
        assert!(!table.retain_mac(IP, mac(3)), "three requests were not answered");
        table.learn(at(3000), IP, mac(2), false);
        assert!(!table.resolve(at(4000), IP).request, "the neighbour has confirmed its MAC");
    }

    #[test]
    fn static_neighbour_is_never_requested_or_replaced() {
        let mut table = Neighbours::default();
        table.resolve(at(0), IP);
        table.add_static(IP, mac(2));
        table.learn(at(1), IP, mac(9), true);
        assert_eq!(table.resolve(at(100_000), IP), resolved(Some(mac(2)), false));
        assert_eq!(table.dynamic_count, 0);
    }

    #[test]
    fn static_neighbour_ip_rejects_other_macs() {
        let mut table = Neighbours::default();
        assert!(!table.conflicts_with_static(IP, mac(3)) && !table.conflicts_with_static(IP, mac(3)));
        table.add_static(IP, mac(2));
        assert!(
            table.conflicts_with_static(IP, mac(3))
                && !table.conflicts_with_static(IP, mac(2))
                && table.conflicts_with_static(IP, mac(3))
        );
        table.remove_static(IP, mac(2));
        assert!(!table.conflicts_with_static(IP, mac(3)));
    }

    #[test]
    fn unsolicited_message_does_not_add_entry() {
        let mut table = Neighbours::default();
        table.learn(at(0), IP, mac(2), false);
        assert_eq!(table.resolve(at(0), IP), resolved(None, true));
    }

    #[test]
    fn full_table_keeps_static_and_newest_entries() {
        let mut table = Neighbours::default();
        table.add_static(IP, mac(2));
        for n in 0..5000u32 {
            table.learn(at(n.into()), Ipv4Addr::from_bits(0x0a00_0000 + n).into(), mac(7), true);
        }
        assert_eq!(table.entries.len(), MAX_ENTRIES + 1);
        assert_eq!(table.resolve(at(5000), IP), resolved(Some(mac(2)), false));
        let last = Ipv4Addr::from_bits(0x0a00_0000 + 4999).into();
        assert_eq!(table.resolve(at(5000), last), resolved(Some(mac(7)), false));
    }
}
