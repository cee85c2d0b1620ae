//! Page lists: descriptions of memory that use physical buffer list entries (PBLEs).
//!
//! # Spec
//! E810 interface, sections 12.2 and 13.7.

use crate::describe::{Field, Value, Visitor};

/// Number of levels in a page list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ListLevel {
    /// Code 0: no list. The memory is contiguous and has a single address.
    Contiguous,
    /// Code 1: PBLEs contain page addresses.
    One,
    /// Code 3: each PBLE refers to a group of 512 PBLEs that contain page addresses.
    Two,
    Reserved,
}

impl From<u8> for ListLevel {
    fn from(code: u8) -> Self {
        match code {
            0 => Self::Contiguous,
            1 => Self::One,
            3 => Self::Two,
            _ => Self::Reserved,
        }
    }
}

impl From<ListLevel> for u8 {
    fn from(level: ListLevel) -> Self {
        match level {
            ListLevel::Contiguous => 0,
            ListLevel::One => 1,
            ListLevel::Reserved => 2,
            ListLevel::Two => 3,
        }
    }
}

impl ListLevel {
    const fn name(self) -> &'static str {
        match self {
            Self::Contiguous => "contiguous",
            Self::One => "one",
            Self::Two => "two",
            Self::Reserved => "reserved",
        }
    }
}

impl Field for ListLevel {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        to.value(name, Value::Name(self.name()));
    }
}
