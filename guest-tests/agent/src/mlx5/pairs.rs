//! Queue pairs that exchange messages with another function.
//!
//! # Spec
//! mlx5 interface, sections 9.1, 10 and 13.1.

use anyhow::{Context as _, Result, ensure};

use super::bytes::{put_u32, put_u64};
use super::command::{Commands, Function, Op};
use super::completion::Completions;
use super::objects::{CONTEXT, KEY_BYTE, NONE, Objects, READ_AND_WRITE, create_cq, with_pages};
use super::qp::{Fields, Peer, QueuePair};
use super::work_queue::{QueueMemory, Receives, SEGMENT, Segment, Sends, send_doorbell};
use crate::error::bad_step;
use crate::vfio::{Arena, Device, PAGE};
use crate::wire::{ConnectMlx5Qps, CreateMlx5Qps, Remote};

/// Address of the data region in work requests. It differs from every bus address, so that mixing up the two causes a
/// failure.
const DATA_VA: u64 = 0x7f00_0000_0000;
/// Distance between doorbell records in bytes. Each record has its own cache line.
const RECORD: usize = 64;
/// Number of queue pairs that share a doorbell page. As in libmlx5, each has its own send register.
const QPS_PER_UAR: u32 = 2;
/// Log2 of the number of entries in the smallest completion queue, which fills a page.
const LOG_MIN_CQ: u8 = 6;
/// Log2 of the maximum number of entries in a completion queue.
const LOG_MAX_CQ: u8 = 14;

/// A queue pair together with its work queues.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) qp: QueuePair,
    pub(super) sends: Sends,
    pub(super) receives: Receives,
}

/// Queue pairs that share a data region, a completion queue for sends and a completion queue for receives. The user
/// index of a queue pair is its index in `pairs`.
#[derive(Debug)]
pub(super) struct QueuePairs {
    pub(super) pairs: Vec<Pair>,
    pub(super) send_completions: Completions,
    pub(super) receive_completions: Completions,
    send_cqn: u32,
    recv_cqn: u32,
    uars: Vec<u32>,
    mkey: u32,
    /// Maximum number of outstanding sends per queue pair. The limit for receives is twice as high.
    pub(super) depth: u32,
    /// Length of the data region in bytes. Messages are sent from its first half and arrive in its second half.
    data_len: usize,
}

impl QueuePairs {
    /// Creates the queue pairs. `data` is the offset and the length of the data region in the arena.
    pub(super) fn create(
        (device, arena, commands): (&Device, &mut Arena, &mut Commands),
        objects: &Objects,
        data: (usize, usize),
        step: &CreateMlx5Qps,
    ) -> Result<Self> {
        ensure!(step.count > 0 && step.depth > 0, bad_step("no queue pairs or no outstanding messages"));
        // A completion queue needs room for all outstanding messages, since they may complete before the driver polls.
        let receives = step.depth.checked_mul(2).and_then(|receives| receives.checked_mul(step.count));
        let log_cq = receives.map_or(u8::MAX, log2_at_least).max(LOG_MIN_CQ);
        let log_sends = log2_at_least(step.depth);
        ensure!(
            log_cq <= LOG_MAX_CQ,
            bad_step(format!(
                "{} queue pairs of depth {} overrun a completion queue",
                step.count, step.depth
            ))
        );
        let send_completions = Completions::new(arena, log_cq)?;
        let receive_completions = Completions::new(arena, log_cq)?;
        let records = arena.alloc((step.count as usize * RECORD).div_ceil(PAGE), PAGE)?;
        let memory = (0..step.count as usize)
            .map(|n| QueueMemory::alloc(arena, Some(log_sends + 1), log_sends, records + n * RECORD))
            .collect::<Result<Vec<_>>>()?;

        let mut function = Function { device, arena, commands };
        let mkey = create_region(&mut function, objects.pd, data).context("cannot register the data")?;
        let send_cqn = create_cq(&mut function, &send_completions, objects.uar, objects.eqn)?;
        let recv_cqn = create_cq(&mut function, &receive_completions, objects.uar, objects.eqn)?;
        let uars = (0..step.count.div_ceil(QPS_PER_UAR))
            .map(|_| function.allocate(Op::AllocUar))
            .collect::<Result<Vec<_>>>()?;
        let pairs = (0..)
            .zip(&memory)
            .map(|(user_index, memory)| {
                let uar = uars[(user_index / QPS_PER_UAR) as usize];
                let fields = Fields { pd: objects.pd, uar, send_cqn, recv_cqn, user_index };
                Ok(Pair {
                    qp: QueuePair::create(&mut function, memory, fields)?,
                    sends: Sends::new(memory, send_doorbell(uar, user_index % QPS_PER_UAR)),
                    receives: Receives::new(memory),
                })
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Self {
            pairs,
            send_completions,
            receive_completions,
            send_cqn,
            recv_cqn,
            uars,
            mkey,
            depth: step.depth,
            data_len: data.1,
        })
    }

    /// Connects each queue pair to the peer's queue pair with the same index.
    pub(super) fn connect(&self, function: &mut Function<'_>, step: &ConnectMlx5Qps) -> Result<()> {
        let (own, peers) = (self.pairs.len(), step.qpns.len());
        ensure!(own == peers, bad_step(format!("{own} queue pairs cannot connect to {peers}")));
        for (pair, &qpn) in self.pairs.iter().zip(&step.qpns) {
            pair.qp.connect(function, Peer { lid: step.lid, qpn })?;
        }
        Ok(())
    }

    pub(super) fn destroy(&self, function: &mut Function<'_>) -> Result<()> {
        for pair in &self.pairs {
            pair.qp.destroy(function)?;
        }
        for cqn in [self.send_cqn, self.recv_cqn] {
            function.execute(Op::DestroyCq, cqn)?;
        }
        function.execute(Op::DestroyMkey, self.mkey)?;
        self.uars.iter().try_for_each(|&uar| function.execute(Op::DeallocUar, uar))
    }

    /// Returns the memory that all messages of `len` bytes are sent from.
    pub(super) const fn source(&self, len: u32) -> Segment {
        Segment { key: self.key(), address: DATA_VA, len }
    }

    /// Returns each queue pair's receive queue entry, for messages of `len` bytes. `stride` is the distance in bytes
    /// between the destinations of two consecutive queue pairs.
    pub(super) fn entries(&self, len: u32, stride: u32) -> Vec<[u8; SEGMENT]> {
        let Remote { va, rkey } = self.remote();
        let addresses = (0..).map(|index: u64| va + index * u64::from(stride)).take(self.pairs.len());
        addresses.map(|address| Segment { key: rkey, address, len }.emit()).collect()
    }

    /// Returns the address and rkey of the memory that messages arrive in, for the peer's RDMA WRITEs.
    pub(super) const fn remote(&self) -> Remote {
        Remote { va: DATA_VA + self.data_len as u64 / 2, rkey: self.key() }
    }

    const fn key(&self) -> u32 {
        self.mkey << 8 | KEY_BYTE
    }
}

/// Registers the data as a region of 4 KiB pages, as a program's memory would be. Returns the mkey index.
fn create_region(function: &mut Function<'_>, pd: u32, (offset, len): (usize, usize)) -> Result<u32> {
    const PAGE_LIST: u32 = 1 << 8;
    const PAGES_PER_UNIT: usize = 2;
    let pages = len / PAGE;
    let units = u32::try_from(pages / PAGES_PER_UNIT)?;
    let mut input = with_pages(function.arena, (offset, pages));
    put_u32(&mut input, CONTEXT, READ_AND_WRITE | PAGE_LIST);
    put_u32(&mut input, CONTEXT + 0x04, NONE << 8 | KEY_BYTE);
    put_u32(&mut input, CONTEXT + 0x0c, pd);
    put_u64(&mut input, CONTEXT + 0x10, DATA_VA);
    put_u64(&mut input, CONTEXT + 0x18, len as u64);
    put_u32(&mut input, CONTEXT + 0x34, units);
    put_u32(&mut input, CONTEXT + 0x38, PAGE.ilog2());
    put_u32(&mut input, 0x60, units);
    function.create(Op::CreateMkey, input)
}

/// Returns log2 of the smallest power of two that is at least `count`.
fn log2_at_least(count: u32) -> u8 {
    let log = u32::BITS - count.saturating_sub(1).leading_zeros();
    // The result is at most 32, so the conversion cannot fail.
    u8::try_from(log).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log2_rounds_up() {
        assert_eq!([1, 2, 3, 64, 65, u32::MAX].map(log2_at_least), [0, 1, 2, 6, 7, 32]);
    }
}
