//! Event queues: completion and asynchronous events, and the interrupts they raise.
//!
//! # Spec
//! mthca interface, sections 1.7, 2.4, 6.3, 7.7 and 7.8.

use std::collections::BTreeMap;

use card::memory::queue::QueueMemory;
use hcr::entry_ring::{Buffer, CountedRing, EntryRing, EventRing, WriteError};
use protocol::hca::mthca::cmd::MapEq;
use protocol::hca::mthca::eqc::{Eqc, Interrupt};
use protocol::hca::mthca::eqe::Eqe;
use protocol::ids::Eqn;

/// Number of event types: one for each bit of MAP_EQ's mask.
const TYPES: usize = 64;

/// The valid event queues of a device.
#[derive(Debug)]
pub struct EventQueues {
    /// At most 2^6 EQs, since INIT_HCA rejects a larger number.
    queues: BTreeMap<u32, EventQueue>,
    /// The valid EQ that each event type is mapped to, or `None` if the type is not mapped.
    takers: [Option<Eqn>; TYPES],
}

impl Default for EventQueues {
    fn default() -> Self {
        Self { queues: BTreeMap::new(), takers: [None; TYPES] }
    }
}

impl EventQueues {
    pub fn get_mut(&mut self, eqn: Eqn) -> Option<&mut EventQueue> {
        self.queues.get_mut(&eqn.get())
    }

    pub fn get(&self, eqn: Eqn) -> Option<&EventQueue> {
        self.queues.get(&eqn.get())
    }

    pub fn contains(&self, eqn: Eqn) -> bool {
        self.queues.contains_key(&eqn.get())
    }

    /// Returns the valid queues in ascending order of their numbers, starting at `first`.
    pub fn iter_from(&self, first: u32) -> impl Iterator<Item = (u32, &EventQueue)> {
        self.queues.range(first..).map(|(index, queue)| (*index, queue))
    }

    pub fn insert(&mut self, eqn: Eqn, queue: EventQueue) {
        self.queues.insert(eqn.get(), queue);
    }

    /// Removes a queue and unmaps all event types from it. Returns `None` if the queue was not valid.
    pub fn remove(&mut self, eqn: Eqn) -> Option<EventQueue> {
        self.takers.iter_mut().filter(|taker| **taker == Some(eqn)).for_each(|taker| *taker = None);
        self.queues.remove(&eqn.get())
    }

    /// Maps event types to a queue or unmaps them from it (MAP_EQ).
    pub fn map(&mut self, map: &MapEq) {
        for (event_type, taker) in self.takers.iter_mut().enumerate() {
            if map.events >> event_type & 1 == 0 {
                continue;
            }
            if !map.unmap {
                *taker = Some(map.eqn);
            } else if *taker == Some(map.eqn) {
                *taker = None;
            }
        }
    }

    /// Returns the queue that the event's type is mapped to.
    pub fn taker(&self, event: &Eqe) -> Option<Eqn> {
        self.takers.get(usize::from(event.event_type())).copied().flatten()
    }

    /// Returns the mask of asynchronous events mapped to this queue: bit t for type t.
    pub fn mask(&self, eqn: Eqn) -> u64 {
        let taken = self.takers.iter().enumerate().filter(|(_, taker)| **taker == Some(eqn));
        taken.fold(0, |mask, (event_type, _)| mask | 1 << event_type)
    }
}

#[derive(Debug)]
pub struct EventQueue {
    events: EventRing<CountedRing>,
    interrupt: Interrupt,
    /// Whether the next event raises an interrupt.
    armed: bool,
}

impl EventQueue {
    pub fn new(eqc: &Eqc) -> Self {
        let buffer = Buffer { pd: eqc.pd, lkey: eqc.lkey, start: eqc.start, log_entries: eqc.log_entries };
        let events = EventRing::new(CountedRing::new(buffer));
        Self { events, interrupt: eqc.interrupt, armed: true }
    }

    pub fn ring(&self) -> &EntryRing {
        self.events.ring.ring()
    }

    /// Returns the last reported consumer index, modulo 2^32.
    pub fn consumer(&self) -> u32 {
        self.ring().producer().wrapping_sub(self.events.ring.unread())
    }

    pub fn is_armed(&self) -> bool {
        self.armed
    }

    pub fn interrupt(&self) -> Interrupt {
        self.interrupt
    }

    /// Returns whether the overflow event for lost events is still pending.
    pub fn overflowed(&self) -> bool {
        self.events.overflowed()
    }

    pub fn set_consumer(&mut self, consumer: u32) {
        self.events.ring.set_consumer(consumer);
    }

    /// Arms the queue for the next event. If there are unread entries, returns the interrupt to raise immediately
    /// (section 7.8).
    #[must_use]
    pub fn arm(&mut self) -> Option<Interrupt> {
        self.armed = self.events.ring.unread() == 0;
        (!self.armed).then_some(self.interrupt)
    }

    /// Writes an event. Returns the interrupt to raise, if any.
    ///
    /// # Errors
    /// Fails if the event cannot be written. The event is then lost. If the queue was full, an overflow event precedes
    /// the next event that fits.
    pub fn push(&mut self, event: &Eqe, mem: &impl QueueMemory) -> Result<Option<Interrupt>, WriteError> {
        self.events.push(&event.emit(), &Eqe::EqOverflow.emit(), mem)?;
        Ok(std::mem::take(&mut self.armed).then_some(self.interrupt))
    }
}
