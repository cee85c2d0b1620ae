//! The receive queue of a QP: slots in order, and whether the next one is posted.
//!
//! There is no doorbell, so a slot is looked at only when somebody wants a request, and what is in it decides. A
//! consumed slot must then stop looking posted, or a flush would go round the ring for ever and a message could land
//! in a buffer twice. Where software marks slots with the valid bit, we take the bit away (software would do it when
//! it reads the completion); where it does not, we leave its data units as free ones look (`rq_clear`).
//!
//! # A slot that is being written
//! The public user library sets the bit before it writes the data units, and its virtual CPU may be held up between any
//! two stores, for any time. So the data units of a slot that was taken are left [`UNTOUCHED`], and those of a fresh
//! queue too, where the bit decides (`rq_valid_bit`): what software has not written then shows, word for word. A slot is
//! posted when its list is whole:
//! - it ends with a terminator or with the slot, or
//! - it has as many elements as software allows in this queue (`MaxListLength`), or
//! - the slot behind it is begun: software writes one after the other.
//!
//! Until then it is not posted: the sender is told to come again (RC), or its message is dropped (UC, UD). Where nothing
//! tells a whole list from one that is longer than all before and to be continued, RC waits until it has been as it is for
//! `SETTLE_TIME`. That time begins when the slot is polled (`recv_watch`), not with the message, so a receive that was posted
//! a while before its message is ready. For UC and UD, whose message would be lost, the slot is read some times more and
//! taken as it is, which may make a list too short but never wrong. Receives that are there when the QP enters RTR tell,
//! so that hardly any queue comes into this. A flush takes the list as it is: no message goes there.
//!
//! Without `rq_valid_bit` the slots of the first lap are as software made them, and an empty one may be one without
//! elements: it is read some times more, too.
//!
//! # Spec
//! JingZhao interface, section 6.8 (J-22, J-23, J-50).

mod list_length;

use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use engine::{AccessError, Fetch, Instant, RecvRequest, Status};
use protocol::hca::jingzhao::qpc::{QpState, ServiceType};
use protocol::hca::jingzhao::wqe::{CONSUMED, End, Extent, GRANULE, RecvWqe, UNTOUCHED};
use smallvec::SmallVec;

use self::list_length::MaxListLength;

use super::ctxmgt::message::RdQpRst;
use super::options::QueueOptions;
use super::ring::Ring;
use super::send_queue::sge;
use crate::memory::queue::QueueMemory;

/// How long the list of a slot stays as it is before it counts as whole though nothing tells: longer than a virtual CPU
/// is held up.
const SETTLE_TIME: Duration = Duration::from_millis(250);

/// How often a slot is read again of which nothing tells whether it is whole. We cannot sleep here; so many reads take
/// some microseconds, and software needs a few stores.
const REREADS: u32 = 64;

/// Offset of a slot's first data unit. The smallest slot has 32 bytes.
const FIRST_DATA_UNIT: u32 = 16;

/// Log2 of the bytes of the largest slot. RTR is refused to a QP with larger ones.
const MAX_LOG_SLOT: u8 = 12;

/// Bound: bytes of a queue that one command makes [`UNTOUCHED`], some milliseconds of writing. The longest of the public
/// user library has 2^15 slots of 512 bytes.
const MAX_PREPARED: u32 = 16 << 20;

/// Log2 of the bytes prepared at once, no less than a slot.
const LOG_PREPARED_CHUNK: u8 = 14;

/// Most slots have 128 to 512 bytes; larger ones cost an allocation.
type Slot = SmallVec<[u8; 512]>;

/// Receive queue of one QP.
#[derive(Debug)]
pub struct RecvQueue {
    options: QueueOptions,
    ring: Ring,
    /// Only the valid bit makes a slot a posted one.
    valid_bit_required: bool,
    /// Next slot.
    slot: u32,
    /// The ring has not been passed once since RESET.
    first_pass: bool,
    /// Slots in a row, up to the last one given, that were left untouched; all of them once they were prepared.
    untouched: u32,
    max_list: MaxListLength,
    /// A sender whose message finds no receive sends it again.
    reliable: bool,
    /// The next slot has so many elements, and nothing tells whether that is all, since then.
    unchanged_since: Option<(usize, Instant)>,
    /// Slots given in a row that still look posted.
    unreleased: u32,
    /// The last slot given had the valid bit.
    marked: bool,
}

/// What a look at a slot found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotState {
    /// Not posted, or not yet.
    Free,
    /// Posted, in the way of software that knows no valid bit.
    Unmarked,
    /// Posted, with so much in it.
    Marked(Extent),
}

impl RecvQueue {
    /// A queue as after RESET.
    pub fn new(options: QueueOptions) -> Self {
        Self {
            options,
            ring: Ring::default(),
            valid_bit_required: false,
            slot: 0,
            first_pass: true,
            untouched: 0,
            max_list: MaxListLength::default(),
            reliable: false,
            unchanged_since: None,
            unreleased: 0,
            marked: false,
        }
    }

    /// Forgets buffer and position (RST2INIT, to RESET).
    pub fn reset(&mut self) {
        *self = Self::new(self.options);
    }

    /// Takes over what a command changed in the QP's context.
    pub fn configure(&mut self, rst: &RdQpRst, mem: &impl QueueMemory) {
        let ring = Ring::of_recv(rst, &self.options, mem);
        if self.ring != ring {
            (self.untouched, self.max_list, self.unchanged_since) = (0, MaxListLength::default(), None);
        }
        self.ring = ring;
        self.valid_bit_required = self.options.rq_valid_bit && rst.usr_page != 0;
        self.reliable = rst.service == Some(ServiceType::Rc);
        if rst.state == Some(QpState::Rtr) && self.shows_untouched() {
            self.learn(mem);
        }
    }

    /// Takes the next slot for whole, if it is marked, to learn from its list. At the command that lets the peer begin,
    /// whatever the program posted before is.
    fn learn(&mut self, mem: &impl QueueMemory) {
        let log_slot = self.ring.log_slot().min(MAX_LOG_SLOT);
        let mut copy: Slot = SmallVec::from_elem(0, 1 << log_slot);
        if self.ring.read(mem, self.at(self.slot), &mut copy).is_ok() && RecvWqe::is_valid(&copy) {
            let Extent { units, end } = RecvWqe::extent(&copy, |key| mem.region_len(key).is_some());
            match end {
                End::Terminator => self.max_list.saw_terminator(units),
                End::Slot => self.max_list.at_least(units),
                End::Untouched => self.max_list.complete_with(units),
            }
        }
    }

    /// Makes all slots free ones that nobody has touched, at RST2INIT: receives are posted from INIT on. What the QP's
    /// earlier life has left in them is gone. Not where slots without the bit may be posted ones: their software may
    /// count on what it put there before.
    pub fn prepare(&mut self, mem: &impl QueueMemory) {
        let (slots, log_slot) = (self.ring.slots(), self.ring.log_slot());
        let whole = slots.checked_shl(log_slot.into()).filter(|bytes| *bytes <= MAX_PREPARED);
        let Some(whole) = whole.filter(|_| self.valid_bit_required && log_slot <= MAX_LOG_SLOT) else {
            return;
        };
        let mut slot = vec![0xff; 1 << log_slot];
        slot.iter_mut().take(GRANULE).for_each(|byte| *byte = 0);
        let chunk = slot.repeat(1 << (LOG_PREPARED_CHUNK - log_slot));
        let put = |at: u32| {
            let len = (whole - at).min(1 << LOG_PREPARED_CHUNK) as usize;
            self.ring.patch(mem, at, chunk.get(..len).unwrap_or(&chunk))
        };
        if (0..whole).step_by(1 << LOG_PREPARED_CHUNK).all(|at| put(at).is_ok()) {
            self.untouched = slots;
        }
    }

    /// Slots of the queue.
    pub fn slots(&self) -> u32 {
        self.ring.slots()
    }

    /// Whether the WQE that was taken last had the valid bit.
    pub fn was_marked(&self) -> bool {
        self.marked
    }

    /// Takes the WQE of the next slot, if it is posted. `wr_id` is its byte offset.
    pub fn next(&mut self, now: Instant, mem: &impl QueueMemory) -> Fetch<RecvRequest> {
        self.take(now, mem, SETTLE_TIME)
    }

    /// As [`RecvQueue::next`], for a request that completes without a message.
    pub fn next_flushed(&mut self, now: Instant, mem: &impl QueueMemory) -> Fetch<RecvRequest> {
        self.take(now, mem, Duration::ZERO)
    }

    /// Looks at the next slot, so that the time its list stays as it is counts from now on. Whether later looks may find
    /// out more: the length of lists is not known yet, and messages wait for it.
    pub fn watch(&mut self, now: Instant, mem: &impl QueueMemory) -> bool {
        if !self.needs_watching() {
            return false;
        }
        if let Some(mut copy) = self.slot_copy() {
            // A queue that cannot be read is reported when a message needs it.
            let _ = self.inspect(now, mem, &mut copy, SETTLE_TIME);
        }
        self.needs_watching()
    }

    /// Whether nothing but time may tell that a list is whole, and messages can wait.
    fn needs_watching(&self) -> bool {
        self.reliable && self.shows_untouched() && self.ring.slots() > 0 && !self.max_list.is_known()
    }

    /// Room for the next slot; `None` without a queue.
    fn slot_copy(&mut self) -> Option<Slot> {
        let slots = self.ring.slots();
        // A queue that became shorter starts anew.
        self.slot = if self.slot < slots { self.slot } else { 0 };
        (slots > 0 && self.ring.log_slot() <= MAX_LOG_SLOT)
            .then(|| SmallVec::from_elem(0, 1 << self.ring.log_slot()))
    }

    fn take(&mut self, now: Instant, mem: &impl QueueMemory, settle_time: Duration) -> Fetch<RecvRequest> {
        let Some(mut copy) = self.slot_copy() else { return Fetch::Empty };
        let (slots, bytes) = (self.ring.slots(), &mut copy[..]);
        let at = self.at(self.slot);
        let found = match self.inspect(now, mem, bytes, settle_time) {
            Ok(SlotState::Free) => {
                self.unreleased = 0;
                return Fetch::Empty;
            }
            Ok(found) => found,
            Err(_) => return Fetch::Broken,
        };
        let released = self.release(mem, at, found, bytes);
        let left_untouched = released && found != SlotState::Unmarked;
        self.untouched = if left_untouched { self.untouched.saturating_add(1).min(slots) } else { 0 };
        if released {
            self.unreleased = 0;
        } else if self.unreleased == slots {
            // Bound: a ring whose slots all keep looking posted is given once round, then it is empty once.
            self.unreleased = 0;
            return Fetch::Empty;
        } else {
            self.unreleased += 1;
        }
        self.slot += 1;
        if self.slot == slots {
            self.slot = 0;
            self.first_pass = false;
        }
        self.marked = found != SlotState::Unmarked;
        let wr_id = u64::from(at);
        match RecvWqe::parse(bytes) {
            Ok(wqe) => Fetch::Ready(RecvRequest { wr_id, sges: wqe.data.iter().map(sge).collect() }),
            Err(_) => Fetch::Refused { wr_id, status: Status::LocalQpOperation },
        }
    }

    /// Byte offset of a slot.
    fn at(&self, slot: u32) -> u32 {
        slot << self.ring.log_slot()
    }

    /// What software has not written of the next slot is untouched.
    fn shows_untouched(&self) -> bool {
        self.untouched >= self.ring.slots()
    }

    /// Copies the next slot and says whether it is posted; what is behind the extent of a marked one is not its list's.
    fn inspect(
        &mut self,
        now: Instant,
        mem: &impl QueueMemory,
        bytes: &mut [u8],
        settle_time: Duration,
    ) -> Result<SlotState, AccessError> {
        let at = self.at(self.slot);
        let mut reads = 0;
        let extent = loop {
            self.ring.read(mem, at, bytes)?;
            if !RecvWqe::is_valid(bytes) {
                let posted =
                    !self.valid_bit_required && RecvWqe::is_posted_without_valid_bit(bytes, self.first_pass);
                return Ok(if posted { SlotState::Unmarked } else { SlotState::Free });
            }
            let extent = RecvWqe::extent(bytes, |key| mem.region_len(key).is_some());
            match self.is_complete(mem, extent, bytes)? {
                Some(true) => break extent,
                Some(false) => return Ok(SlotState::Free),
                None if self.reliable && self.shows_untouched() => {
                    if !self.has_settled(now, extent.units, settle_time) {
                        return Ok(SlotState::Free);
                    }
                    break extent;
                }
                None if reads < REREADS => std::hint::spin_loop(),
                None => {
                    self.max_list.at_least(extent.units);
                    break extent;
                }
            }
            reads += 1;
        };
        self.unchanged_since = None;
        // The copy may have met a word in the middle of its store, which is complete by now.
        fence(Ordering::Acquire);
        let list = GRANULE * (1 + extent.units);
        self.ring.read(mem, at, bytes.get_mut(..list).unwrap_or_default())?;
        if extent.end == End::Untouched {
            // To the parser, the list ends here.
            bytes.get_mut(list..list + GRANULE).unwrap_or_default().fill(0);
        }
        Ok(SlotState::Marked(extent))
    }

    /// Whether the list of the next slot is whole; `None` if nothing tells.
    fn is_complete(
        &mut self,
        mem: &impl QueueMemory,
        extent: Extent,
        bytes: &[u8],
    ) -> Result<Option<bool>, AccessError> {
        let units = extent.units;
        let known = match extent.end {
            End::Terminator if self.shows_untouched() => {
                self.max_list.saw_terminator(units);
                Some(true)
            }
            End::Terminator => {
                let first = bytes.get(GRANULE..2 * GRANULE).unwrap_or_default();
                (units > 0 || first.iter().any(|byte| *byte != 0)).then_some(true)
            }
            End::Slot => {
                self.max_list.at_least(units);
                (units > 0).then_some(true)
            }
            End::Untouched => self.max_list.is_complete(units),
        };
        if known == Some(true) || !self.shows_untouched() || !self.next_is_begun(mem)? {
            return Ok(known);
        }
        // What is there now is all of it, and may be more than the copy has.
        let mut slot: Slot = SmallVec::from_elem(0, bytes.len());
        self.ring.read(mem, self.at(self.slot), &mut slot)?;
        if RecvWqe::extent(&slot, |key| mem.region_len(key).is_some()) != extent {
            return Ok(None);
        }
        self.max_list.complete_with(units);
        Ok(Some(true))
    }

    /// Whether software has begun to write the slot behind the next one.
    fn next_is_begun(&self, mem: &impl QueueMemory) -> Result<bool, AccessError> {
        let slots = self.ring.slots();
        let behind = if self.slot + 1 < slots { self.slot + 1 } else { 0 };
        if behind == self.slot {
            return Ok(false);
        }
        let mut head = [0; 2 * GRANULE];
        self.ring.read(mem, self.at(behind), &mut head)?;
        let first = &head[GRANULE..];
        // The library sets the bit of a slot once more when it links the next one of a list to it, which may have been
        // taken by then.
        let begun = RecvWqe::is_valid(&head) && *first != UNTOUCHED;
        fence(Ordering::Acquire);
        Ok(begun)
    }

    /// Whether the next slot has had so many elements for as long as `settle_time`.
    fn has_settled(&mut self, now: Instant, units: usize, settle_time: Duration) -> bool {
        let since = match self.unchanged_since {
            Some((then, since)) if then == units => since,
            _ => now,
        };
        self.unchanged_since = Some((units, since));
        let over = now.saturating_since(since) >= settle_time;
        if over {
            self.max_list.complete_with(units);
        }
        over
    }

    /// Makes a slot look unposted; `false` if it still looks posted.
    fn release(&self, mem: &impl QueueMemory, at: u32, found: SlotState, bytes: &[u8]) -> bool {
        let mut free: Slot = SmallVec::new();
        match found {
            SlotState::Marked(extent) => {
                // What remains of a library's slot is a next unit that is not zero if it was linked, with data units
                // behind it: without the bit that is the kernel driver's idea of a posted slot.
                free.extend_from_slice(&[0; GRANULE]);
                let written = match extent.end {
                    _ if !self.shows_untouched() => bytes.len(),
                    End::Terminator => GRANULE * (2 + extent.units),
                    // Software may be about to write what follows.
                    End::Slot | End::Untouched => GRANULE * (1 + extent.units),
                };
                free.resize(written.min(bytes.len()), 0xff);
                self.ring.patch(mem, at, &free).is_ok()
            }
            SlotState::Unmarked if self.options.rq_clear => {
                let units = RecvWqe::extent(bytes, |_| true).units.max(1);
                (0..units).for_each(|_| free.extend_from_slice(&CONSUMED));
                self.ring.patch(mem, at + FIRST_DATA_UNIT, &free).is_ok()
            }
            SlotState::Unmarked | SlotState::Free => false,
        }
    }
}

#[cfg(test)]
mod race;
#[cfg(test)]
mod tests;
