//! Completion queues.
//!
//! # Spec
//! JingZhao interface, sections 3.11, 7 and 8.5.

use card::frontend::snapshot::Armed;
use card::memory::queue::QueueMemory;
use hcr::entry_ring::{Buffer, OwnedRing};
use hcr::notify::{CqError, Notifier, Notify};
use protocol::hca::jingzhao::cqc::{CqArm, Cqc, ResizeCq};
use protocol::hca::jingzhao::cqe::Cqe;
use protocol::ids::{Cqn, Lkey, Pdn};

use super::queue_start::offset;

/// A completion queue. After a fault, it does not accept entries until it is resized (RESIZE_CQ) or re-created.
#[derive(Debug)]
pub struct CompletionQueue {
    cqn: Cqn,
    /// Start field of the context.
    start: u64,
    ring: OwnedRing,
    notifier: Notifier,
}

impl CompletionQueue {
    /// Creates the queue that a SW2HW_CQ command describes. `cqn` includes the high bits that software uses.
    pub fn new(cqn: Cqn, cqc: &Cqc, mem: &impl QueueMemory) -> Self {
        let ring = OwnedRing::new(buffer(cqc.pd, cqc.lkey, cqc.start, cqc.log_entries, mem), 0, mem);
        let armed = match cqc.flags.arm() {
            CqArm::Disarmed => Armed::No,
            CqArm::Armed => Armed::Any,
            CqArm::ArmedSolicited => Armed::Solicited,
        };
        Self { cqn, start: cqc.start, ring, notifier: Notifier::new(cqc.comp_eqn, armed) }
    }

    /// Switches to another buffer. The producer counter keeps its value, because software moves unread entries to the
    /// same positions in the new buffer.
    pub fn resize(&mut self, resize: &ResizeCq, mem: &impl QueueMemory) {
        let pd = self.ring.buffer().pd;
        let to = buffer(pd, resize.lkey, self.start, resize.log_entries, mem);
        self.ring = self.ring.moved_to(to, mem);
        self.notifier.clear_fault();
    }

    /// Returns the CQN, with the high bits that software uses.
    pub fn cqn(&self) -> Cqn {
        self.cqn
    }

    pub fn notifier(&self) -> &Notifier {
        &self.notifier
    }

    pub fn start(&self) -> u64 {
        self.start
    }

    /// Returns the free-running producer index, modulo 2^32.
    pub fn producer(&self) -> u32 {
        self.ring.producer()
    }

    pub fn buffer(&self) -> &Buffer {
        self.ring.buffer()
    }

    pub fn entries(&self) -> u64 {
        self.ring.entries()
    }

    /// Requests an event for the next entry (ARM_CQ).
    pub fn arm(&mut self) {
        self.notifier.arm(Armed::Any);
    }

    /// Writes an entry. For `solicited`, see [`hcr::verbs::is_solicited`].
    ///
    /// # Errors
    /// The entry is lost if the queue is full or broken, or if its buffer cannot be written.
    pub fn push(&mut self, cqe: &Cqe, solicited: bool, mem: &impl QueueMemory) -> Result<Notify, CqError> {
        self.notifier.push(solicited, || self.ring.push(&cqe.emit(), mem))
    }
}

/// Returns the buffer that a CQ's context describes. A start outside the region is ignored, because the vendor's
/// document marks the start field of a CQ as not used yet (J-49).
pub(super) fn buffer(pd: Pdn, lkey: Lkey, start: u64, log_entries: u8, mem: &impl QueueMemory) -> Buffer {
    Buffer { pd, lkey, start: offset(start, log_entries, lkey, mem).unwrap_or(0), log_entries }
}

#[cfg(test)]
mod tests {
    use card::frontend::snapshot::Fault;
    use card::memory::queue::testing::Region;
    use protocol::hca::jingzhao::cqc::CqFlags;
    use protocol::hca::jingzhao::cqe::{CqeQueue, HARDWARE_OWNED, LEN, OWNER, Outcome, Syndrome};
    use protocol::ids::{Eqn, Qpn};

    use super::*;

    const CQN: Cqn = Cqn::new(0x3_0007);

    /// Creates a buffer of four hardware-owned entries.
    fn prepared() -> Region {
        let mem = Region::new(4 * LEN);
        (0..4).for_each(|slot| reap(&mem, slot));
        mem
    }

    fn cqc(state: u8) -> Cqc {
        Cqc {
            flags: CqFlags::new().with_state(state),
            start: 0,
            log_entries: 2,
            comp_eqn: Eqn::new(4),
            pd: Pdn::new(3),
            lkey: Lkey::new(0x21),
            cqn: CQN,
        }
    }

    fn cqe(wqe: u32) -> Cqe {
        let outcome = Outcome::Error { syndrome: Syndrome::Flushed, vendor: 0 };
        Cqe { qpn: Qpn::new(5), queue: CqeQueue::Send, wqe, outcome }
    }

    fn reap(mem: &Region, slot: usize) {
        mem.put(slot * LEN + OWNER, &[HARDWARE_OWNED]);
    }

    fn entry(mem: &Region, slot: usize) -> Option<Cqe> {
        Cqe::parse(&mem.get(slot * LEN))
    }

    #[test]
    fn entries_wrap_and_become_software_owned() {
        let mem = prepared();
        let mut cq = CompletionQueue::new(CQN, &cqc(0), &mem);
        for count in 0..10 {
            let slot = count as usize % 4;
            assert_eq!(entry(&mem, slot), None);
            assert_eq!(cq.push(&cqe(count), false, &mem), Ok(Notify::No));
            assert_eq!(entry(&mem, slot), Some(cqe(count)));
            assert_eq!(mem.get::<1>(slot * LEN + OWNER), [0]);
            reap(&mem, slot);
        }
        assert_eq!(cq.producer(), 10);
    }

    #[test]
    fn unread_entry_is_not_overwritten() {
        let mem = prepared();
        let mut cq = CompletionQueue::new(CQN, &cqc(0), &mem);
        (0..4).for_each(|count| assert!(cq.push(&cqe(count), false, &mem).is_ok()));
        let overrun = |first| Err(CqError { fault: Fault::Overrun, first });
        assert_eq!(cq.push(&cqe(4), false, &mem), overrun(true));
        assert_eq!(entry(&mem, 0), Some(cqe(0)));
        reap(&mem, 0);
        assert_eq!(cq.push(&cqe(5), false, &mem), overrun(false));
        assert_eq!(cq.notifier().fault(), Some(Fault::Overrun));
    }

    #[test]
    fn overrun_is_undetected_without_initial_owner_bits() {
        for prepared_slots in [0, 3] {
            let mem = Region::new(4 * LEN);
            (0..prepared_slots).for_each(|slot| reap(&mem, slot));
            let mut cq = CompletionQueue::new(CQN, &cqc(0), &mem);
            (0..6).for_each(|count| assert!(cq.push(&cqe(count), false, &mem).is_ok()));
            assert_eq!(entry(&mem, 1), Some(cqe(5)));
        }
    }

    #[test]
    fn unwritable_buffer_is_reported_as_fault() {
        let mem = prepared();
        let mut cq = CompletionQueue::new(CQN, &cqc(0), &mem);
        mem.read_only.set(true);
        assert_eq!(cq.push(&cqe(0), false, &mem), Err(CqError { fault: Fault::Access, first: true }));
        let none = Region::new(0);
        let mut cq = CompletionQueue::new(CQN, &cqc(0), &none);
        assert_eq!(cq.push(&cqe(0), false, &none), Err(CqError { fault: Fault::Access, first: true }));
    }

    #[test]
    fn resizing_keeps_producer_index() {
        let mem = prepared();
        let mut cq = CompletionQueue::new(CQN, &cqc(0), &mem);
        for count in 0..6 {
            cq.push(&cqe(count), false, &mem).unwrap();
            reap(&mem, count as usize % 4);
        }
        let mut larger = Region::new(8 * LEN);
        larger.key = Lkey::new(0x22);
        cq.resize(&ResizeCq { log_entries: 3, lkey: Lkey::new(0x22) }, &larger);
        cq.push(&cqe(6), false, &larger).unwrap();
        assert_eq!(entry(&larger, 6), Some(cqe(6)));
    }

    #[test]
    fn context_start_may_be_address_or_offset() {
        const START: u64 = 0x7f00_0000_1000;
        // `start` is an address in the region, an offset, or neither. `first` is the index, within the region, of the
        // queue's first entry.
        for (start, first) in [(START + 64, 2), (64, 2), (START, 0), (0, 0), (0x1_0000, 0)] {
            let mut mem = Region::new(6 * LEN);
            mem.start = START;
            let mut cq = CompletionQueue::new(CQN, &Cqc { start, ..cqc(0) }, &mem);
            cq.push(&cqe(7), false, &mem).unwrap();
            assert_eq!(entry(&mem, first), Some(cqe(7)), "start {start:#x}");
            // The context's `start` is outside the new buffer's region and is ignored.
            let mut other = Region::new(8 * LEN);
            (other.start, other.key) = (0x1_0000_0000, Lkey::new(0x22));
            (0..8).for_each(|slot| reap(&other, slot));
            cq.resize(&ResizeCq { log_entries: 3, lkey: Lkey::new(0x22) }, &other);
            cq.push(&cqe(8), false, &other).unwrap();
            assert_eq!(entry(&other, 1), Some(cqe(8)), "start {start:#x}");
        }
    }

    #[test]
    fn armed_queue_notifies_only_once() {
        let mem = prepared();
        let mut cq = CompletionQueue::new(CQN, &cqc(1), &mem);
        let yes = Ok(Notify::Yes(Eqn::new(4)));
        assert_eq!(cq.push(&cqe(0), false, &mem), yes);
        assert_eq!(cq.push(&cqe(1), true, &mem), Ok(Notify::No));
        cq.arm();
        assert_eq!(cq.push(&cqe(2), false, &mem), yes);
        assert_eq!(cq.push(&cqe(3), false, &mem), Ok(Notify::No));
    }

    #[test]
    fn cq_armed_for_solicited_ignores_unsolicited_entries() {
        let mem = prepared();
        let mut cq = CompletionQueue::new(CQN, &cqc(4), &mem);
        assert_eq!(cq.push(&cqe(0), false, &mem), Ok(Notify::No));
        assert_eq!(cq.push(&cqe(1), true, &mem), Ok(Notify::Yes(Eqn::new(4))));
        assert_eq!(cq.push(&cqe(2), true, &mem), Ok(Notify::No));
    }
}
