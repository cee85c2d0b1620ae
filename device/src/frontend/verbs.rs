//! The engine's words and those of the Mellanox lineage.

use engine::{Completion, QpSnapshot, State, Status, Success};
use protocol::hca::qp::QpState;
use protocol::hca::syndrome::Syndrome;

/// The engine's state in the words of QUERY_QP.
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

/// The state of a context in the words of the engine.
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

/// The code of a failure.
pub const fn syndrome(status: Status) -> Syndrome {
    match status {
        Status::LocalLength => Syndrome::LocalLength,
        Status::LocalQpOperation => Syndrome::LocalQpOperation,
        Status::LocalProtection => Syndrome::LocalProtection,
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

/// Whether an armed-for-solicited CQ takes notice: the sender asked for it, or the request failed.
pub fn is_solicited(completion: &Completion) -> bool {
    match completion.result {
        Ok(Success::Recv(done)) => done.solicited,
        Ok(Success::Send(_)) => false,
        Err(_) => true,
    }
}
