//! The completion queue in memory.
//!
//! # Spec
//! mlx5 interface, sections 7.2, 8 and 9.

use anyhow::{Result, bail};

use super::bytes::{get_u32, put_u32};
use super::queue::{OWNER, Ring, UAR};
use crate::vfio::{Arena, Bar, Device, PAGE};

#[derive(Clone, Copy, Debug)]
pub(super) struct Completion {
    pub(super) qpn: u32,
    /// Index of the WQE.
    pub(super) index: u16,
    /// Syndrome, or 0 for success.
    pub(super) syndrome: u8,
}

#[derive(Debug)]
pub(super) struct Completions {
    ring: Ring,
    record: usize,
    /// Number of arm requests so far. Each has been followed by an event, so the low two bits are the sequence number
    /// of the next request.
    arms: u32,
}

impl Completions {
    /// Log2 of the number of entries.
    pub(super) const LOG: u8 = 8;
    /// Opcode of an entry that the device has not written.
    const INVALID: u8 = 15;

    pub(super) fn new(arena: &mut Arena) -> Result<Self> {
        let ring = Ring::new(arena, Self::LOG, Self::INVALID << 4 | 1)?;
        Ok(Self { ring, record: arena.alloc(1, PAGE)?, arms: 0 })
    }

    pub(super) fn place(&self) -> (usize, usize) {
        self.ring.place()
    }

    pub(super) const fn record(&self) -> usize {
        self.record
    }

    /// Returns the next completion of a send request.
    pub(super) fn next(&mut self, arena: &Arena) -> Result<Option<Completion>> {
        const REQUEST: u8 = 0;
        const REQUEST_ERROR: u8 = 13;
        let is_written = |last: u8| last >> 4 != Self::INVALID;
        let Some(entry) = self.ring.next(arena, is_written) else { return Ok(None) };
        arena.write(self.record, &(self.ring.consumer & 0xff_ffff).to_be_bytes());
        let syndrome = match entry[OWNER] >> 4 {
            REQUEST => 0,
            REQUEST_ERROR => entry[0x37],
            opcode => bail!("unexpected CQE opcode {opcode}"),
        };
        let index = u16::from_be_bytes([entry[0x3c], entry[0x3d]]);
        Ok(Some(Completion { qpn: get_u32(&entry, 0x38) & 0xff_ffff, index, syndrome }))
    }

    /// Discards the completions of a QP that has been reset.
    pub(super) fn drain(&mut self, arena: &Arena) {
        while matches!(self.next(arena), Ok(Some(_))) {}
    }

    /// Requests an event for the next completion.
    pub(super) fn arm(&mut self, device: &Device, arena: &Arena, uar: u32, cqn: u32) -> Result<()> {
        let word = (self.arms & 3) << 28 | self.ring.consumer & 0xff_ffff;
        self.arms += 1;
        arena.write(self.record + 4, &word.to_be_bytes());
        let mut doorbell = [0; 8];
        put_u32(&mut doorbell, 0, word);
        put_u32(&mut doorbell, 4, cqn);
        device.write(Bar::Zero, u64::from(uar) * UAR + 0x20, &doorbell)
    }
}
