//! Event queues: completion and asynchronous events, and the interrupts they raise.
//!
//! # Spec
//! mthca interface, sections 1.7, 2.4, 6.3, 7.7 and 7.8.

use std::collections::BTreeMap;

use protocol::hca::mthca::cmd::MapEq;
use protocol::hca::mthca::eqc::{Eqc, Interrupt};
use protocol::hca::mthca::eqe::Eqe;
use protocol::ids::Eqn;

use crate::frontend::hcr::entry_ring::{Buffer, CountedRing, EntryRing, EventRing, WriteError};
use crate::memory::queue::QueueMemory;

/// Types of events: bits of the mask of MAP_EQ.
const TYPES: usize = 64;

/// The valid event queues of a device.
#[derive(Debug)]
pub struct EventQueues {
    /// Bound: INIT_HCA refuses more than 2^6.
    queues: BTreeMap<u32, EventQueue>,
    /// Who takes events of a type. A queue may have been destroyed since.
    takers: [Option<Eqn>; TYPES],
}

impl Default for EventQueues {
    fn default() -> Self {
        Self { queues: BTreeMap::new(), takers: [None; TYPES] }
    }
}

impl EventQueues {
    /// The queue with a number, if it is valid, to be changed.
    pub fn get_mut(&mut self, eqn: Eqn) -> Option<&mut EventQueue> {
        self.queues.get_mut(&eqn.get())
    }

    /// The queue with a number, if it is valid.
    pub fn get(&self, eqn: Eqn) -> Option<&EventQueue> {
        self.queues.get(&eqn.get())
    }

    /// Whether the queue with a number is valid.
    pub fn contains(&self, eqn: Eqn) -> bool {
        self.queues.contains_key(&eqn.get())
    }

    /// Valid queues by ascending number, from one on.
    pub fn iter_from(&self, first: u32) -> impl Iterator<Item = (u32, &EventQueue)> {
        self.queues.range(first..).map(|(index, queue)| (*index, queue))
    }

    /// Makes a queue valid.
    pub fn insert(&mut self, eqn: Eqn, queue: EventQueue) {
        self.queues.insert(eqn.get(), queue);
    }

    /// Makes a queue invalid; it takes no events any more. `None` if it was not valid.
    pub fn remove(&mut self, eqn: Eqn) -> Option<EventQueue> {
        self.takers.iter_mut().filter(|taker| **taker == Some(eqn)).for_each(|taker| *taker = None);
        self.queues.remove(&eqn.get())
    }

    /// Moves types of events to a queue, or takes them from it (MAP_EQ).
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

    /// The queue that takes events of a type.
    pub fn taker(&self, event: &Eqe) -> Option<Eqn> {
        self.takers.get(usize::from(event.event_type())).copied().flatten()
    }

    /// Bit t: asynchronous events of type t go to this queue.
    pub fn mask(&self, eqn: Eqn) -> u64 {
        let taken = self.takers.iter().enumerate().filter(|(_, taker)| **taker == Some(eqn));
        taken.fold(0, |mask, (event_type, _)| mask | 1 << event_type)
    }
}

/// An event queue.
#[derive(Debug)]
pub struct EventQueue {
    events: EventRing<CountedRing>,
    interrupt: Interrupt,
    /// The next event interrupts.
    armed: bool,
}

impl EventQueue {
    /// The queue of a SW2HW_EQ, armed.
    pub fn new(eqc: &Eqc) -> Self {
        let buffer = Buffer { pd: eqc.pd, lkey: eqc.lkey, start: eqc.start, log_entries: eqc.log_entries };
        let events = EventRing::new(CountedRing::new(buffer));
        Self { events, interrupt: eqc.interrupt, armed: true }
    }

    /// Its buffer and place.
    pub fn ring(&self) -> &EntryRing {
        self.events.ring.ring()
    }

    /// Entries software has read, modulo 2^32, as far as it told.
    pub fn consumer(&self) -> u32 {
        self.ring().producer().wrapping_sub(self.events.ring.unread())
    }

    /// Whether the next event interrupts.
    pub fn is_armed(&self) -> bool {
        self.armed
    }

    /// How it interrupts.
    pub fn interrupt(&self) -> Interrupt {
        self.interrupt
    }

    /// Whether events were lost that software has not been told of.
    pub fn overflowed(&self) -> bool {
        self.events.overflowed()
    }

    /// Takes over how far software has read.
    pub fn set_consumer(&mut self, consumer: u32) {
        self.events.ring.set_consumer(consumer);
    }

    /// Asks for an interrupt at the next event. Returns the interrupt if software has not read all there is.
    #[must_use]
    pub fn arm(&mut self) -> Option<Interrupt> {
        self.armed = self.events.ring.unread() == 0;
        (!self.armed).then_some(self.interrupt)
    }

    /// Writes an event. Returns the interrupt to raise, if any.
    ///
    /// # Errors
    /// The event is lost. If the queue was full, software finds an entry that says so in front of the next one that
    /// fits.
    pub fn push(&mut self, event: &Eqe, mem: &impl QueueMemory) -> Result<Option<Interrupt>, WriteError> {
        self.events.push(&event.emit(), &Eqe::EqOverflow.emit(), mem)?;
        Ok(std::mem::take(&mut self.armed).then_some(self.interrupt))
    }
}
