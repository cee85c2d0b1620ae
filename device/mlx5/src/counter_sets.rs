//! Counts QP events in the QPs' Q counter sets.
//!
//! # Spec
//! mlx5 interface, section 17.2.

use engine::{DropReason, PeerRequest, Queue, RetryCause, Status};
use protocol::hca::mlx5::counter::QCounters;
use protocol::ids::Qpn;

use super::resources::Resources;

/// Requests of one kind to the same QP that have not been added to its counter set yet. They are added in one step,
/// since looking up the QP and its counter set costs more than counting.
#[derive(Clone, Copy, Debug)]
pub struct ExecutedRequests {
    qpn: Qpn,
    request: PeerRequest,
    count: u32,
}

impl Resources {
    /// Increments a counter in a QP's counter set, if the QP has one.
    fn count(&mut self, qpn: Qpn, counter: impl FnOnce(&mut QCounters) -> &mut u32) {
        self.add(qpn, 1, |counters| Some(counter(counters)));
    }

    fn add(&mut self, qpn: Qpn, count: u32, counter: impl FnOnce(&mut QCounters) -> Option<&mut u32>) {
        let Some(qp) = self.qps.get(qpn.get()) else { return };
        if let Some(counters) = self.counter_sets.get_mut(qp.context.counter_set.get().into())
            && let Some(counter) = counter(counters)
        {
            *counter = counter.wrapping_add(count);
        }
    }

    /// Counts a request that a QP's responder has executed, or a duplicate packet. The next call to
    /// [`Resources::add_executed`] adds it to the counter set.
    pub(super) fn count_request(&mut self, qpn: Qpn, request: PeerRequest) {
        match &mut self.executed {
            Some(run) if run.qpn == qpn && run.request == request => run.count = run.count.wrapping_add(1),
            _ => {
                self.add_executed();
                self.executed = Some(ExecutedRequests { qpn, request, count: 1 });
            }
        }
    }

    /// Adds the executed requests to their counter set. Must be called before a command executes, since the command may
    /// read the counters or assign another set to the QP.
    pub(super) fn add_executed(&mut self) {
        let Some(ExecutedRequests { qpn, request, count }) = self.executed.take() else { return };
        self.add(qpn, count, |counters| {
            Some(match request {
                PeerRequest::Write => &mut counters.rx_write_requests,
                PeerRequest::Read => &mut counters.rx_read_requests,
                PeerRequest::Atomic => &mut counters.rx_atomic_requests,
                PeerRequest::Duplicate => &mut counters.duplicate_request,
            })
        });
    }

    pub(super) fn count_drop(&mut self, qpn: Qpn, reason: DropReason) {
        match reason {
            DropReason::NoReceive => self.count(qpn, |counters| &mut counters.out_of_buffer),
            DropReason::OutOfSequence => self.count(qpn, |counters| &mut counters.out_of_sequence),
            // A stale duplicate repeats a request that is no longer in the responder's history.
            DropReason::StaleDuplicate => self.count(qpn, |counters| &mut counters.duplicate_request),
            _ => {}
        }
    }

    /// Counts a retry by its cause. A NAK or a timeout counts only if the retry limit permits another attempt.
    pub(super) fn count_retry(&mut self, qpn: Qpn, cause: RetryCause) {
        self.count(qpn, |counters| match cause {
            RetryCause::RnrNak => &mut counters.rnr_nak_retry_err,
            RetryCause::SequenceNak => &mut counters.packet_seq_err,
            RetryCause::ImpliedNak => &mut counters.implied_nak_seq_err,
            RetryCause::AckTimeout => &mut counters.local_ack_timeout_err,
        });
    }

    /// Counts a work request that completes with an error, both in the total and by status.
    pub(super) fn count_failure(&mut self, qpn: Qpn, queue: Queue, status: Status) {
        match queue {
            Queue::Send => {
                self.count(qpn, |counters| &mut counters.req_cqe_error);
                self.count(qpn, |counters| requester(counters, status));
            }
            Queue::Recv => {
                self.count(qpn, |counters| &mut counters.resp_cqe_error);
                self.add(qpn, 1, |counters| responder(counters, status));
            }
        }
    }
}

fn requester(counters: &mut QCounters, status: Status) -> &mut u32 {
    match status {
        Status::LocalLength => &mut counters.req_local_length_error,
        Status::LocalQpOperation => &mut counters.req_local_qp_error,
        Status::LocalProtection(_) => &mut counters.req_local_protection,
        Status::MemoryManagement(_) => &mut counters.req_mw_binding,
        Status::Flushed => &mut counters.req_cqe_flush_error,
        Status::BadResponse => &mut counters.req_bad_response,
        Status::RemoteInvalidRequest | Status::RemoteInvalidRdRequest => {
            &mut counters.req_remote_invalid_request
        }
        Status::RemoteAccess => &mut counters.req_remote_access_errors,
        Status::RemoteOperational => &mut counters.req_remote_operation_errors,
        Status::RetryExceeded => &mut counters.req_transport_retries_exceeded,
        Status::RnrRetryExceeded => &mut counters.req_rnr_retries_exceeded,
    }
}

/// Returns the counter for receives that fail with `status`, or `None` if receives never fail with it.
fn responder(counters: &mut QCounters, status: Status) -> Option<&mut u32> {
    Some(match status {
        Status::LocalLength => &mut counters.resp_local_length_error,
        Status::LocalQpOperation => &mut counters.resp_local_qp_error,
        Status::LocalProtection(_) => &mut counters.resp_local_protection,
        Status::Flushed => &mut counters.resp_cqe_flush_error,
        Status::RemoteInvalidRequest | Status::RemoteInvalidRdRequest => {
            &mut counters.resp_remote_invalid_request
        }
        Status::RemoteAccess => &mut counters.resp_remote_access_errors,
        _ => return None,
    })
}
