//! Measures RDMA WRITEs on a queue pair that is connected to itself. A single driver thread can thus measure the
//! device, even without a guest.

use std::hint::spin_loop;
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

use super::{BATCH, Mlx5, TIMEOUT};
use crate::error::bad_step;
use crate::wire::{Mlx5Streamed, PingByWrite, RoundTrips, StreamWrites};

/// Number of polls before the driver yields its CPU, which the device may need.
const SPINS: u32 = 256;

impl Mlx5 {
    /// Posts WRITEs in batches, each with one doorbell and one completion.
    pub(crate) fn stream(&mut self, step: &StreamWrites) -> Result<Mlx5Streamed> {
        let (from, to) = self.halves(step.len)?;
        ensure!(
            (1..=BATCH).contains(&step.batch),
            bad_step(format!("the send queue holds two batches of {BATCH} WRITEs"))
        );
        let started = Instant::now();
        let (mut posted, mut done) = (0, 0);
        while done < step.count {
            while posted < step.count && posted - done <= step.batch {
                let count = step.batch.min(step.count - posted);
                self.post_batch((from, to, step.len), count)?;
                posted += count;
            }
            self.await_completion()?;
            done += step.batch.min(step.count - done);
        }
        Ok(Mlx5Streamed { elapsed_ns: nanos(started)? })
    }

    /// Measures the time from the doorbell of a WRITE until its last byte is visible at the destination.
    pub(crate) fn ping(&mut self, step: &PingByWrite) -> Result<RoundTrips> {
        let (from, to) = self.halves(step.len)?;
        let last =
            step.len.checked_sub(1).ok_or_else(|| bad_step("cannot detect a message of zero bytes"))?;
        let offset = |iova| self.offset(iova + u64::from(last), 1).context("outside the copy buffer");
        let (source, destination) = (offset(from)?, offset(to)?);
        self.arena.publish_byte(destination, 0);
        let mut taken = Vec::with_capacity(step.rounds as usize);
        for round in 0..step.rounds {
            // The value differs from the one used in the previous round and from the initial value 0.
            let number = u8::try_from(round % 255).unwrap_or(0) + 1;
            self.arena.publish_byte(source, number);
            let started = Instant::now();
            self.post_batch((from, to, step.len), 1)?;
            wait(|| Ok((self.arena.observe_byte(destination) == number).then_some(())))?;
            taken.push(nanos(started)?);
            self.await_completion()?;
        }
        taken.sort_unstable();
        let at = |part: usize| {
            let index = (taken.len() * part / 100).min(taken.len().saturating_sub(1));
            taken.get(index).copied().context("no rounds")
        };
        Ok(RoundTrips { min_ns: at(0)?, median_ns: at(50)?, p99_ns: at(99)? })
    }

    /// Returns the bus addresses of a source and a destination of `len` bytes in the copy buffer.
    pub(super) fn halves(&self, len: u32) -> Result<(u64, u64)> {
        let (first, size) = self.data;
        ensure!(len as usize <= size / 2, bad_step(format!("a message has at most {} bytes", size / 2)));
        Ok((self.arena.iova(first), self.arena.iova(first + size / 2)))
    }

    /// Posts identical WRITEs and rings the doorbell. Only the last one requests a completion.
    fn post_batch(&mut self, write: (u64, u64, u32), count: u32) -> Result<()> {
        let [silent, last] = [false, true].map(|completion| self.local_write(write, completion));
        for n in 1..=count {
            self.sends.post(&self.arena, if n == count { &last } else { &silent });
        }
        self.sends.ring(&self.device, &self.arena)
    }

    fn await_completion(&mut self) -> Result<()> {
        let Self { arena, completions, .. } = self;
        let completion = wait(|| completions.next(arena))?;
        ensure!(completion.syndrome == 0, "a WRITE failed with syndrome {:#04x}", completion.syndrome);
        Ok(())
    }
}

/// Polls until `poll` returns a value.
fn wait<T>(mut poll: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let started = Instant::now();
    loop {
        for _ in 0..SPINS {
            if let Some(found) = poll()? {
                return Ok(found);
            }
            spin_loop();
        }
        ensure!(started.elapsed() < TIMEOUT, "the device did not complete a WRITE within {TIMEOUT:?}");
        thread::yield_now();
    }
}

pub(super) fn nanos(since: Instant) -> Result<u64> {
    Ok(u64::try_from(since.elapsed().as_nanos())?)
}
