//! Event queues: completion and asynchronous events, and the interrupts they raise.
//!
//! # Spec
//! JingZhao interface, sections 3.9, 3.10, 8.2, 8.3 and 8.5.

use std::collections::BTreeMap;

use card::memory::queue::QueueMemory;
use hcr::entry_ring::{Buffer, EventRing, OwnedRing, WriteError};
use protocol::hca::jingzhao::cmd::MapEq;
use protocol::hca::jingzhao::eqc::Eqc;
use protocol::hca::jingzhao::eqe::{Eqe, EventType};

use super::queue_start::offset;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arm {
    /// Events do not raise interrupts.
    Disarmed,
    /// The next event raises an interrupt.
    Once,
    /// Every event raises an interrupt until software first uses the ARM_EQ doorbell. A queue whose context is armed
    /// starts in this state, since the public driver never uses that doorbell.
    UntilFirstDoorbell,
}

/// Position of an entry in an event queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EqSlot {
    pub eqn: u32,
    /// Free-running index of the entry, modulo 2^32.
    pub slot: u32,
}

/// Valid event queues of a device, by index.
#[derive(Debug, Default)]
pub struct EventQueues {
    /// At most 2^8 queues, since INIT_HCA rejects larger tables.
    queues: BTreeMap<u32, EventQueue>,
}

impl EventQueues {
    pub fn get_mut(&mut self, index: u32) -> Option<&mut EventQueue> {
        self.queues.get_mut(&index)
    }

    pub fn contains(&self, index: u32) -> bool {
        self.queues.contains_key(&index)
    }

    /// Returns the valid queues in ascending order of index, starting at `first`.
    pub fn iter_from(&self, first: u32) -> impl Iterator<Item = (u32, &EventQueue)> {
        self.queues.range(first..).map(|(index, queue)| (*index, queue))
    }

    /// Adds a queue, replacing any existing queue with the same index.
    pub fn insert(&mut self, index: u32, queue: EventQueue) {
        self.queues.insert(index, queue);
    }

    /// Removes a queue and its mask. Returns `None` if the queue was not valid.
    pub fn remove(&mut self, index: u32) -> Option<EventQueue> {
        self.queues.remove(&index)
    }

    /// Writes an asynchronous event to the lowest-numbered queue whose mask contains the event's type, or drops the
    /// event if no such queue exists. Returns the position of the event and the result of [`EventQueue::push`].
    pub fn raise(
        &mut self,
        event: &Eqe,
        mem: &impl QueueMemory,
    ) -> (Option<EqSlot>, Result<Option<u16>, WriteError>) {
        match self.queues.iter_mut().find(|(_, queue)| queue.accepts(event.event_type())) {
            Some((eqn, queue)) => {
                let place = EqSlot { eqn: *eqn, slot: queue.producer() };
                (Some(place), queue.push(event, mem))
            }
            None => (None, Ok(None)),
        }
    }
}

#[derive(Debug)]
pub struct EventQueue {
    ring: EventRing<OwnedRing>,
    msix_vector: u16,
    arm: Arm,
    /// Mask of asynchronous events: bit t for type t.
    mask: u64,
}

impl EventQueue {
    /// Creates the queue that SW2HW_EQ describes. Its mask is empty until MAP_EQ.
    pub fn new(eqc: &Eqc, mem: &impl QueueMemory) -> Self {
        Self {
            ring: EventRing::new(OwnedRing::new(buffer(eqc, mem), eqc.producer_index, mem)),
            msix_vector: eqc.msix_vector,
            arm: if eqc.flags.armed() { Arm::UntilFirstDoorbell } else { Arm::Disarmed },
            mask: 0,
        }
    }

    /// Adds or removes event types (MAP_EQ).
    pub fn map(&mut self, map: &MapEq) {
        if map.remove {
            self.mask &= !map.events;
        } else {
            self.mask |= map.events;
        }
    }

    pub fn accepts(&self, event: EventType) -> bool {
        self.mask & event.mask() != 0
    }

    pub fn buffer(&self) -> &Buffer {
        self.ring.ring.buffer()
    }

    pub fn entries(&self) -> u64 {
        self.ring.ring.entries()
    }

    /// Returns the free-running producer index, modulo 2^32.
    pub fn producer(&self) -> u32 {
        self.ring.ring.producer()
    }

    pub fn is_armed(&self) -> bool {
        self.arm != Arm::Disarmed
    }

    pub fn msix_vector(&self) -> u16 {
        self.msix_vector
    }

    pub fn mask(&self) -> u64 {
        self.mask
    }

    /// Returns whether the overflow event for lost events is still pending.
    pub fn overflowed(&self) -> bool {
        self.ring.overflowed()
    }

    /// Requests an interrupt for the next event (ARM_EQ).
    pub fn arm(&mut self) {
        self.arm = Arm::Once;
    }

    /// Writes an event. Returns the MSI-X vector to raise, if any.
    ///
    /// # Errors
    /// Fails if the event cannot be written. The event is then lost. If the queue was full, EQ_OVERFLOW precedes the
    /// next event that fits.
    pub fn push(&mut self, event: &Eqe, mem: &impl QueueMemory) -> Result<Option<u16>, WriteError> {
        self.ring.push(&event.emit(), &Eqe::EqOverflow.emit(), mem)?;
        match self.arm {
            Arm::Disarmed => Ok(None),
            Arm::Once => {
                self.arm = Arm::Disarmed;
                Ok(Some(self.msix_vector))
            }
            Arm::UntilFirstDoorbell => Ok(Some(self.msix_vector)),
        }
    }
}

/// Returns the buffer that a context describes. If the start is outside the region, no entry can be written.
pub(super) fn buffer(eqc: &Eqc, mem: &impl QueueMemory) -> Buffer {
    let start = offset(eqc.start, eqc.log_entries, eqc.lkey, mem).unwrap_or(eqc.start);
    Buffer { pd: eqc.pd, lkey: eqc.lkey, start, log_entries: eqc.log_entries }
}

#[cfg(test)]
mod tests {
    use card::memory::queue::testing::Region;
    use protocol::hca::jingzhao::cqe::{HARDWARE_OWNED, OWNER};
    use protocol::hca::jingzhao::eqc::EqFlags;
    use protocol::hca::jingzhao::eqe::{LEN, QpEvent};
    use protocol::ids::{Cqn, Eqn, Lkey, Pdn, Qpn};

    use super::*;

    const EVENT: Eqe = Eqe::Completion { cqn: Cqn::new(7) };

    /// Creates a two-entry queue that starts 64 bytes into its region.
    fn queue(armed: bool) -> (Region, EventQueue) {
        let mem = Region::new(64 + 2 * LEN);
        (0..2).for_each(|slot| reap(&mem, slot));
        let queue = EventQueue::new(&eqc(armed), &mem);
        (mem, queue)
    }

    fn eqc(armed: bool) -> Eqc {
        Eqc {
            flags: EqFlags::new().with_armed(armed),
            start: 64,
            log_entries: 1,
            msix_vector: 9,
            pd: Pdn::new(3),
            lkey: Lkey::new(0x21),
            consumer_index: 0,
            producer_index: 0,
        }
    }

    fn reap(mem: &Region, slot: usize) {
        mem.put(64 + slot * LEN + OWNER, &[HARDWARE_OWNED]);
    }

    fn entry(mem: &Region, slot: usize) -> Option<Eqe> {
        Eqe::parse(&mem.get(64 + slot * LEN))
    }

    #[test]
    fn events_wrap_around_ring() {
        let (mem, mut eq) = queue(false);
        for number in 0..5 {
            let event = Eqe::Qp { qpn: Qpn::new(number), event: QpEvent::SqDrained };
            assert_eq!(eq.push(&event, &mem), Ok(None));
            assert_eq!(entry(&mem, number as usize % 2), Some(event));
            reap(&mem, number as usize % 2);
        }
    }

    /// The document defines a queue's start as an address (table 3-2-28). The device also accepts an offset.
    #[test]
    fn queue_start_may_be_address_or_offset() {
        const START: u64 = 0x7f00_0000_1000;
        for start in [START + 64, 64] {
            let (mut mem, _) = queue(true);
            mem.start = START;
            let eqc = Eqc { start, ..eqc(true) };
            let mut eq = EventQueue::new(&eqc, &mem);
            assert_eq!(eq.push(&EVENT, &mem), Ok(Some(9)), "start {start:#x}");
            assert_eq!(entry(&mem, 0), Some(EVENT));
        }
        let (mut mem, _) = queue(true);
        mem.start = START;
        let mut eq = EventQueue::new(&Eqc { start: START + 0x1000, ..eqc(true) }, &mem);
        assert!(matches!(eq.push(&EVENT, &mem), Err(WriteError::Access(_))));
    }

    #[test]
    fn eq_armed_by_context_interrupts_on_every_event() {
        let (mem, mut eq) = queue(true);
        assert_eq!(eq.push(&EVENT, &mem), Ok(Some(9)));
        assert_eq!(eq.push(&EVENT, &mem), Ok(Some(9)));
    }

    #[test]
    fn each_arm_doorbell_yields_one_interrupt() {
        let (mem, mut eq) = queue(true);
        eq.arm();
        assert_eq!(eq.push(&EVENT, &mem), Ok(Some(9)));
        assert_eq!(eq.push(&EVENT, &mem), Ok(None));
        reap(&mem, 0);
        eq.arm();
        assert_eq!(eq.push(&EVENT, &mem), Ok(Some(9)));
    }

    #[test]
    fn overflow_is_reported_when_space_returns() {
        let (mem, mut eq) = queue(true);
        let other = Eqe::PortChange { port: 1, active: false };
        (0..2).for_each(|_| assert!(eq.push(&EVENT, &mem).is_ok()));
        assert_eq!(eq.push(&other, &mem), Err(WriteError::Full));
        assert_eq!(eq.push(&other, &mem), Err(WriteError::Full));
        (0..2).for_each(|slot| reap(&mem, slot));
        assert_eq!(eq.push(&other, &mem), Ok(Some(9)));
        assert_eq!([entry(&mem, 0), entry(&mem, 1)], [Some(Eqe::EqOverflow), Some(other)]);
        (0..2).for_each(|slot| reap(&mem, slot));
        assert_eq!(eq.push(&EVENT, &mem), Ok(Some(9)));
        assert_eq!(entry(&mem, 0), Some(EVENT), "the overflow is reported only once");
    }

    #[test]
    fn overflow_entry_alone_raises_interrupt() {
        let (mem, mut eq) = queue(true);
        (0..2).for_each(|_| assert!(eq.push(&EVENT, &mem).is_ok()));
        assert_eq!(eq.push(&EVENT, &mem), Err(WriteError::Full));
        reap(&mem, 0);
        assert_eq!(eq.push(&EVENT, &mem), Ok(Some(9)));
        assert_eq!(entry(&mem, 0), Some(Eqe::EqOverflow));
        reap(&mem, 1);
        assert_eq!(eq.push(&EVENT, &mem), Ok(Some(9)));
        assert_eq!(entry(&mem, 1), Some(Eqe::EqOverflow), "the last event was lost as well");
    }

    #[test]
    fn push_to_unwritable_buffer_fails() {
        let (mem, mut eq) = queue(true);
        mem.read_only.set(true);
        assert!(matches!(eq.push(&EVENT, &mem), Err(WriteError::Access(_))));
    }

    #[test]
    fn event_goes_to_lowest_numbered_accepting_queue() {
        let (mem, idle) = queue(false);
        let mut queues = EventQueues::default();
        queues.insert(1, idle);
        for index in [5, 3] {
            let (_, mut queue) = queue(true);
            queue.map(&MapEq { eqn: Eqn::new(index), remove: false, events: 1 << 9 });
            queue.msix_vector = u16::try_from(index).unwrap();
            queues.insert(index, queue);
        }
        let port = Eqe::PortChange { port: 1, active: true };
        assert_eq!(queues.raise(&port, &mem), (Some(EqSlot { eqn: 3, slot: 0 }), Ok(Some(3))));
        assert_eq!(queues.raise(&Eqe::LocalCatastrophic, &mem), (None, Ok(None)));
        assert!(queues.remove(3).is_some() && !queues.contains(3));
        // All queues in this test share one buffer. Return its slot 0 to hardware.
        reap(&mem, 0);
        assert_eq!(queues.raise(&port, &mem), (Some(EqSlot { eqn: 5, slot: 0 }), Ok(Some(5))));
    }

    #[test]
    fn map_eq_adds_and_removes_event_types() {
        let (_, mut eq) = queue(false);
        assert!(!eq.accepts(EventType::PortChange));
        let map = MapEq { eqn: Eqn::new(0), remove: false, events: 1 << 9 | 1 << 4 };
        eq.map(&map);
        assert!(eq.accepts(EventType::PortChange) && eq.accepts(EventType::CqError));
        eq.map(&MapEq { remove: true, events: 1 << 9, ..map });
        assert!(!eq.accepts(EventType::PortChange) && eq.accepts(EventType::CqError));
    }
}
