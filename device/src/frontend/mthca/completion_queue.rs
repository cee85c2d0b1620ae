//! Completion queues.
//!
//! # Spec
//! mthca interface, sections 3.5 (RESIZE_CQ), 5.3, 6.4 and 7.6.

use protocol::hca::mthca::cqc::{Cqc, ResizeCq};
use protocol::hca::mthca::cqe::Cqe;
use protocol::hca::mthca::doorbell::{ArmCq, ArmFor, RECORD_LEN};
use protocol::hca::status::{CmdError, CmdStatus};
use protocol::ids::{Cqn, Eqn};

use super::strict::Sequence;
use crate::frontend::hcr::entry_ring::{Buffer, CountedRing, EntryRing, Ring};
use crate::frontend::hcr::notify::{CqError, Notifier, Notify};
use crate::frontend::snapshot::{Armed, CqRow};
use crate::memory::queue::QueueMemory;

/// A completion queue. Its entries have no phase: how far software has read is in a doorbell record.
#[derive(Debug)]
pub struct CompletionQueue {
    cqn: Cqn,
    page: u32,
    consumer_record: u32,
    arm_record: u32,
    /// Software tells how far it has read when it is asked, by its doorbell record.
    ring: CountedRing,
    /// The newest entry that is solicited, or of a failed request.
    solicited: Option<u32>,
    notifier: Notifier,
    /// How its doorbell record said last that it was armed, where the device goes by that.
    recorded: Option<ArmCq>,
    /// What strict mode knows of its events.
    pub(super) sequence: Sequence,
}

impl CompletionQueue {
    /// The queue of a SW2HW_CQ. `cqn` is the whole number software gave.
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
            recorded: None,
            sequence: Sequence::default(),
        }
    }

    /// Own number, as software knows it.
    pub fn cqn(&self) -> Cqn {
        self.cqn
    }

    /// UAR page of its doorbells and records.
    pub fn page(&self) -> u32 {
        self.page
    }

    /// UAR page and number of the doorbell record with the consumer index.
    pub fn record(&self) -> (u32, u32) {
        (self.page, self.consumer_record)
    }

    /// Number of the doorbell record that says how it was armed last. The device goes by the doorbell, unless it may miss
    /// some.
    pub fn arm_record(&self) -> u32 {
        self.arm_record
    }

    /// Its buffer and place.
    pub fn ring(&self) -> &EntryRing {
        self.ring.ring()
    }

    /// Event queue of its events.
    pub fn eqn(&self) -> Eqn {
        self.notifier.eqn()
    }

    /// Whether it has lost an entry, and takes no more.
    pub fn is_broken(&self) -> bool {
        self.notifier.fault().is_some()
    }

    /// Goes on in another buffer, at the same count: software moves what it has not read. `record` is the consumer index
    /// of now.
    ///
    /// # Errors
    /// BAD_SIZE if what software has not read has no room there.
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

    /// How software has armed it, by its doorbell record of now; `None` if it has not since the last time it was asked. Two
    /// times are told apart by the sequence number, which software counts up with each event it has seen: what says the
    /// same again was written by software that has yet to see an event which is on its way.
    pub fn rearmed(&mut self, record: [u8; RECORD_LEN]) -> Option<ArmCq> {
        let arm = ArmCq::from_record(record)
            .filter(|arm| arm.arm_for.is_some() && arm.cqn.get() == self.cqn.get() & 0xff_ffff)?;
        let arm = ArmCq { cqn: self.cqn, ..arm };
        (self.recorded.replace(arm) != Some(arm)).then_some(arm)
    }

    /// Asks for an event. What was asked for may be there already: software may have armed the queue while the entry was
    /// on its way, and is not told otherwise.
    pub fn arm(&mut self, arm: &ArmCq) -> Notify {
        let (armed, is_there) = match arm.arm_for {
            Some(ArmFor::Any) => (Armed::Any, self.ring.ring().producer() != arm.consumer),
            Some(ArmFor::Solicited) => {
                (Armed::Solicited, self.solicited.is_some_and(|newest| is_behind(newest, arm.consumer)))
            }
            None => return Notify::No,
        };
        if is_there {
            return self.notifier.fire();
        }
        self.notifier.arm(armed);
        Notify::No
    }

    /// Writes an entry. `solicited`: see [`crate::frontend::hcr::verbs::is_solicited`]. `record` reads the consumer index.
    ///
    /// # Errors
    /// The entry is lost, because software has not made room or the buffer cannot be written.
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

    /// The queue as an operator sees it.
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

/// Whether entry `entry` is one that software which has read up to `consumer` has not seen. Both count modulo 2^32.
fn is_behind(entry: u32, consumer: u32) -> bool {
    entry.wrapping_sub(consumer) < 1 << 31
}

#[cfg(test)]
mod tests;
