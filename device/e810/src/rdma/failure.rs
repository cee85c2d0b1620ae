//! Maps engine errors to asynchronous event codes.
//!
//! # Spec
//! E810 interface, section 14.1.

use engine::{AccessError, Status};
use protocol::hca::e810::rdma::event_queue::EventCode;
use protocol::hca::e810::rdma::send_wqe::opcode;

/// Returns the event code for a failed send request with WQE opcode `operation`, or `None` for a flushed request, which
/// does not raise an event.
pub(super) fn of_send(status: Status, operation: u8) -> Option<EventCode> {
    Some(match status {
        Status::Flushed => return None,
        Status::LocalLength => EventCode::DatagramTooLong,
        Status::LocalQpOperation => EventCode::BadOperation,
        Status::LocalProtection(reason) => of_key(reason),
        Status::MemoryManagement(reason) => of_local_operation(reason, operation),
        Status::BadResponse => EventCode::BadResponse,
        Status::RemoteInvalidRequest | Status::RemoteInvalidRdRequest => EventCode::RemoteInvalidRequest,
        Status::RemoteAccess => EventCode::RemoteAccess,
        Status::RemoteOperational => EventCode::RemoteOperation,
        Status::RetryExceeded => EventCode::RetriesExceeded,
        Status::RnrRetryExceeded => EventCode::RnrRetriesExceeded,
    })
}

/// Returns the event code for a failed receive request, or `None` for a flushed request, which does not raise an event.
pub(super) fn of_receive(status: Status) -> Option<EventCode> {
    Some(match status {
        Status::LocalLength => EventCode::MessageTooLong,
        Status::LocalProtection(reason) => of_key(reason),
        // IBTA volume 1, section 9.9.3: if the key of a SEND with Invalidate is rejected, the receive fails, regardless
        // of the reason. The only code for this case is `InvalidateRights`, which irdma maps to a remote access error.
        Status::RemoteInvalidRequest => EventCode::InvalidateRights,
        _ => return None,
    })
}

/// Returns the event code for a memory access that the key does not permit.
pub(super) const fn of_key(reason: AccessError) -> EventCode {
    match reason {
        AccessError::Key => EventCode::KeyUnallocated,
        AccessError::Invalid
        | AccessError::Kind
        | AccessError::Valid
        | AccessError::Bound
        | AccessError::Indirection => EventCode::KeyInvalid,
        AccessError::Pd => EventCode::KeyDomain,
        AccessError::Qp => EventCode::KeyQp,
        AccessError::Right => EventCode::Rights,
        AccessError::Bounds | AccessError::Unmapped => EventCode::Bounds,
    }
}

fn of_local_operation(reason: AccessError, operation: u8) -> EventCode {
    match (operation, reason) {
        (opcode::BIND, AccessError::Valid) => EventCode::BindValid,
        (opcode::BIND, AccessError::Kind) => EventCode::BindRegion,
        (opcode::BIND, AccessError::Right) => EventCode::BindRights,
        (opcode::BIND, AccessError::Bounds | AccessError::Unmapped) => EventCode::BindBounds,
        (opcode::BIND, AccessError::Key | AccessError::Invalid) => EventCode::BindParent,
        (opcode::FAST_REGISTER, AccessError::Valid) => EventCode::FastRegisterValid,
        (opcode::FAST_REGISTER, AccessError::Kind) => EventCode::FastRegisterWindow,
        (opcode::FAST_REGISTER, AccessError::Right) => EventCode::FastRegisterRights,
        (opcode::FAST_REGISTER, AccessError::Bounds | AccessError::Unmapped) => EventCode::FastRegisterLength,
        (_, AccessError::Bound) => EventCode::InvalidateBound,
        (_, other) => of_key(other),
    }
}
