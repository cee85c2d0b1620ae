//! What events of the lineage say, whatever the form of an entry.

use crate::describe::{Field, Visitor};

/// Why a completion queue failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CqFault {
    /// 1: it was full.
    Overrun,
    /// 2: its buffer cannot be written.
    Access,
}

impl CqFault {
    /// Its code.
    pub const fn code(self) -> u8 {
        match self {
            Self::Overrun => 1,
            Self::Access => 2,
        }
    }

    /// The fault with this code.
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
