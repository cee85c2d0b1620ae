//! One message at a time, without anybody to send it again: buffers, and what must be in them afterwards.

use agent::wire::{Data, Fill, MrInfo, Remote, Sge, Verify};
use anyhow::{Result, ensure};

use crate::scenario::connection::{destroy_region, expect_stream, region};
use crate::scenario::pair::{Direction, Pair};

/// Bytes before and behind a message, which nobody may write.
const GUARD: u64 = 64;
/// What the receiver's buffer holds before a message comes.
const UNTOUCHED: u64 = 0x756e_746f_7563_6800;

/// A buffer at each end, used by one message after the other.
#[derive(Debug)]
pub(super) struct Buffers {
    direction: Direction,
    pub(super) source: MrInfo,
    pub(super) sink: MrInfo,
    seed: u64,
}

impl Buffers {
    /// Buffers for messages of up to `capacity` bytes, neither aligned to anything.
    pub(super) async fn create(pair: &mut Pair, direction: Direction, capacity: u64) -> Result<Self> {
        let (sender, receiver) = pair.towards(direction);
        let len = capacity + 2 * GUARD;
        let (source, sink) = tokio::try_join!(region(sender, len, 3001), region(receiver, len, 17))?;
        Ok(Self { direction, source, sink, seed: 0 })
    }

    /// Fills the source with fresh content for a message of `len` bytes, and the sink with what must stay.
    pub(super) async fn prepare(&mut self, pair: &mut Pair, len: u32) -> Result<()> {
        self.seed += 1;
        let (sender, receiver) = pair.towards(self.direction);
        let span = u64::from(len) + 2 * GUARD;
        let fill = |mr: &MrInfo, seed| Fill { mr: mr.id, len: span, seed, ..Fill::default() };
        let (to_source, to_sink) = (fill(&self.source, self.seed), fill(&self.sink, UNTOUCHED));
        tokio::try_join!(sender.call(to_source), receiver.call(to_sink))?;
        Ok(())
    }

    /// The whole message at its sender.
    pub(super) fn gather(&self, len: u32) -> Data {
        Data::Sges(if len == 0 { Vec::new() } else { vec![self.source.sge(GUARD, len)] })
    }

    /// Room for `len` bytes at the receiver.
    pub(super) fn scatter(&self, len: u32) -> Vec<Sge> {
        if len == 0 { Vec::new() } else { vec![self.sink.sge(GUARD, len)] }
    }

    /// Where a message is written to or read from.
    pub(super) const fn remote(&self) -> Remote {
        self.sink.remote(GUARD)
    }

    /// The first byte of a message that is not at the receiver.
    pub(super) async fn first_difference(&self, pair: &mut Pair, at: u64, len: u32) -> Result<Option<u64>> {
        let (_, receiver) = pair.towards(self.direction);
        let part =
            Verify { mr: self.sink.id, off: GUARD + at, len: len.into(), seed: self.seed, position: GUARD };
        Ok(receiver.call(part).await?.first_difference)
    }

    /// The message lies `at` bytes behind where room was made for it, and nothing around it was written. The sender's
    /// memory is as it was.
    pub(super) async fn expect_arrived(&self, pair: &mut Pair, at: u64, len: u32) -> Result<()> {
        let wrong = self.first_difference(pair, at, len).await?;
        ensure!(wrong.is_none(), "byte {} of {len} is wrong at the receiver", wrong.unwrap_or_default());
        self.expect_untouched(pair, 0, GUARD).await?;
        self.expect_untouched(pair, GUARD + at + u64::from(len), GUARD - at.min(GUARD)).await?;
        let (sender, _) = pair.towards(self.direction);
        let sent = Verify {
            mr: self.source.id,
            len: u64::from(len) + 2 * GUARD,
            seed: self.seed,
            ..Verify::default()
        };
        expect_stream(sender, sent, "sent data").await
    }

    /// A part of the receiver's buffer is as it was before.
    pub(super) async fn expect_untouched(&self, pair: &mut Pair, off: u64, len: u64) -> Result<()> {
        let (_, receiver) = pair.towards(self.direction);
        let part = Verify { mr: self.sink.id, off, len, seed: UNTOUCHED, position: off };
        expect_stream(receiver, part, "memory outside the message").await
    }

    /// Nothing of a message of `len` bytes arrived.
    pub(super) async fn expect_nothing(&self, pair: &mut Pair, len: u32) -> Result<()> {
        self.expect_untouched(pair, 0, u64::from(len) + 2 * GUARD).await
    }

    pub(super) async fn destroy(self, pair: &mut Pair) -> Result<()> {
        let (sender, receiver) = pair.towards(self.direction);
        destroy_region(sender, &self.source).await?;
        destroy_region(receiver, &self.sink).await
    }
}
