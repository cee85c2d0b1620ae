//! The `ring` fabric: HCAs in different processes on one host exchange frames through shared memory.
//!
//! A network is a directory where each HCA listens on a socket named after its MAC, which makes MACs unique. Each HCA
//! connects to the other sockets that it finds in the directory (see `discovery`). The connection between two members
//! stays open. Either member can send a byte to wake the other, or close the connection to end the link.
//!
//! An eventfd would wake a member a little faster, but the two members would share its file status flags. A peer could
//! then fill the eventfd, make it blocking, and stall the other member's writes. A non-blocking send on a member's own
//! socket never stalls.
//!
//! A member owns its configured MAC and IP addresses while it is linked. Other MACs used by NICs are learned.

mod discovery;
mod hello;
mod link;
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

use self::discovery::Scan;
pub use self::discovery::socket_path;
pub use self::link::MemberRow;
use self::link::{Link, LinkError};
use self::tokens::Tokens;
use super::macs::{MacTable, REFRESH};
use super::sources::{IpOwners, Source};
use super::tx_batch::TxFrame;
use super::{Fabric, FabricStats, Origin, RxBatch, Sent, TxBatch};
use crate::identity::Identity;
use crate::limited;
use crate::log_line;
use crate::vfio::server::Listener;

/// Maximum number of linked members. Each link uses the memory of two rings and is polled before every sleep.
const MAX_LINKS: usize = 64;

/// Maximum number of connections that have not sent a hello message yet. At the limit, a new connection replaces the
/// oldest one.
const MAX_CALLERS: usize = 8;

/// Maximum number of socket events handled in one turn.
const MAX_EVENTS: usize = 32;

/// Maximum number of frames received from one member in one turn.
const MAX_FRAMES: usize = 512;

/// Maximum number of MACs listed per member.
const MACS_SHOWN: usize = 16;

/// How long a ring may stay full before frames are dropped, in a network of two members. With more members, frames to a
/// full ring are dropped immediately so that a slow member does not delay the others.
const RING_FULL_TIMEOUT: Duration = Duration::from_millis(20);

/// Interval at which the directory is scanned while frames are sent to unknown MACs.
const SCAN_PERIOD: Duration = Duration::from_secs(1);

mod token {
    pub(super) const LISTENER: u64 = 0;
    /// First epoll token for connections that have not sent a hello message yet. Tokens for links follow.
    pub(super) const CALLERS: u64 = 1;
    pub(super) const LINKS: u64 = CALLERS + super::MAX_CALLERS as u64;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Owner {
    /// This HCA. It also owns the MACs that its NIC's driver uses.
    Own,
    /// The member linked in this slot.
    Link(usize),
}

/// A member of a ring network.
#[derive(Debug)]
pub struct RingFabric {
    own: Identity,
    folder: PathBuf,
    listener: Listener,
    epoll: OwnedFd,
    /// Reserved descriptor. If no others are left, it is freed so that a connection can be accepted and then closed.
    spare: Option<OwnedFd>,
    links: Vec<Option<Link>>,
    callers: [Option<UnixStream>; MAX_CALLERS],
    next_caller: usize,
    tokens: Tokens,
    macs: MacTable<Owner>,
    ips: IpOwners,
    /// The last source that was admitted, its owner, and the time of the check.
    last: Option<(Source, Owner, engine::Instant)>,
    /// Incremented by each receive call so that each call starts with a different link.
    first: usize,
    full_since: Option<Instant>,
    full_timeout: Duration,
    scanned: Instant,
    /// MAC where the last partial scan ended.
    scanned_to: Option<MacAddr>,
    /// Time zero of the clock used for address ageing.
    started: Instant,
    stats: FabricStats,
}

/// Which of a frame's source addresses belongs to another member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Foreign {
    Mac,
    Ip,
}

impl RingFabric {
    /// Joins the network in `folder` with the addresses of `own`. To leave the network, drop the fabric.
    ///
    /// # Errors
    /// Fails if the directory is unusable, another HCA has the MAC, or the process has no free descriptors.
    pub fn join(folder: &Path, own: &Identity) -> io::Result<Self> {
        let listener = Listener::bind(&socket_path(folder, own.mac)).map_err(io::Error::other)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        watch(&epoll, &listener, token::LISTENER)?;
        let now = Instant::now();
        let mut macs = MacTable::default();
        macs.set_fixed(own.mac, Owner::Own);
        let mut ips = IpOwners::default();
        ips.add(own);
        let mut fabric = Self {
            own: *own,
            folder: folder.to_path_buf(),
            listener,
            spare: epoll.try_clone().ok(),
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
            full_timeout: RING_FULL_TIMEOUT,
            scanned: now,
            scanned_to: None,
            started: now,
            stats: FabricStats::default(),
        };
        log_line!(info, folder = %folder.display(), mac = %own.mac, "joined the ring fabric");
        fabric.scan(Scan::Full);
        Ok(fabric)
    }

    /// Returns the MACs of the linked members.
    pub fn linked(&self) -> impl Iterator<Item = MacAddr> {
        self.links.iter().flatten().map(Link::mac)
    }

    fn now(&self) -> engine::Instant {
        engine::Instant::ZERO + self.started.elapsed()
    }

    /// Adds a link to `member`.
    fn link(&mut self, link: Link, member: &Identity) -> io::Result<()> {
        let slot = match self.links.iter().position(Option::is_none) {
            Some(slot) => slot,
            None if self.links.len() < MAX_LINKS => {
                self.links.push(None);
                self.links.len() - 1
            }
            None => return Err(io::Error::other(format!("too many ring members (maximum {MAX_LINKS})"))),
        };
        watch(&self.epoll, link.socket(), token::LINKS + slot as u64)?;
        let mac = link.mac();
        self.macs.set_fixed(mac, Owner::Link(slot));
        self.ips.add(member);
        self.last = None;
        self.links[slot] = Some(link);
        limited!(info, %mac, "ring member joined");
        Ok(())
    }

    /// Removes a link. The MACs reached through it then have no owner.
    fn unlink(&mut self, slot: usize, fault: &LinkError) {
        // Closing the socket removes it from epoll.
        let Some(link) = self.links.get_mut(slot).and_then(Option::take) else { return };
        let mac = link.mac();
        match fault {
            LinkError::Closed => limited!(info, %mac, "ring member left"),
            LinkError::Invalid(error) => {
                self.stats.rings_broken += 1;
                limited!(warn, %mac, %error, "disconnected a ring member that violated the protocol");
            }
        }
        self.macs.map_owners(|owner| Some(owner).filter(|owner| *owner != Owner::Link(slot)));
        self.ips.remove(mac);
        self.last = None;
    }

    fn drain_wakeups(&mut self, slot: usize) {
        if let Some(Some(link)) = self.links.get(slot)
            && let Err(fault) = link.drain_wakeups()
        {
            self.unlink(slot, &fault);
        }
    }

    /// Checks whether `owner` may send from the addresses in `source`. If so, learns the source MAC.
    fn admit(&mut self, now: engine::Instant, source: Source, owner: Owner) -> Result<(), Foreign> {
        let is_alike = |(last, of, at): (Source, Owner, engine::Instant)| {
            last == source && of == owner && now.saturating_since(at) < REFRESH
        };
        if self.last.is_some_and(is_alike) {
            return Ok(());
        }
        let member = match owner {
            Owner::Own => Some(self.own.mac),
            Owner::Link(slot) => self.links.get(slot).and_then(Option::as_ref).map(Link::mac),
        };
        let foreign = if !member.is_some_and(|member| self.ips.admits(&source, member)) {
            Foreign::Ip
        } else if !self.macs.learn(now, source.mac, owner) {
            // The MAC belongs to another member, and `learn` has just recorded this sender's claim to it. The owner's
            // next frame must cancel the claim, but frames from the source cached in `last` do not reach `learn`.
            // Therefore, if `last` contains the MAC, clear `last`.
            self.last = self.last.filter(|(last, ..)| last.mac != source.mac);
            Foreign::Mac
        } else {
            self.last = Some((source, owner, now));
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

    /// Puts the first `count` frames of the batch into a ring. Returns how many fit.
    fn put(&mut self, slot: usize, batch: &TxBatch, count: usize) -> usize {
        let Some(Some(link)) = self.links.get_mut(slot) else { return 0 };
        match link.put(batch, count) {
            Ok(put) => {
                self.stats.tx_frames += put as u64;
                put
            }
            Err(fault) => {
                self.unlink(slot, &fault);
                0
            }
        }
    }

    /// Counts frames dropped because a member's ring is full.
    fn refuse(&mut self, slot: usize, count: usize) {
        self.stats.tx_refused += count as u64;
        if let Some(Some(link)) = self.links.get_mut(slot) {
            link.counters.tx_refused += count as u64;
        }
    }

    /// Sends the first `count` frames to one member. If the member's ring is full, either returns [`Sent::Blocked`] or
    /// drops the remaining frames, as described for [`RING_FULL_TIMEOUT`].
    fn send_one(&mut self, slot: usize, batch: &mut TxBatch, count: usize) -> Sent {
        let put = self.put(slot, batch, count);
        batch.advance(put);
        if put > 0 {
            self.full_since = None;
        }
        let left = count - put;
        if left == 0 {
            return Sent::All;
        }
        if self.links.iter().flatten().count() == 1
            && let Some(Some(link)) = self.links.get_mut(slot)
        {
            let since = *self.full_since.get_or_insert_with(Instant::now);
            let frame = batch.front().map_or(0, |frame| frame.len());
            match link.wait_for_room(frame) {
                Ok(true) if since.elapsed() < self.full_timeout => return Sent::Blocked,
                Ok(true) => {}
                Ok(false) => return self.send_one(slot, batch, left),
                Err(fault) => self.unlink(slot, &fault),
            }
        }
        self.refuse(slot, left);
        batch.advance(left);
        Sent::All
    }

    fn flood(&mut self, batch: &TxBatch, count: usize) {
        let mut found = false;
        for slot in 0..self.links.len() {
            if self.links[slot].is_some() {
                let put = self.put(slot, batch, count);
                self.refuse(slot, count - put);
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
                && let Err(foreign) = self.admit(now, source, Owner::Own)
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
                Some(Owner::Link(slot)) => match self.send_one(slot, batch, count) {
                    Sent::All => continue,
                    Sent::Blocked => return Sent::Blocked,
                },
                Some(Owner::Own) => self.stats.tx_no_peer += count as u64,
                // Drop a reply instead of flooding it, since it must reach only the requester.
                None if first.origin == Origin::Answer && !first.dst.is_multicast() => {
                    self.stats.tx_no_peer += count as u64;
                }
                None => {
                    if self.scanned.elapsed() >= SCAN_PERIOD {
                        self.scan(Scan::Partial);
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
        if sent == Sent::Blocked {
            // Copy the payload of the remaining frames, because software may overwrite it before they are sent.
            batch.settle();
            batch.reclaim();
        }
        for link in self.links.iter_mut().flatten() {
            self.stats.tx_calls += u64::from(link.publish());
        }
        sent
    }

    fn recv(&mut self, batch: &mut RxBatch) -> io::Result<()> {
        self.release(batch);
        let now = self.now();
        self.first = self.first.wrapping_add(1);
        for turn in 0..self.links.len() {
            let slot = self.first.wrapping_add(turn) % self.links.len();
            let before = batch.len();
            let Some(Some(link)) = self.links.get_mut(slot) else { continue };
            if !link.has_frames() {
                continue;
            }
            let taken = link.take(batch, MAX_FRAMES);
            if let Err(fault) = taken {
                self.unlink(slot, &fault);
                batch.retain_from(before, |_| false);
            }
            let (mut foreign_macs, mut foreign_ips) = (0, 0);
            batch.retain_from(before, |frame| {
                // The ring never carries a frame that is shorter than an Ethernet header.
                let Some(source) = Source::of(frame) else { return false };
                let admitted = self.admit(now, source, Owner::Link(slot));
                foreign_macs += u64::from(admitted == Err(Foreign::Mac));
                foreign_ips += u64::from(admitted == Err(Foreign::Ip));
                admitted.is_ok()
            });
            let admitted = (batch.len() - before) as u64;
            self.stats.rx_frames += admitted;
            self.stats.rx_foreign_mac += foreign_macs;
            self.stats.rx_foreign_ip += foreign_ips;
            if let Some(Some(link)) = self.links.get_mut(slot) {
                link.counters.rx_frames += admitted;
                link.counters.rx_foreign_mac += foreign_macs;
                link.counters.rx_foreign_ip += foreign_ips;
            }
        }
        Ok(())
    }

    fn release(&mut self, batch: &mut RxBatch) {
        batch.clear();
        self.links.iter_mut().flatten().for_each(Link::release);
    }

    fn takes_detached_payload(&self) -> bool {
        true
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn handle_ready(&mut self) -> io::Result<()> {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(MAX_EVENTS);
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&at_once)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        // Handle links, which have the highest tokens, before new connections. When a member reconnects, its old link
        // is then removed before the new one is added.
        events.sort_unstable_by_key(|event| std::cmp::Reverse(event.data.u64()));
        for token in events.iter().map(|event| event.data.u64()) {
            let slot = |first| usize::try_from(token - first).unwrap_or(usize::MAX);
            match token {
                token::LINKS.. => self.drain_wakeups(slot(token::LINKS)),
                token::CALLERS.. => self.receive_hello(slot(token::CALLERS)),
                token::LISTENER => self.accept(),
            }
        }
        Ok(())
    }

    fn retry_after(&self) -> Option<Duration> {
        self.full_since.map(|since| self.full_timeout.saturating_sub(since.elapsed()))
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

    fn enable_wakeups(&mut self) -> bool {
        self.links.iter_mut().flatten().all(Link::enable_wakeups)
    }

    fn disable_wakeups(&mut self) {
        self.links.iter_mut().flatten().for_each(Link::disable_wakeups);
    }

    fn stats(&mut self) -> FabricStats {
        self.stats
    }

    fn members(&self) -> Option<Vec<MemberRow>> {
        let row = |(slot, link): (usize, &Option<Link>)| {
            let behind = self.macs.iter().filter(|(_, owner)| *owner == Owner::Link(slot));
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
