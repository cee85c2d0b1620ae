//! Measures the round-trip time of RDMA WRITEs.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::open::Hca;
use crate::error::{bad_step, timeout};
use crate::wire::{Data, Failure, FailureKind, Hex, PingPong, Ring, RoundTrips, SendOp, SendRequest};

impl Hca {
    /// Exchanges messages with a peer that runs the same step.
    pub(crate) fn ping_pong(&mut self, step: &PingPong) -> Result<RoundTrips> {
        let last =
            step.len.checked_sub(1).ok_or_else(|| bad_step("cannot detect a message of zero bytes"))?;
        let region = self.mr(step.mr)?;
        region.range(0, step.len.into())?;
        let mark = region.locate(last as usize);
        let limit = Duration::from_millis(step.timeout_ms.into());
        let mut taken = Vec::with_capacity(step.rounds as usize);
        let mut begun = Instant::now();
        for round in 0..step.rounds {
            // The value differs from the one used in the previous round and from the initial value 0.
            let number = u8::try_from(round % 255).unwrap_or(0) + 1;
            if step.first {
                begun = Instant::now();
                self.ping(step, number)?;
            }
            let waiting = Instant::now();
            while self.arena().observe_byte(mark) != number {
                ensure!(
                    waiting.elapsed() < limit,
                    timeout(format!("message {round} was not received within {limit:?}"))
                );
                // The device or the peer may need this CPU.
                thread::yield_now();
            }
            if !step.first {
                self.ping(step, number)?;
            }
            taken.push(begun.elapsed());
            begun = Instant::now();
            self.take_pings(step, 1)?;
        }
        self.take_pings(step, self.qp(step.qp)?.send_slots())?;
        // Reset the last byte now: the peer may start the next exchange before this side does.
        self.arena().publish_byte(mark, 0);
        taken.sort_unstable();
        let at = |part: usize| -> Result<u64> {
            let index = (taken.len() * part / 100).min(taken.len().saturating_sub(1));
            let time = taken.get(index).context("no rounds")?;
            Ok(u64::try_from(time.as_nanos())?)
        };
        Ok(RoundTrips { min_ns: at(0)?, median_ns: at(50)?, p99_ns: at(99)? })
    }

    fn ping(&mut self, step: &PingPong, number: u8) -> Result<()> {
        let request = SendRequest {
            op: SendOp::Write,
            data: Data::Inline(Hex(vec![number; step.len as usize])),
            remote: Some(step.remote),
            ..SendRequest::default()
        };
        let (qp, arena, device) = self.qp_mut(step.qp)?;
        qp.post_send(arena, device, &[request], Ring::Once).map(drop)
    }

    /// Consumes completions until none is available and at least `free` send slots are free.
    fn take_pings(&mut self, step: &PingPong, free: u32) -> Result<()> {
        let [cq, _] = self.qp(step.qp)?.cqs;
        loop {
            match self.take_completion(cq)? {
                Some((cqe, _)) => {
                    if let Some(syndrome) = cqe.syndrome {
                        let message =
                            format!("a message completed with syndrome {syndrome:#04x}: {}", cqe.raw);
                        return Err(Failure::new(FailureKind::Completion { syndrome }, message).into());
                    }
                }
                None if self.qp(step.qp)?.free_sends() >= free => return Ok(()),
                None => thread::yield_now(),
            }
        }
    }
}
