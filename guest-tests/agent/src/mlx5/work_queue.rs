//! The send queue in memory.
//!
//! # Spec
//! mlx5 interface, sections 7 and 11.

use anyhow::Result;

use super::bytes::{put_u32, put_u64};
use super::queue::{ENTRY, UAR};
use crate::vfio::{Arena, Bar, Device, PAGE};

/// The send queue and its doorbell record.
#[derive(Debug)]
pub(super) struct Sends {
    offset: usize,
    record: usize,
    /// Number of WQEs posted since the QP was last reset.
    posted: u16,
    /// First 8 bytes of the last WQE posted.
    latest: [u8; 8],
}

impl Sends {
    /// Log2 of the number of entries.
    pub(super) const LOG: u8 = 6;
    pub(super) const ENTRIES: u32 = 1 << Self::LOG;

    pub(super) fn new(arena: &mut Arena) -> Result<Self> {
        let offset = arena.alloc((ENTRY << Self::LOG) / PAGE, PAGE)?;
        Ok(Self { offset, record: arena.alloc(1, PAGE)?, posted: 0, latest: [0; 8] })
    }

    pub(super) const fn place(&self) -> (usize, usize) {
        (self.offset, (ENTRY << Self::LOG) / PAGE)
    }

    pub(super) const fn record(&self) -> usize {
        self.record
    }

    /// Returns the index of the last WQE posted.
    pub(super) const fn last(&self) -> u16 {
        self.posted.wrapping_sub(1)
    }

    /// Writes a WQE for an RDMA WRITE, without ringing the doorbell.
    pub(super) fn post(
        &mut self,
        arena: &Arena,
        qpn: u32,
        key: u32,
        (from, to, len): (u64, u64, u32),
        completion: bool,
    ) {
        const WRITE: u32 = 0x08;
        const UNITS: u32 = 3;
        const COMPLETION: u32 = 2 << 2;
        let mut wqe = [0; ENTRY];
        put_u32(&mut wqe, 0x00, u32::from(self.posted) << 8 | WRITE);
        put_u32(&mut wqe, 0x04, qpn << 8 | UNITS);
        put_u32(&mut wqe, 0x08, if completion { COMPLETION } else { 0 });
        put_u64(&mut wqe, 0x10, to);
        put_u32(&mut wqe, 0x18, key);
        put_u32(&mut wqe, 0x20, len);
        put_u32(&mut wqe, 0x24, key);
        put_u64(&mut wqe, 0x28, from);
        let index = usize::from(self.posted) & ((1 << Self::LOG) - 1);
        arena.write(self.offset + index * ENTRY, &wqe);
        self.latest.copy_from_slice(&wqe[..8]);
        self.posted = self.posted.wrapping_add(1);
    }

    /// Updates the doorbell record and rings the doorbell for all posted WQEs.
    pub(super) fn ring(&self, device: &Device, arena: &Arena, uar: u32) -> Result<()> {
        // `publish_word` stores a little-endian word, but the record is big-endian.
        arena.publish_word(self.record + 4, u32::from(self.posted).swap_bytes());
        device.write(Bar::Zero, u64::from(uar) * UAR + 0x800, &self.latest)
    }

    /// Empties the queue after the QP has been reset.
    pub(super) fn reset(&mut self, arena: &Arena) {
        self.posted = 0;
        arena.publish_word(self.record + 4, 0);
    }
}
