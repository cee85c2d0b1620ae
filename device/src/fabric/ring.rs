//! The `ring` fabric: HCAs of different processes of one host hand frames to each other through shared memory.
//!
//! A network is a folder. Each HCA listens there on a socket that is named by its MAC, so a MAC has one HCA, and calls the
//! others that it finds (`meeting`). The socket between two stays: a byte on it wakes who sleeps, and its end says that the
//! other is gone. An eventfd would wake a little faster, but both sides of one share its flags: a peer could fill it, make
//! it blocking, and so stop whoever writes to it. A send on a socket of our own never waits.
//!
//! Of frames, every MAC and IP address of a member is its own while it is here; the MACs of NICs are learned.

mod hello;
mod link;
mod meeting;
pub mod memory;
mod share;
mod tokens;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use protocol::ids::MacAddr;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

pub use self::link::MemberRow;
use self::link::{Fault, Link};
use self::meeting::Scan;
pub use self::meeting::socket_path;
use self::tokens::Tokens;
use super::batch::TxFrame;
use super::macs::{MacTable, REFRESH};
use super::sources::{IpOwners, Source};
use super::{Fabric, FabricStats, Origin, RxBatch, Sent, TxBatch};
use crate::identity::Identity;
use crate::limited;
use crate::vfio::server::Listener;

/// Bound: members that an HCA is linked to. Each takes the memory of two rings, and a look before every sleep.
const MAX_LINKS: usize = 64;

/// Bound: callers that have not said who they are. A newcomer beyond it takes the place of the oldest.
const MAX_CALLERS: usize = 8;

/// Bound: events in one turn, callers among them.
const MAX_EVENTS: usize = 32;

/// Bound: frames of one member in one turn.
const MAX_FRAMES: usize = 512;

/// Bound: MACs that a row of the list shows.
const MACS_SHOWN: usize = 16;

/// How long the only member there is may leave its ring full before frames to it are lost. Where there are more, one that
/// does not take its frames must not keep them from the others: there they are lost at once.
const PATIENCE: Duration = Duration::from_millis(20);

/// How often the folder is looked at while frames go to MACs that nobody has.
const SCAN_PERIOD: Duration = Duration::from_secs(1);

mod token {
    pub(super) const LISTENER: u64 = 0;
    /// The first caller; those of links begin behind the last.
    pub(super) const CALLERS: u64 = 1;
    pub(super) const LINKS: u64 = CALLERS + super::MAX_CALLERS as u64;
}

/// Who has a MAC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Station {
    /// The HCA: its driver may give its NIC any.
    Own,
    /// What is linked in this place.
    Link(usize),
}

/// See the module.
#[derive(Debug)]
pub struct RingFabric {
    own: Identity,
    folder: PathBuf,
    listener: Listener,
    epoll: OwnedFd,
    links: Vec<Option<Link>>,
    callers: [Option<UnixStream>; MAX_CALLERS],
    next_caller: usize,
    tokens: Tokens,
    macs: MacTable<Station>,
    ips: IpOwners,
    /// The sender that was admitted last, of which station, and when.
    last: Option<(Source, Station, engine::Instant)>,
    /// Link that is served first in the next turn.
    first: usize,
    full_since: Option<Instant>,
    scanned: Instant,
    /// The last member that the folder was searched up to.
    scanned_to: Option<MacAddr>,
    /// Origin of the clock that lets addresses age.
    started: Instant,
    stats: FabricStats,
}

/// An address of a frame is another member's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Foreign {
    Mac,
    Ip,
}

impl RingFabric {
    /// Joins the network of a folder as the HCA with these addresses, until it is dropped.
    ///
    /// # Errors
    /// The folder cannot be used, another HCA has the MAC, or the host has no descriptors left.
    pub fn join(folder: &Path, own: &Identity) -> io::Result<Self> {
        let listener = Listener::bind(&socket_path(folder, own.mac)).map_err(io::Error::other)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        watch(&epoll, &listener, token::LISTENER)?;
        let now = Instant::now();
        let mut macs = MacTable::default();
        macs.fix(own.mac, Station::Own);
        let mut ips = IpOwners::default();
        ips.add(own);
        let mut fabric = Self {
            own: *own,
            folder: folder.to_path_buf(),
            listener,
            epoll,
            links: Vec::new(),
            callers: [const { None }; MAX_CALLERS],
            next_caller: 0,
            tokens: Tokens::default(),
            macs,
            ips,
            last: None,
            first: 0,
            full_since: None,
            scanned: now,
            scanned_to: None,
            started: now,
            stats: FabricStats::default(),
        };
        tracing::info!(folder = %folder.display(), mac = %own.mac, "joined the ring fabric");
        fabric.scan(Scan::Whole);
        Ok(fabric)
    }

    /// Members that are linked.
    pub fn linked(&self) -> impl Iterator<Item = MacAddr> {
        self.links.iter().flatten().map(Link::mac)
    }

    fn now(&self) -> engine::Instant {
        engine::Instant::ZERO + self.started.elapsed()
    }

    /// Takes up a link to a member with these addresses.
    fn link(&mut self, link: Link, member: &Identity) -> io::Result<()> {
        let place = match self.links.iter().position(Option::is_none) {
            Some(place) => place,
            None if self.links.len() < MAX_LINKS => {
                self.links.push(None);
                self.links.len() - 1
            }
            None => return Err(io::Error::other(format!("limit of {MAX_LINKS} ring members reached"))),
        };
        watch(&self.epoll, link.socket(), token::LINKS + place as u64)?;
        let mac = link.mac();
        self.macs.fix(mac, Station::Link(place));
        self.ips.add(member);
        self.last = None;
        self.links[place] = Some(link);
        limited!(info, %mac, "ring member joined");
        Ok(())
    }

    /// Gives up a link. The MACs behind it are nobody's then.
    fn unlink(&mut self, place: usize, fault: &Fault) {
        // Closing the socket takes it out of epoll.
        let Some(link) = self.links.get_mut(place).and_then(Option::take) else { return };
        let mac = link.mac();
        match fault {
            Fault::Gone => limited!(info, %mac, "ring member left"),
            Fault::Broken(error) => {
                self.stats.rings_broken += 1;
                limited!(warn, %mac, %error, "disconnected a ring member that violated the protocol");
            }
        }
        self.macs.rename(|station| Some(station).filter(|station| *station != Station::Link(place)));
        self.ips.remove(mac);
        self.last = None;
    }

    fn hear_bell(&mut self, place: usize) {
        if let Some(Some(link)) = self.links.get(place)
            && let Err(fault) = link.hear_bell()
        {
            self.unlink(place, &fault);
        }
    }

    /// Whether a station may send as this sender, whose MAC is learned.
    fn admit(&mut self, now: engine::Instant, source: Source, station: Station) -> Result<(), Foreign> {
        let is_alike = |(last, of, at): (Source, Station, engine::Instant)| {
            last == source && of == station && now.saturating_since(at) < REFRESH
        };
        if self.last.is_some_and(is_alike) {
            return Ok(());
        }
        let member = match station {
            Station::Own => Some(self.own.mac),
            Station::Link(place) => self.links.get(place).and_then(Option::as_ref).map(Link::mac),
        };
        let foreign = if !member.is_some_and(|member| self.ips.admits(&source, member)) {
            Foreign::Ip
        } else if !self.macs.show(now, source.mac, station) {
            Foreign::Mac
        } else {
            self.last = Some((source, station, now));
            return Ok(());
        };
        limited!(
            warn,
            ?member,
            ?source,
            "dropped a frame whose source address belongs to another ring member"
        );
        Err(foreign)
    }

    /// Puts the first frames of the batch into a ring; returns how many fitted.
    fn put(&mut self, place: usize, batch: &TxBatch, count: usize) -> usize {
        let Some(Some(link)) = self.links.get_mut(place) else { return 0 };
        let frames = batch.frames().take(count);
        match link.put(frames.map(|frame| (batch.slice(frame.start..frame.end), frame.icrc))) {
            Ok(put) => {
                self.stats.tx_frames += put as u64;
                put
            }
            Err(fault) => {
                self.unlink(place, &fault);
                0
            }
        }
    }

    /// Counts frames that a member has no room for.
    fn refuse(&mut self, place: usize, count: usize) {
        self.stats.tx_refused += count as u64;
        if let Some(Some(link)) = self.links.get_mut(place) {
            link.counters.tx_refused += count as u64;
        }
    }

    /// Sends to one member. Blocked: see [`PATIENCE`].
    fn send_one(&mut self, place: usize, batch: &mut TxBatch, count: usize) -> Sent {
        let put = self.put(place, batch, count);
        batch.advance(put);
        if put > 0 {
            self.full_since = None;
        }
        let left = count - put;
        if left == 0 {
            return Sent::All;
        }
        if self.links.iter().flatten().count() == 1
            && let Some(Some(link)) = self.links.get_mut(place)
        {
            let since = *self.full_since.get_or_insert_with(Instant::now);
            let frame = batch.iter().next().map_or(0, |(_, frame)| frame.len());
            match link.wait_for_room(frame) {
                Ok(true) if since.elapsed() < PATIENCE => return Sent::Blocked,
                Ok(true) => {}
                Ok(false) => return self.send_one(place, batch, left),
                Err(fault) => self.unlink(place, &fault),
            }
        }
        self.refuse(place, left);
        batch.advance(left);
        Sent::All
    }

    /// Sends copies to every member.
    fn flood(&mut self, batch: &TxBatch, count: usize) {
        let mut found = false;
        for place in 0..self.links.len() {
            if self.links[place].is_some() {
                let put = self.put(place, batch, count);
                self.refuse(place, count - put);
                found = true;
            }
        }
        if !found {
            self.stats.tx_no_peer += count as u64;
        }
    }

    fn send_all(&mut self, batch: &mut TxBatch) -> Sent {
        let now = self.now();
        while let Some(first) = batch.front() {
            let source = batch.chosen_source(&first);
            if let Some(source) = source
                && let Err(foreign) = self.admit(now, source, Station::Own)
            {
                match foreign {
                    Foreign::Mac => self.stats.tx_foreign_mac += 1,
                    Foreign::Ip => self.stats.tx_foreign_ip += 1,
                }
                batch.advance(1);
                continue;
            }
            let is_alike = |frame: &&TxFrame| {
                frame.dst == first.dst && frame.origin == first.origin && batch.chosen_source(frame) == source
            };
            let count = batch.frames().take_while(is_alike).count();
            match self.macs.owner(now, first.dst) {
                Some(Station::Link(place)) => match self.send_one(place, batch, count) {
                    Sent::All => continue,
                    Sent::Blocked => return Sent::Blocked,
                },
                Some(Station::Own) => self.stats.tx_no_peer += count as u64,
                // An answer is for one, or for nobody.
                None if first.origin == Origin::Answer && !first.dst.is_multicast() => {
                    self.stats.tx_no_peer += count as u64;
                }
                None => {
                    if self.scanned.elapsed() >= SCAN_PERIOD {
                        self.scan(Scan::Part);
                    }
                    self.flood(batch, count);
                }
            }
            batch.advance(count);
        }
        Sent::All
    }
}

impl Fabric for RingFabric {
    fn send(&mut self, batch: &mut TxBatch) -> Sent {
        let sent = self.send_all(batch);
        for link in self.links.iter_mut().flatten() {
            self.stats.tx_calls += u64::from(link.publish());
        }
        sent
    }

    fn recv(&mut self, batch: &mut RxBatch) -> io::Result<()> {
        batch.clear();
        let now = self.now();
        self.first = self.first.wrapping_add(1);
        for turn in 0..self.links.len() {
            let place = self.first.wrapping_add(turn) % self.links.len();
            let before = batch.len();
            let Some(Some(link)) = self.links.get_mut(place) else { continue };
            if !link.has_frames() {
                continue;
            }
            let taken = link.take(batch, MAX_FRAMES);
            if let Err(fault) = taken {
                self.unlink(place, &fault);
                batch.retain_from(before, |_| false);
            }
            let (mut foreign_macs, mut foreign_ips) = (0, 0);
            batch.retain_from(before, |frame| {
                // The ring carries nothing shorter than an Ethernet header.
                let Some(source) = Source::of(frame) else { return false };
                let admitted = self.admit(now, source, Station::Link(place));
                foreign_macs += u64::from(admitted == Err(Foreign::Mac));
                foreign_ips += u64::from(admitted == Err(Foreign::Ip));
                admitted.is_ok()
            });
            let admitted = (batch.len() - before) as u64;
            self.stats.rx_frames += admitted;
            self.stats.rx_foreign_mac += foreign_macs;
            self.stats.rx_foreign_ip += foreign_ips;
            if let Some(Some(link)) = self.links.get_mut(place) {
                link.counters.rx_frames += admitted;
                link.counters.rx_foreign_mac += foreign_macs;
                link.counters.rx_foreign_ip += foreign_ips;
            }
        }
        Ok(())
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn attend(&mut self) -> io::Result<()> {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(MAX_EVENTS);
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&at_once)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        // Ends before beginnings: who comes back must not meet its own past.
        events.sort_unstable_by_key(|event| std::cmp::Reverse(event.data.u64()));
        for token in events.iter().map(|event| event.data.u64()) {
            let place = |first| usize::try_from(token - first).unwrap_or(usize::MAX);
            match token {
                token::LINKS.. => self.hear_bell(place(token::LINKS)),
                token::CALLERS.. => self.hear(place(token::CALLERS)),
                token::LISTENER => self.accept(),
            }
        }
        Ok(())
    }

    fn patience(&self) -> Option<Duration> {
        self.full_since.map(|since| PATIENCE.saturating_sub(since.elapsed()))
    }

    fn has_frames(&self) -> bool {
        self.links.iter().flatten().any(Link::has_frames)
    }

    fn is_memory(&self) -> bool {
        true
    }

    fn needs_icrc(&self) -> bool {
        false
    }

    fn doze(&mut self) -> bool {
        self.links.iter_mut().flatten().all(Link::doze)
    }

    fn awake(&mut self) {
        self.links.iter_mut().flatten().for_each(Link::wake);
    }

    fn stats(&mut self) -> FabricStats {
        self.stats
    }

    fn members(&self) -> Option<Vec<MemberRow>> {
        let row = |(place, link): (usize, &Option<Link>)| {
            let behind = self.macs.iter().filter(|(_, station)| *station == Station::Link(place));
            let mut macs: Vec<MacAddr> = behind.map(|(mac, _)| mac).collect();
            macs.sort_unstable_by_key(|mac| mac.0);
            link.as_ref().map(|link| link.row(macs.iter().take(MACS_SHOWN).map(MacAddr::to_string).collect()))
        };
        let mut rows: Vec<MemberRow> = self.links.iter().enumerate().filter_map(row).collect();
        rows.sort_unstable_by(|a, b| a.mac.cmp(&b.mac));
        Some(rows)
    }
}

fn watch(epoll: &OwnedFd, source: impl AsFd, token: u64) -> io::Result<()> {
    Ok(epoll::add(epoll, source, epoll::EventData::new_u64(token), epoll::EventFlags::IN)?)
}

#[cfg(test)]
mod tests;
