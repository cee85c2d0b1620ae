//! Doorbells that a guest writes without a VM exit, to pages that its VMM has mapped.
//!
//! Such a write does not notify the device, which instead polls for it in every turn. Between turns, the device polls
//! at intervals that grow with the idle time ([`interval`]). A doorbell found by polling is handled as if the client
//! had written it; in recordings and traces, it is like any other store. The front-end must tolerate stores that were
//! overwritten between two polls; see [`Frontend::map_doorbells`].

use std::time::Duration;

use engine::Instant;

use super::Hca;
use crate::frontend::Frontend;
use crate::limited;
use crate::vfio::BarRange;
use crate::vfio::pages::SharedPages;
use crate::vfio::server::{Device as _, Region, RegionFile};

/// Maximum number of doorbells handled in one turn. Without this limit, a guest that stores to all its pages
/// could delay its client and its peers.
const MAX_PER_TURN: usize = 64;

/// Polling interval during traffic. Each sleep costs the thread a few microseconds of CPU time, but polling
/// continuously would take CPU time from the guest that rings the doorbells.
const SHORTEST: Duration = Duration::from_micros(20);
/// Polling interval during short pauses.
const SHORT: Duration = Duration::from_millis(1);
/// Polling interval after an idle second.
const LONGEST: Duration = Duration::from_millis(10);

/// Returns the polling interval of a device that has been idle for `idle`. In the first tenth of a second, the interval
/// is an eighth of `idle`, from [`SHORTEST`] up to [`SHORT`]. After that, it is a hundredth of `idle`, up to
/// [`LONGEST`]. A device that stays idle therefore polls a hundred times per second.
fn interval(idle: Duration) -> Duration {
    (idle / 8).clamp(SHORTEST, (idle / 100).clamp(SHORT, LONGEST))
}

/// The doorbell pages and when to poll them.
#[derive(Debug)]
pub(super) struct Doorbells {
    /// Part of the BAR that the client may map.
    mapped: BarRange,
    /// Length of the BAR in bytes.
    len: u64,
    /// The BAR as shared memory, created when a client maps it.
    pages: Option<SharedPages>,
    /// Time of the last activity in the guest or on the wire.
    last_active: Instant,
    /// Time of the next poll, if there is anything to poll.
    next: Option<Instant>,
    /// Index in `words` of the first word skipped because of [`MAX_PER_TURN`].
    first: usize,
    /// Offsets of the words to poll. Kept between polls to avoid allocations.
    words: Vec<u64>,
    found: Vec<(u64, [u8; 8])>,
}

impl Doorbells {
    fn new(mapped: BarRange, len: u64) -> Self {
        let last_active = Instant::ZERO;
        Self {
            mapped,
            len,
            pages: None,
            last_active,
            next: None,
            first: 0,
            words: Vec::new(),
            found: Vec::new(),
        }
    }

    /// Returns the file that the client can map for a region, if any. Without a file, the client sends a message for
    /// each doorbell.
    pub(super) fn share(&mut self, region: Region) -> Option<RegionFile> {
        if region != Region::Bar(self.mapped.bar) {
            return None;
        }
        if self.pages.is_none() {
            self.pages = usize::try_from(self.len)
                .map_err(std::io::Error::other)
                .and_then(SharedPages::new)
                .inspect_err(
                    |error| limited!(warn, %error, "cannot share doorbell pages with the VMM; using trapped doorbells"),
                )
                .ok();
        }
        let pages = self.pages.as_ref()?;
        Some(RegionFile { file: pages.file(), offsets: self.mapped.offsets.clone() })
    }

    /// Drops the pages of a client that has disconnected. The next client gets new ones.
    pub(super) fn unshare(&mut self) {
        (self.pages, self.next) = (None, None);
    }

    /// Schedules a poll within [`SHORTEST`]. Doorbells often follow activity.
    fn expect(&mut self, now: Instant) {
        self.last_active = now;
        self.next = self.next.map(|next| next.min(now + SHORTEST));
    }

    /// Takes the values that the guest has stored in the words listed by `words`.
    fn poll(&mut self, now: Instant, words: impl FnOnce(&mut Vec<u64>)) -> Vec<(u64, [u8; 8])> {
        let mut found = std::mem::take(&mut self.found);
        let Some(pages) = &self.pages else { return found };
        self.words.clear();
        words(&mut self.words);
        let count = self.words.len();
        let first = if self.first < count { self.first } else { 0 };
        self.next = (count != 0).then(|| now + interval(now.saturating_since(self.last_active)));
        for index in (first..count).chain(0..first) {
            if found.len() == MAX_PER_TURN {
                (self.first, self.next) = (index, Some(now));
                break;
            }
            let offset = self.words[index];
            found.extend(pages.take(offset).map(|word| (offset, word)));
        }
        found
    }
}

impl<F: Frontend> Hca<F> {
    /// Allows clients to map the doorbell pages, unless the interface relies on trapped stores. May only be called on a
    /// device in its power-on state.
    pub fn map_doorbells(&mut self) {
        let mapped = self.frontend.map_doorbells();
        self.doorbells = mapped.map(|mapped| {
            let len = self.pci.bars.len_of(mapped.bar);
            Doorbells::new(mapped, len)
        });
    }

    /// Handles doorbells that the guest has written to mapped pages, without a message from the client.
    pub fn poll_doorbells(&mut self) {
        let Self { doorbells: Some(doorbells), frontend, now, .. } = self else { return };
        let bar = doorbells.mapped.bar;
        let mut found = doorbells.poll(*now, |words| frontend.doorbell_words(words));
        for (offset, word) in found.drain(..) {
            self.region_write(Region::Bar(bar), offset, &word);
        }
        if let Some(doorbells) = &mut self.doorbells {
            doorbells.found = found;
        }
    }

    /// Returns whether any of the most recently polled words contains a pending doorbell.
    pub fn has_doorbells(&self) -> bool {
        let Some(Doorbells { pages: Some(pages), words, .. }) = &self.doorbells else { return false };
        words.iter().any(|word| pages.has(*word))
    }

    /// Returns the time by which [`Hca::poll_doorbells`] must be called next.
    pub fn next_poll(&self) -> Option<Instant> {
        self.doorbells.as_ref()?.next
    }

    pub(super) fn expect_doorbells(&mut self) {
        if let Some(doorbells) = &mut self.doorbells {
            doorbells.expect(self.now);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use vm_memory::{Bytes as _, FileOffset, MmapRegion, VolatileMemory as _};

    use super::*;
    use crate::vfio::Bar;

    const LEN: u64 = 1 << 20;

    fn unmapped() -> Doorbells {
        Doorbells::new(BarRange { bar: Bar::Bar2, offsets: 0x4000..LEN }, LEN)
    }

    fn at(micros: u64) -> Instant {
        Instant::ZERO + Duration::from_micros(micros)
    }

    /// Returns doorbells and a client's mapping of their pages.
    fn mapped() -> (Doorbells, MmapRegion) {
        let mut doorbells = unmapped();
        let RegionFile { file, offsets } = doorbells.share(Region::Bar(Bar::Bar2)).unwrap();
        assert_eq!(offsets, 0x4000..LEN);
        let file = FileOffset::new(File::from(file.try_clone().unwrap()), 0);
        (doorbells, MmapRegion::from_file(file, LEN.try_into().unwrap()).unwrap())
    }

    fn store(pages: &MmapRegion, offset: u64) {
        pages.as_volatile_slice().write_slice(&[1; 8], offset.try_into().unwrap()).unwrap();
    }

    #[test]
    fn interval_grows_with_idle_time_up_to_limit() {
        let of = |micros| interval(Duration::from_micros(micros)).as_micros();
        assert_eq!([0, 100, 160, 800, 8000, 100_000].map(of), [20, 20, 20, 100, 1000, 1000]);
        assert_eq!([200_000, 1_000_000, 3_600_000_000].map(of), [2000, 10_000, 10_000]);
    }

    #[test]
    fn nothing_is_polled_without_pages_or_queues() {
        let mut doorbells = unmapped();
        assert!(doorbells.poll(at(0), |words| words.push(0x10)).is_empty());
        assert_eq!(doorbells.next, None);
        assert!(doorbells.share(Region::Bar(Bar::Bar0)).is_none());
        let (mut doorbells, pages) = mapped();
        store(&pages, 0x10);
        assert!(doorbells.poll(at(0), |_| {}).is_empty());
        assert_eq!(doorbells.next, None);
    }

    #[test]
    fn activity_brings_next_poll_closer() {
        let (mut doorbells, pages) = mapped();
        store(&pages, 0x2010);
        let mut look = |now| doorbells.poll(at(now), |words| words.extend([0x2010, 0x2020]));
        assert_eq!(look(1_000_000), [(0x2010, [1; 8])]);
        assert!(look(1_000_000).is_empty());
        assert_eq!(doorbells.next, Some(at(1_010_000)));
        doorbells.expect(at(1_000_100));
        assert_eq!(doorbells.next, Some(at(1_000_120)));
    }

    #[test]
    fn doorbells_past_limit_are_polled_first_in_next_turn() {
        let (mut doorbells, pages) = mapped();
        let words: Vec<u64> = (0..MAX_PER_TURN as u64 + 2).map(|page| page * 4096 + 0x10).collect();
        words.iter().for_each(|word| store(&pages, *word));
        let first = doorbells.poll(at(5), |to| to.extend(&words));
        assert_eq!((first.len(), doorbells.next), (MAX_PER_TURN, Some(at(5))));
        store(&pages, words[0]);
        let second = doorbells.poll(at(5), |to| to.extend(&words));
        let found: Vec<u64> = second.iter().map(|(offset, _)| *offset).collect();
        assert_eq!(found, [words[MAX_PER_TURN], words[MAX_PER_TURN + 1], words[0]]);
    }

    #[test]
    fn next_client_gets_new_pages() {
        let (mut doorbells, pages) = mapped();
        doorbells.unshare();
        doorbells.share(Region::Bar(Bar::Bar2)).unwrap();
        store(&pages, 0x10);
        assert!(doorbells.poll(at(0), |words| words.push(0x10)).is_empty());
    }
}
