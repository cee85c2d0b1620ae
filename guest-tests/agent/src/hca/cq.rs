//! Completion queues. Each entry in a queue's ring has an owner byte, which shows whether the device or software owns
//! it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::entries::{ENTRY, EntryRing};
use super::hcr::Op;
use super::layout::Cqc;
use super::open::{Hca, Inbox};
use super::wqe::parse_cqe;
use crate::error::bad_step;
use crate::idle::Idle;
use crate::vfio::{Arena, Doorbell};
use crate::wire::{ArmCq, Completions, CqId, CqInfo, Cqe, CreateCq, Poll};

#[derive(Debug)]
pub(crate) struct Cq {
    /// CQ number, including the bits above the table's index mask.
    pub(crate) cqn: u32,
    ring: EntryRing,
    /// Entries that have been read from the ring but not yet returned to a caller.
    kept: VecDeque<Cqe>,
}

impl Cq {
    pub(crate) fn take(&mut self, arena: &Arena) -> Option<Cqe> {
        self.kept.pop_front().or_else(|| self.consume(arena))
    }

    /// Discards the entries for a QP that has been reset.
    pub(crate) fn discard(&mut self, arena: &Arena, qpn: u32) {
        while let Some(cqe) = self.consume(arena) {
            self.kept.push_back(cqe);
        }
        self.kept.retain(|cqe| cqe.qpn != qpn);
    }

    fn consume(&mut self, arena: &Arena) -> Option<Cqe> {
        self.ring.take(arena).map(|raw| parse_cqe(&raw))
    }
}

impl Hca {
    pub(crate) fn create_cq(&mut self, step: &CreateCq) -> Result<CqInfo> {
        ensure!(
            step.log_entries <= 16,
            bad_step(format!("too many CQ entries: 2^{} (maximum 2^16)", step.log_entries))
        );
        let eqn = step.eq.map_or(Ok(0), |eq| self.eqn(eq))?;
        let index = self.cqns.alloc(1, 1).ok_or_else(|| bad_step("no free completion queue"))?;
        let cqn = self.full_number(self.log_cqs(), index, step.high_bits);
        let buffer_pd = step.buffer_pd.unwrap_or(step.pd);
        let created = self.register_queue(ENTRY << step.log_entries, buffer_pd, true).and_then(|ring| {
            EntryRing::hand_over(&ring, &self.arena);
            let CreateCq { log_entries, pd, arm, .. } = *step;
            let context = Cqc { cqn, log_entries, pd, lkey: ring.key, eqn, arm };
            match self.command(Op::Sw2HwCq, 0, cqn, Inbox::Bytes(&context.emit())) {
                Ok(()) => Ok(ring),
                Err(error) => {
                    self.unregister(&ring)?;
                    Err(error)
                }
            }
        });
        let ring = match created {
            Ok(ring) => ring,
            Err(error) => {
                self.cqns.free(index, 1);
                return Err(error);
            }
        };
        let id = CqId(self.next_id());
        let info = CqInfo { id, cqn, lkey: ring.key };
        let ring = EntryRing::new(ring, step.log_entries);
        self.cqs.insert(id, Cq { cqn, ring, kept: VecDeque::new() });
        Ok(info)
    }

    pub(crate) fn destroy_cq(&mut self, cq: CqId) -> Result<()> {
        let cqn = self.cqn(cq)?;
        self.command(Op::Hw2SwCq, 0, cqn, Inbox::None)?;
        let cq = self.cqs.remove(&cq).ok_or_else(|| bad_step(format!("unknown {cq:?}")))?;
        let index = cq.cqn & ((1 << self.log_cqs()) - 1);
        self.cqns.free(index, 1);
        self.unregister(&cq.ring.region)
    }

    /// Requests an event for the next CQE.
    pub(crate) fn arm_cq(&self, step: ArmCq) -> Result<()> {
        const ARM_CQ: u64 = 0x10;
        self.device.ring(ARM_CQ, Doorbell::Word(self.cqn(step.cq)?))
    }

    pub(crate) fn poll(&mut self, step: &Poll) -> Result<Completions> {
        let started = Instant::now();
        let timeout = Duration::from_millis(step.timeout_ms.into());
        let mut idle = Idle::new();
        let mut cqes = Vec::new();
        while cqes.len() < step.count as usize {
            match self.take_completion(step.cq)? {
                Some((cqe, _)) => {
                    cqes.push(cqe);
                    idle.found();
                }
                None if started.elapsed() >= timeout => break,
                None => idle.pause(step.count as usize - cqes.len()),
            }
        }
        let waited_ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Ok(Completions { cqes, waited_ns })
    }

    /// Takes one completion from the CQ. The returned flag is set if the completion belongs to the oldest outstanding
    /// request of its work queue.
    pub(crate) fn take_completion(&mut self, cq: CqId) -> Result<Option<(Cqe, bool)>> {
        let queue = self.cqs.get_mut(&cq).ok_or_else(|| bad_step(format!("unknown {cq:?}")))?;
        let Some(cqe) = queue.take(&self.arena) else { return Ok(None) };
        let in_order = match self.qpns_in_use.get(&cqe.qpn).and_then(|qp| self.qps.get_mut(qp)) {
            Some(qp) => qp.account(&self.arena, &cqe)?,
            None => false,
        };
        Ok(Some((cqe, in_order)))
    }
}
