//! An event queue with its own vector, and the events expected in it.

use agent::wire::{CreateEq, DestroyEq, EqInfo, Hex, MapEq, PollEq, WaitInterrupt};
use anyhow::{Result, ensure};

use crate::scenario::driver::Driver;

/// Timeout for an interrupt that is expected immediately.
const SOON_MS: u32 = 10_000;
/// How long to wait for an interrupt that must not arrive. This is many times the latency through the VMM and the
/// guest's kernel.
const NEVER_MS: u32 = 200;

/// Event types (JingZhao interface, section 8.3).
pub(super) mod kind {
    pub(in super::super) const COMPLETION: u8 = 0x00;
    pub(in super::super) const COMMUNICATION_ESTABLISHED: u8 = 0x02;
    pub(in super::super) const SQ_DRAINED: u8 = 0x03;
    pub(in super::super) const CQ_ERROR: u8 = 0x04;
    pub(in super::super) const WQ_CATASTROPHIC: u8 = 0x05;
    pub(in super::super) const LOCAL_CATASTROPHIC: u8 = 0x08;
    pub(in super::super) const PORT_CHANGE: u8 = 0x09;
    pub(in super::super) const COMMAND: u8 = 0x0a;
    pub(in super::super) const EQ_OVERFLOW: u8 = 0x0f;
    pub(in super::super) const INVALID_REQUEST: u8 = 0x10;
    pub(in super::super) const ACCESS_ERROR: u8 = 0x11;
}

/// Content of an event (JingZhao interface, section 8.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) kind: u8,
    pub(super) subtype: u8,
    pub(super) number: u32,
    pub(super) detail: u32,
    pub(super) param: u64,
}

impl Event {
    /// Returns an event that contains only a number, usually that of a queue.
    pub(super) const fn of(kind: u8, number: u32) -> Self {
        Self { kind, number, subtype: 0, detail: 0, param: 0 }
    }

    /// Returns the event that reports a command's completion.
    pub(super) const fn command(token: u16, status: u8, out_param: u64) -> Self {
        Self {
            kind: kind::COMMAND,
            number: token as u32,
            detail: (status as u32) << 24,
            param: out_param,
            subtype: 0,
        }
    }

    /// Encodes the event as a queue entry.
    fn entry(&self) -> Hex {
        let mut bytes = vec![0; 32];
        bytes[0x01] = self.kind;
        bytes[0x03] = self.subtype;
        bytes[0x04..0x08].copy_from_slice(&self.number.to_le_bytes());
        bytes[0x08..0x0c].copy_from_slice(&self.detail.to_le_bytes());
        bytes[0x0c..0x14].copy_from_slice(&self.param.to_le_bytes());
        Hex(bytes)
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Watch {
    pub(super) eq: EqInfo,
    pub(super) vector: u16,
}

impl Watch {
    /// Creates a queue that raises an interrupt for every event whose type is in `kinds`.
    pub(super) async fn create(driver: &mut impl Driver, vector: u16, kinds: &[u8]) -> Result<Self> {
        Self::create_as(driver, CreateEq { vector, ..CreateEq::default() }, kinds).await
    }

    /// Creates a queue with parameters `shape` for events whose type is in `kinds`.
    pub(super) async fn create_as(driver: &mut impl Driver, shape: CreateEq, kinds: &[u8]) -> Result<Self> {
        let eq = driver.call(shape).await?;
        driver.call(MapEq { eq: eq.id, events: mask(kinds), remove: false }).await?;
        Ok(Self { eq, vector: shape.vector })
    }

    /// Removes event types from the queue's mask.
    pub(super) async fn unmap(&self, driver: &mut impl Driver, kinds: &[u8]) -> Result<()> {
        driver.call(MapEq { eq: self.eq.id, events: mask(kinds), remove: true }).await.map(drop)
    }

    /// Expects one interrupt and exactly one event, `event`.
    pub(super) async fn expect(&self, driver: &mut impl Driver, event: Event) -> Result<()> {
        self.expect_interrupt(driver).await?;
        self.expect_entries(driver, &[event]).await
    }

    /// Expects exactly one interrupt.
    pub(super) async fn expect_interrupt(&self, driver: &mut impl Driver) -> Result<()> {
        let count = self.interrupts(driver, SOON_MS).await?;
        ensure!(count == 1, "{count} interrupts on vector {}, expected one", self.vector);
        Ok(())
    }

    /// Expects exactly `events`. They must already be in memory, so the caller must have observed their interrupt or a
    /// later effect.
    pub(super) async fn expect_entries(&self, driver: &mut impl Driver, events: &[Event]) -> Result<()> {
        let count = u32::try_from(events.len())? + 1;
        let eqes = driver.call(PollEq { eq: self.eq.id, count, timeout_ms: 0 }).await?.eqes;
        let seen: Vec<Hex> = eqes.into_iter().map(|eqe| eqe.raw).collect();
        let expected: Vec<Hex> = events.iter().map(Event::entry).collect();
        ensure!(seen == expected, "entries {seen:?}\nexpected {expected:?}");
        Ok(())
    }

    /// Expects one event without an interrupt.
    pub(super) async fn expect_silently(&self, driver: &mut impl Driver, event: Event) -> Result<()> {
        let poll = PollEq { eq: self.eq.id, count: 1, timeout_ms: SOON_MS };
        let seen: Vec<Hex> = driver.call(poll).await?.eqes.into_iter().map(|eqe| eqe.raw).collect();
        ensure!(seen == [event.entry()], "entries {seen:?}\nexpected {:?}", event.entry());
        self.expect_no_interrupt(driver).await
    }

    /// Expects no interrupt within [`NEVER_MS`] milliseconds.
    pub(super) async fn expect_no_interrupt(&self, driver: &mut impl Driver) -> Result<()> {
        let count = self.interrupts(driver, NEVER_MS).await?;
        ensure!(count == 0, "{count} interrupts on vector {}", self.vector);
        Ok(())
    }

    /// Destroys the queue, which must be empty.
    pub(super) async fn destroy(self, driver: &mut impl Driver) -> Result<()> {
        self.expect_entries(driver, &[]).await?;
        let count = self.interrupts(driver, 0).await?;
        ensure!(count == 0, "{count} more interrupts on vector {}", self.vector);
        driver.call(DestroyEq { eq: self.eq.id }).await.map(drop)
    }

    async fn interrupts(&self, driver: &mut impl Driver, timeout_ms: u32) -> Result<u64> {
        Ok(driver.call(WaitInterrupt { vector: self.vector, timeout_ms }).await?.count)
    }
}

fn mask(kinds: &[u8]) -> u64 {
    kinds.iter().fold(0, |mask, kind| mask | 1 << kind)
}
