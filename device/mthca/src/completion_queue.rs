//! Completion queues.
//!
//! # Spec
//! mthca interface, sections 3.5 (RESIZE_CQ), 5.3, 6.4 and 7.6.

use card::frontend::arm_sequence::ArmSequence;
use card::frontend::snapshot::{Armed, CqRow};
use card::memory::queue::QueueMemory;
use hcr::entry_ring::{Buffer, CountedRing, EntryRing, Ring};
use hcr::notify::{CqError, Notifier, Notify};
use protocol::hca::mthca::cqc::{Cqc, ResizeCq};
use protocol::hca::mthca::cqe::Cqe;
use protocol::hca::mthca::doorbell::{ArmCq, ArmFor, RECORD_LEN};
use protocol::hca::status::{CmdError, CmdStatus};
use protocol::ids::{Cqn, Eqn};

/// A completion queue. Its entries have no phase bit; the consumer index comes from a doorbell record.
#[derive(Debug)]
pub struct CompletionQueue {
    cqn: Cqn,
    page: u32,
    consumer_record: u32,
    arm_record: u32,
    /// Ring of entries. Its consumer index is updated from the doorbell record only when needed.
    ring: CountedRing,
    /// Index of the newest entry that is solicited or reports a failure.
    solicited: Option<u32>,
    notifier: Notifier,
    /// Sequence number of the last arm request that took effect.
    arm_sequence: u8,
    /// Sequence number of the arm request that last led to an event.
    answered: Option<u8>,
    /// The last arm request found in the doorbell record, if doorbells are mapped.
    recorded: Option<ArmCq>,
    /// Event counts for strict mode.
    pub(super) sequence: ArmSequence,
}

impl CompletionQueue {
    /// Creates the queue that a SW2HW_CQ command describes. `cqn` includes the generation.
    pub fn new(cqn: Cqn, cqc: &Cqc) -> Self {
        let buffer = Buffer { pd: cqc.pd, lkey: cqc.lkey, start: cqc.start, log_entries: cqc.log_entries };
        Self {
            cqn,
            page: cqc.page,
            consumer_record: cqc.consumer_record,
            arm_record: cqc.arm_record,
            ring: CountedRing::new(buffer),
            solicited: None,
            notifier: Notifier::new(cqc.comp_eqn, Armed::No),
            arm_sequence: 0,
            answered: None,
            recorded: None,
            sequence: ArmSequence::new(1),
        }
    }

    pub fn cqn(&self) -> Cqn {
        self.cqn
    }

    /// Returns the UAR page that contains the queue's doorbells and records.
    pub fn page(&self) -> u32 {
        self.page
    }

    /// Returns the UAR page and index of the doorbell record that holds the consumer index.
    pub fn record(&self) -> (u32, u32) {
        (self.page, self.consumer_record)
    }

    /// Returns the index of the doorbell record that holds the arm state. The record is used only if doorbells are
    /// mapped, because the device may then miss arm doorbells.
    pub fn arm_record(&self) -> u32 {
        self.arm_record
    }

    pub fn ring(&self) -> &EntryRing {
        self.ring.ring()
    }

    pub fn eqn(&self) -> Eqn {
        self.notifier.eqn()
    }

    /// Returns whether an entry was lost. If so, the queue does not accept any more entries.
    pub fn is_broken(&self) -> bool {
        self.notifier.fault().is_some()
    }

    /// Switches to another buffer. The producer index does not change, because software moves unread entries to the
    /// same positions in the new buffer. `record` is the current consumer index.
    ///
    /// # Errors
    /// BAD_SIZE if the unread entries do not fit in the new buffer.
    pub fn resize(&mut self, resize: &ResizeCq, record: Option<u32>) -> Result<(), CmdError> {
        let mut ring = self.ring;
        record.into_iter().for_each(|consumer| ring.set_consumer(consumer));
        let ResizeCq { start, lkey, log_entries } = *resize;
        ring.move_to(Buffer { start, lkey, log_entries, ..*ring.ring().buffer() });
        let unread = ring.unread();
        if u64::from(unread) > ring.ring().entries() {
            return Err(CmdError::new(
                CmdStatus::BadSize,
                "new CQ buffer too small for unread entries:",
                unread.into(),
            ));
        }
        self.ring = ring;
        Ok(())
    }

    /// Returns the arm request in the doorbell record, or `None` if the record contains no request for this queue or
    /// still contains the last one. Section 5.3: software increments the sequence number for every event that it
    /// receives. An unchanged request therefore means that software has not received the last event yet.
    pub fn rearmed(&mut self, record: [u8; RECORD_LEN]) -> Option<ArmCq> {
        let arm = ArmCq::from_record(record)
            .filter(|arm| arm.arm_for.is_some() && arm.cqn.get() == self.cqn.get() & 0xff_ffff)?;
        let arm = ArmCq { cqn: self.cqn, ..arm };
        (self.recorded.replace(arm) != Some(arm)).then_some(arm)
    }

    /// Arms the queue. Section 7.6: if the queue already contains an unread entry of the requested kind, the event is
    /// raised immediately.
    pub fn arm(&mut self, arm: &ArmCq) -> Notify {
        let (armed, is_there) = match arm.arm_for {
            Some(ArmFor::Any) => (Armed::Any, self.ring.ring().producer() != arm.consumer),
            Some(ArmFor::Solicited) => {
                let ring = self.ring.ring();
                let is_unread = |newest| is_unread(newest, arm.consumer, ring.producer(), ring.entries());
                (Armed::Solicited, self.solicited.is_some_and(is_unread))
            }
            None => return Notify::No,
        };
        // Section 7.6: a request has no effect while software has not received the event for its sequence number.
        // Otherwise, a program that arms in a loop would fill the EQ, which it shares with other programs.
        if self.answered == Some(arm.sequence) {
            return Notify::No;
        }
        self.arm_sequence = arm.sequence;
        if is_there {
            return self.notifier.fire();
        }
        self.notifier.arm(armed);
        Notify::No
    }

    /// Records that an event was written to the EQ at this free-running index.
    pub fn event_written(&mut self, place: u32) {
        self.answered = Some(self.arm_sequence);
        self.sequence.event_written(place);
    }

    /// Writes an entry. For `solicited`, see [`hcr::verbs::is_solicited`]. `record` reads the consumer index and is
    /// called only if the ring appears to be full.
    ///
    /// # Errors
    /// The entry is lost if the queue is full or broken, or if its buffer cannot be written.
    pub fn push(
        &mut self,
        cqe: &Cqe,
        solicited: bool,
        mem: &impl QueueMemory,
        record: impl FnOnce() -> Option<u32>,
    ) -> Result<Notify, CqError> {
        if self.ring.is_full()
            && let Some(consumer) = record()
        {
            self.ring.set_consumer(consumer);
        }
        let place = self.ring.ring().producer();
        let notify = self.notifier.push(solicited, || self.ring.push(&cqe.emit(), mem))?;
        if solicited {
            self.solicited = Some(place);
        }
        Ok(notify)
    }

    pub fn row(&self) -> CqRow {
        CqRow {
            cqn: self.cqn.get(),
            entries: self.ring.ring().entries(),
            producer: self.ring.ring().producer(),
            armed: self.notifier.armed(),
            eqn: self.notifier.eqn().get(),
            fault: self.notifier.fault(),
        }
    }
}

/// Returns whether `entry` is still unread, given software's consumer index. All indices are modulo 2^32.
fn is_unread(entry: u32, consumer: u32, producer: u32, entries: u64) -> bool {
    // An entry that has been overwritten cannot be unread. Without this check, an old entry would count as unread once
    // it is half of the index space behind.
    let is_in_ring = u64::from(producer.wrapping_sub(entry)) <= entries;
    is_in_ring && entry.wrapping_sub(consumer) < 1 << 31
}

#[cfg(test)]
mod tests;
