//! CQP operation errors. The device is free to choose most of the codes, which drivers merely log.
//!
//! # Spec
//! E810 interface, sections 10.2 to 10.4.

use thiserror::Error;

use super::control::ErrorCodes;

const MAJOR: u16 = 0xffff;

macro_rules! error_codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal $word:literal;)*) => {
        /// Cause of a CQP error, reported as its minor code.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u16)]
        pub enum CqpErrorCode {
            $($(#[$doc])* #[allow(missing_docs)] $name = $code,)*
        }

        impl CqpErrorCode {
            /// Returns the minor and major codes.
            pub const fn codes(self) -> ErrorCodes {
                ErrorCodes { minor: self as u16, major: MAJOR }
            }

            /// Returns the name used in traces and counters.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)*
                }
            }
        }
    };
}

error_codes! {
    /// The operation is not supported.
    UnknownOperation = 0x0001 "unknown_operation";
    /// A field has an invalid value.
    Invalid = 0x0002 "invalid";
    /// The object does not exist.
    NoObject = 0x0003 "no_object";
    /// The object already exists.
    Exists = 0x0004 "exists";
    /// No space is left for the object.
    NoRoom = 0x0005 "no_room";
    /// Guest memory could not be accessed.
    Unreachable = 0x0006 "unreachable";
    /// The object is in use.
    InUse = 0x0007 "in_use";
    /// The QP state does not allow the operation. Drivers interpret this code.
    State = 0x8002 "state";
}

/// Error of a CQP operation, with a code for the driver and details for the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{code}: {field} {value:#x}", code = code.name(), field = what)]
pub struct CqpError {
    /// Error code for the driver.
    pub code: CqpErrorCode,
    /// Name of the field or object at fault.
    pub what: &'static str,
    /// Value of the field, or number of the object.
    pub value: u64,
}

impl CqpError {
    /// Creates an error with the given code.
    pub const fn new(code: CqpErrorCode, what: &'static str, value: u64) -> Self {
        Self { code, what, value }
    }

    /// Creates an error for a field with an invalid value.
    pub const fn invalid(what: &'static str, value: u64) -> Self {
        Self::new(CqpErrorCode::Invalid, what, value)
    }

    /// Creates an error for an object that does not exist.
    pub const fn no_object(what: &'static str, value: u64) -> Self {
        Self::new(CqpErrorCode::NoObject, what, value)
    }
}
