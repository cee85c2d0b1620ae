//! The send queue of a QP: doorbells, chains of WQEs, and their conversion to engine requests.
//!
//! Each call to [`SendQueue::next`] fetches one WQE. The WQE is copied from guest memory once, and its link to the next
//! WQE comes from the same copy. If software links WQEs in a cycle, every call returns a WQE, as if software kept
//! posting them. Other QPs still run, because the engine limits the work per turn.
//!
//! # Spec
//! JingZhao interface, section 6.7.

use std::collections::VecDeque;

use card::memory::queue::QueueMemory;
use card::net::address::Addresses;
use engine::{Fence, Fetch, Payload, SendRequest, Sge, Status, UdDestination};
use hcr::verbs::{WorkTag, send_op};
use protocol::hca::jingzhao::doorbell::{PositionUnit, SendDoorbell};
use protocol::hca::jingzhao::wqe::{
    self, DataSegment, GRANULE, NextUnit, Operation, SendWqe, UdUnit, WqeData, WqeError,
};
use protocol::ids::{Lid, Qkey, Qpn};
use smallvec::SmallVec;
use thiserror::Error;

use super::address::datagram;
use super::ctxmgt::message::{RdEncap, RdQpSst};
use super::options::{QueueOptions, SqAddr};
use super::ring::Ring;

/// Maximum number of pending doorbells per queue: the largest queue length that QUERY_DEV_LIM can advertise.
const MAX_DOORBELLS: usize = 1 << 16;

/// Number of doorbell slots reserved for each queue, which is enough for bursts from ordinary software.
const RESERVED_DOORBELLS: usize = 16;

/// Number of doorbell slots shared by all queues of a device, in addition to the [`RESERVED_DOORBELLS`] of each queue.
/// They occupy 12 MiB, enough to fill 64 queues of the recommended length, 2^14 requests. Without this limit, the
/// doorbells of 2^17 stalled queues could occupy 96 GiB.
const POOLED_DOORBELLS: usize = 1 << 20;

/// Size of the short buffer for WQE copies, in bytes. Filling it with zeros takes less time than filling a buffer for
/// the longest WQE, and most queues have slots of this size.
const SHORT_WQE: usize = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DoorbellOverflowError {
    /// Software posted to slots that are still in use.
    #[error("too many pending doorbells for a send queue with {slots} slots")]
    Queue { slots: u32 },
    /// Too many queues of the device are stalled with pending doorbells.
    #[error("too many pending doorbells across all send queues (maximum {POOLED_DOORBELLS})")]
    Device,
}

/// Doorbell slots shared by all queues, on top of each queue's reserved slots.
#[derive(Debug, Default)]
pub struct DoorbellPool {
    used: usize,
}

impl DoorbellPool {
    /// Records a change in a queue's number of pool slots ([`SendQueue::pooled_doorbells`]) from `before` to `after`.
    pub fn update(&mut self, before: usize, after: usize) {
        self.used = (self.used + after).saturating_sub(before);
    }

    pub fn is_exhausted(&self) -> bool {
        self.used >= POOLED_DOORBELLS
    }
}

/// A send queue's QP, with the context fields needed to fetch a WQE.
#[derive(Clone, Copy, Debug)]
pub struct Sender {
    /// QPN, including the high bits that software uses.
    pub qpn: Qpn,
    /// Fields that Doorbell Processing reads.
    pub sst: RdQpSst,
    /// LID of the connected peer, which Requester Trans Control reads.
    pub rlid: Lid,
}

/// The next WQE of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Byte offset in the queue.
    pub position: u32,
    /// The opcode, a five-bit value.
    pub opcode: u8,
    /// Size in 16-byte granules.
    pub size: u8,
    /// Whether the WQE waits for earlier READs and atomics.
    pub fence: bool,
}

/// A WQE fetched from the queue, for tracing and strict rules.
#[derive(Debug)]
pub struct FetchedWqe<'a> {
    /// The WQE's entry, from its doorbell or from the preceding WQE.
    pub entry: Entry,
    /// Log2 of the slot size in bytes.
    pub log_slot: u8,
    pub bytes: &'a [u8],
    /// The parsed WQE; `None` if its size is invalid or its QP has an unsupported service type.
    pub wqe: Option<&'a Result<SendWqe<'a>, WqeError>>,
}

#[derive(Debug)]
pub struct SendQueue {
    options: QueueOptions,
    ring: Ring,
    /// Pending doorbells in order of arrival.
    doorbells: VecDeque<SendDoorbell>,
    /// The WQE that the most recently fetched WQE links to.
    linked: Option<Entry>,
    /// Position of the slot after the most recently fetched WQE, where software is expected to post the next one.
    expected: u32,
    /// Number of consecutive slots before `expected` that were executed through links since the last doorbell (J-24).
    linked_run: u32,
    unit: PositionUnit,
}

impl SendQueue {
    /// Creates a queue in its state after RESET.
    pub fn new(options: QueueOptions) -> Self {
        let unit = match options.sq_addr {
            SqAddr::Unit | SqAddr::Auto => PositionUnit::Granule,
            SqAddr::Index => PositionUnit::Slot,
        };
        Self {
            options,
            ring: Ring::default(),
            doorbells: VecDeque::new(),
            linked: None,
            expected: 0,
            linked_run: 0,
            unit,
        }
    }

    /// Discards the buffer and the doorbells. Called on RST2INIT and on transitions to RESET.
    pub fn reset(&mut self) {
        *self = Self::new(self.options);
    }

    /// Applies changes to the QP's context. Pending doorbells are kept.
    pub fn configure(&mut self, sst: &RdQpSst, mem: &impl QueueMemory) {
        self.ring = Ring::of_send(sst, &self.options, mem);
    }

    /// Queues a doorbell. If the pool is exhausted, the queue is limited to its reserved slots.
    ///
    /// # Errors
    /// Fails if too many doorbells are pending. The new doorbell is then lost. Each doorbell covers at least one WQE,
    /// whose slot cannot be reused before the WQE completes. Correct software therefore never has more pending
    /// doorbells than slots.
    pub fn queue_doorbell(
        &mut self,
        doorbell: SendDoorbell,
        pool: &DoorbellPool,
    ) -> Result<(), DoorbellOverflowError> {
        let slots = self.ring.slots();
        // A QP stores at most MAX_DOORBELLS 12-byte doorbells, however many the guest rings.
        if self.doorbells.len() >= MAX_DOORBELLS.min(slots as usize) {
            return Err(DoorbellOverflowError::Queue { slots });
        }
        if self.doorbells.len() >= RESERVED_DOORBELLS && pool.is_exhausted() {
            return Err(DoorbellOverflowError::Device);
        }
        self.doorbells.push_back(doorbell);
        Ok(())
    }

    /// Returns the number of slots that the queue has allocated from the pool, whether or not they hold doorbells.
    pub fn pooled_doorbells(&self) -> usize {
        self.doorbells.capacity().saturating_sub(RESERVED_DOORBELLS)
    }

    pub fn has_work(&self) -> bool {
        self.linked.is_some() || !self.doorbells.is_empty()
    }

    pub fn slots(&self) -> u32 {
        self.ring.slots()
    }

    /// Returns the number of pending doorbells. Each covers at least one WQE.
    pub fn waiting(&self) -> usize {
        self.doorbells.len()
    }

    /// Fetches the next WQE. The `wr_id` of the result is a [`WorkTag`]. `encap` is called only for datagrams, and
    /// `watch` is called with every WQE fetched.
    pub fn next(
        &mut self,
        sender: &Sender,
        encap: impl FnOnce() -> RdEncap,
        mem: &impl QueueMemory,
        addresses: &Addresses,
        watch: impl FnOnce(&FetchedWqe<'_>),
    ) -> Fetch<SendRequest> {
        let Some(entry) = self.take_linked().or_else(|| self.begin_next_chain()) else {
            return Fetch::Empty;
        };
        let size_is_bad = entry.size == 0 || entry.size > wqe::MAX_SIZE;
        // A WQE with an invalid size fails, but its first granule is still read for the link to the rest of the chain.
        let granules = usize::from(if size_is_bad { 1 } else { entry.size });
        let mut short = [0; SHORT_WQE];
        let mut long;
        let bytes = match short.get_mut(..granules * GRANULE) {
            Some(bytes) => bytes,
            None => {
                long = [0; wqe::MAX_SIZE as usize * GRANULE];
                &mut long[..granules * GRANULE]
            }
        };
        if self.ring.read(mem, entry.position, bytes).is_err() {
            return Fetch::Broken;
        }
        let bytes = &*bytes;
        let next = bytes.first_chunk().map(NextUnit::parse).unwrap_or_default();
        self.follow(&sender.sst, mem, entry, &next);

        let tag = WorkTag::new()
            .with_wqe(entry.position)
            .with_opcode(entry.opcode)
            .with_signalled(next.signalled)
            .with_remote_lid(sender.rlid);
        let wqe = sender
            .sst
            .service
            .filter(|_| !size_is_bad)
            .map(|service| SendWqe::parse(bytes, entry.opcode, service));
        watch(&FetchedWqe { entry, log_slot: self.ring.log_slot(), bytes, wqe: wqe.as_ref() });
        let request = match &wqe {
            Some(Ok(wqe)) => self.request(sender, encap, wqe, tag, entry.fence, addresses),
            Some(Err(_)) | None => None,
        };
        let refused = Fetch::Refused { wr_id: tag.into_bits(), status: Status::LocalQpOperation };
        request.map_or(refused, Fetch::Ready)
    }

    fn take_linked(&mut self) -> Option<Entry> {
        let entry = self.linked.take()?;
        let before = if entry.position == self.expected { self.linked_run } else { 0 };
        // A chain may wrap around the ring and visit a slot more than once, so limit the count to the number of slots.
        self.linked_run = (before + 1).min(self.ring.slots());
        Some(entry)
    }

    /// Starts the chain of the oldest doorbell. With `late_link`, skips doorbells for WQEs that have already been
    /// executed through a link (J-24).
    fn begin_next_chain(&mut self) -> Option<Entry> {
        loop {
            let entry = self.begin_chain()?;
            let run = std::mem::take(&mut self.linked_run);
            let distance = self.slots_to_expected(entry.position);
            if !self.options.late_link || !(1..=run).contains(&distance) {
                // Doorbells arrive in slot order, so no later doorbell can be for a WQE that was executed through these
                // links.
                return Some(entry);
            }
            self.linked_run = distance - 1;
        }
    }

    /// Returns the distance from a position to `expected` in slots.
    fn slots_to_expected(&self, position: u32) -> u32 {
        let bytes = match self.expected.checked_sub(position) {
            Some(bytes) => bytes,
            None => self.ring.bytes().saturating_sub(position - self.expected),
        };
        bytes.checked_shr(self.ring.log_slot().into()).unwrap_or(0)
    }

    /// Starts the chain of the oldest doorbell.
    fn begin_chain(&mut self) -> Option<Entry> {
        let doorbell = self.doorbells.pop_front()?;
        if self.doorbells.is_empty() && self.doorbells.capacity() > RESERVED_DOORBELLS {
            self.doorbells.shrink_to(RESERVED_DOORBELLS);
        }
        let ring = &self.ring;
        let position = |unit| doorbell.position(unit, ring.log_slot(), ring.bytes());
        if self.options.sq_addr == SqAddr::Auto {
            let expected = Some(self.expected);
            match (position(PositionUnit::Granule), position(PositionUnit::Slot)) {
                (granule, slot) if granule == slot => {}
                (granule, _) if granule == expected => self.unit = PositionUnit::Granule,
                (_, slot) if slot == expected => self.unit = PositionUnit::Slot,
                _ => {}
            }
        }
        let SendDoorbell { opcode, size, fence, .. } = doorbell;
        Some(Entry { position: position(self.unit)?, opcode, size, fence })
    }

    /// Records the WQE that `entry` links to, and the position after `entry`.
    fn follow(&mut self, sst: &RdQpSst, mem: &impl QueueMemory, entry: Entry, next: &NextUnit) {
        let ring = &self.ring;
        let slot = 1u64.checked_shl(ring.log_slot().into()).unwrap_or(0);
        let end = (u64::from(entry.position) + slot).checked_rem(ring.bytes().into());
        self.expected = end.and_then(|offset| u32::try_from(offset).ok()).unwrap_or(0);

        self.linked = next.link.and_then(|link| {
            let position = link.position(self.unit, ring.bytes())?;
            Some(Entry { position, opcode: link.opcode, size: link.size, fence: link.fence })
        });
        if next.link.is_some() && self.options.clear_links && sst.usr_page != 0 {
            // J-12: if the queue is not writable, its stale links remain, as on a device that does not clear them.
            let _ = ring.patch(mem, entry.position, &[0; 8]);
        }
    }

    /// Converts a WQE for the engine. Returns `None` if the destination of a datagram is unknown.
    fn request(
        &self,
        sender: &Sender,
        encap: impl FnOnce() -> RdEncap,
        wqe: &SendWqe<'_>,
        tag: WorkTag,
        fence: bool,
        addresses: &Addresses,
    ) -> Option<SendRequest> {
        let mut tag = tag;
        let mut ud = None;
        if let Operation::Datagram { to, .. } = wqe.operation {
            tag.set_remote_lid(to.dlid);
            ud = Some(self.destination(sender, &encap(), &to, addresses)?);
        }
        let payload = match &wqe.data {
            WqeData::Segments(units) => Payload::Sges(units.iter().map(sge).collect()),
            WqeData::Inline(bytes) => Payload::Inline(SmallVec::from_slice(bytes)),
        };
        let op = send_op(&wqe.operation);
        Some(SendRequest {
            wr_id: tag.into_bits(),
            op,
            payload,
            fence: Fence::reads(fence),
            solicited: wqe.next.solicited,
            ud,
            remote_srq: None,
        })
    }

    fn destination(
        &self,
        sender: &Sender,
        encap: &RdEncap,
        to: &UdUnit,
        addresses: &Addresses,
    ) -> Option<UdDestination> {
        let path = datagram(addresses, to, encap, sender.qpn, self.options.ud_addresses)?;
        // The engine handles bit 31 of the Q_Key. In this interface, 0 selects the QP's own Q_Key (section 11.1).
        let qkey = if to.qkey == Qkey::default() { sender.sst.qkey } else { to.qkey };
        Some(UdDestination { path, qpn: to.dqpn, qkey, header: None })
    }
}

pub(super) fn sge(unit: &DataSegment) -> Sge {
    Sge { va: unit.va, lkey: unit.lkey, len: unit.len }
}

#[cfg(test)]
mod tests;
