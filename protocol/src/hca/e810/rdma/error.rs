//! Why an operation of the control queue failed. Drivers print the codes; which ones there are is the device's to choose.
//!
//! # Spec
//! E810 interface, sections 10.2 to 10.4.

use thiserror::Error;

use super::control::ErrorCodes;

/// Major code of all errors of operations.
const MAJOR: u16 = 0xffff;

macro_rules! refusals {
    ($($(#[$doc:meta])* $name:ident = $code:literal $word:literal;)*) => {
        /// What was wrong: the minor code of the error.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u16)]
        pub enum Refusal {
            $($(#[$doc])* $name = $code,)*
        }

        impl Refusal {
            /// The codes of the error.
            pub const fn codes(self) -> ErrorCodes {
                ErrorCodes { minor: self as u16, major: MAJOR }
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

refusals! {
    /// There is no such operation.
    UnknownOperation = 0x0001 "unknown_operation";
    /// A field makes no sense.
    Invalid = 0x0002 "invalid";
    /// It is about something that there is not.
    NoObject = 0x0003 "no_object";
    /// It makes something that there is already.
    Exists = 0x0004 "exists";
    /// There is no room for it.
    NoRoom = 0x0005 "no_room";
    /// Memory of the guest cannot be reached.
    Unreachable = 0x0006 "unreachable";
    /// Something else uses what it is about.
    InUse = 0x0007 "in_use";
    /// A queue pair is not in a state for it. Drivers know this code.
    State = 0x8002 "state";
}

/// A refused operation: its code, and for the operator what was wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{}: {what} {value:#x}", refusal.name())]
pub struct CqpError {
    /// What the driver is told.
    pub refusal: Refusal,
    /// What was wrong.
    pub what: &'static str,
    /// Its value.
    pub value: u64,
}

impl CqpError {
    /// A refusal.
    pub const fn new(refusal: Refusal, what: &'static str, value: u64) -> Self {
        Self { refusal, what, value }
    }

    /// A field whose value makes no sense.
    pub const fn invalid(what: &'static str, value: u64) -> Self {
        Self::new(Refusal::Invalid, what, value)
    }

    /// Something that does not exist.
    pub const fn no_object(what: &'static str, value: u64) -> Self {
        Self::new(Refusal::NoObject, what, value)
    }
}
