//! Receive queue tables (RQT).
//!
//! # Spec
//! mlx5 interface, sections 5.6 and 16.3.

use crate::describe::{Field, Visitor};
use crate::ids::{Rqn, Rqtn};
use crate::layout;

layout! {
    /// Context of an RQT, without its list of RQ numbers.
    pub struct RqtContext[0xf0] big_endian {
        @0x16  max_entries: u16,
        /// Number of entries in use.
        @0x1a  entries: u16,
    }
}

layout! {
    /// Fixed part of the CREATE_RQT input. The RQ numbers follow.
    pub struct CreateRqt[0x110] big_endian {
        @0x20  context: RqtContext,
    }
}

layout! {
    /// Fixed part of the MODIFY_RQT input. The RQ numbers follow.
    pub struct ModifyRqt[0x110] big_endian {
        @0x08[23:0]  rqtn: Rqtn,
        /// Whether the list replaces the RQT's entries.
        @0x14[0]     has_entries: bool,
        /// Context with the new number of entries.
        @0x20        context: RqtContext,
    }
}

layout! {
    /// Fixed part of the QUERY_RQT output. The RQ numbers follow.
    pub struct QueriedRqt[0x110] big_endian {
        @0x20  context: RqtContext,
    }
}

/// List of RQ numbers at the end of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RqNumbers<'a>(&'a [[u8; 4]]);

impl<'a> RqNumbers<'a> {
    /// Parses all of `bytes` as a list. Ignores an incomplete number at the end.
    pub const fn parse(bytes: &'a [u8]) -> Self {
        Self(bytes.as_chunks().0)
    }

    /// Returns the list in wire format.
    pub const fn bytes(self) -> &'a [u8] {
        self.0.as_flattened()
    }

    /// Returns the number of entries in the list.
    pub const fn len(self) -> usize {
        self.0.len()
    }

    /// Returns whether the list is empty.
    pub const fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// Returns the RQ numbers. Bits 31 to 24 of each entry are ignored.
    pub fn iter(self) -> impl ExactSizeIterator<Item = Rqn> + 'a {
        self.0.iter().map(|number| Rqn::new(u32::from_be_bytes(*number)))
    }
}

impl Field for RqNumbers<'_> {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        to.addresses(name, &mut self.iter().map(|rqn| u64::from(rqn.get())));
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::words;
    use super::*;

    /// The first RQT in golden trace eth-1.
    #[test]
    fn recorded_rqt_has_one_entry() {
        let bytes: [u8; 0x114] = words(&[(0x34, 0x100), (0x38, 1), (0x110, 0x4000)]);
        let (fixed, list) = bytes.split_at(CreateRqt::LEN);
        let CreateRqt { context } = CreateRqt::parse_prefix(fixed).unwrap();
        assert_eq!((context.max_entries, context.entries), (256, 1));
        let list = RqNumbers::parse(list);
        assert_eq!((list.len(), list.iter().next()), (1, Some(Rqn::new(0x4000))));
    }
}
