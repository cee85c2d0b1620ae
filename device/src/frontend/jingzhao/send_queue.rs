//! The send queue of a QP: doorbells, chains of WQEs, and what the engine gets of them.
//!
//! Each call of [`SendQueue::next`] takes one WQE: it is copied out of guest memory once, and its link, which names
//! the next one, comes from the same copy. Guest memory may link WQEs in a circle; then every call has a WQE to give,
//! for ever, as if software had posted them, and the engine's bounds on a QP's turn keep other QPs going.
//!
//! # Spec
//! JingZhao interface, section 6.7.

use std::collections::VecDeque;

use engine::{Fence, Fetch, Payload, SendRequest, Sge, Status, UdDestination};
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
use crate::frontend::hcr::verbs::{WorkTag, send_op};
use crate::memory::queue::QueueMemory;
use crate::net::address::Addresses;

/// Most doorbells a queue remembers: the most WQEs QUERY_DEV_LIM can let software have in a queue.
const MAX_DOORBELLS: usize = 1 << 16;

/// Doorbells a queue keeps room for, and may always remember: bursts of ordinary software.
const KEPT_DOORBELLS: usize = 16;

/// Room for doorbells beyond those, of all queues of a device: 12 MiB, with which 64 queues of the recommended 2^14
/// requests can be full. Without it 2^17 stalled queues held 96 GiB.
const POOLED_DOORBELLS: usize = 1 << 20;

/// Bytes of a WQE that are copied without room for the longest being cleared first: a slot of most queues.
const SHORT_WQE: usize = 128;

/// Why a doorbell was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DoorbellOverflowError {
    /// Software rang for slots that are still in use.
    #[error("send queue has {slots} slots, but more doorbells are pending")]
    Queue {
        /// Slots of the queue.
        slots: u32,
    },
    /// Software let very many queues stall and rang on.
    #[error("limit of {POOLED_DOORBELLS} pending doorbells for all send queues reached")]
    Device,
}

/// Room for doorbells that the queues of a device have taken beyond what each keeps.
#[derive(Debug, Default)]
pub struct DoorbellPool {
    taken: usize,
}

impl DoorbellPool {
    /// A queue that had taken `before` has taken `after` now; see [`SendQueue::doorbells_taken`].
    pub fn update(&mut self, before: usize, after: usize) {
        self.taken = (self.taken + after).saturating_sub(before);
    }

    /// Whether nothing is left.
    pub fn is_spent(&self) -> bool {
        self.taken >= POOLED_DOORBELLS
    }
}

/// Whose queue it is, as Doorbell Processing hands it on with a doorbell.
#[derive(Clone, Copy, Debug)]
pub struct Sender {
    /// The QP, with the high bits software knows it by.
    pub qpn: Qpn,
    /// What Doorbell Processing reads.
    pub sst: RdQpSst,
    /// LID of the connected peer, as Requester Trans Control reads it.
    pub rlid: Lid,
}

/// A WQE that is next in a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Byte offset in the queue.
    pub position: u32,
    /// Opcode, five bits.
    pub opcode: u8,
    /// Granules.
    pub size: u8,
    /// Waits for earlier READs and atomics.
    pub fence: bool,
}

/// A WQE that was taken, for whoever looks on.
#[derive(Debug)]
pub struct FetchedWqe<'a> {
    /// As the doorbell or the WQE before it announced it.
    pub entry: Entry,
    /// Log2 of the bytes of a slot.
    pub log_slot: u8,
    /// Its bytes.
    pub bytes: &'a [u8],
    /// What they mean; `None` if its size is impossible or its QP has no service.
    pub wqe: Option<&'a Result<SendWqe<'a>, WqeError>>,
}

/// Send queue of one QP.
#[derive(Debug)]
pub struct SendQueue {
    options: QueueOptions,
    ring: Ring,
    /// Doorbell and not begun, in order of arrival.
    doorbells: VecDeque<SendDoorbell>,
    /// Linked from the WQE that was read last.
    linked: Option<Entry>,
    /// Slot behind the WQE that was read last, where software's next one is expected.
    expected: u32,
    /// How many slots up to there were run through links, one behind the other, since the last doorbell (J-24).
    linked_run: u32,
    unit: PositionUnit,
}

impl SendQueue {
    /// A queue as after RESET: nothing rung, no buffer.
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

    /// Forgets buffer and doorbells (RST2INIT, to RESET).
    pub fn reset(&mut self) {
        *self = Self::new(self.options);
    }

    /// Takes over what a command changed in the QP's context. Doorbells stay.
    pub fn configure(&mut self, sst: &RdQpSst, mem: &impl QueueMemory) {
        self.ring = Ring::of_send(sst, &self.options, mem);
    }

    /// Remembers a doorbell. From a pool that is spent the queue takes nothing, and lives on what it keeps.
    ///
    /// # Errors
    /// The doorbell is lost. That cannot happen to correct software: each remembered doorbell announces at least one
    /// WQE in a slot of its own that software must not use again before its completion, so there are never more than
    /// slots.
    pub fn queue_doorbell(
        &mut self,
        doorbell: SendDoorbell,
        pool: &DoorbellPool,
    ) -> Result<(), DoorbellOverflowError> {
        let slots = self.ring.slots();
        // Bound: at most MAX_DOORBELLS of 12 bytes for each QP, however fast the guest rings.
        if self.doorbells.len() >= MAX_DOORBELLS.min(slots as usize) {
            return Err(DoorbellOverflowError::Queue { slots });
        }
        if self.doorbells.len() >= KEPT_DOORBELLS && pool.is_spent() {
            return Err(DoorbellOverflowError::Device);
        }
        self.doorbells.push_back(doorbell);
        Ok(())
    }

    /// Room for doorbells beyond what a queue keeps. Memory counts, not use.
    pub fn doorbells_taken(&self) -> usize {
        self.doorbells.capacity().saturating_sub(KEPT_DOORBELLS)
    }

    /// Whether a WQE is known to be waiting.
    pub fn has_work(&self) -> bool {
        self.linked.is_some() || !self.doorbells.is_empty()
    }

    /// Slots of the queue.
    pub fn slots(&self) -> u32 {
        self.ring.slots()
    }

    /// Doorbells remembered; each announces at least one WQE.
    pub fn waiting(&self) -> usize {
        self.doorbells.len()
    }

    /// Takes the next WQE. `wr_id` is a [`WorkTag`]; `encap` is asked if it is a datagram. `watch` is shown what was
    /// taken.
    pub fn next(
        &mut self,
        sender: &Sender,
        encap: impl FnOnce() -> RdEncap,
        mem: &impl QueueMemory,
        addresses: &Addresses,
        watch: impl FnOnce(&FetchedWqe<'_>),
    ) -> Fetch<SendRequest> {
        let Some(entry) = self.take_linked().or_else(|| self.begin_unread_chain()) else {
            return Fetch::Empty;
        };
        let size_is_bad = entry.size == 0 || entry.size > wqe::MAX_SIZE;
        // A WQE of impossible size fails, but its next unit still leads to the rest of the chain.
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

    /// The WQE the last one leads to.
    fn take_linked(&mut self) -> Option<Entry> {
        let entry = self.linked.take()?;
        let before = if entry.position == self.expected { self.linked_run } else { 0 };
        // A chain that goes round the ring passes slots twice.
        self.linked_run = (before + 1).min(self.ring.slots());
        Some(entry)
    }

    /// Starts the chain of the oldest doorbell. With the option `late_link`, doorbells of WQEs that were run through a
    /// link are skipped.
    fn begin_unread_chain(&mut self) -> Option<Entry> {
        loop {
            let entry = self.begin_chain()?;
            let run = std::mem::take(&mut self.linked_run);
            let behind = self.slots_to_expected(entry.position);
            if !self.options.late_link || !(1..=run).contains(&behind) {
                // Doorbells come in the order of their slots: those of earlier WQEs will not come any more.
                return Some(entry);
            }
            self.linked_run = behind - 1;
        }
    }

    /// Slots from a position to the one behind the WQE that was read last.
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
        if self.doorbells.is_empty() && self.doorbells.capacity() > KEPT_DOORBELLS {
            self.doorbells.shrink_to(KEPT_DOORBELLS);
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

    /// Notes where the chain goes on behind `entry`, and that it has been there.
    fn follow(&mut self, sst: &RdQpSst, mem: &impl QueueMemory, entry: Entry, next: &NextUnit) {
        let ring = &self.ring;
        let slot = 1u64.checked_shl(ring.log_slot().into()).unwrap_or(0);
        let behind = (u64::from(entry.position) + slot).checked_rem(ring.bytes().into());
        self.expected = behind.and_then(|offset| u32::try_from(offset).ok()).unwrap_or(0);

        self.linked = next.link.and_then(|link| {
            let position = link.position(self.unit, ring.bytes())?;
            Some(Entry { position, opcode: link.opcode, size: link.size, fence: link.fence })
        });
        if next.link.is_some() && self.options.clear_links && sst.usr_page != 0 {
            // A queue that cannot be written keeps its stale links: no worse than a device that does not clear them.
            let _ = ring.patch(mem, entry.position, &[0; 8]);
        }
    }

    /// The WQE in the engine's words; `None` if a datagram's destination is not known.
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
        // The engine knows the rule for bit 31; that 0 stands for the QP's own key is this interface's (section 11.1).
        let qkey = if to.qkey == Qkey::default() { sender.sst.qkey } else { to.qkey };
        Some(UdDestination { path, qpn: to.dqpn, qkey, header: None })
    }
}

pub(super) fn sge(unit: &DataSegment) -> Sge {
    Sge { va: unit.va, lkey: unit.lkey, len: unit.len }
}

#[cfg(test)]
mod tests;
