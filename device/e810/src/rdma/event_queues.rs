//! Event queues. Each vector in use has a completion event queue (CEQ), whose entries identify the CQs that have new
//! completions. The device has one asynchronous event queue (AEQ).
//!
//! # Spec
//! E810 interface, sections 12.4, 12.6 and 14.1.

use std::collections::BTreeMap;

use card::limited;
use card::telemetry::monitor::Monitor;
use protocol::hca::e810::rdma::error::{CqpError, CqpErrorCode};
use protocol::hca::e810::rdma::event_queue::{AsyncEvent, CompletionEvent, CreateAeq, CreateCeq, DestroyCeq};
use protocol::hca::e810::rdma::page_list::ListLevel;

use super::dispatch::{Done, Outcome};
use super::hmc::Pages;
use super::ring::{EntryRing, Location};
use super::trace;
use crate::limits::MAX_CEQS;
use crate::vectors::Cause;

#[derive(Debug, Default)]
pub(in super::super) struct EventQueues {
    /// CEQs by number, at most [`MAX_CEQS`].
    ceqs: BTreeMap<u16, EntryRing<{ CompletionEvent::LEN }>>,
    aeq: Option<AsyncQueue>,
    /// Bitmap of CEQs with new entries.
    fired: u16,
    /// Set if the AEQ has received new entries.
    async_fired: bool,
}

const _: () = assert!(MAX_CEQS as u32 <= u16::BITS);

#[derive(Debug)]
struct AsyncQueue {
    ring: EntryRing<{ AsyncEvent::LEN }>,
    /// Number of entries that software has not acknowledged yet.
    unread: u32,
    /// Set when an event is lost because the ring is full.
    lost: bool,
}

impl EventQueues {
    /// Executes "Create CEQ".
    ///
    /// # Errors
    /// Fails if the number is out of range, the CEQ already exists, or the ring parameters are invalid.
    pub(super) fn create_ceq(&mut self, command: &CreateCeq) -> Outcome {
        if command.ceq >= MAX_CEQS {
            return Err(CqpError::invalid("completion event queue", command.ceq.into()));
        }
        if self.ceqs.contains_key(&command.ceq) {
            return Err(CqpError::new(CqpErrorCode::Exists, "completion event queue", command.ceq.into()));
        }
        let location = Location::new(command.in_pages, ListLevel::One, command.ring, command.first_page)?;
        self.ceqs.insert(command.ceq, EntryRing::new(location, command.entries)?);
        Ok(Done::Plain)
    }

    /// Executes "Destroy CEQ".
    ///
    /// # Errors
    /// Fails if the CEQ does not exist.
    pub(super) fn destroy_ceq(&mut self, command: &DestroyCeq) -> Outcome {
        let was = self.ceqs.remove(&command.ceq);
        was.map(|_| Done::Plain).ok_or(CqpError::no_object("completion event queue", command.ceq.into()))
    }

    /// Executes "Create AEQ".
    ///
    /// # Errors
    /// Fails if the AEQ already exists, or the ring parameters are invalid.
    pub(super) fn create_aeq(&mut self, command: &CreateAeq) -> Outcome {
        if self.aeq.is_some() {
            return Err(CqpError::new(CqpErrorCode::Exists, "asynchronous event queue", 0));
        }
        let location = Location::new(command.in_pages, ListLevel::One, command.ring, command.first_page)?;
        self.aeq =
            Some(AsyncQueue { ring: EntryRing::new(location, command.entries)?, unread: 0, lost: false });
        Ok(Done::Plain)
    }

    /// Executes "Destroy AEQ".
    ///
    /// # Errors
    /// Fails if the AEQ does not exist.
    pub(super) fn destroy_aeq(&mut self) -> Outcome {
        self.aeq.take().map(|_| Done::Plain).ok_or(CqpError::no_object("asynchronous event queue", 0))
    }

    pub(super) fn has_ceq(&self, ceq: u16) -> bool {
        self.ceqs.contains_key(&ceq)
    }

    /// Writes a completion event with an armed CQ's cookie. The valid bit replaces the top bit of the cookie. Returns
    /// false if the event is lost.
    pub(super) fn notify(&mut self, pages: Pages<'_>, monitor: &mut Monitor, ceq: u16, cookie: u64) -> bool {
        // Software may destroy a CEQ before the CQs that report to it. Their events are then dropped.
        let Some(ring) = self.ceqs.get_mut(&ceq) else { return false };
        let event = CompletionEvent { cookie, valid: false };
        let pushed = ring.push(pages, event.emit());
        trace::completion_event(monitor, ceq, cookie, pushed.is_err());
        match pushed {
            Ok(()) => self.fired |= 1 << ceq,
            Err(_) => limited!(warn, ceq, "completion event lost: the CEQ is not in mapped memory"),
        }
        pushed.is_ok()
    }

    /// Returns a tuple for each event queue, CEQs first: the number (`None` for the AEQ), the ring size in
    /// entries, the number of entries written, and whether events were lost.
    pub(super) fn rings(&self) -> impl Iterator<Item = (Option<u16>, u32, u32, bool)> {
        let ceqs = self.ceqs.iter().map(|(ceq, ring)| (Some(*ceq), ring.entries(), ring.written(), false));
        let aeq = self.aeq.iter().map(|queue| (None, queue.ring.entries(), queue.ring.written(), queue.lost));
        ceqs.chain(aeq)
    }

    /// Writes an asynchronous event. If the AEQ does not exist or is full, the event is dropped.
    pub(super) fn report(&mut self, pages: Pages<'_>, monitor: &mut Monitor, event: &AsyncEvent) {
        let Some(queue) = &mut self.aeq else { return };
        if queue.unread >= queue.ring.entries() {
            queue.lost = true;
            trace::async_event(monitor, event, true);
            return limited!(warn, ?event, "asynchronous event lost: the AEQ is full");
        }
        let pushed = queue.ring.push(pages, event.emit());
        trace::async_event(monitor, event, pushed.is_err());
        match pushed {
            Ok(()) => {
                queue.unread += 1;
                self.async_fired = true;
            }
            Err(_) => limited!(warn, ?event, "asynchronous event lost: the AEQ is not in mapped memory"),
        }
    }

    /// Returns the number of AEQ entries that software has not acknowledged yet.
    pub(super) fn unread(&self) -> u32 {
        self.aeq.as_ref().map_or(0, |queue| queue.unread)
    }

    /// Handles the acknowledgement of `count` AEQ entries.
    pub(super) const fn return_credits(&mut self, count: u32) {
        if let Some(queue) = &mut self.aeq {
            queue.unread = queue.unread.saturating_sub(count);
        }
    }

    /// Returns the interrupt causes of the queues that have received entries since the last call.
    pub(super) fn take_causes(&mut self) -> impl Iterator<Item = Cause> + use<> {
        let fired = std::mem::take(&mut self.fired);
        let others = std::mem::take(&mut self.async_fired).then_some(Cause::AsyncEvent);
        (0..MAX_CEQS).filter(move |ceq| fired & 1 << ceq != 0).map(Cause::CompletionEvent).chain(others)
    }
}
