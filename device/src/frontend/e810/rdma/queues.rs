//! Queue pairs and completion queues: operations on them, and their doorbells.
//!
//! # Spec
//! E810 interface, sections 10.3, 12 and 13.

use protocol::hca::e810::rdma::completion_queue::{CqCommand, DestroyCq};
use protocol::hca::e810::rdma::control::Completion;
use protocol::hca::e810::rdma::error::{CqpError, Refusal};
use protocol::hca::e810::rdma::queue_pair::{DestroyQp, FlushQp, QpCommand, SuspendQp};
use protocol::ids::{Cqn, Qpn};

use super::Rdma;
use super::completion_queue::CompletionQueue;
use super::dispatch::Outcome;
use super::fpm::MAX_CQS;
use crate::frontend::Context;
use crate::memory::GuestMemory;
use crate::sparse::{Capacity, SparseTable};

/// The queue in which operations of the control queue complete.
const CONTROL_CQ: Cqn = Cqn::new(0);

/// Queue pairs and completion queues.
#[derive(Debug)]
pub(in super::super) struct Queues {
    cqs: SparseTable<CompletionQueue>,
}

impl Default for Queues {
    fn default() -> Self {
        /// Bound: numbers are those of context memory.
        const CQS: Capacity = Capacity { entries: MAX_CQS as usize, leaves: MAX_CQS as usize / 64 };
        Self { cqs: SparseTable::new(CQS) }
    }
}

/// Doorbell of a send queue.
pub(super) fn ring(rdma: &mut Rdma, cx: &mut Context<'_>, qpn: Qpn) {
    let _ = (rdma, cx, qpn);
}

/// Doorbell of a completion queue.
pub(super) fn arm(rdma: &mut Rdma, cx: &mut Context<'_>, cqn: Cqn) {
    let Rdma { queues, events, hmc, .. } = rdma;
    if let Some(cq) = queues.cqs.get_mut(cqn.get()) {
        cq.arm(hmc.pages(cx.dma), events);
    }
}

/// Tells of an operation of the control queue, if its completion queue is there.
pub(super) fn complete_operation(rdma: &mut Rdma, dma: &GuestMemory, completion: &Completion) {
    let Rdma { queues, events, hmc, .. } = rdma;
    if let Some(cq) = queues.cqs.get_mut(CONTROL_CQ.get()) {
        cq.post(hmc.pages(dma), events, completion.emit(), false);
    }
}

pub(super) fn create_cq(rdma: &mut Rdma, command: &CqCommand) -> Outcome {
    let cqn = command.cqn.get();
    if cqn >= MAX_CQS {
        return Err(CqpError::invalid("completion queue", cqn.into()));
    }
    if rdma.queues.cqs.get(cqn).is_some() {
        return Err(CqpError::new(Refusal::Exists, "completion queue", cqn.into()));
    }
    let full = |_| CqpError::new(Refusal::NoRoom, "completion queue", cqn.into());
    rdma.queues.cqs.insert(cqn, CompletionQueue::new(command)?).map_err(full)?;
    Ok(0)
}

pub(super) fn modify_cq(_: &mut Rdma, command: &CqCommand) -> Outcome {
    Err(unknown(command.cqn.get()))
}

pub(super) fn destroy_cq(rdma: &mut Rdma, command: &DestroyCq) -> Outcome {
    let cqn = command.cqn.get();
    let was = rdma.queues.cqs.remove(cqn);
    was.map(|_| 0).ok_or(CqpError::no_object("completion queue", cqn.into()))
}

pub(super) fn create_qp(_: &mut Rdma, _: &mut Context<'_>, command: &QpCommand) -> Outcome {
    Err(unknown(command.qpn.get()))
}

pub(super) fn modify_qp(_: &mut Rdma, _: &mut Context<'_>, command: &QpCommand) -> Outcome {
    Err(unknown(command.qpn.get()))
}

pub(super) fn destroy_qp(_: &mut Rdma, _: &mut Context<'_>, command: &DestroyQp) -> Outcome {
    Err(unknown(command.qpn.get()))
}

pub(super) fn flush_qp(_: &mut Rdma, _: &mut Context<'_>, command: &FlushQp) -> Outcome {
    Err(unknown(command.qpn.get()))
}

pub(super) fn suspend_qp(_: &mut Rdma, _: &mut Context<'_>, command: &SuspendQp) -> Outcome {
    Err(unknown(command.qpn.get()))
}

pub(super) fn resume_qp(_: &mut Rdma, _: &mut Context<'_>, command: &SuspendQp) -> Outcome {
    Err(unknown(command.qpn.get()))
}

fn unknown(number: u32) -> CqpError {
    CqpError::new(Refusal::UnknownOperation, "queue", number.into())
}
