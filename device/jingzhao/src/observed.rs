//! Events that the device reports to its observers: counters, trace and strict mode.

use engine::{Completion, Fetch, RecvRequest, SendRequest};
use hcr::entry_ring::WriteError;
use hcr::notify::CqError;
use protocol::hca::jingzhao::cqe::Cqe;
use protocol::hca::jingzhao::doorbell::SendDoorbell;
use protocol::hca::jingzhao::eqe::Eqe;
use protocol::ids::{Cqn, Qpn};

use super::event_queue::EqSlot;
use super::qp::QueuePair;
use super::send_queue::FetchedWqe;

/// An event in the device, with the objects involved. The QP is mutable so that observers can update its counters.
pub(super) enum Observed<'a> {
    /// A send doorbell arrived but has not been processed yet. `qp` is the QP in the table slot that the doorbell's QPN
    /// maps to. The QP's full QPN may differ from the doorbell's. The QP's state is up to date.
    SendDoorbell { qp: Option<&'a QueuePair>, page: u32, doorbell: &'a SendDoorbell },
    /// An arm doorbell arrived for an invalid queue.
    ArmNothing { queue: &'static str, number: u32 },
    /// A WQE was fetched from a send queue and parsed.
    SendWqe { qpn: Qpn, taken: &'a FetchedWqe<'a> },
    /// Result of fetching a send request.
    SendRequest { qp: &'a mut QueuePair, fetch: &'a Fetch<SendRequest> },
    /// Result of fetching a receive request.
    RecvRequest { qp: &'a mut QueuePair, fetch: &'a Fetch<RecvRequest> },
    /// A request completed, possibly without a CQE.
    Completion { qp: &'a mut QueuePair, completion: &'a Completion },
    /// A CQE was written at the free-running position `slot`, or was lost.
    Cqe { cqn: Cqn, slot: u32, cqe: &'a Cqe, lost: Option<&'a CqError> },
    /// An event was written at position `place`, or was lost. `place` is `None` if no EQ receives the event.
    Eqe { place: Option<EqSlot>, event: &'a Eqe, lost: Option<&'a WriteError> },
}
