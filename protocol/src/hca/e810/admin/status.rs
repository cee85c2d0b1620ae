//! Return values of commands.
//!
//! # Spec
//! E810 interface, section 4.2.

use thiserror::Error;

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $code:literal $word:literal;)*) => {
        /// Return value of a command that failed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u16)]
        pub enum AdminStatus {
            $($(#[$doc])* $name = $code,)*
        }

        impl AdminStatus {
            /// Its code in a descriptor.
            pub const fn code(self) -> u16 {
                self as u16
            }

            /// The word for it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)*
                }
            }
        }
    };
}

statuses! {
    /// Not permitted.
    NotPermitted = 1 "EPERM";
    /// No such thing.
    NoEntry = 2 "ENOENT";
    /// No such resource.
    NoResource = 3 "ESRCH";
    /// The buffer cannot be reached.
    Io = 5 "EIO";
    /// Later.
    Again = 8 "EAGAIN";
    /// No memory.
    NoMemory = 9 "ENOMEM";
    /// In use.
    Busy = 12 "EBUSY";
    /// There already.
    Exists = 13 "EEXIST";
    /// Parameters or buffer make no sense.
    Invalid = 14 "EINVAL";
    /// No room.
    NoSpace = 16 "ENOSPC";
    /// Not implemented.
    NotImplemented = 17 "ENOSYS";
    /// Not in this mode.
    Mode = 21 "EMODE";
}

/// A refused command: its return value, and for the operator what was wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{}: {what} {value:#x}", status.name())]
pub struct AdminError {
    /// What the driver is told.
    pub status: AdminStatus,
    /// What was wrong.
    pub what: &'static str,
    /// Its value.
    pub value: u64,
}

impl AdminError {
    /// A refusal.
    pub const fn new(status: AdminStatus, what: &'static str, value: u64) -> Self {
        Self { status, what, value }
    }

    /// EINVAL: a field whose value makes no sense.
    pub const fn invalid(what: &'static str, value: u64) -> Self {
        Self::new(AdminStatus::Invalid, what, value)
    }

    /// ENOENT: something that does not exist.
    pub const fn no_entry(what: &'static str, value: u64) -> Self {
        Self::new(AdminStatus::NoEntry, what, value)
    }
}
