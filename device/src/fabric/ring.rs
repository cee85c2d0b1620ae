//! The `ring` fabric: HCAs of different processes of one host hand frames to each other through shared memory.
//!
//! A network is a folder. Each HCA listens there on a socket that is named by its MAC, so a MAC has one HCA, and calls the
//! others that it finds. Of two the one with the greater MAC makes the memory and hands it over (`hello`); the other, when
//! it comes later, asks to be called. The socket stays: a byte on it wakes who sleeps, and its end says that the other is
//! gone. An eventfd would wake a little faster, but both sides of one share its flags: a peer could fill it, make it
//! blocking, and so stop whoever writes to it. A send on a socket of our own never waits.
//!
//! Of frames, every MAC of a member is its own while it is here; those of NICs are learned.

mod hello;
mod link;
pub mod memory;
mod share;

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use protocol::ids::MacAddr;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use self::hello::{Hello, Unheard};
pub use self::link::MemberRow;
use self::link::{Fault, Link};
use self::memory::RingLen;
use super::batch::TxFrame;
use super::macs::{MacTable, REFRESH};
use super::{Fabric, FabricStats, Origin, RxBatch, Sent, TxBatch};
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

/// What follows the MAC in the name of a socket.
const SUFFIX: &str = ".ring";

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
    own: MacAddr,
    folder: PathBuf,
    listener: Listener,
    epoll: OwnedFd,
    links: Vec<Option<Link>>,
    callers: [Option<UnixStream>; MAX_CALLERS],
    next_caller: usize,
    macs: MacTable<Station>,
    /// Who showed which MAC last, and when it was looked up.
    last: Option<(MacAddr, Station, engine::Instant)>,
    /// Link that is served first in the next turn.
    first: usize,
    full_since: Option<Instant>,
    scanned: Instant,
    /// Origin of the clock that lets addresses age.
    started: Instant,
    stats: FabricStats,
}

/// Name of a member's socket.
pub fn socket_path(folder: &Path, mac: MacAddr) -> PathBuf {
    let digits: String = mac.0.iter().map(|byte| format!("{byte:02x}")).collect();
    folder.join(digits + SUFFIX)
}

/// The member that has a socket of this name.
fn member(name: &str) -> Option<MacAddr> {
    let digits = name.strip_suffix(SUFFIX)?;
    if digits.len() != 12
        || !digits.bytes().all(|digit| digit.is_ascii_digit() || (b'a'..=b'f').contains(&digit))
    {
        return None;
    }
    let number = u64::from_str_radix(digits, 16).ok()?;
    let [_, _, mac @ ..] = number.to_be_bytes();
    Some(MacAddr(mac)).filter(|mac| !mac.is_multicast())
}

impl RingFabric {
    /// Joins the network of a folder as the HCA with a MAC, until it is dropped.
    ///
    /// # Errors
    /// The folder cannot be used, another HCA has the MAC, or the host has no descriptors left.
    pub fn join(folder: &Path, own: MacAddr) -> io::Result<Self> {
        let listener = Listener::bind(&socket_path(folder, own)).map_err(io::Error::other)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        watch(&epoll, &listener, token::LISTENER)?;
        let now = Instant::now();
        let mut macs = MacTable::default();
        macs.fix(own, Station::Own);
        let mut fabric = Self {
            own,
            folder: folder.to_path_buf(),
            listener,
            epoll,
            links: Vec::new(),
            callers: [const { None }; MAX_CALLERS],
            next_caller: 0,
            macs,
            last: None,
            first: 0,
            full_since: None,
            scanned: now,
            started: now,
            stats: FabricStats::default(),
        };
        tracing::info!(folder = %folder.display(), mac = %own, "ring fabric");
        fabric.scan();
        Ok(fabric)
    }

    /// Members that are linked.
    pub fn linked(&self) -> impl Iterator<Item = MacAddr> {
        self.links.iter().flatten().map(Link::mac)
    }

    fn now(&self) -> engine::Instant {
        engine::Instant::ZERO + self.started.elapsed()
    }

    /// Calls whoever is in the folder and not linked.
    fn scan(&mut self) {
        self.scanned = Instant::now();
        let linked: HashSet<MacAddr> = self.linked().chain([self.own]).collect();
        let entries = match std::fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) => {
                limited!(warn, folder = %self.folder.display(), %error, "the ring's folder cannot be read");
                return;
            }
        };
        // Bound: whoever may make files there can make many.
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let found: Vec<MacAddr> = names
            .filter_map(|name| member(&name))
            .filter(|mac| !linked.contains(mac))
            .take(2 * MAX_LINKS)
            .collect();
        for mac in found {
            self.call(mac);
        }
    }

    /// Calls a member: with memory if it is ours to make it.
    fn call(&mut self, mac: MacAddr) {
        let socket = match connect(&socket_path(&self.folder, mac)) {
            Ok(socket) => socket,
            // Killed, or gone meanwhile: it calls when it is back.
            Err(Errno::CONNREFUSED | Errno::NOENT) => return,
            Err(error) => {
                limited!(warn, %mac, %error, "a member of the ring cannot be called");
                return;
            }
        };
        let made = if self.own.0 > mac.0 {
            share::make(RingLen::USUAL).and_then(|(memfd, producer, consumer)| {
                hello::send(&socket, self.own, RingLen::USUAL, Some(memfd.as_fd()))?;
                self.link(Link::new(mac, socket, producer, consumer))
            })
        } else {
            hello::send(&socket, self.own, RingLen::USUAL, None)
        };
        if let Err(error) = made {
            limited!(warn, %mac, %error, "a member of the ring cannot be called");
        }
    }

    /// Takes up a link.
    fn link(&mut self, link: Link) -> io::Result<()> {
        let place = match self.links.iter().position(Option::is_none) {
            Some(place) => place,
            None if self.links.len() < MAX_LINKS => {
                self.links.push(None);
                self.links.len() - 1
            }
            None => return Err(io::Error::other(format!("there are {MAX_LINKS} members already"))),
        };
        watch(&self.epoll, link.socket(), token::LINKS + place as u64)?;
        let mac = link.mac();
        self.macs.fix(mac, Station::Link(place));
        self.last = None;
        self.links[place] = Some(link);
        limited!(info, %mac, "a member of the ring is here");
        Ok(())
    }

    /// Gives up a link. The MACs behind it are nobody's then.
    fn unlink(&mut self, place: usize, fault: &Fault) {
        // Closing the socket takes it out of epoll.
        let Some(link) = self.links.get_mut(place).and_then(Option::take) else { return };
        let mac = link.mac();
        match fault {
            Fault::Gone => limited!(info, %mac, "a member of the ring is gone"),
            Fault::Broken(error) => {
                self.stats.rings_broken += 1;
                limited!(warn, %mac, %error, "a member of the ring breaks it and is not heard any more");
            }
        }
        self.macs.rename(|station| Some(station).filter(|station| *station != Station::Link(place)));
        self.last = None;
    }

    fn accept(&mut self) {
        // Bound: as many as can be kept.
        for _ in 0..MAX_CALLERS {
            let socket = match self.listener.accept() {
                Ok(Some(socket)) => socket,
                Ok(None) => return,
                Err(error) => {
                    limited!(warn, %error, "members of the ring cannot be accepted");
                    return;
                }
            };
            let place = self.next_caller;
            self.next_caller = (place + 1) % MAX_CALLERS;
            if watch(&self.epoll, &socket, token::CALLERS + place as u64).is_ok() {
                self.callers[place] = Some(socket);
                self.hear(place);
            }
        }
    }

    /// Hears who a caller is.
    fn hear(&mut self, place: usize) {
        let Some(socket) = &self.callers[place] else { return };
        let heard = hello::receive(socket);
        if matches!(heard, Ok(None)) {
            return;
        }
        let Some(socket) = self.callers[place].take() else { return };
        let _ = epoll::delete(&self.epoll, &socket);
        match heard {
            Ok(Some(Hello::Memory { mac, len, memfd })) => {
                if let Err(reason) = self.answer(socket, mac, len, memfd) {
                    self.stats.rings_broken += 1;
                    limited!(warn, %mac, reason, "a caller is not made a member of the ring");
                }
            }
            Ok(Some(Hello::Call { mac })) => self.call_back(mac),
            Ok(None) | Err(Unheard::Closed) => {}
            Err(error) => {
                self.stats.rings_broken += 1;
                limited!(warn, %error, "a caller is no member of the ring");
            }
        }
    }

    fn answer(
        &mut self,
        socket: UnixStream,
        mac: MacAddr,
        len: RingLen,
        memfd: OwnedFd,
    ) -> Result<(), String> {
        // The smaller MAC never makes memory, so that two who call each other at once end with one link.
        if mac.0 <= self.own.0 || mac.is_multicast() {
            return Err("its MAC is not one that calls".to_owned());
        }
        self.forget_gone(mac);
        if self.linked().any(|other| other == mac) {
            return Err("another member has this MAC".to_owned());
        }
        let (producer, consumer) = share::take(memfd, len).map_err(|error| error.to_string())?;
        self.link(Link::new(mac, socket, producer, consumer)).map_err(|error| error.to_string())
    }

    fn call_back(&mut self, mac: MacAddr) {
        self.forget_gone(mac);
        if mac.0 < self.own.0 && !mac.is_multicast() && self.linked().all(|other| other != mac) {
            self.call(mac);
        }
    }

    /// Gives up the link to a member of this MAC that has ended: its successor may be noticed before its end.
    fn forget_gone(&mut self, mac: MacAddr) {
        let is_of = |link: &Option<Link>| link.as_ref().is_some_and(|link| link.mac() == mac);
        if let Some(place) = self.links.iter().position(is_of) {
            self.hear_bell(place);
        }
    }

    fn hear_bell(&mut self, place: usize) {
        if let Some(Some(link)) = self.links.get(place)
            && let Err(fault) = link.hear_bell()
        {
            self.unlink(place, &fault);
        }
    }

    /// Whether somebody may use a source MAC, which is learned.
    fn admit(&mut self, now: engine::Instant, source: MacAddr, station: Station) -> bool {
        let is_alike = |(mac, who, at): (MacAddr, Station, engine::Instant)| {
            mac == source && who == station && now.saturating_since(at) < REFRESH
        };
        if self.last.is_some_and(is_alike) {
            return true;
        }
        let admitted = self.macs.show(now, source, station);
        if admitted {
            self.last = Some((source, station, now));
        }
        admitted
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
                && !self.admit(now, source, Station::Own)
            {
                self.stats.tx_foreign_mac += 1;
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
                        self.scan();
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
            let arrived = batch.len() - before;
            batch.retain_from(before, |frame| {
                let source = frame.get(6..).and_then(|bytes| bytes.first_chunk()).map(|mac| MacAddr(*mac));
                let admitted = source.is_some_and(|source| self.admit(now, source, Station::Link(place)));
                if !admitted {
                    limited!(warn, mac = ?source, "a member of the ring sends as another");
                }
                admitted
            });
            let admitted = (batch.len() - before) as u64;
            let foreign = arrived as u64 - admitted;
            self.stats.rx_frames += admitted;
            self.stats.rx_foreign_mac += foreign;
            if let Some(Some(link)) = self.links.get_mut(place) {
                link.counters.rx_frames += admitted;
                link.counters.rx_foreign_mac += foreign;
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

/// Connects without waiting: a member that accepts nobody is called again later.
fn connect(path: &Path) -> Result<UnixStream, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests;
