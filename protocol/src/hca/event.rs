//! Event data common to several device interfaces.

use crate::describe::{Field, Visitor};

/// Reason for a CQ error event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CqFault {
    /// Code 1: the CQ was full.
    Overrun,
    /// Code 2: the CQ buffer could not be written.
    Access,
}

impl CqFault {
    /// Returns the syndrome that the event reports.
    pub const fn code(self) -> u8 {
        match self {
            Self::Overrun => 1,
            Self::Access => 2,
        }
    }

    /// Looks up a fault by syndrome; the inverse of [`CqFault::code`].
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Overrun),
            2 => Some(Self::Access),
            _ => None,
        }
    }
}

impl Field for CqFault {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        let word = match self {
            Self::Overrun => "overrun",
            Self::Access => "access",
        };
        word.show(name, to);
    }
}
