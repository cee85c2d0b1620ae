//! A completion queue: its ring, how far software is in it, and whether it waits to be told of the next entry.
//!
//! Stores to registers are posted: software can arm, find the queue empty and go to sleep before the device sees the store.
//! An entry that comes in between is behind the arm in the device's eyes and in front of it in software's. So an arm finds
//! out whether there is anything software has not read, and if so tells at once. One event too many does no harm.
//!
//! # Spec
//! E810 interface, sections 12.1 to 12.5.

use protocol::hca::e810::rdma::completion_queue::{CqCommand, CqShadow};
use protocol::hca::e810::rdma::cqe;
use protocol::hca::e810::rdma::error::CqpError;
use protocol::ids::{Cqn, Iova};

use super::hmc::Pages;
use super::ring::{EntryRing, Location};
use crate::frontend::snapshot::{self, CqRow};

/// What software waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Armed {
    #[default]
    No,
    /// An entry whose sender wants it to be noticed, or of a failure.
    Solicited,
    /// Any entry.
    Next,
}

/// Software is to be told by this event queue, with this cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Notice {
    /// The event queue.
    pub(super) ceq: u16,
    /// What the event carries.
    pub(super) cookie: u64,
}

/// Why an entry is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Software has not read enough.
    Overflow,
    /// The ring is not there.
    Unreachable,
}

impl Fault {
    /// Its word in a trace.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Overflow => "overflow",
            Self::Unreachable => "unreachable",
        }
    }
}

/// An entry was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lost {
    /// Why.
    pub(super) fault: Fault,
    /// None was lost before it.
    pub(super) first: bool,
}

/// One completion queue.
#[derive(Debug)]
pub(super) struct CompletionQueue {
    cqn: Cqn,
    ring: EntryRing<{ cqe::LEN }>,
    shadow: Iova,
    ceq: Option<u16>,
    cookie: u64,
    /// Being full is an error; otherwise the oldest entry goes.
    check_overflow: bool,
    armed: Armed,
    /// Entries of this ring that software may not have read. Its own count can be behind, never ahead.
    unread: u32,
    /// Entry that software reads next, when it was looked at last.
    head: u32,
    /// How many of the unread entries there are up to the newest that is to be noticed.
    unread_solicited: u32,
    /// Rings before this one, modulo 2^14.
    moves: u16,
    fault: Option<Fault>,
}

impl CompletionQueue {
    /// An empty queue.
    ///
    /// # Errors
    /// No ring is like that.
    pub(super) fn new(command: &CqCommand) -> Result<Self, CqpError> {
        Ok(Self {
            cqn: command.cqn,
            ring: ring(command)?,
            shadow: command.shadow,
            ceq: command.ceq_valid.then_some(command.ceq),
            cookie: command.cookie,
            check_overflow: command.check_overflow,
            armed: Armed::No,
            unread: 0,
            head: 0,
            unread_solicited: 0,
            moves: 0,
            fault: None,
        })
    }

    /// Its number.
    pub(super) const fn cqn(&self) -> Cqn {
        self.cqn
    }

    /// As an operator sees it. Of a ring that replaced another it has that one's entries alone.
    pub(super) fn row(&self) -> CqRow {
        CqRow {
            cqn: self.cqn.get(),
            entries: self.ring.entries().into(),
            producer: self.ring.written(),
            armed: match self.armed {
                Armed::No => snapshot::Armed::No,
                Armed::Solicited => snapshot::Armed::Solicited,
                Armed::Next => snapshot::Armed::Any,
            },
            eqn: self.ceq.unwrap_or_default().into(),
            fault: self.fault.map(|fault| match fault {
                Fault::Overflow => snapshot::Fault::Overrun,
                Fault::Unreachable => snapshot::Fault::Access,
            }),
        }
    }

    /// The event queue that it reports to.
    pub(super) const fn ceq(&self) -> Option<u16> {
        self.ceq
    }

    /// The entry that is written next.
    pub(super) const fn next(&self) -> u32 {
        self.ring.next()
    }

    /// What events about it carry.
    pub(super) const fn cookie(&self) -> u64 {
        self.cookie
    }

    /// Moves to another ring. What is in the old one stays there for software.
    ///
    /// # Errors
    /// No ring is like that; nothing has changed.
    pub(super) fn resize(&mut self, command: &CqCommand) -> Result<(), CqpError> {
        const MOVES: u16 = (1 << 14) - 1;
        self.ring = ring(command)?;
        if command.shadow.get() != 0 {
            self.shadow = command.shadow;
        }
        self.check_overflow = command.check_overflow;
        (self.unread, self.head, self.unread_solicited) = (0, 0, 0);
        self.moves = self.moves.wrapping_add(1) & MOVES;
        Ok(())
    }

    /// Writes an entry, with another one behind it if it takes two. `noticed`: also who waits for what is solicited is
    /// told. Whom to tell.
    ///
    /// # Errors
    /// The entry is lost, and so is every further one.
    pub(super) fn push(
        &mut self,
        pages: Pages<'_>,
        entry: [u8; cqe::LEN],
        more: Option<[u8; cqe::LEN]>,
        noticed: bool,
    ) -> Result<Option<Notice>, Lost> {
        if let Some(fault) = self.fault {
            return Err(Lost { fault, first: false });
        }
        let taken = 1 + u32::from(more.is_some());
        if self.check_overflow && !self.has_room(pages, taken) {
            return Err(self.fail(Fault::Overflow));
        }
        let written = match more {
            None => self.ring.push(pages, entry),
            Some(more) => self.ring.push_pair(pages, entry, more),
        };
        written.map_err(|_| self.fail(Fault::Unreachable))?;
        self.unread = (self.unread + taken).min(self.ring.entries());
        if noticed {
            self.unread_solicited = self.unread;
        }
        let tell = match self.armed {
            Armed::No => false,
            Armed::Solicited => noticed,
            Armed::Next => true,
        };
        Ok(if tell { self.tell() } else { None })
    }

    /// Software has armed the queue. Whom to tell at once.
    pub(super) fn arm(&mut self, pages: Pages<'_>) -> Option<Notice> {
        let shadow = self.look(pages)?;
        self.armed = match (shadow.arm_next, shadow.arm_solicited) {
            (true, _) => Armed::Next,
            (false, true) => Armed::Solicited,
            (false, false) => return None,
        };
        let missed = match self.armed {
            _ if shadow.moves != self.moves => true,
            Armed::Next => self.unread != 0,
            Armed::Solicited => self.unread_solicited != 0,
            Armed::No => false,
        };
        if missed { self.tell() } else { None }
    }

    fn tell(&mut self) -> Option<Notice> {
        self.armed = Armed::No;
        Some(Notice { ceq: self.ceq?, cookie: self.cookie })
    }

    fn fail(&mut self, fault: Fault) -> Lost {
        self.fault = Some(fault);
        Lost { fault, first: true }
    }

    /// Whether so many entries more leave one that is free, by which full and empty differ.
    fn has_room(&mut self, pages: Pages<'_>, taken: u32) -> bool {
        // Software's position counts modulo the length of the ring: it is looked at before it can come around.
        if self.unread >= self.ring.entries() / 2 {
            self.look(pages);
        }
        self.unread + taken < self.ring.entries()
    }

    /// Learns how far software is.
    fn look(&mut self, pages: Pages<'_>) -> Option<CqShadow> {
        let mut bytes = [0; CqShadow::LEN];
        pages.dma().read(self.shadow, &mut bytes).ok()?;
        let shadow = CqShadow::parse(&bytes);
        let entries = self.ring.entries();
        // Until software has followed to this ring it counts in another.
        if shadow.moves == self.moves && shadow.head < entries {
            let read = (shadow.head + entries - self.head) % entries;
            self.head = shadow.head;
            self.unread = self.unread.saturating_sub(read);
            self.unread_solicited = self.unread_solicited.saturating_sub(read);
        }
        Some(shadow)
    }
}

fn ring(command: &CqCommand) -> Result<EntryRing<{ cqe::LEN }>, CqpError> {
    let location = Location::new(command.in_pages, command.level, command.ring, command.first_page)?;
    EntryRing::new(location, command.entries)
}
