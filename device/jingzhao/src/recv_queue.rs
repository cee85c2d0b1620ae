//! The receive queue of a QP: a ring of slots that are consumed in order.
//!
//! Receives have no doorbell. Whether a slot is posted depends on its content. The device must therefore mark a
//! consumed slot as free. Otherwise, a flush would never end, and the same buffer could receive two messages. If the
//! valid bit of the slot is set, the device clears it, as software does when it polls the completion. If the bit is not
//! set, the device overwrites the data units with [`CONSUMED`] (`rq_clear`).
//!
//! # Slots that are being written
//! The public user library sets the valid bit before it writes the data units, and the virtual CPU may be preempted
//! between any two stores. To recognise words that software has not written yet, the device fills the data units of
//! consumed slots with [`UNTOUCHED`]. If the valid bit is required (`rq_valid_bit`), it also fills the slots of a new
//! queue. A slot counts as posted when its list of data units is complete, that is, in one of these cases:
//! - the list ends with a terminator or at the end of the slot, or
//! - the list has the maximum number of elements for this queue (`MaxListLength`), or
//! - software, which writes slots in order, has started to write the next slot.
//!
//! Until then, the slot counts as free, and the peer gets an RNR NAK (RC) or its message is dropped (UC, UD).
//!
//! While the maximum is unknown, the device cannot always determine whether a list is complete. RC then waits until the
//! list has been unchanged for `SETTLE_TIME`. The settle time starts when the slot is polled (`recv_watch`), not when
//! the message arrives, so a receive that software posted early enough is ready when its message arrives. UC and UD
//! cannot wait without losing the message. Instead, the slot is read a few more times and then used as it is. Its list
//! may then be too short, but never contains a wrong element. Few queues need the settle time: receives posted before
//! the QP enters RTR are known to be complete, and the device usually learns the maximum from the first of them. A
//! flush does not write data and uses the list as it is.
//!
//! Without `rq_valid_bit`, during the first pass around the ring, slots hold whatever software left in them, not
//! [`UNTOUCHED`]. A slot with the valid bit set and an empty list may then be a receive without elements, or one whose
//! elements have not been written yet. Such a slot is also read a few more times. A slot without the valid bit may come
//! from software that does not use the bit, or may be only partly written. It counts as posted once all its elements
//! have existing keys and, on the first pass, nonzero addresses. Otherwise, RC waits for the settle time.
//!
//! # Spec
//! JingZhao interface, section 6.8 (J-22, J-23, J-50).

mod list_length;

use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use card::memory::queue::QueueMemory;
use engine::{AccessError, Fetch, Instant, RecvRequest, Status};
use protocol::hca::jingzhao::qpc::{QpState, ServiceType};
use protocol::hca::jingzhao::wqe::{CONSUMED, End, Extent, GRANULE, RecvWqe, UNTOUCHED};
use smallvec::SmallVec;

use self::list_length::MaxListLength;

use super::ctxmgt::message::RdQpRst;
use super::options::QueueOptions;
use super::ring::Ring;
use super::send_queue::sge;

/// How long the list of a slot must stay unchanged before it counts as complete. A virtual CPU is rarely preempted for
/// this long.
const SETTLE_TIME: Duration = Duration::from_millis(250);

/// Number of times to reread a slot whose list may be incomplete. The device cannot sleep here, but 64 reads take
/// microseconds, and software completes a list with only a few stores.
const REREADS: u32 = 64;

/// Offset of the first data unit in a slot. Every slot has one, since the smallest slot is 32 bytes long.
const FIRST_DATA_UNIT: u32 = 16;

/// Log2 of the maximum slot size. QPs with larger slots cannot enter RTR.
const MAX_LOG_SLOT: u8 = 12;

/// Maximum number of bytes that one command fills with [`UNTOUCHED`]. Filling that many takes milliseconds. The public
/// user library's longest queue has this length: 2^15 slots of 512 bytes.
const MAX_PREPARED: u32 = 16 << 20;

/// Log2 of the number of bytes filled per write. A write fills at least one slot.
const LOG_PREPARED_CHUNK: u8 = 14;

/// Copy of a slot. Most slots are 128 to 512 bytes long; the copy of a larger one is allocated on the heap.
type Slot = SmallVec<[u8; 512]>;

#[derive(Debug)]
pub struct RecvQueue {
    options: QueueOptions,
    ring: Ring,
    /// Whether the valid bit of a slot must be set for the slot to count as posted.
    valid_bit_required: bool,
    slot: u32,
    /// Whether the first pass around the ring since RESET is still in progress.
    first_pass: bool,
    /// Number of consecutive slots, ending with the last consumed slot, whose data units were filled with
    /// [`UNTOUCHED`].
    untouched: u32,
    max_list: MaxListLength,
    /// Whether the QP is RC. Only an RC peer retries a message if no receive is posted.
    reliable: bool,
    /// Number of elements in the next slot's list, and the time at which it last changed. Set only while the list may
    /// be incomplete.
    unchanged_since: Option<(usize, Instant)>,
    /// Number of consecutive slots, ending with the last consumed slot, that still look posted.
    unreleased: u32,
    /// Whether the valid bit of the last consumed slot was set.
    marked: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotState {
    /// Not posted or posted with an incomplete list.
    Free,
    /// Posted by software that does not use the valid bit.
    Unmarked,
    /// Posted with the valid bit set and a list of this extent.
    Marked(Extent),
}

impl RecvQueue {
    /// Creates a queue in its state after RESET.
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

    /// Discards the buffer and the position. Called at RST2INIT and at a transition to RESET.
    pub fn reset(&mut self) {
        *self = Self::new(self.options);
    }

    pub fn configure(&mut self, rst: &RdQpRst, mem: &impl QueueMemory) {
        let ring = Ring::of_recv(rst, &self.options, mem);
        if self.ring != ring {
            (self.untouched, self.max_list, self.unchanged_since) = (0, MaxListLength::default(), None);
        }
        self.ring = ring;
        self.valid_bit_required = self.options.rq_valid_bit && rst.usr_page != 0;
        self.reliable = rst.service == Some(ServiceType::Rc);
        if rst.state == Some(QpState::Rtr) && self.ring.slots() > 0 && self.shows_untouched() {
            self.learn(mem);
        }
    }

    /// Derives the maximum list length from the next slot, if its valid bit is set. Called at the transition to RTR,
    /// because receives posted earlier are complete. The queue must have slots. Without any, its slot size
    /// is not checked.
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

    /// Marks all slots as free and untouched. This discards receives from an earlier use of the QP. It must happen at
    /// RST2INIT, since software may post receives as soon as the QP is in INIT. If slots can be posted without the
    /// valid bit, they are left alone because software that does not use the bit may rely on their content.
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

    pub fn slots(&self) -> u32 {
        self.ring.slots()
    }

    /// Returns whether the valid bit of the last fetched WQE was set.
    pub fn was_marked(&self) -> bool {
        self.marked
    }

    /// Fetches the WQE in the next slot, if the slot is posted. The request's `wr_id` is the byte offset of the slot.
    pub fn next(&mut self, now: Instant, mem: &impl QueueMemory) -> Fetch<RecvRequest> {
        self.take(now, mem, SETTLE_TIME)
    }

    /// Like [`RecvQueue::next`], but also accepts an incomplete list, as the request will be flushed.
    pub fn next_flushed(&mut self, now: Instant, mem: &impl QueueMemory) -> Fetch<RecvRequest> {
        self.take(now, mem, Duration::ZERO)
    }

    /// Returns the end of the next slot's settle time, or `None` if it has not started.
    pub fn next_due(&self) -> Option<Instant> {
        self.unchanged_since.map(|(_, since)| since + SETTLE_TIME)
    }

    /// Inspects the next slot so that its settle time can start before a message arrives. Returns true while the
    /// maximum list length is unknown, in which case the queue must be polled again.
    pub fn watch(&mut self, now: Instant, mem: &impl QueueMemory) -> bool {
        if !self.needs_watching() {
            return false;
        }
        if let Some(mut copy) = self.slot_copy() {
            // Ignore errors here, because an unreadable queue is reported when a message needs a receive.
            let _ = self.inspect(now, mem, &mut copy, SETTLE_TIME);
        }
        self.needs_watching()
    }

    /// Returns whether the queue may have to wait for a list to settle. Only RC waits, as UC and UD peers do not retry.
    fn needs_watching(&self) -> bool {
        self.reliable && self.shows_untouched() && self.ring.slots() > 0 && !self.max_list.is_known()
    }

    /// Allocates a copy of the next slot. Returns `None` if the QP has no receive queue or if the slots are too large.
    fn slot_copy(&mut self) -> Option<Slot> {
        let slots = self.ring.slots();
        // If the position is past the end of a shortened queue, restart from slot 0.
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
        } else if self.unreleased >= slots {
            // If no slot can be released, report the queue as empty once per pass around the ring, so that a flush
            // terminates. The count may exceed the number of slots if the queue has been shortened.
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

    fn at(&self, slot: u32) -> u32 {
        slot << self.ring.log_slot()
    }

    /// Returns whether the data units of the next slot contain [`UNTOUCHED`] until software writes them.
    fn shows_untouched(&self) -> bool {
        self.untouched >= self.ring.slots()
    }

    /// Copies the next slot to `bytes` and determines its state. If the state is [`SlotState::Marked`], the list in the
    /// copy consists of the units within the extent.
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
                if self.valid_bit_required || !RecvWqe::is_posted_without_valid_bit(bytes, self.first_pass) {
                    return Ok(SlotState::Free);
                }
                match self.inspect_unmarked(now, mem, bytes, settle_time)? {
                    Some(found) => return Ok(found),
                    None if reads < REREADS => {
                        reads += 1;
                        continue;
                    }
                    // The bit kept changing between reads, so treat the slot as free.
                    None => return Ok(SlotState::Free),
                }
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
        // A word of the copy may be torn if software was storing it during the read. That store is complete by now, so
        // read the list again.
        fence(Ordering::Acquire);
        let list = GRANULE * (1 + extent.units);
        self.ring.read(mem, at, bytes.get_mut(..list).unwrap_or_default())?;
        if extent.end == End::Untouched {
            // Terminate the list for the parser.
            bytes.get_mut(list..list + GRANULE).unwrap_or_default().fill(0);
        }
        Ok(SlotState::Marked(extent))
    }

    /// Determines the state of a slot that looks posted although its valid bit is clear. Returns `None` if software has
    /// set the bit in the meantime. A slot briefly looks like this while software is still writing the list or has not
    /// set the bit yet. It therefore counts as posted only when two reads agree and every element looks written. An
    /// element of an invalid request may never look written, so RC stops waiting after the settle time and uses the
    /// slot as it is.
    fn inspect_unmarked(
        &mut self,
        now: Instant,
        mem: &impl QueueMemory,
        bytes: &mut [u8],
        settle_time: Duration,
    ) -> Result<Option<SlotState>, AccessError> {
        let at = self.at(self.slot);
        let mut again: Slot = SmallVec::from_elem(0, bytes.len());
        for _ in 0..REREADS {
            fence(Ordering::Acquire);
            self.ring.read(mem, at, &mut again)?;
            if RecvWqe::is_valid(&again) {
                return Ok(None);
            }
            if again[..] == *bytes && self.looks_written(mem, bytes) {
                self.unchanged_since = None;
                return Ok(Some(SlotState::Unmarked));
            }
            bytes.copy_from_slice(&again);
            std::hint::spin_loop();
        }
        let units = RecvWqe::extent(bytes, |_| true).units;
        if self.reliable && self.unchanged_for(now, units) < settle_time {
            return Ok(Some(SlotState::Free));
        }
        self.unchanged_since = None;
        Ok(Some(SlotState::Unmarked))
    }

    /// Returns whether all elements of a list have an existing key and, on the first pass, a nonzero address. Software
    /// writes the address last, and on the first pass an unwritten address is usually zero.
    fn looks_written(&self, mem: &impl QueueMemory, bytes: &[u8]) -> bool {
        RecvWqe::parse(bytes).is_ok_and(|wqe| {
            let mut elements = wqe.data.iter().map(sge);
            elements.all(|sge| mem.region_len(sge.lkey).is_some() && !(self.first_pass && sge.va.get() == 0))
        })
    }

    /// Returns whether the list of the next slot is complete, or `None` if unknown.
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
        if known == Some(true) || !self.shows_untouched() || !self.following_slot_is_started(mem)? {
            return Ok(known);
        }
        // The slot is complete by now, but may have more elements than the copy. Read it again.
        let mut slot: Slot = SmallVec::from_elem(0, bytes.len());
        self.ring.read(mem, self.at(self.slot), &mut slot)?;
        if RecvWqe::extent(&slot, |key| mem.region_len(key).is_some()) != extent {
            return Ok(None);
        }
        self.max_list.complete_with(units);
        Ok(Some(true))
    }

    /// Returns whether software has started to write the slot that follows the next one.
    fn following_slot_is_started(&self, mem: &impl QueueMemory) -> Result<bool, AccessError> {
        let slots = self.ring.slots();
        let following = if self.slot + 1 < slots { self.slot + 1 } else { 0 };
        if following == self.slot {
            return Ok(false);
        }
        let mut head = [0; 2 * GRANULE];
        self.ring.read(mem, self.at(following), &mut head)?;
        let first = &head[GRANULE..];
        // When the library links a slot to the next receive, it sets the slot's valid bit again, even if the slot has
        // already been consumed. The bit alone is therefore not enough.
        let started = RecvWqe::is_valid(&head) && *first != UNTOUCHED;
        fence(Ordering::Acquire);
        Ok(started)
    }

    /// Returns whether the length of the next slot's list has been stable for at least `settle_time`.
    fn has_settled(&mut self, now: Instant, units: usize, settle_time: Duration) -> bool {
        let over = self.unchanged_for(now, units) >= settle_time;
        if over {
            self.max_list.complete_with(units);
        }
        over
    }

    /// Returns how long the length of the next slot's list has been stable.
    fn unchanged_for(&mut self, now: Instant, units: usize) -> Duration {
        let since = match self.unchanged_since {
            Some((then, since)) if then == units => since,
            _ => now,
        };
        self.unchanged_since = Some((units, since));
        now.saturating_since(since)
    }

    /// Makes a slot look unposted. Returns false if it still looks posted.
    fn release(&self, mem: &impl QueueMemory, at: u32, found: SlotState, bytes: &[u8]) -> bool {
        let mut free: Slot = SmallVec::new();
        match found {
            SlotState::Marked(extent) => {
                // Clear the whole next unit. If only the valid bit were cleared, a slot linked by the library would
                // keep a nonzero next unit. It would then look like a slot posted by the kernel driver.
                free.extend_from_slice(&[0; GRANULE]);
                let written = match extent.end {
                    _ if !self.shows_untouched() => bytes.len(),
                    End::Terminator => GRANULE * (2 + extent.units),
                    // Leave the units after the list alone because software may be about to write them.
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
