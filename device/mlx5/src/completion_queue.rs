//! Completion queues: contexts, entries, arming and resizing.
//!
//! # Spec
//! mlx5 interface, section 9.

use card::frontend::arm_sequence::ArmSequence;
use card::frontend::snapshot::{Armed, CqRow, Fault};
use card::memory::GuestMemory;
use engine::AccessError;
use protocol::hca::mlx5::cq::{CqContext, CqFields, CqeSize, ModifyCq};
use protocol::hca::mlx5::cqe::{self, Cqe};
use protocol::hca::mlx5::doorbell::{ArmCq, CqRecord};
use protocol::ids::{Cqn, Eqn, Iova, UarIndex};
use thiserror::Error;

use super::buffer::QueueBuffer;
use super::check::{Check, Rejection};
use super::delayed_events::MAX_DELAYED_ENTRIES;
use super::umem::Umems;
use super::uses::{Object, Used};

/// Mask for the 24-bit indices in contexts, doorbells and doorbell records.
const INDEX: u32 = 0xff_ffff;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("completion lost: {fault}")]
pub struct LostEntry {
    pub fault: Fault,
    /// Whether this is the queue's first loss. Only the first loss raises an event. Later entries are lost as well,
    /// because the queue no longer accepts any.
    pub first: bool,
}

/// An entry to write, with the properties that determine whether and when it raises an event.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub cqe: Cqe,
    /// Whether the entry is solicited or reports a failure.
    pub solicited: bool,
    /// Whether the event must not be delayed, even if the queue is moderated.
    pub urgent: bool,
}

/// When to write an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventTime {
    /// The queue has an urgent entry or is not moderated.
    Now,
    /// The queue has too many unread entries to delay the event further.
    Full,
    /// The event can be delayed. The queue stays armed until the event is written.
    Delayed,
}

#[derive(Debug)]
struct Ring {
    buffer: QueueBuffer,
    log_entries: u8,
}

impl Ring {
    const fn entries(&self) -> u32 {
        1 << self.log_entries
    }

    /// Writes `cqe` at the free-running index `index`.
    fn write(&self, index: u32, size: CqeSize, cqe: &Cqe, dma: &GuestMemory) -> Result<(), AccessError> {
        let entry = u64::from(index % self.entries()) * size.stride() as u64;
        let at = entry + size.fields_at() as u64;
        self.buffer.publish(dma, at, &cqe.emit(cqe::owner(index, self.log_entries)))
    }
}

#[derive(Debug)]
pub struct CompletionQueue {
    cqn: Cqn,
    context: CqContext,
    size: CqeSize,
    ring: Ring,
    /// Free-running index of the next entry.
    producer: u32,
    /// 24-bit consumer index, as last read from the doorbell record.
    consumer: u32,
    armed: Armed,
    /// Consumer index of the last arm request that took effect.
    armed_at: u32,
    /// Sequence number of the last arm request that took effect.
    arm_sequence: u8,
    /// Sequence number of the arm request that last led to an event.
    answered: Option<u8>,
    /// Index of the newest entry that is solicited or reports a failure.
    solicited: Option<u32>,
    /// Index of the newest urgent entry.
    urgent: Option<u32>,
    fault: Option<Fault>,
    /// The last arm request found in the doorbell record, if doorbells are polled.
    recorded_arm: Option<ArmCq>,
    /// Event counts for strict mode.
    pub sequence: ArmSequence,
    pub umems: Umems,
}

impl CompletionQueue {
    pub fn new(cqn: Cqn, context: CqContext, size: CqeSize, buffer: QueueBuffer) -> Self {
        Self {
            cqn,
            context,
            size,
            ring: Ring { buffer, log_entries: context.log_entries },
            producer: 0,
            consumer: 0,
            armed: Armed::No,
            armed_at: 0,
            arm_sequence: 0,
            answered: None,
            solicited: None,
            urgent: None,
            fault: None,
            recorded_arm: None,
            sequence: ArmSequence::new(0),
            umems: Umems::default(),
        }
    }

    /// Returns the length in bytes of a ring with `1 << log_entries` entries.
    pub const fn ring_len(size: CqeSize, log_entries: u8) -> u64 {
        (size.stride() as u64) << log_entries
    }

    /// Returns the context with the current indices.
    pub fn context(&self, dma: &GuestMemory) -> CqContext {
        let consumer = self.recorded(dma).unwrap_or(self.consumer);
        CqContext { consumer, producer: self.producer & INDEX, ..self.context }
    }

    pub const fn uar(&self) -> UarIndex {
        self.context.uar
    }

    pub const fn record(&self) -> Iova {
        self.context.record
    }

    /// Returns the doorbell record, or `None` if it is not accessible.
    pub fn read_record(&self, dma: &GuestMemory) -> Option<CqRecord> {
        let mut record = [0; CqRecord::LEN];
        dma.read(self.context.record, &mut record).ok()?;
        Some(CqRecord::parse(&record))
    }

    pub const fn entries(&self) -> u32 {
        self.ring.entries()
    }

    /// Returns whether the next entry would be lost because all entries are unread.
    pub fn is_full(&self, dma: &GuestMemory) -> bool {
        let CqContext { consumer, producer, ignore_overrun, .. } = self.context(dma);
        let unread = producer.wrapping_sub(consumer) & INDEX;
        self.fault.is_none() && !ignore_overrun && unread >= self.entries()
    }

    pub const fn eqn(&self) -> Eqn {
        self.context.eqn
    }

    pub const fn size(&self) -> CqeSize {
        self.size
    }

    /// Returns the free-running index of the next entry.
    pub const fn producer(&self) -> u32 {
        self.producer
    }

    pub fn pages(&self) -> usize {
        self.ring.buffer.pages()
    }

    pub fn uses(&self) -> Used {
        let mut used = self.umems.uses();
        used.extend([Object::Uar(self.uar().get()), Object::Eq(self.eqn().get())]);
        used
    }

    /// Returns the consumer index in the doorbell record, or `None` if the record is not accessible.
    fn recorded(&self, dma: &GuestMemory) -> Option<u32> {
        self.read_record(dma).map(|record| record.consumer)
    }

    const fn unread(&self) -> u32 {
        self.producer.wrapping_sub(self.consumer) & INDEX
    }

    /// Marks the doorbell record of a new queue as never armed. An inaccessible record stays unmarked, which is
    /// harmless because the device cannot poll it.
    pub fn mark_never_armed(&self, dma: &GuestMemory) {
        let [.., a, b, c, d] = CqRecord { never_armed: true, ..CqRecord::default() }.emit();
        let arm_word = Iova::new(self.context.record.get() | 4);
        let _ = dma.write(arm_word, &[a, b, c, d]);
    }

    /// Returns the arm request in the doorbell record, unless the previous poll returned the same request.
    pub fn rearmed(&mut self, dma: &GuestMemory) -> Option<ArmCq> {
        let record = self.read_record(dma).filter(|record| !record.never_armed)?;
        let CqRecord { sequence, solicited_only, armed_at, .. } = record;
        let arm = ArmCq { sequence, solicited_only, consumer: armed_at, cqn: self.cqn };
        (self.recorded_arm.replace(arm) != Some(arm)).then_some(arm)
    }

    /// Arms the queue for one event. If an unread entry of the requested kind already exists, returns the time at which
    /// the caller must raise the event.
    #[must_use]
    pub fn arm(&mut self, arm: &ArmCq) -> Option<EventTime> {
        // Section 9.2: a request has no effect while software has not received the event for its sequence number.
        // Otherwise, a program that arms in a loop would fill the EQ, which it shares with other programs.
        if self.answered == Some(arm.sequence) {
            return None;
        }
        self.arm_sequence = arm.sequence;
        self.armed_at = arm.consumer;
        // IBTA 11.4.2.2: a request for solicited completions does not replace one for any completion.
        let (armed, due) = match arm.solicited_only && self.armed != Armed::Any {
            false => (Armed::Any, self.producer & INDEX != arm.consumer),
            true => (Armed::Solicited, self.is_unread(self.solicited)),
        };
        self.armed = armed;
        due.then(|| self.event_time())
    }

    /// Returns whether the entry at this index was unread when the queue was last armed, or was written afterwards.
    fn is_unread(&self, index: Option<u32>) -> bool {
        // An entry that has been overwritten cannot be unread. Without this check, an old entry would count as unread
        // once it is half of the 24-bit index space behind.
        let is_in_ring = |index: u32| self.producer.wrapping_sub(index) <= self.ring.entries();
        index.is_some_and(|index| is_in_ring(index) && index.wrapping_sub(self.armed_at) & INDEX < 1 << 23)
    }

    /// Returns the time at which to write the event for the unread entries.
    fn event_time(&self) -> EventTime {
        let CqContext { moderation_period, moderation_count, .. } = self.context;
        let unread = self.producer.wrapping_sub(self.armed_at) & INDEX;
        let is_moderated = moderation_period > 0 && moderation_count != 1;
        if !is_moderated || self.is_unread(self.urgent) {
            EventTime::Now
        } else if unread < MAX_DELAYED_ENTRIES {
            EventTime::Delayed
        } else {
            EventTime::Full
        }
    }

    /// Returns whether the queue is armed and has an entry that raises its event.
    pub fn has_due_event(&self) -> bool {
        match self.armed {
            Armed::Any => self.producer & INDEX != self.armed_at,
            Armed::Solicited => self.is_unread(self.solicited),
            Armed::No => false,
        }
    }

    /// Disarms the queue. Called immediately before its event is written.
    pub fn disarm(&mut self) {
        self.armed = Armed::No;
    }

    /// Records that an event was written to the EQ at this free-running index.
    pub fn event_written(&mut self, place: u32) {
        self.answered = Some(self.arm_sequence);
        self.sequence.event_written(place);
    }

    /// Writes an entry. If it raises an event, returns the time at which the event must be written.
    ///
    /// # Errors
    /// Fails if the queue is full, has already lost an entry, or has an inaccessible ring. The entry is then lost.
    pub fn push(&mut self, entry: &Entry, dma: &GuestMemory) -> Result<Option<EventTime>, LostEntry> {
        let Entry { cqe, solicited, urgent } = entry;
        if let Some(fault) = self.fault {
            return Err(LostEntry { fault, first: false });
        }
        if let Err(fault) = self.write(cqe, dma) {
            self.fault = Some(fault);
            return Err(LostEntry { fault, first: true });
        }
        if *solicited {
            self.solicited = Some(self.producer);
        }
        if *urgent {
            self.urgent = Some(self.producer);
        }
        self.producer = self.producer.wrapping_add(1);
        let fires = match self.armed {
            Armed::Any => true,
            Armed::Solicited => *solicited,
            Armed::No => false,
        };
        Ok(fires.then(|| self.event_time()))
    }

    fn write(&mut self, cqe: &Cqe, dma: &GuestMemory) -> Result<(), Fault> {
        if !self.has_room(dma) && !self.context.ignore_overrun {
            return Err(Fault::Overrun);
        }
        self.ring.write(self.producer, self.size, cqe, dma).map_err(|_| Fault::Access)
    }

    /// Returns whether the ring has a free entry. Reads the doorbell record only if the ring is full according to the
    /// last known consumer index.
    fn has_room(&mut self, dma: &GuestMemory) -> bool {
        if self.unread() >= self.ring.entries()
            && let Some(consumer) = self.recorded(dma)
        {
            self.consumer = consumer;
        }
        self.unread() < self.ring.entries()
    }

    /// Changes the moderation settings and the ignore-overrun setting.
    pub fn moderate(&mut self, modify: &ModifyCq) {
        let (fields, new) = (modify.fields, &modify.context);
        if fields.contains(CqFields::PERIOD) {
            self.context.moderation_period = new.moderation_period;
        }
        if fields.contains(CqFields::COUNT) {
            self.context.moderation_count = new.moderation_count;
        }
        if fields.contains(CqFields::IGNORE_OVERRUN) {
            self.context.ignore_overrun = new.ignore_overrun;
        }
        if fields.contains(CqFields::PERIOD_MODE) {
            self.context.period_mode = new.period_mode;
        }
    }

    /// Moves the queue to a new ring. The producer index is not reset. Since the resize entry occupies one index, the
    /// driver moves unread entry i of the old ring to index i + 1 of the new ring.
    ///
    /// # Errors
    /// Fails if the unread entries do not fit in the new ring, the old ring has no room for the resize entry, or the
    /// queue's memory is not accessible. In each case, the queue continues to use the old ring.
    pub fn resize(
        &mut self,
        new: &CqContext,
        buffer: QueueBuffer,
        dma: &GuestMemory,
    ) -> Result<(), Rejection> {
        let inaccessible = || Check::CqRecordAccess.rejects(self.context.record.get());
        self.consumer = self.recorded(dma).ok_or_else(inaccessible)?;
        let unread = self.unread();
        // Section 20, M-30: the new ring must have room for the unread entries and one more.
        if unread >= 1 << new.log_entries {
            return Err(Check::CqUnread.rejects(unread));
        }
        if unread >= self.ring.entries() {
            return Err(Check::CqFull.rejects(unread));
        }
        let written = self.ring.write(self.producer, self.size, &Cqe::Resize, dma);
        written.map_err(|_| Check::CqRingAccess.rejects(self.cqn.get()))?;
        self.producer = self.producer.wrapping_add(1);
        // Software counts the resize entry as read. The consumer index of the next arm request includes it.
        self.armed_at = self.armed_at.wrapping_add(1) & INDEX;
        self.solicited = self.solicited.map(|index| index.wrapping_add(1));
        self.urgent = self.urgent.map(|index| index.wrapping_add(1));
        self.ring = Ring { buffer, log_entries: new.log_entries };
        self.context.log_entries = new.log_entries;
        self.context.page_offset = new.page_offset;
        self.context.log_page_size = new.log_page_size;
        Ok(())
    }

    pub fn row(&self) -> CqRow {
        CqRow {
            cqn: self.cqn.get(),
            entries: self.entries().into(),
            producer: self.producer,
            armed: self.armed,
            eqn: self.eqn().get(),
            fault: self.fault,
        }
    }
}

#[cfg(test)]
mod tests {
    use card::memory::testing::guest_memory;
    use protocol::hca::mlx5::input::Pages;
    use protocol::ids::{Iova, Qpn, UserIndex};

    use super::*;
    use crate::buffer::Placement;

    /// Address of the doorbell record, in page 2. The initial ring is in page 0, and a resize moves it to page 1.
    const RECORD: Iova = Iova::new(0x2000);

    fn ring(page: u64, log_entries: u8) -> QueueBuffer {
        let len = CompletionQueue::ring_len(CqeSize::Bytes64, log_entries);
        let place = Placement { log_page_size: 0, page_offset: 0 };
        QueueBuffer::new(Pages::parse(&(page << 12).to_be_bytes()), place, len).unwrap()
    }

    fn queue(log_entries: u8) -> CompletionQueue {
        let context = CqContext { log_entries, record: RECORD, ..CqContext::default() };
        CompletionQueue::new(Cqn::new(0x40), context, CqeSize::Bytes64, ring(0, log_entries))
    }

    fn sent(wqe_counter: u16) -> Entry {
        let sent = cqe::Sent {
            wqe_opcode: 0xa,
            qpn: Qpn::new(0x80),
            user_index: UserIndex::NONE,
            wqe_counter,
            byte_count: 0,
            timestamp: 0,
        };
        Entry { cqe: Cqe::Sent(sent), solicited: false, urgent: true }
    }

    fn solicited(wqe_counter: u16) -> Entry {
        Entry { solicited: true, ..sent(wqe_counter) }
    }

    fn arm(consumer: u32, solicited_only: bool) -> ArmCq {
        ArmCq { sequence: 0, solicited_only, consumer, cqn: Cqn::new(0x40) }
    }

    fn numbered(sequence: u8) -> ArmCq {
        ArmCq { sequence, ..arm(0, false) }
    }

    fn consume(dma: &GuestMemory, consumer: u32) {
        dma.write(RECORD, &consumer.to_be_bytes()).unwrap();
    }

    fn last_byte(dma: &GuestMemory, at: u64) -> u8 {
        let mut byte = [0];
        dma.read(Iova::new(at + 63), &mut byte).unwrap();
        byte[0]
    }

    #[test]
    fn arming_cq_with_unread_entry_raises_event_immediately() {
        let dma = guest_memory(0, 3);
        let mut queue = queue(4);
        assert_eq!(queue.arm(&arm(0, false)), None);
        assert_eq!(queue.push(&sent(0), &dma), Ok(Some(EventTime::Now)));
        queue.disarm();
        assert_eq!(queue.push(&sent(1), &dma), Ok(None), "each arm request raises only one event");
        assert_eq!(queue.arm(&arm(1, false)), Some(EventTime::Now), "entry 1 is unread");
        assert_eq!(queue.arm(&arm(2, false)), None);
    }

    #[test]
    fn cq_armed_for_solicited_ignores_unsolicited_entries() {
        let dma = guest_memory(0, 3);
        let mut queue = queue(4);
        assert_eq!(queue.arm(&arm(0, true)), None);
        assert_eq!(queue.push(&sent(0), &dma), Ok(None));
        assert_eq!(queue.push(&solicited(1), &dma), Ok(Some(EventTime::Now)));
        queue.disarm();
        assert_eq!(queue.arm(&arm(1, true)), Some(EventTime::Now), "entry 1 is solicited and unread");
        assert_eq!(queue.arm(&arm(2, true)), None);
        assert_eq!(queue.arm(&arm(1, false)), Some(EventTime::Now));
    }

    #[test]
    fn solicited_request_does_not_replace_any_request() {
        let dma = guest_memory(0, 3);
        let mut queue = queue(4);
        assert_eq!(
            [queue.arm(&arm(0, true)), queue.arm(&arm(0, false)), queue.arm(&arm(0, true))],
            [None; 3]
        );
        assert_eq!(queue.push(&sent(0), &dma), Ok(Some(EventTime::Now)));
        queue.disarm();
        assert_eq!(queue.arm(&arm(1, true)), None);
        assert_eq!(queue.push(&sent(1), &dma), Ok(None), "the event has ended the first request");
    }

    #[test]
    fn overwritten_solicited_entry_does_not_raise_event() {
        let dma = guest_memory(0, 3);
        let mut queue = queue(4);
        assert_eq!(queue.push(&solicited(0), &dma), Ok(None));
        assert_eq!(queue.arm(&arm(0, true)), Some(EventTime::Now));
        queue.disarm();
        queue.producer = 3 << 22;
        assert_eq!(queue.arm(&arm(queue.producer, true)), None);
    }

    #[test]
    fn rearming_with_used_sequence_number_has_no_effect() {
        let dma = guest_memory(0, 3);
        let mut queue = queue(4);
        assert_eq!(queue.arm(&numbered(0)), None);
        assert_eq!(queue.push(&sent(0), &dma), Ok(Some(EventTime::Now)));
        queue.disarm();
        queue.event_written(0);
        assert_eq!(queue.arm(&numbered(0)), None, "software has not received the event yet");
        assert_eq!(queue.push(&sent(1), &dma), Ok(None));
        assert_eq!(queue.arm(&numbered(1)), Some(EventTime::Now), "software has received the event");
        queue.event_written(1);
        assert_eq!(queue.arm(&numbered(1)), None);
        assert_eq!(queue.arm(&numbered(0)), Some(EventTime::Now), "the number has wrapped");
    }

    #[test]
    fn arming_after_lost_event_raises_event() {
        let dma = guest_memory(0, 3);
        let mut queue = queue(4);
        assert_eq!(queue.arm(&numbered(0)), None);
        assert_eq!(queue.push(&sent(0), &dma), Ok(Some(EventTime::Now)));
        queue.disarm();
        assert_eq!(queue.arm(&numbered(0)), Some(EventTime::Now), "the event was not written");
    }

    #[test]
    fn moderated_cq_delays_event_until_urgent_entry() {
        let dma = guest_memory(0, 3);
        let mut queue = queue(4);
        queue.context.moderation_period = 16;
        let delayable = |number| Entry { urgent: false, ..sent(number) };
        assert_eq!(queue.arm(&arm(0, false)), None);
        assert_eq!(queue.push(&delayable(0), &dma), Ok(Some(EventTime::Delayed)));
        assert!(queue.has_due_event());
        assert_eq!(queue.push(&sent(1), &dma), Ok(Some(EventTime::Now)));
        queue.disarm();
        assert_eq!(queue.arm(&arm(1, false)), Some(EventTime::Now), "the urgent entry is unread");
        queue.disarm();
        assert_eq!(queue.arm(&arm(2, false)), None);
        assert_eq!(queue.push(&delayable(2), &dma), Ok(Some(EventTime::Delayed)));
        assert_eq!(queue.arm(&arm(3, false)), None, "software has polled the entry");
        assert!(!queue.has_due_event());
    }

    #[test]
    fn moderated_cq_delays_event_until_entry_limit() {
        let dma = guest_memory(0, 3);
        let mut queue = queue(4);
        queue.context.moderation_period = 16;
        assert_eq!(queue.arm(&arm(0, false)), None);
        for number in 1..=MAX_DELAYED_ENTRIES {
            let expected = if number < MAX_DELAYED_ENTRIES { EventTime::Delayed } else { EventTime::Full };
            let entry = Entry { urgent: false, ..sent(0) };
            assert_eq!(queue.push(&entry, &dma), Ok(Some(expected)), "{number} unread entries");
        }
        queue.disarm();
        assert_eq!(queue.arm(&arm(3, false)), Some(EventTime::Delayed), "one entry is unread");
    }

    #[test]
    fn cq_overrun_is_permanent() {
        let dma = guest_memory(0, 3);
        let mut queue = queue(1);
        for number in 0..2 {
            assert_eq!(queue.push(&sent(number), &dma), Ok(None));
        }
        consume(&dma, 1);
        assert_eq!(queue.push(&sent(2), &dma), Ok(None), "the consumer index has advanced");
        assert_eq!(last_byte(&dma, 0) & 1, 1, "second lap");
        let lost = |first| Err(LostEntry { fault: Fault::Overrun, first });
        assert_eq!(queue.push(&sent(3), &dma), lost(true));
        consume(&dma, 3);
        assert_eq!(queue.push(&sent(3), &dma), lost(false));
    }

    /// Section 9.5: the resize entry is the last entry of the old ring.
    #[test]
    fn resize_writes_resize_cqe_at_end_of_old_ring() {
        let dma = guest_memory(0, 3);
        let mut queue = queue(2);
        for number in 0..2 {
            queue.push(&sent(number), &dma).unwrap();
        }
        let smaller = CqContext { log_entries: 1, ..CqContext::default() };
        let rejection = queue.resize(&smaller, ring(1, 1), &dma).unwrap_err();
        assert_eq!((rejection.check, rejection.check.status().code()), (Check::CqUnread, 0x40));
        let larger = CqContext { log_entries: 3, ..CqContext::default() };
        queue.resize(&larger, ring(1, 3), &dma).unwrap();
        assert_eq!(last_byte(&dma, 128), 0x50, "opcode 5 at index 2 of the old ring");
        queue.push(&sent(3), &dma).unwrap();
        assert_eq!((queue.producer(), last_byte(&dma, 0x1000 + 3 * 64)), (4, 0));
        assert_eq!(queue.context(&dma).log_entries, 3);
    }

    /// Section 9.5: the driver moves old entry i to new index i + 1.
    #[test]
    fn unread_entry_raises_event_after_resize() {
        let dma = guest_memory(0, 3);
        let mut queue = queue(2);
        queue.push(&solicited(0), &dma).unwrap();
        let larger = CqContext { log_entries: 3, ..CqContext::default() };
        queue.resize(&larger, ring(1, 3), &dma).unwrap();
        assert_eq!(queue.arm(&arm(1, true)), Some(EventTime::Now), "the moved entry is unread");
        queue.disarm();
        assert_eq!(queue.arm(&arm(2, true)), None, "the moved entry is read");
    }

    /// The resize entry itself raises no event.
    #[test]
    fn resize_of_empty_armed_cq_raises_no_event() {
        let dma = guest_memory(0, 3);
        let mut queue = queue(2);
        assert_eq!(queue.arm(&arm(0, false)), None);
        let larger = CqContext { log_entries: 3, ..CqContext::default() };
        queue.resize(&larger, ring(1, 3), &dma).unwrap();
        assert!(!queue.has_due_event());
        assert_eq!(queue.push(&sent(0), &dma), Ok(Some(EventTime::Now)));
    }

    #[test]
    fn full_cq_cannot_be_resized() {
        let dma = guest_memory(0, 3);
        let mut queue = queue(1);
        for number in 0..2 {
            queue.push(&sent(number), &dma).unwrap();
        }
        let larger = CqContext { log_entries: 3, ..CqContext::default() };
        assert_eq!(queue.resize(&larger, ring(1, 3), &dma).unwrap_err().check, Check::CqFull);
        assert_eq!(queue.producer(), 2);
    }
}
