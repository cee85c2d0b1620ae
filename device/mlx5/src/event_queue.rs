//! Event queues: contexts, entries with an owner bit, and arming.
//!
//! # Spec
//! mlx5 interface, section 8.

use std::collections::{BTreeSet, VecDeque};

use card::memory::GuestMemory;
use engine::AccessError;
use protocol::hca::mlx5::eq::EqContext;
use protocol::hca::mlx5::eqe::{self, Eqe, EventMask};
use protocol::ids::Cqn;
use thiserror::Error;

use super::buffer::QueueBuffer;
use super::uses::{Object, Used};

/// Mask for the 24-bit indices in contexts and doorbells.
const INDEX: u32 = 0xff_ffff;
/// Maximum number of events other than completions that a full queue holds. The limit bounds the memory of a queue that
/// the driver does not read.
const MAX_HELD: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WriteError {
    #[error("the event queue is full")]
    Full,
    #[error("the event queue's ring is not accessible: {0}")]
    Access(AccessError),
}

#[derive(Debug)]
pub struct EventQueue {
    context: EqContext,
    mask: EventMask,
    buffer: QueueBuffer,
    /// Free-running index of the next entry to write.
    producer: u32,
    /// 24-bit consumer index, as last reported by the driver.
    consumer: u32,
    armed: bool,
    lost: bool,
    /// Events that have not been written because the ring was full.
    held: VecDeque<Eqe>,
    /// CQs whose completion event has not been written because the ring was full. They stay armed.
    held_cqs: BTreeSet<Cqn>,
}

impl EventQueue {
    pub fn new(context: EqContext, mask: EventMask, buffer: QueueBuffer) -> Self {
        Self {
            context,
            mask,
            buffer,
            producer: 0,
            consumer: 0,
            armed: false,
            lost: false,
            held: VecDeque::new(),
            held_cqs: BTreeSet::new(),
        }
    }

    /// Returns the length in bytes of the ring described by a context.
    pub const fn ring_len(context: &EqContext) -> u64 {
        (eqe::LEN as u64) << context.log_entries
    }

    pub const fn context(&self) -> EqContext {
        EqContext { consumer: self.consumer, producer: self.producer & INDEX, ..self.context }
    }

    pub const fn mask(&self) -> EventMask {
        self.mask
    }

    pub fn pages(&self) -> usize {
        self.buffer.pages()
    }

    pub fn uses(&self) -> Used {
        Used::from_slice(&[Object::Uar(self.context.uar.get())])
    }

    pub const fn entries(&self) -> u32 {
        1 << self.context.log_entries
    }

    pub const fn producer(&self) -> u32 {
        self.producer
    }

    /// Returns the free-running consumer index, as last reported by the driver.
    pub const fn consumer(&self) -> u32 {
        self.producer.wrapping_sub(self.unread())
    }

    /// Returns whether the next event raises an interrupt.
    pub const fn is_armed(&self) -> bool {
        self.armed
    }

    pub const fn has_lost(&self) -> bool {
        self.lost
    }

    pub const fn vector(&self) -> u16 {
        self.context.vector
    }

    const fn unread(&self) -> u32 {
        self.producer.wrapping_sub(self.consumer) & INDEX
    }

    pub fn set_consumer(&mut self, consumer: u32) {
        self.consumer = consumer;
    }

    /// Updates the consumer index. Arms the queue if all entries have been read; otherwise, returns the vector to raise
    /// immediately.
    #[must_use]
    pub fn arm(&mut self, consumer: u32) -> Option<u16> {
        self.set_consumer(consumer);
        self.armed = self.unread() == 0;
        (!self.armed).then_some(self.context.vector)
    }

    /// Holds an event if the ring is full. Returns whether the event is held. If so, it must not be written now.
    ///
    /// Section 8.2: the driver sizes its EQs for a fixed number of events, but any number of CQs can share an EQ. A
    /// program does not arm its CQ again before it has received an event, so it would wait forever for a lost one.
    pub fn hold(&mut self, event: &Eqe) -> bool {
        if !self.is_full() {
            return false;
        }
        match event {
            Eqe::Completion(cqn) => {
                self.held_cqs.insert(*cqn);
            }
            _ if self.held.len() < MAX_HELD => self.held.push_back(*event),
            _ => return false,
        }
        true
    }

    /// Removes and returns the next event that the queue holds, if the ring has room for it.
    pub fn take_held(&mut self) -> Option<Eqe> {
        if self.is_full() {
            return None;
        }
        self.held.pop_front().or_else(|| self.held_cqs.pop_first().map(Eqe::Completion))
    }

    /// Drops the completion event that the queue holds for a CQ. Called when the CQ is destroyed.
    pub fn cancel_held(&mut self, cqn: Cqn) {
        self.held_cqs.remove(&cqn);
    }

    /// Drops the events that the queue holds, except those of commands.
    pub fn drop_held(&mut self) {
        self.held.retain(|event| matches!(event, Eqe::Command(_)));
        self.held_cqs.clear();
    }

    /// Returns whether the ring is full. A ring of n entries holds at most n - 1 unread entries.
    const fn is_full(&self) -> bool {
        self.unread() >= self.entries().saturating_sub(1)
    }

    /// Writes an event. Returns the vector to raise, if any.
    ///
    /// # Errors
    /// Fails if the ring is full or not accessible. The event is then lost.
    pub fn push(&mut self, event: &Eqe, dma: &GuestMemory) -> Result<Option<u16>, WriteError> {
        let result = self.write(event, dma);
        self.lost |= result.is_err();
        result?;
        Ok(std::mem::take(&mut self.armed).then_some(self.context.vector))
    }

    fn write(&mut self, event: &Eqe, dma: &GuestMemory) -> Result<(), WriteError> {
        let entries = self.entries();
        if self.is_full() {
            return Err(WriteError::Full);
        }
        // Section 20, M-15: the owner bit is 0 on the first lap.
        let owner = self.producer >> self.context.log_entries & 1 != 0;
        let at = u64::from(self.producer % entries) * eqe::LEN as u64;
        self.buffer.publish(dma, at, &event.emit(owner)).map_err(WriteError::Access)?;
        self.producer = self.producer.wrapping_add(1);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use card::memory::testing::guest_memory;
    use protocol::hca::mlx5::input::Pages;
    use protocol::ids::{Cqn, Iova};

    use super::*;
    use crate::buffer::Placement;

    const EVENT: Eqe = Eqe::Completion(Cqn::new(0x40));

    fn queue(log_entries: u8) -> EventQueue {
        let context = EqContext { log_entries, vector: 3, ..EqContext::default() };
        let place = Placement { log_page_size: 0, page_offset: 0 };
        let list = [0; 8];
        let buffer = QueueBuffer::new(Pages::parse(&list), place, EventQueue::ring_len(&context));
        EventQueue::new(context, EventMask::COMMAND, buffer.unwrap())
    }

    fn owner(dma: &GuestMemory, entry: u64) -> u8 {
        let mut byte = [9];
        dma.read(Iova::new(entry * 64 + 63), &mut byte).unwrap();
        byte[0]
    }

    #[test]
    fn owner_bit_flips_every_lap() {
        let dma = guest_memory(0, 1);
        let mut queue = queue(1);
        for (number, expected) in [(0, 0), (1, 0), (2, 1), (3, 1), (4, 0)] {
            assert_eq!(queue.push(&EVENT, &dma), Ok(None));
            assert_eq!(owner(&dma, number % 2), expected, "entry {number}");
            queue.set_consumer(u32::try_from(number).unwrap() + 1);
        }
        assert_eq!((queue.context().producer, queue.context().consumer), (5, 5));
    }

    #[test]
    fn armed_eq_raises_one_interrupt() {
        let dma = guest_memory(0, 1);
        let mut queue = queue(4);
        assert_eq!(queue.push(&EVENT, &dma), Ok(None), "the queue is not armed yet");
        assert_eq!(queue.arm(0), Some(3), "arming with an unread entry raises an interrupt");
        assert_eq!(queue.push(&EVENT, &dma), Ok(None));
        assert_eq!(queue.arm(2), None);
        assert_eq!(queue.push(&EVENT, &dma), Ok(Some(3)));
        assert_eq!(queue.push(&EVENT, &dma), Ok(None));
    }

    #[test]
    fn eq_keeps_one_entry_free() {
        let dma = guest_memory(0, 1);
        let mut queue = queue(2);
        for _ in 0..3 {
            queue.push(&EVENT, &dma).unwrap();
        }
        assert_eq!(queue.push(&EVENT, &dma), Err(WriteError::Full));
        assert!(queue.has_lost());
        queue.set_consumer(1);
        queue.push(&EVENT, &dma).unwrap();
    }

    #[test]
    fn full_eq_holds_events_until_entries_are_read() {
        let dma = guest_memory(0, 1);
        let mut queue = queue(1);
        assert!(!queue.hold(&EVENT));
        queue.push(&EVENT, &dma).unwrap();
        for event in [EVENT, EVENT, Eqe::Command(1), Eqe::Command(2)] {
            assert!(queue.hold(&event));
        }
        assert_eq!((queue.take_held(), queue.has_lost()), (None, false));
        queue.set_consumer(1);
        assert_eq!(queue.take_held(), Some(Eqe::Command(1)));
        assert_eq!(queue.take_held(), Some(Eqe::Command(2)));
        assert_eq!(queue.take_held(), Some(EVENT), "a CQ has at most one event");
        assert_eq!(queue.take_held(), None);
        queue.set_consumer(0);
        assert!(queue.hold(&EVENT) && queue.hold(&Eqe::Command(3)));
        queue.drop_held();
        queue.set_consumer(1);
        assert_eq!((queue.take_held(), queue.take_held()), (Some(Eqe::Command(3)), None));
    }

    #[test]
    fn destroyed_cq_has_no_held_event() {
        let dma = guest_memory(0, 1);
        let mut queue = queue(1);
        queue.push(&EVENT, &dma).unwrap();
        assert!(queue.hold(&Eqe::Completion(Cqn::new(7))) && queue.hold(&Eqe::Completion(Cqn::new(8))));
        queue.cancel_held(Cqn::new(7));
        queue.set_consumer(1);
        assert_eq!((queue.take_held(), queue.take_held()), (Some(Eqe::Completion(Cqn::new(8))), None));
    }

    #[test]
    fn number_of_held_events_is_bounded() {
        let mut queue = queue(0);
        assert!((0..MAX_HELD).all(|_| queue.hold(&Eqe::Command(1))));
        assert!(!queue.hold(&Eqe::Command(1)));
        assert!(queue.hold(&EVENT), "the number of CQs bounds the number of completion events");
    }

    #[test]
    fn unmapped_ring_loses_events() {
        let dma = guest_memory(0x10_0000, 1);
        let mut queue = queue(2);
        assert_eq!(queue.push(&EVENT, &dma), Err(WriteError::Access(AccessError::Unmapped)));
        assert_eq!(queue.producer(), 0);
    }
}
