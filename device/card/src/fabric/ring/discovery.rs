//! How the members of a ring find each other and create links.
//!
//! A message to a member is sent to the socket named after the member's MAC, and only that member can read it. Each
//! call and each answer carries a token. Only the member that received the token can echo it in a later message. A
//! connecting member is trusted only after it has echoed a token:
//!
//! ```text
//! newcomer -> member's socket     call, token a
//! member   -> newcomer's socket   answer, token b, echoes token a
//! ```
//!
//! The answer authenticates the member to the newcomer. If the newcomer has the larger MAC, it creates the shared
//! memory and sends it with token b. Otherwise, it calls again, echoing token b and adding a new token, and the
//! member creates the shared memory. If two members call each other concurrently, the member with the larger MAC still
//! creates the memory, and they end up with one link. Once a member has proved its MAC, its new link replaces any
//! existing link to that MAC.

use std::collections::HashSet;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Instant;

use protocol::ids::MacAddr;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::hello::{self, Hello, HelloError, Kind, Message};
use super::link::{Link, LinkError};
use super::memory::RingLen;
use super::tokens::Token;
use super::{MAX_CALLERS, RingFabric, share, token, watch};
use crate::identity::Identity;
use crate::limited;

/// Maximum number of members called in one partial scan. The next scan continues after them.
const CALLS: usize = 128;

/// Suffix that follows the MAC in a socket name.
const SUFFIX: &str = ".ring";

/// How many members a scan calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scan {
    /// Calls every member in the directory. Used when this member joins.
    Full,
    /// Calls at most [`CALLS`] members, continuing where the last scan ended.
    Partial,
}

/// Returns the path of a member's socket.
pub fn socket_path(folder: &Path, mac: MacAddr) -> PathBuf {
    let digits: String = mac.0.iter().map(|byte| format!("{byte:02x}")).collect();
    folder.join(digits + SUFFIX)
}

/// Returns the MAC of the member whose socket is called `name`.
pub(super) fn member(name: &str) -> Option<MacAddr> {
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

/// Connects without blocking. If the member's socket does not accept the connection, the member is called again later.
pub(super) fn connect(path: &Path) -> Result<UnixStream, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

impl RingFabric {
    /// Sends a call to all unlinked members in the directory.
    pub(super) fn scan(&mut self, scan: Scan) {
        self.scanned = Instant::now();
        let linked: HashSet<MacAddr> = self.linked().chain([self.own.mac]).collect();
        let entries = match std::fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) => {
                limited!(warn, folder = %self.folder.display(), %error, "cannot read the ring directory");
                return;
            }
        };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let mut found: Vec<MacAddr> =
            names.filter_map(|name| member(&name)).filter(|mac| !linked.contains(mac)).collect();
        if scan == Scan::Partial && found.len() > CALLS {
            // Killed members leave their sockets in the directory, possibly thousands of them. Each scan continues
            // where the last one ended so that dead sockets do not hide live members.
            found.sort_unstable_by_key(|mac| mac.0);
            let start = self.scanned_to.map_or(0, |last| found.partition_point(|mac| mac.0 <= last.0));
            found.rotate_left(start);
            found.truncate(CALLS);
            self.scanned_to = found.last().copied();
        }
        for mac in found {
            self.send_message(mac, Message::Call, None);
        }
    }

    fn send_message(&mut self, mac: MacAddr, message: Message<'_>, answered: Option<Token>) {
        let Some(socket) = self.connect_to(mac) else { return };
        let token = self.tokens.make(mac);
        if let Err(error) = hello::send(&socket, &self.own, message, [token, answered]) {
            limited!(warn, %mac, %error, "cannot send a hello message to a ring member");
        }
    }

    fn connect_to(&self, mac: MacAddr) -> Option<UnixStream> {
        match connect(&socket_path(&self.folder, mac)) {
            Ok(socket) => Some(socket),
            // The other member was killed or has left. When it returns, it calls this member.
            Err(Errno::CONNREFUSED | Errno::NOENT) => None,
            Err(error) => {
                limited!(warn, %mac, %error, "cannot connect to a ring member");
                None
            }
        }
    }

    pub(super) fn accept(&mut self) {
        // Accept no more connections per turn than there are slots.
        for _ in 0..MAX_CALLERS {
            let socket = match self.listener.accept() {
                Ok(Some(socket)) => socket,
                Ok(None) => return,
                Err(error) => {
                    limited!(warn, %error, "cannot accept connections from ring members");
                    return self.reject_caller();
                }
            };
            let slot = self.next_caller;
            self.next_caller = (slot + 1) % MAX_CALLERS;
            if watch(&self.epoll, &socket, token::CALLERS + slot as u64).is_ok() {
                self.callers[slot] = Some(socket);
                self.receive_hello(slot);
            }
        }
    }

    /// Closes a pending connection when no descriptors are left. Otherwise, the listener would stay ready, and the
    /// thread would never sleep. The rejected member connects again when it sends to an unknown MAC.
    fn reject_caller(&mut self) {
        if self.spare.take().is_some() {
            let _ = self.listener.accept();
        }
        self.spare = self.epoll.try_clone().ok();
    }

    pub(super) fn receive_hello(&mut self, slot: usize) {
        let Some(socket) = &self.callers[slot] else { return };
        let received = hello::receive(socket);
        if matches!(received, Ok(None)) {
            return;
        }
        let Some(socket) = self.callers[slot].take() else { return };
        let _ = epoll::delete(&self.epoll, &socket);
        match received {
            Ok(Some(hello)) => {
                let mac = hello.from.mac;
                if let Err(reason) = self.handle_hello(socket, hello) {
                    self.stats.rings_broken += 1;
                    limited!(warn, %mac, reason, "rejected a connection from a ring member");
                }
            }
            Ok(None) | Err(HelloError::Closed) => {}
            Err(error) => {
                self.stats.rings_broken += 1;
                limited!(warn, %error, "rejected a connection from a ring member");
            }
        }
    }

    fn handle_hello(&mut self, socket: UnixStream, hello: Hello) -> Result<(), String> {
        let Hello { from, token, answered, kind } = hello;
        let mac = from.mac;
        if mac == self.own.mac || mac.is_multicast() {
            return Err("the peer uses the MAC of this device or a multicast MAC".to_owned());
        }
        let proven = self.tokens.proves(mac, answered);
        match kind {
            Kind::Memory { .. } if !proven => {
                Err("the peer has not proved that it owns the socket for its MAC".to_owned())
            }
            // The member with the smaller MAC never creates memory.
            Kind::Memory { .. } if mac.0 < self.own.mac.0 => {
                Err("only the member with the larger MAC may create the shared memory".to_owned())
            }
            Kind::Memory { len, memfd } => {
                let (producer, consumer) = share::take(memfd, len).map_err(|error| error.to_string())?;
                self.tokens.spend(mac, answered);
                self.replace(Link::new(mac, socket, producer, consumer), &from)
                    .map_err(|error| error.to_string())
            }
            // A message that crossed this answer has already created the link.
            Kind::Answer if self.linked().any(|other| other == mac) => Ok(()),
            // The sender must first prove that it owns the MAC. Until then, an existing link to that MAC stays in
            // place.
            Kind::Call | Kind::Answer if !proven => {
                self.send_message(mac, Message::Answer, token);
                Ok(())
            }
            // The other member has the larger MAC. It creates the memory once this member has called it again.
            Kind::Call | Kind::Answer if self.own.mac.0 < mac.0 => {
                self.send_message(mac, Message::Call, token);
                Ok(())
            }
            Kind::Call | Kind::Answer => self.hand_over(&from, token).map_err(|error| error.to_string()),
        }
    }

    /// Creates shared memory and sends it to a member that has proved its MAC.
    fn hand_over(&mut self, member: &Identity, answered: Option<Token>) -> std::io::Result<()> {
        let mac = member.mac;
        let Some(socket) = self.connect_to(mac) else { return Ok(()) };
        let (memfd, producer, consumer) = share::make(RingLen::DEFAULT)?;
        hello::send(&socket, &self.own, Message::Memory(memfd.as_fd()), [None, answered])?;
        self.tokens.revoke(mac);
        self.replace(Link::new(mac, socket, producer, consumer), member)
    }

    /// Adds a link, replacing any previous link to the same member.
    fn replace(&mut self, link: Link, member: &Identity) -> std::io::Result<()> {
        let is_of = |other: &Option<Link>| other.as_ref().is_some_and(|other| other.mac() == link.mac());
        if let Some(slot) = self.links.iter().position(is_of) {
            self.unlink(slot, &LinkError::Closed);
        }
        self.link(link, member)
    }
}
