//! Work requests and doorbells, as `libmthca` writes them.
//!
//! # Spec
//! mthca interface, sections 5 and 7.

use protocol::hca::mthca::doorbell::SendDoorbell;
use protocol::hca::mthca::wqe::{DataSegment, GRANULE, Link, NextSegment, RecvWqe};
use protocol::ids::Qpn;

use super::{Driver, UAR};
use crate::Bus;

/// A ring of WQEs and its doorbell record.
#[derive(Clone, Copy, Debug)]
pub struct WorkQueue {
    /// Bus address of the first slot.
    pub bus: u64,
    /// Offset of the first slot in the region that holds the QP's queues.
    pub offset: u32,
    /// Slot size in bytes.
    pub slot: u32,
    pub slots: u16,
    /// Bus address of the doorbell record.
    pub record: u64,
}

impl WorkQueue {
    fn at(&self, posted: u16) -> u32 {
        u32::from(posted % self.slots) * self.slot
    }
}

impl<B: Bus> Driver<B> {
    pub fn set_record(&mut self, at: u64, value: u32) {
        self.bus.poke(at, &value.to_be_bytes());
    }

    /// Posts a WQE: writes it to the next slot, links it from the preceding slot, and updates the doorbell record.
    /// Returns the doorbell, which the caller can then ring.
    pub fn post_send(
        &mut self,
        queue: &WorkQueue,
        qpn: u32,
        opcode: u8,
        wqe: &[u8],
        fence: bool,
    ) -> SendDoorbell {
        let first = self.posted(queue);
        let size = u8::try_from(wqe.len() / GRANULE).unwrap_or(u8::MAX);
        let link = Link { address: queue.offset + queue.at(first), opcode, size, fence };
        let next = NextSegment { link, ..NextSegment::default() }.emit();
        self.bus.poke(queue.bus + u64::from(queue.at(first)) + 8, wqe.get(8..).unwrap_or_default());
        self.bus.poke(queue.bus + u64::from(queue.at(first.wrapping_sub(1))), &next[..8]);
        self.set_record(queue.record, first.wrapping_add(1).into());
        SendDoorbell { count: 1, first, fence, opcode, qpn: Qpn::new(qpn), size }
    }

    /// Posts a receive request with one data segment.
    pub fn post_recv(&mut self, queue: &WorkQueue, data: DataSegment) {
        let posted = self.posted(queue);
        let successor = queue.offset + queue.at(posted.wrapping_add(1));
        let wqe = RecvWqe { successor, data: [data].into_iter().collect() }.emit(queue.slot as usize);
        self.bus.poke(queue.bus + u64::from(queue.at(posted)), &wqe);
        self.set_record(queue.record, posted.wrapping_add(1).into());
    }

    /// Writes a send doorbell in one access.
    pub fn ring_doorbell(&mut self, doorbell: &SendDoorbell) {
        self.bus.store(2, u64::from(UAR) * 4096 + 0x10, &doorbell.emit());
    }

    /// Returns the free-running counter in a queue's doorbell record.
    fn posted(&mut self, queue: &WorkQueue) -> u16 {
        let record = self.bus.peek(queue.record, 4);
        u16::from_be_bytes([record[2], record[3]])
    }
}
