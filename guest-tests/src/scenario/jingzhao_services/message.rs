//! Source and destination buffers for messages over unreliable services.

use agent::wire::{Data, Fill, MrInfo, Remote, Sge, Verify};
use anyhow::{Result, ensure};

use crate::scenario::connection::{destroy_region, expect_stream, region};
use crate::scenario::pair::{Direction, Pair};

/// Number of guard bytes, which must stay unchanged, before and after a message.
const GUARD: u64 = 64;
/// Seed of the destination buffer's content before a message arrives.
const UNTOUCHED: u64 = 0x756e_746f_7563_6800;

/// Source and destination buffers, reused for successive messages.
#[derive(Debug)]
pub(super) struct Buffers {
    direction: Direction,
    pub(super) source: MrInfo,
    pub(super) sink: MrInfo,
    seed: u64,
}

impl Buffers {
    /// Creates unaligned buffers for messages of up to `capacity` bytes.
    pub(super) async fn create(pair: &mut Pair, direction: Direction, capacity: u64) -> Result<Self> {
        let (sender, receiver) = pair.towards(direction);
        let len = capacity + 2 * GUARD;
        let (source, sink) = tokio::try_join!(region(sender, len, 3001), region(receiver, len, 17))?;
        Ok(Self { direction, source, sink, seed: 0 })
    }

    /// Fills the source buffer with new content for a `len`-byte message and resets the destination buffer.
    pub(super) async fn prepare(&mut self, pair: &mut Pair, len: u32) -> Result<()> {
        self.seed += 1;
        let (sender, receiver) = pair.towards(self.direction);
        let span = u64::from(len) + 2 * GUARD;
        let fill = |mr: &MrInfo, seed| Fill { mr: mr.id, len: span, seed, ..Fill::default() };
        let (to_source, to_sink) = (fill(&self.source, self.seed), fill(&self.sink, UNTOUCHED));
        tokio::try_join!(sender.call(to_source), receiver.call(to_sink))?;
        Ok(())
    }

    /// Returns the gather list for a `len`-byte message.
    pub(super) fn gather(&self, len: u32) -> Data {
        Data::Sges(if len == 0 { Vec::new() } else { vec![self.source.sge(GUARD, len)] })
    }

    /// Returns a scatter list for `len` bytes at the receiver.
    pub(super) fn scatter(&self, len: u32) -> Vec<Sge> {
        if len == 0 { Vec::new() } else { vec![self.sink.sge(GUARD, len)] }
    }

    /// Returns the remote address for a WRITE of the message.
    pub(super) const fn remote(&self) -> Remote {
        self.sink.remote(GUARD)
    }

    /// Compares the receiver's data with the message and returns the offset of the first difference.
    pub(super) async fn first_difference(&self, pair: &mut Pair, at: u64, len: u32) -> Result<Option<u64>> {
        let (_, receiver) = pair.towards(self.direction);
        let part =
            Verify { mr: self.sink.id, off: GUARD + at, len: len.into(), seed: self.seed, position: GUARD };
        Ok(receiver.call(part).await?.first_difference)
    }

    /// Checks that the message arrived `at` bytes into the receiver's buffer, that the guard bytes before the buffer
    /// and after the message are unchanged, and that the sender's memory is unchanged.
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

    /// Checks that part of the receiver's buffer is unchanged.
    pub(super) async fn expect_untouched(&self, pair: &mut Pair, off: u64, len: u64) -> Result<()> {
        let (_, receiver) = pair.towards(self.direction);
        let part = Verify { mr: self.sink.id, off, len, seed: UNTOUCHED, position: off };
        expect_stream(receiver, part, "memory outside the message").await
    }

    /// Checks that no byte of a `len`-byte message has arrived.
    pub(super) async fn expect_nothing(&self, pair: &mut Pair, len: u32) -> Result<()> {
        self.expect_untouched(pair, 0, u64::from(len) + 2 * GUARD).await
    }

    pub(super) async fn destroy(self, pair: &mut Pair) -> Result<()> {
        let (sender, receiver) = pair.towards(self.direction);
        destroy_region(sender, &self.source).await?;
        destroy_region(receiver, &self.sink).await
    }
}
