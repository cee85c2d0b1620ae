//! Events that the device reports to counters, strict mode and the trace.

use engine::{Completion, Fetch, RecvRequest, SendRequest, State};
use hcr::entry_ring::WriteError;
use hcr::notify::CqError;
use protocol::hca::mthca::cqe::Cqe;
use protocol::hca::mthca::doorbell::{ArmCq, Record, SendDoorbell};
use protocol::hca::mthca::eqe::Eqe;
use protocol::ids::{Cqn, Eqn};

use super::completion_queue::CompletionQueue;
use super::event_queue::{EventQueue, EventQueues};
use super::qp::QueuePair;
use super::regions::DeviceMemory;
use super::srq::SharedReceiveQueue;

/// An event in the device, with the objects involved.
///
/// Objects are borrowed mutably if observers update data in them, such as counters or strict mode's event counts.
pub(super) enum Observed<'a> {
    /// A send doorbell arrived but has not been processed yet. `qp` is the doorbell's QP, and `state` is the state of
    /// that QP.
    SendDoorbell {
        qp: Option<&'a QueuePair>,
        state: Option<State>,
        page: u32,
        doorbell: &'a SendDoorbell,
        memory: DeviceMemory<'a>,
    },
    /// A send queue's record has advanced while doorbells are mapped. Only the record can be checked, since the
    /// doorbell did not trap.
    SendRecord { qp: &'a QueuePair, record: Record },
    /// An arm doorbell arrived but has not been processed yet. `cq` is the doorbell's CQ.
    ArmDoorbell {
        cq: Option<&'a mut CompletionQueue>,
        eqs: &'a EventQueues,
        page: u32,
        arm: &'a ArmCq,
        memory: DeviceMemory<'a>,
    },
    /// A CQ's arm record has changed while doorbells are mapped.
    ArmRecord { cq: &'a mut CompletionQueue, eqs: &'a EventQueues, arm: &'a ArmCq },
    /// The device is about to fetch the next WQE from a send queue, if one is posted.
    SendQueue { qp: &'a QueuePair, memory: DeviceMemory<'a> },
    /// Result of fetching a send WQE.
    SendWqe { qp: &'a mut QueuePair, fetch: &'a Fetch<SendRequest> },
    /// Result of fetching a receive WQE, from `srq` if the QP has one.
    RecvWqe {
        qp: &'a mut QueuePair,
        srq: Option<&'a SharedReceiveQueue>,
        fetch: &'a Fetch<RecvRequest>,
        memory: DeviceMemory<'a>,
    },
    /// A request completed, possibly without a CQE.
    Completion { qp: &'a mut QueuePair, completion: &'a Completion },
    /// The device is about to write the next entry of a CQ.
    CqSlot { cq: &'a CompletionQueue, memory: DeviceMemory<'a> },
    /// A CQE was written to the free-running position `slot`, or was lost.
    Cqe { cqn: Cqn, slot: u32, cqe: &'a Cqe, lost: Option<&'a CqError> },
    /// The device is about to write the next entry of an EQ.
    EqSlot { eqn: Eqn, queue: &'a EventQueue, memory: DeviceMemory<'a> },
    /// An event was written, or was lost. `place` is the EQ and the free-running position in it, or `None` if no EQ
    /// receives the event.
    Eqe { place: Option<(Eqn, u32)>, event: &'a Eqe, lost: Option<&'a WriteError> },
}
