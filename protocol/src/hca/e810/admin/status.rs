//! Return values of admin commands.
//!
//! # Spec
//! E810 interface, section 4.2.

use thiserror::Error;

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $code:literal $word:literal;)*) => {
        /// Return value of a failed command.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u16)]
        pub enum AdminStatus {
            $($(#[$doc])* #[allow(missing_docs)] $name = $code,)*
        }

        impl AdminStatus {
            /// Returns the code used in descriptors.
            pub const fn code(self) -> u16 {
                self as u16
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

statuses! {
    NotPermitted = 1 "EPERM";
    NoEntry = 2 "ENOENT";
    NoResource = 3 "ESRCH";
    /// The buffer cannot be accessed.
    Io = 5 "EIO";
    /// The driver can retry the command later.
    Again = 8 "EAGAIN";
    NoMemory = 9 "ENOMEM";
    Busy = 12 "EBUSY";
    Exists = 13 "EEXIST";
    /// Invalid parameters or buffer.
    Invalid = 14 "EINVAL";
    NoSpace = 16 "ENOSPC";
    NotImplemented = 17 "ENOSYS";
    /// The command is not allowed in the current mode.
    Mode = 21 "EMODE";
}

/// A command error: the return value for the driver and the cause for the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{status}: {field} {value:#x}", status = status.name(), field = what)]
pub struct AdminError {
    /// Return value for the driver.
    pub status: AdminStatus,
    /// Field or object at fault.
    pub what: &'static str,
    /// The field's value or the object's number.
    pub value: u64,
}

impl AdminError {
    /// Creates an error with return value `status`.
    pub const fn new(status: AdminStatus, what: &'static str, value: u64) -> Self {
        Self { status, what, value }
    }

    /// Creates an EINVAL error for a field with an invalid value.
    pub const fn invalid(what: &'static str, value: u64) -> Self {
        Self::new(AdminStatus::Invalid, what, value)
    }

    /// Creates an ENOENT error for an object that does not exist.
    pub const fn no_entry(what: &'static str, value: u64) -> Self {
        Self::new(AdminStatus::NoEntry, what, value)
    }
}
