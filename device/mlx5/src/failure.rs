//! Syndromes of failed work requests.
//!
//! # Spec
//! mlx5 interface, section 9.4.

use engine::{AccessError, Status};
use protocol::hca::mlx5::syndrome::Syndrome;

pub const fn syndrome(status: Status) -> Syndrome {
    match status {
        Status::LocalLength => Syndrome::LocalLength,
        Status::LocalQpOperation => Syndrome::LocalQpOperation,
        Status::LocalProtection(_) => Syndrome::LocalProtection,
        Status::MemoryManagement(_) => Syndrome::WindowBind,
        Status::Flushed => Syndrome::Flushed,
        Status::BadResponse => Syndrome::BadResponse,
        Status::RemoteInvalidRequest | Status::RemoteInvalidRdRequest => Syndrome::RemoteInvalidRequest,
        Status::RemoteAccess => Syndrome::RemoteAccess,
        Status::RemoteOperational => Syndrome::RemoteOperation,
        Status::RetryExceeded => Syndrome::RetryExceeded,
        Status::RnrRetryExceeded => Syndrome::RnrRetryExceeded,
    }
}

/// Returns the vendor syndrome, which gives the cause of local protection and memory management errors. It is 0 for
/// most other errors.
pub const fn vendor(status: Status) -> u8 {
    match status {
        Status::RetryExceeded => 0x81,
        Status::RemoteAccess => 0x88,
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
