//! How a command says where something lies whose pages are listed in the array of PBLEs.
//!
//! # Spec
//! E810 interface, sections 12.2 and 13.7.

use crate::describe::{Field, Value, Visitor};

/// Levels of a list of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListLevel {
    /// None: one address, from which everything is contiguous.
    Contiguous,
    /// PBLEs name pages.
    One,
    /// PBLEs name PBLEs, 512 of which name pages.
    Two,
    /// Of no meaning.
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
