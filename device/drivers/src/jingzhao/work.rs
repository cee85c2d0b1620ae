//! Work requests and doorbells.
//!
//! # Spec
//! JingZhao interface, sections 1.6 and 6.

use super::Driver;
use crate::Bus;

/// Slot size in bytes.
pub const SLOT: u32 = 128;

/// Locations of a QP's queues and its doorbell.
#[derive(Clone, Copy, Debug)]
pub struct Queues {
    /// QPN to write to doorbells.
    pub qpn: u32,
    /// UAR page that contains the doorbells.
    pub page: u64,
    /// Bus address of the send queue.
    pub sq: u64,
    /// Bus address of the receive queue.
    pub rq: u64,
}

/// Returns a data unit, which describes a byte range in a local region.
pub fn data_unit(key: u32, va: u64, len: u32) -> Vec<u8> {
    [&len.to_le_bytes()[..], &key.to_le_bytes(), &va.to_le_bytes()].concat()
}

/// Returns a raddr unit, which contains an address in the peer's memory and its R_Key.
pub fn remote_unit(rkey: u32, va: u64) -> Vec<u8> {
    [&va.to_le_bytes()[..], &rkey.to_le_bytes(), &[0; 4]].concat()
}

/// Returns a signalled send WQE that consists of `units` and does not link to another WQE.
pub fn signalled(units: &[u8]) -> Vec<u8> {
    let mut wqe = vec![0; 16];
    wqe[8] = 8;
    wqe.extend(units);
    wqe
}

/// Returns a send doorbell for a WQE of `size` 16-byte units.
pub fn doorbell(qpn: u32, slot: u32, opcode: u8, size: u32) -> [u32; 2] {
    [(slot * (SLOT / 16)) << 8 | u32::from(opcode), qpn << 8 | size]
}

impl<B: Bus> Driver<B> {
    /// Writes a valid receive WQE with one data unit and no link to another WQE.
    pub fn post_recv(&mut self, queues: &Queues, slot: u32, unit: &[u8]) {
        let mut wqe = vec![0x20];
        wqe.resize(16, 0);
        wqe.extend(unit);
        wqe.resize(48, 0);
        self.bus.poke(queues.rq + u64::from(slot * SLOT), &wqe);
    }

    /// Writes a WQE to a slot and rings the doorbell.
    pub fn post_send(&mut self, queues: &Queues, slot: u32, opcode: u8, wqe: &[u8]) {
        self.bus.poke(queues.sq + u64::from(slot * SLOT), wqe);
        let size = u32::try_from(wqe.len() / 16).unwrap_or(u32::MAX);
        self.ring_doorbell(queues.page, doorbell(queues.qpn, slot, opcode, size));
    }

    /// Writes a send doorbell in one access.
    pub fn ring_doorbell(&mut self, page: u64, doorbell: [u32; 2]) {
        self.bus.store(2, page << 12, &doorbell.map(u32::to_le_bytes).concat());
    }
}
