//! Conversions between the engine's types and those of HCR interfaces.

use bitfield_struct::bitfield;
use card::frontend::snapshot::Fault;
use engine::{AccessError, Completion, QpSnapshot, Remote, SendOp, State, Status, Success};
use protocol::hca::event::CqFault;
use protocol::hca::operation::{Operation, RemoteAddress};
use protocol::hca::qp::QpState;
use protocol::hca::syndrome::Syndrome;
use protocol::ids::Lid;

/// Contents of `wr_id`: the data needed to complete a request. For a receive, this is only the WQE offset.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct WorkTag {
    /// Byte offset of the WQE in the queue.
    pub wqe: u32,
    pub opcode: u8,
    /// Whether software requested a completion.
    pub signalled: bool,
    #[bits(7)]
    __: u8,
    /// LID of the peer, for interfaces that report it in send completions.
    #[bits(16, from = Lid::new, into = Lid::get, default = Lid::new(0))]
    pub remote_lid: Lid,
}

impl WorkTag {
    /// Returns whether the completion is reported by a CQE. Receives and failed requests always produce a CQE.
    /// Successful sends produce one only if they were signalled.
    pub fn wants_entry(completion: &Completion) -> bool {
        match completion.result {
            Ok(Success::Send(_)) => Self::from_bits(completion.wr_id).signalled(),
            Ok(Success::Recv(_)) | Err(_) => true,
        }
    }
}

/// Converts a send WQE's operation. The result does not contain a datagram's destination.
pub fn send_op<To>(operation: &Operation<To>) -> SendOp {
    let target = |remote: RemoteAddress| Remote { va: remote.va, rkey: remote.rkey };
    match *operation {
        Operation::Nop => SendOp::Nop,
        Operation::Send { imm } | Operation::Datagram { imm, .. } => SendOp::Send { imm },
        Operation::Write { remote, imm } => SendOp::Write { remote: target(remote), imm },
        Operation::Read { remote } => SendOp::Read { remote: target(remote), invalidate: None },
        Operation::CompareSwap { remote, compare, swap } => {
            SendOp::CompareSwap { remote: target(remote), compare, swap }
        }
        Operation::FetchAdd { remote, add } => SendOp::FetchAdd { remote: target(remote), add },
    }
}

/// Converts the engine's QP state to the one that QUERY_QP returns.
pub fn state_of(live: &QpSnapshot) -> QpState {
    match live.state {
        State::Reset => QpState::Reset,
        State::Init => QpState::Init,
        State::Rtr => QpState::Rtr,
        State::Rts => QpState::Rts,
        State::Sqe => QpState::Sqe,
        State::Sqd if live.draining => QpState::Draining,
        State::Sqd => QpState::Sqd,
        State::Err => QpState::Err,
    }
}

pub fn engine_state(state: QpState) -> State {
    match state {
        QpState::Reset => State::Reset,
        QpState::Init => State::Init,
        QpState::Rtr => State::Rtr,
        QpState::Rts => State::Rts,
        QpState::Sqe => State::Sqe,
        QpState::Sqd | QpState::Draining => State::Sqd,
        QpState::Err => State::Err,
    }
}

pub const fn syndrome(status: Status) -> Syndrome {
    match status {
        Status::LocalLength => Syndrome::LocalLength,
        Status::LocalQpOperation => Syndrome::LocalQpOperation,
        Status::LocalProtection(_) => Syndrome::LocalProtection,
        Status::MemoryManagement(_) => Syndrome::WindowBind,
        Status::Flushed => Syndrome::Flushed,
        Status::BadResponse => Syndrome::BadResponse,
        Status::RemoteInvalidRequest => Syndrome::RemoteInvalidRequest,
        Status::RemoteAccess => Syndrome::RemoteAccess,
        Status::RemoteOperational => Syndrome::RemoteOperation,
        Status::RetryExceeded => Syndrome::RetryExceeded,
        Status::RnrRetryExceeded => Syndrome::RnrRetryExceeded,
        Status::RemoteInvalidRdRequest => Syndrome::RemoteInvalidRdRequest,
    }
}

/// Returns the vendor error code of a CQE: the reason why an access was denied, or 0 if the syndrome is specific
/// enough.
pub const fn vendor_code(status: Status) -> u8 {
    match status {
        Status::LocalProtection(cause) | Status::MemoryManagement(cause) => match cause {
            AccessError::Key => 0x01,
            AccessError::Invalid => 0x02,
            AccessError::Kind => 0x03,
            AccessError::Pd => 0x04,
            AccessError::Qp => 0x05,
            AccessError::Right => 0x06,
            AccessError::Bounds => 0x07,
            AccessError::Unmapped => 0x08,
            AccessError::Valid => 0x09,
            AccessError::Bound => 0x0a,
            AccessError::Indirection => 0x0b,
        },
        _ => 0,
    }
}

/// Returns whether a completion notifies a CQ that is armed for solicited completions. This is true if the sender set
/// the solicited bit or the request failed.
pub fn is_solicited(completion: &Completion) -> bool {
    match completion.result {
        Ok(Success::Recv(done)) => done.solicited,
        Ok(Success::Send(_)) => false,
        Err(_) => true,
    }
}

pub const fn cq_fault(fault: Fault) -> CqFault {
    match fault {
        Fault::Overrun => CqFault::Overrun,
        Fault::Access => CqFault::Access,
    }
}
