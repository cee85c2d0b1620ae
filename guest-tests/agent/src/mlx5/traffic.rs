//! Sends messages from one ConnectX function to another. During a measurement, only the loops in this file run. They do
//! not allocate memory, and they write WQEs that were built in advance.

use std::sync::mpsc::Sender;
use std::time::Instant;

use anyhow::{Result, ensure};

use super::command::Function;
use super::completion::{Completion, Completions};
use super::measure::nanos;
use super::pairs::{Pair, QueuePairs};
use super::work_queue::SendWqe;
use super::{Mlx5, TIMEOUT};
use crate::error::{bad_step, mismatch, timeout};
use crate::idle::Idle;
use crate::pattern;
use crate::vfio::{Arena, Device};
use crate::wire::{
    ConnectMlx5Qps, CreateMlx5Qps, Failure, FailureKind, Mlx5Qps, Mlx5Streamed, ReceiveOverMlx5, Remote,
    SendOverMlx5, SendToSelfMlx5, Verified, VerifyMlx5,
};

impl Mlx5 {
    pub(crate) fn create_qps(&mut self, step: &CreateMlx5Qps) -> Result<Mlx5Qps> {
        ensure!(self.queue_pairs.is_none(), bad_step("the function already has queue pairs for a peer"));
        let Self { device, arena, commands, objects, data, .. } = self;
        let made = QueuePairs::create((device, arena, commands), objects, *data, step)?;
        let qpns = made.pairs.iter().map(|pair| pair.qp.qpn).collect();
        let destination = made.remote();
        self.queue_pairs = Some(made);
        Ok(Mlx5Qps { qpns, destination })
    }

    pub(crate) fn connect_qps(&mut self, step: &ConnectMlx5Qps) -> Result<()> {
        let Self { device, arena, commands, queue_pairs, .. } = self;
        opened(queue_pairs)?.connect(&mut Function { device, arena, commands }, step)
    }

    /// Registers a channel to notify when the next [`ReceiveOverMlx5`] step has posted its first receives. If the step
    /// fails before it notifies the channel, the channel is closed.
    pub(crate) fn announce(&mut self, posted: Sender<()>) {
        self.posted = Some(posted);
    }

    /// Sends messages on several queue pairs. When a message completes, its queue pair posts the next batch if there is
    /// room for all of it.
    pub(crate) fn send_over(&mut self, step: &SendOverMlx5) -> Result<Mlx5Streamed> {
        self.check_destinations(step.qps, step.remote_stride, step.len)?;
        let mut content = vec![0; step.len as usize];
        pattern::fill(step.seed, 0, &mut content);
        self.arena.write(self.data.0, &content);
        let Self { device, arena, queue_pairs, .. } = self;
        let queue_pairs = opened(queue_pairs)?;
        ensure!(
            (1..=queue_pairs.depth).contains(&step.depth) && (1..=step.depth).contains(&step.batch),
            bad_step(format!("{} messages in batches of {}", step.depth, step.batch))
        );
        let source = queue_pairs.source(step.len);
        let QueuePairs { pairs, send_completions, .. } = queue_pairs;
        let pairs = first(pairs, step.qps)?;
        let mut flows: Vec<_> = (0..)
            .zip(pairs.iter())
            .map(|(index, pair)| {
                let offset = index * u64::from(step.remote_stride);
                let remote = step.remote.map(|remote| Remote { va: remote.va + offset, ..remote });
                let wqe = SendWqe::new(pair.qp.qpn, source, remote, true);
                (wqe, Flow::new(pair.qp.qpn, pair.sends.next()))
            })
            .collect();
        let started = Instant::now();
        let mut outstanding = 0;
        for (pair, (wqe, flow)) in pairs.iter_mut().zip(&mut flows) {
            outstanding += flow.pump((device, arena), pair, wqe, step)?;
        }
        let left = step.count as usize * flows.len();
        poll(arena, send_completions, (left, outstanding), |completion| {
            let index = completion.user_index as usize;
            let (Some(pair), Some((wqe, flow))) = (pairs.get_mut(index), flows.get_mut(index)) else {
                return Err(foreign(completion));
            };
            flow.complete(completion, false)?;
            flow.pump((device, arena), pair, wqe, step)
        })?;
        Ok(Mlx5Streamed { elapsed_ns: nanos(started)? })
    }

    /// Receives messages on several queue pairs. Each completion triggers another receive until all receives have been
    /// posted.
    pub(crate) fn receive_over(&mut self, step: &ReceiveOverMlx5) -> Result<Mlx5Streamed> {
        let posted = self.posted.take();
        let started = Instant::now();
        let flows = self.post_receives(step)?;
        if let Some(posted) = posted {
            // An error means that nothing waits for this notification any more, which is harmless.
            let _ = posted.send(());
        }
        self.await_receives(step, flows)?;
        Ok(Mlx5Streamed { elapsed_ns: nanos(started)? })
    }

    /// Sends messages on queue pairs that are connected to themselves. All receives are posted first.
    pub(crate) fn send_to_self(&mut self, step: &SendToSelfMlx5) -> Result<Mlx5Streamed> {
        let SendToSelfMlx5 { qps, count, len, stride, seed } = *step;
        let receive = ReceiveOverMlx5 { qps, count, len, depth: count, stride };
        let send =
            SendOverMlx5 { qps, count, len, depth: count, batch: count, seed, ..SendOverMlx5::default() };
        let flows = self.post_receives(&receive)?;
        let sent = self.send_over(&send)?;
        self.await_receives(&receive, flows)?;
        Ok(sent)
    }

    /// Posts the first receives. Returns the progress of each queue pair.
    fn post_receives(&mut self, step: &ReceiveOverMlx5) -> Result<Vec<Flow>> {
        self.check_destinations(step.qps, step.stride, step.len)?;
        let Self { arena, queue_pairs, .. } = self;
        let queue_pairs = opened(queue_pairs)?;
        ensure!(
            (1..=2 * queue_pairs.depth).contains(&step.depth),
            bad_step(format!("a receive queue has room for 1 to {} receives", 2 * queue_pairs.depth))
        );
        let entries = queue_pairs.entries(step.len, step.stride);
        let pairs = first(&mut queue_pairs.pairs, step.qps)?;
        let mut flows: Vec<_> =
            pairs.iter().map(|pair| Flow::new(pair.qp.qpn, pair.receives.next())).collect();
        for ((pair, flow), entry) in pairs.iter_mut().zip(&mut flows).zip(&entries) {
            for _ in 0..step.depth.min(step.count) {
                pair.receives.post(arena, entry);
                flow.posted += 1;
            }
        }
        Ok(flows)
    }

    /// Polls for the completions of all receives, and posts the receives that have not been posted yet.
    fn await_receives(&mut self, step: &ReceiveOverMlx5, mut flows: Vec<Flow>) -> Result<()> {
        let Self { arena, queue_pairs, .. } = self;
        let queue_pairs = opened(queue_pairs)?;
        let entries = queue_pairs.entries(step.len, step.stride);
        let QueuePairs { pairs, receive_completions, .. } = queue_pairs;
        let outstanding = flows.iter().map(|flow| flow.posted as usize).sum();
        let left = step.count as usize * flows.len();
        poll(arena, receive_completions, (left, outstanding), |completion| {
            let index = completion.user_index as usize;
            let (Some(pair), Some(flow), Some(entry)) =
                (pairs.get_mut(index), flows.get_mut(index), entries.get(index))
            else {
                return Err(foreign(completion));
            };
            flow.complete(completion, true)?;
            ensure!(
                completion.len == step.len,
                mismatch(format!("a message has {} bytes, expected {}", completion.len, step.len))
            );
            if flow.posted == step.count {
                return Ok(0);
            }
            pair.receives.post(arena, entry);
            flow.posted += 1;
            Ok(1)
        })
    }

    /// Checks that the destinations of all queue pairs are inside the copy buffer.
    fn check_destinations(&self, qps: u32, stride: u32, len: u32) -> Result<()> {
        let others = u64::from(stride) * u64::from(qps.saturating_sub(1));
        self.halves(u32::try_from(others + u64::from(len)).unwrap_or(u32::MAX)).map(drop)
    }

    /// Compares the memory in which messages arrive with the content of a message.
    pub(crate) fn verify(&self, step: &VerifyMlx5) -> Result<Verified> {
        self.halves(step.off.saturating_add(step.len))?;
        let mut content = vec![0; step.len as usize];
        self.arena.read(self.data.0 + self.data.1 / 2 + step.off as usize, &mut content);
        let difference = pattern::first_difference(step.seed, 0, &content);
        Ok(Verified { first_difference: difference.map(|at| at as u64) })
    }
}

/// The progress of a step on one queue pair.
#[derive(Debug)]
struct Flow {
    qpn: u32,
    /// Index of the next WQE to complete.
    next: u16,
    posted: u32,
    completed: u32,
}

impl Flow {
    const fn new(qpn: u32, next: u16) -> Self {
        Self { qpn, next, posted: 0, completed: 0 }
    }

    /// Posts batches while there is room for a whole one. Returns the number of messages posted.
    fn pump(
        &mut self,
        (device, arena): (&Device, &Arena),
        pair: &mut Pair,
        wqe: &SendWqe,
        step: &SendOverMlx5,
    ) -> Result<usize> {
        let before = self.posted;
        loop {
            let batch = step.batch.min(step.count - self.posted);
            let room = step.depth - (self.posted - self.completed);
            if batch == 0 || room < batch {
                return Ok((self.posted - before) as usize);
            }
            for _ in 0..batch {
                pair.sends.post(arena, wqe);
            }
            pair.sends.ring(device, arena)?;
            self.posted += batch;
        }
    }

    /// Accounts for a completion, which must be that of the oldest outstanding message.
    fn complete(&mut self, completion: Completion, is_receive: bool) -> Result<()> {
        let Completion { syndrome, qpn, index, .. } = completion;
        if syndrome != 0 {
            let message = format!("message {} failed with syndrome {syndrome:#04x}", self.completed);
            return Err(Failure::new(FailureKind::Completion { syndrome }, message).into());
        }
        let is_expected = completion.is_receive == is_receive && (qpn, index) == (self.qpn, self.next);
        ensure!(
            is_expected && self.completed < self.posted,
            mismatch(format!("{completion:x?} instead of WQE {:#x} of QP {:#x}", self.next, self.qpn))
        );
        self.next = self.next.wrapping_add(1);
        self.completed += 1;
        Ok(())
    }
}

/// Polls for the remaining completions, whose number is `left`. `outstanding` is the number of messages outstanding at
/// the time of the call. `handle` accounts for a completion and returns the number of messages that it has posted.
fn poll(
    arena: &Arena,
    completions: &mut Completions,
    (mut left, mut outstanding): (usize, usize),
    mut handle: impl FnMut(Completion) -> Result<usize>,
) -> Result<()> {
    let mut idle = Idle::new();
    let mut waiting_since = None;
    while left > 0 {
        if let Some(completion) = completions.next(arena)? {
            waiting_since = None;
            idle.found();
            outstanding = outstanding + handle(completion)? - 1;
            left -= 1;
            continue;
        }
        ensure!(
            waiting_since.get_or_insert_with(Instant::now).elapsed() < TIMEOUT,
            timeout(format!("no message completed within {TIMEOUT:?}; {left} are left"))
        );
        idle.pause(outstanding);
    }
    Ok(())
}

fn opened(queue_pairs: &mut Option<QueuePairs>) -> Result<&mut QueuePairs> {
    queue_pairs.as_mut().ok_or_else(|| bad_step("the function has no queue pairs for a peer"))
}

/// Returns the first `count` queue pairs.
fn first(pairs: &mut [Pair], count: u32) -> Result<&mut [Pair]> {
    let all = pairs.len();
    pairs.get_mut(..count as usize).ok_or_else(|| bad_step(format!("only {all} queue pairs exist")))
}

fn foreign(completion: Completion) -> anyhow::Error {
    mismatch(format!("the completion of another queue pair: {completion:x?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENT: Completion =
        Completion { is_receive: false, qpn: 7, user_index: 0, index: 0xffff, len: 0, syndrome: 0 };

    #[test]
    fn completions_must_arrive_in_order() {
        let mut flow = Flow { posted: 2, ..Flow::new(7, 0xffff) };
        assert!(flow.complete(Completion { index: 0, ..SENT }, false).is_err());
        assert!(flow.complete(SENT, true).is_err(), "a send in place of a receive");
        flow.complete(SENT, false).unwrap();
        assert!(flow.complete(SENT, false).is_err(), "a second completion");
        flow.complete(Completion { index: 0, ..SENT }, false).unwrap();
        assert!(flow.complete(Completion { index: 1, ..SENT }, false).is_err(), "a message not posted");
    }

    #[test]
    fn error_completion_reports_syndrome() {
        let mut flow = Flow { posted: 1, ..Flow::new(7, 0xffff) };
        let error = flow.complete(Completion { syndrome: 0x15, ..SENT }, false).unwrap_err();
        let failure = error.downcast::<Failure>().unwrap();
        assert_eq!(failure.kind, FailureKind::Completion { syndrome: 0x15 });
    }
}
