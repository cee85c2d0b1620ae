//! A completion queue: its ring, software's consumer index, and the arming state.
//!
//! Register writes are posted: software can arm the queue, find it empty and sleep before the device sees the write. If
//! the device writes a CQE in that interval, software expects an event for it, but the device has not received the arm
//! request yet. When the request arrives, the device checks for unread entries, and raises the event immediately if it
//! finds any. A spurious event is harmless.
//!
//! A CEQ has no consumer index, so a program that arms its CQ in a loop could overwrite the unread events of other CQs.
//! irdma acknowledges each event that it reads. Until then, the CQ holds back its next event. The CQ of the control
//! queue does not: irdma polls and arms it without waiting for its events, and arms it for one operation at a time.
//! Programs cannot arm it.
//!
//! # Spec
//! E810 interface, sections 12.1 to 12.5.

use card::frontend::snapshot::{self, CqRow};
use protocol::hca::e810::rdma::completion_queue::{CqCommand, CqShadow};
use protocol::hca::e810::rdma::cqe;
use protocol::hca::e810::rdma::error::CqpError;
use protocol::ids::{Cqn, Iova};

use super::hmc::Pages;
use super::queues::CONTROL_CQ;
use super::ring::{EntryRing, Location};

/// Condition for the next completion event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Armed {
    #[default]
    No,
    /// The next solicited completion, or the next completion with an error.
    Solicited,
    /// The next completion, solicited or not.
    Next,
}

/// A completion event to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CqNotification {
    /// CEQ to write to.
    pub(super) ceq: u16,
    /// Cookie of the CQ, which the event contains.
    pub(super) cookie: u64,
}

/// Reason why the CQ cannot accept entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CqFault {
    /// The ring is full.
    Overflow,
    /// The ring is not in mapped memory.
    Unreachable,
}

impl CqFault {
    /// Returns the name used in traces.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Overflow => "overflow",
            Self::Unreachable => "unreachable",
        }
    }
}

/// Error returned when a CQE is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PushError {
    pub(super) fault: CqFault,
    /// Whether this is the first lost CQE, which raises an asynchronous event.
    pub(super) first: bool,
}

#[derive(Debug)]
pub(super) struct CompletionQueue {
    cqn: Cqn,
    ring: EntryRing<{ cqe::LEN }>,
    shadow: Iova,
    ceq: Option<u16>,
    cookie: u64,
    /// Whether a full ring is an error. If false, the oldest entry is overwritten.
    check_overflow: bool,
    armed: Armed,
    /// Upper bound on the number of unread entries. The exact number is unknown, because the shadow area is
    /// read only when needed.
    unread: u32,
    /// Consumer index as of the last read of the shadow area.
    head: u32,
    /// Number of unread entries up to and including the newest solicited entry.
    unread_solicited: u32,
    /// Number of resizes so far, modulo 2^14.
    resizes: u16,
    /// Whether software acknowledges events. Events are not held back for software that does not.
    acknowledges: bool,
    /// Whether the last event is unacknowledged.
    unacknowledged: bool,
    /// Whether an event is held back until software acknowledges the last one.
    event_held: bool,
    fault: Option<CqFault>,
}

impl CompletionQueue {
    /// Creates an empty queue. `acknowledges` is set if software is known to acknowledge events.
    ///
    /// # Errors
    /// Fails if the ring parameters are invalid.
    pub(super) fn new(command: &CqCommand, acknowledges: bool) -> Result<Self, CqpError> {
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
            resizes: 0,
            acknowledges,
            unacknowledged: false,
            event_held: false,
            fault: None,
        })
    }

    pub(super) const fn cqn(&self) -> Cqn {
        self.cqn
    }

    /// Returns the row for the control socket. After a resize, the producer index counts entries of the new
    /// ring only.
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
                CqFault::Overflow => snapshot::Fault::Overrun,
                CqFault::Unreachable => snapshot::Fault::Access,
            }),
        }
    }

    /// Returns the CEQ that receives this queue's events, if any.
    pub(super) const fn ceq(&self) -> Option<u16> {
        self.ceq
    }

    /// Returns the index of the next entry to write.
    pub(super) const fn next(&self) -> u32 {
        self.ring.next()
    }

    pub(super) const fn cookie(&self) -> u64 {
        self.cookie
    }

    /// Switches to another ring. Software drains the old ring (section 12.5).
    ///
    /// # Errors
    /// Fails if the ring parameters are invalid, in which case the queue is unchanged.
    pub(super) fn resize(&mut self, command: &CqCommand) -> Result<(), CqpError> {
        const RESIZE_MASK: u16 = (1 << 14) - 1;
        self.ring = ring(command)?;
        if command.shadow.get() != 0 {
            self.shadow = command.shadow;
        }
        // irdma requests the overflow check when it creates a CQ. It leaves the bit clear in this operation, like those
        // of the CEQ, so the setting stays.
        self.check_overflow |= command.check_overflow;
        (self.unread, self.head, self.unread_solicited) = (0, 0, 0);
        self.resizes = self.resizes.wrapping_add(1) & RESIZE_MASK;
        Ok(())
    }

    /// Writes an entry, followed by `more` for an extended CQE. If `solicited` is set, the entry raises an
    /// event even if the queue is armed only for solicited completions. Returns the completion event to
    /// write, if one is due.
    ///
    /// # Errors
    /// Fails if the entry cannot be written. This entry and all later ones are lost.
    pub(super) fn push(
        &mut self,
        pages: Pages<'_>,
        entry: [u8; cqe::LEN],
        more: Option<[u8; cqe::LEN]>,
        solicited: bool,
    ) -> Result<Option<CqNotification>, PushError> {
        if let Some(fault) = self.fault {
            return Err(PushError { fault, first: false });
        }
        let count = 1 + u32::from(more.is_some());
        if self.check_overflow && !self.has_room(pages, count) {
            return Err(self.fail(CqFault::Overflow));
        }
        let written = match more {
            None => self.ring.push(pages, entry),
            Some(more) => self.ring.push_pair(pages, entry, more),
        };
        written.map_err(|_| self.fail(CqFault::Unreachable))?;
        self.unread = (self.unread + count).min(self.ring.entries());
        if solicited {
            self.unread_solicited = self.unread;
        }
        let due = match self.armed {
            Armed::No => false,
            Armed::Solicited => solicited,
            Armed::Next => true,
        };
        Ok(if due { self.notify() } else { None })
    }

    /// Handles an arm doorbell. Returns a completion event if an unread entry already satisfies the arm
    /// request.
    pub(super) fn arm(&mut self, pages: Pages<'_>) -> Option<CqNotification> {
        let shadow = self.read_shadow(pages)?;
        self.armed = match (shadow.arm_next, shadow.arm_solicited) {
            (true, _) => Armed::Next,
            (false, true) => Armed::Solicited,
            (false, false) => return None,
        };
        // Section 12.3: an unread entry may have been written while the arm request was in flight.
        let missed = match self.armed {
            // Software still uses the old ring, so its consumer index does not show whether the new ring has unread
            // entries. Raise the event anyway, as a spurious event is harmless.
            _ if shadow.moves != self.resizes => true,
            Armed::Next => self.unread != 0,
            Armed::Solicited => self.unread_solicited != 0,
            Armed::No => false,
        };
        if missed { self.notify() } else { None }
    }

    /// Handles the acknowledgement of the last event. Returns the event that was held back, if any.
    pub(super) fn acknowledge(&mut self) -> Option<CqNotification> {
        (self.acknowledges, self.unacknowledged) = (true, false);
        if std::mem::take(&mut self.event_held) { self.notify() } else { None }
    }

    /// Records that the last event was lost, so that software will not acknowledge it.
    pub(super) const fn event_lost(&mut self) {
        self.unacknowledged = false;
    }

    fn notify(&mut self) -> Option<CqNotification> {
        self.armed = Armed::No;
        let ceq = self.ceq?;
        if self.acknowledges && self.unacknowledged && self.cqn != CONTROL_CQ {
            self.event_held = true;
            return None;
        }
        self.unacknowledged = true;
        Some(CqNotification { ceq, cookie: self.cookie })
    }

    fn fail(&mut self, fault: CqFault) -> PushError {
        self.fault = Some(fault);
        PushError { fault, first: true }
    }

    /// Returns whether the ring has room for `count` entries. One slot always stays free so that a full ring can be
    /// distinguished from an empty one.
    fn has_room(&mut self, pages: Pages<'_>, count: u32) -> bool {
        // The consumer index in the shadow area wraps at the ring size, so it must be read at least once per pass over
        // the ring.
        if self.unread >= self.ring.entries() / 2 {
            self.read_shadow(pages);
        }
        self.unread + count < self.ring.entries()
    }

    /// Reads the shadow area and updates the consumer index.
    fn read_shadow(&mut self, pages: Pages<'_>) -> Option<CqShadow> {
        let mut bytes = [0; CqShadow::LEN];
        pages.dma().read(self.shadow, &mut bytes).ok()?;
        let shadow = CqShadow::parse(&bytes);
        let entries = self.ring.entries();
        // Until software has switched to the new ring, the index in the shadow area refers to the old ring.
        if shadow.moves == self.resizes && shadow.head < entries {
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
