//! The rings in memory: event queue, completion queue and send queue.
//!
//! # Spec
//! mlx5 interface, sections 7 to 9 and 11.

use anyhow::{Result, bail, ensure};

use super::bytes::{get_u32, put_u32, put_u64};
use crate::vfio::{Arena, Bar, Device, PAGE};

/// Length of an entry in bytes, the same for all three rings.
const ENTRY: usize = 64;
/// Offset of the owner bit's byte within an entry.
const OWNER: usize = 0x3f;
/// Size of a doorbell page (UAR) in bytes.
const UAR: u64 = 4096;

/// A ring that the device writes and the driver reads.
#[derive(Debug)]
struct Ring {
    offset: usize,
    log: u8,
    /// Number of entries read so far.
    consumer: u32,
}

impl Ring {
    /// Creates a ring whose entries all have `unwritten` as their last byte.
    fn new(arena: &mut Arena, log: u8, unwritten: u8) -> Result<Self> {
        let offset = arena.alloc((ENTRY << log) / PAGE, PAGE)?;
        for entry in 0..1 << log {
            arena.publish_byte(offset + entry * ENTRY + OWNER, unwritten);
        }
        Ok(Self { offset, log, consumer: 0 })
    }

    fn place(&self) -> (usize, usize) {
        (self.offset, (ENTRY << self.log) / PAGE)
    }

    /// Returns the next entry if its owner bit marks it as written and `is_written` accepts its last byte.
    fn next(&mut self, arena: &Arena, is_written: impl FnOnce(u8) -> bool) -> Option<[u8; ENTRY]> {
        let index = self.consumer & ((1 << self.log) - 1);
        let at = self.offset + index as usize * ENTRY;
        let last = arena.observe_byte(at + OWNER);
        let lap = self.consumer >> self.log & 1;
        if u32::from(last & 1) != lap || !is_written(last) {
            return None;
        }
        let mut entry = [0; ENTRY];
        arena.read(at, &mut entry);
        self.consumer = self.consumer.wrapping_add(1);
        Some(entry)
    }
}

/// The event queue, which receives only completion events.
#[derive(Debug)]
pub(super) struct Events(Ring);

impl Events {
    /// Log2 of the number of entries.
    pub(super) const LOG: u8 = 8;

    pub(super) fn new(arena: &mut Arena) -> Result<Self> {
        Ring::new(arena, Self::LOG, 1).map(Self)
    }

    /// Returns the ring's offset and its number of pages.
    pub(super) fn place(&self) -> (usize, usize) {
        self.0.place()
    }

    /// Returns the CQ number of the next event, if the device has written one.
    pub(super) fn next(&mut self, arena: &Arena) -> Result<Option<u32>> {
        let Some(entry) = self.0.next(arena, |_| true) else { return Ok(None) };
        ensure!(entry[1] == 0, "unexpected event of type {:#x}", entry[1]);
        Ok(Some(get_u32(&entry, 0x38) & 0xff_ffff))
    }

    /// Requests an interrupt for the next event.
    pub(super) fn arm(&self, device: &Device, uar: u32, eqn: u32) -> Result<()> {
        self.ring(device, uar, 0x40, eqn)
    }

    /// Writes the consumer index of the EQ to the doorbell without arming the EQ.
    pub(super) fn update(&self, device: &Device, uar: u32, eqn: u32) -> Result<()> {
        self.ring(device, uar, 0x48, eqn)
    }

    fn ring(&self, device: &Device, uar: u32, doorbell: u64, eqn: u32) -> Result<()> {
        let word = eqn << 24 | self.0.consumer & 0xff_ffff;
        device.write(Bar::Zero, u64::from(uar) * UAR + doorbell, &word.to_be_bytes())
    }
}

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
