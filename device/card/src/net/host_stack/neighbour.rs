//! The neighbour table: maps IP addresses to MACs.

use std::cell::Cell;
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use engine::Instant;
use protocol::ids::MacAddr;

/// Maximum number of entries that are not fixed. A limit is needed because a sender can invent addresses.
const MAX_ENTRIES: usize = 1024;

/// Minimum interval between requests for one address (RFC 1122, section 2.3.2.1; RFC 4861, section 10).
const REQUEST_INTERVAL: Duration = Duration::from_secs(1);

/// Age after which the use of an entry causes a new request. The entry stays usable in the meantime.
const CONFIRM_AFTER: Duration = Duration::from_secs(60);

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
    Fixed(MacAddr),
    /// Address learned from the neighbour.
    Learned { mac: MacAddr, at: Instant, asked: Option<Instant> },
    /// Address that has been requested but is not known yet.
    Wanted { asked: Instant },
}

/// The neighbour table for ARP and IPv6 neighbour discovery.
#[derive(Debug, Default)]
pub(super) struct Neighbours {
    entries: HashMap<IpAddr, Entry>,
    /// Number of entries that are not fixed.
    changeable: usize,
    /// The last pair for which [`Neighbours::is_anothers`] returned false. Only a new fixed entry can change
    /// that result. This speeds up the check of successive frames from one peer.
    admitted: Cell<Option<(IpAddr, MacAddr)>>,
}

impl Neighbours {
    /// Adds a fixed entry, unless the address belongs to another MAC.
    pub(super) fn fix(&mut self, ip: IpAddr, mac: MacAddr) {
        if self.is_anothers(ip, mac) {
            return;
        }
        self.admitted.set(None);
        if let Some(Entry::Learned { .. } | Entry::Wanted { .. }) = self.entries.insert(ip, Entry::Fixed(mac))
        {
            self.changeable -= 1;
        }
    }

    /// Removes the fixed entry of `mac`.
    pub(super) fn release(&mut self, ip: IpAddr, mac: MacAddr) {
        if matches!(self.entries.get(&ip), Some(Entry::Fixed(owner)) if *owner == mac) {
            self.entries.remove(&ip);
        }
    }

    /// Returns whether `ip` has a fixed entry with another MAC.
    pub(super) fn is_anothers(&self, ip: IpAddr, mac: MacAddr) -> bool {
        if self.admitted.get() == Some((ip, mac)) {
            return false;
        }
        let anothers = matches!(self.entries.get(&ip), Some(Entry::Fixed(owner)) if *owner != mac);
        if !anothers {
            self.admitted.set(Some((ip, mac)));
        }
        anothers
    }

    /// Returns whether the table has fixed entries.
    pub(super) fn has_fixed(&self) -> bool {
        self.entries.len() > self.changeable
    }

    /// Looks up the MAC of `ip`, and returns whether to send a request.
    pub(super) fn resolve(&mut self, now: Instant, ip: IpAddr) -> Resolved {
        let due = |since: Instant| now.saturating_since(since) >= REQUEST_INTERVAL;
        match self.entries.get_mut(&ip) {
            Some(Entry::Fixed(mac)) => Resolved { mac: Some(*mac), request: false },
            Some(Entry::Learned { mac, at, asked }) => {
                let request = now.saturating_since(*at) >= CONFIRM_AFTER && asked.is_none_or(due);
                if request {
                    *asked = Some(now);
                }
                Resolved { mac: Some(*mac), request }
            }
            Some(Entry::Wanted { asked }) => {
                let request = due(*asked);
                if request {
                    *asked = now;
                }
                Resolved { mac: None, request }
            }
            None => {
                self.insert(ip, Entry::Wanted { asked: now });
                Resolved { mac: None, request: true }
            }
        }
    }

    /// Learns the MAC of an address from the address's owner. An unsolicited message is accepted only for an
    /// address that is already in the table, or from a host that is about to send to this port (RFC 826,
    /// "Packet Reception").
    pub(super) fn learn(&mut self, now: Instant, ip: IpAddr, mac: MacAddr, talks_to_us: bool) {
        match self.entries.get_mut(&ip) {
            Some(Entry::Fixed(_)) => {}
            Some(entry) => *entry = Entry::Learned { mac, at: now, asked: None },
            None if talks_to_us => self.insert(ip, Entry::Learned { mac, at: now, asked: None }),
            None => {}
        }
    }

    /// Inserts an entry. If the table is full, the new entry replaces the entry that was updated least recently.
    fn insert(&mut self, ip: IpAddr, entry: Entry) {
        if self.changeable >= MAX_ENTRIES {
            let age = |entry: &Entry| match entry {
                Entry::Fixed(_) => None,
                Entry::Learned { at, .. } => Some(*at),
                Entry::Wanted { asked } => Some(*asked),
            };
            let oldest = self
                .entries
                .iter()
                .filter_map(|(ip, entry)| Some((age(entry)?, *ip)))
                .min()
                .map(|(_, ip)| ip);
            if let Some(oldest) = oldest {
                self.entries.remove(&oldest);
                self.changeable -= 1;
            }
        }
        self.entries.insert(ip, entry);
        self.changeable += 1;
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
    fn static_neighbour_is_never_requested_or_replaced() {
        let mut table = Neighbours::default();
        table.resolve(at(0), IP);
        table.fix(IP, mac(2));
        table.learn(at(1), IP, mac(9), true);
        assert_eq!(table.resolve(at(100_000), IP), resolved(Some(mac(2)), false));
        assert_eq!(table.changeable, 0);
    }

    #[test]
    fn ip_of_static_neighbour_is_rejected_from_other_macs() {
        let mut table = Neighbours::default();
        assert!(!table.is_anothers(IP, mac(3)) && !table.is_anothers(IP, mac(3)));
        table.fix(IP, mac(2));
        assert!(
            table.is_anothers(IP, mac(3)) && !table.is_anothers(IP, mac(2)) && table.is_anothers(IP, mac(3))
        );
        table.release(IP, mac(2));
        assert!(!table.is_anothers(IP, mac(3)));
    }

    #[test]
    fn unsolicited_message_adds_no_entry() {
        let mut table = Neighbours::default();
        table.learn(at(0), IP, mac(2), false);
        assert_eq!(table.resolve(at(0), IP), resolved(None, true));
    }

    #[test]
    fn full_neighbour_table_keeps_static_and_newest_entries() {
        let mut table = Neighbours::default();
        table.fix(IP, mac(2));
        for n in 0..5000u32 {
            table.learn(at(n.into()), Ipv4Addr::from_bits(0x0a00_0000 + n).into(), mac(7), true);
        }
        assert_eq!(table.entries.len(), MAX_ENTRIES + 1);
        assert_eq!(table.resolve(at(5000), IP), resolved(Some(mac(2)), false));
        let last = Ipv4Addr::from_bits(0x0a00_0000 + 4999).into();
        assert_eq!(table.resolve(at(5000), last), resolved(Some(mac(7)), false));
    }
}
