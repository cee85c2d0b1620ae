//! In-memory rings that the device writes to, and the event queue.
//!
//! # Spec
//! mlx5 interface, sections 7 to 9.

use anyhow::{Result, ensure};

use super::bytes::get_u32;
use crate::vfio::{Arena, Bar, Device, PAGE};

/// Length of a CQ or EQ entry in bytes.
pub(super) const ENTRY: usize = 64;
/// Offset, within an entry, of the byte that contains the owner bit.
pub(super) const OWNER: usize = 0x3f;
/// Size of a doorbell page (UAR) in bytes.
pub(super) const UAR: u64 = 4096;

/// A ring that the device writes to and the driver reads from.
#[derive(Debug)]
pub(super) struct Ring {
    offset: usize,
    pub(super) log: u8,
    /// Number of entries read so far.
    pub(super) consumer: u32,
}

impl Ring {
    /// Creates a ring whose entries all have `unwritten` as their last byte.
    pub(super) fn new(arena: &mut Arena, log: u8, unwritten: u8) -> Result<Self> {
        let offset = arena.alloc((ENTRY << log) / PAGE, PAGE)?;
        for entry in 0..1 << log {
            arena.publish_byte(offset + entry * ENTRY + OWNER, unwritten);
        }
        Ok(Self { offset, log, consumer: 0 })
    }

    pub(super) fn place(&self) -> (usize, usize) {
        (self.offset, (ENTRY << self.log) / PAGE)
    }

    /// Returns the next entry if its owner bit marks it as written and `is_written` accepts its last byte.
    pub(super) fn next(&mut self, arena: &Arena, is_written: impl FnOnce(u8) -> bool) -> Option<[u8; ENTRY]> {
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
