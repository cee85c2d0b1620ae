//! Receive side scaling: 0B02 to 0B05.
//!
//! # Spec
//! E810 interface, section 5.9.

use super::vsi::TableKind;
use crate::layout;

/// Bytes of a key in the buffer of 0B02 and 0B04: 40 of the key proper, 12 of its extension.
pub const KEY_LEN: usize = 52;

layout! {
    /// "Set" and "get RSS key".
    pub struct KeyParameters[16] {
        /// VSI whose key it is.
        @0[9:0]  vsi: u16,
        /// The VSI means something.
        @0[15]   vsi_valid: bool,
    }
}

layout! {
    /// "Set" and "get RSS table".
    pub struct TableParameters[16] {
        /// VSI whose table it is.
        @0[9:0]  vsi: u16,
        /// The VSI means something.
        @0[15]   vsi_valid: bool,
        /// 0 the VSI's, 1 the function's, 2 a global one; see [`TableParameters::table`].
        @2[1:0]  kind: u8,
        /// Entries of the function's: 0 for 128, 1 for 512, 2 for 2048.
        @2[3:2]  size: u8,
        /// Which global one.
        @2[7:4]  global: u8,
    }
}

impl TableParameters {
    /// Whose table it is. The numbers differ from those in a VSI's context.
    pub const fn table(&self) -> TableKind {
        match self.kind {
            0 => TableKind::Vsi,
            1 => TableKind::Function,
            2 => TableKind::Global,
            _ => TableKind::Reserved,
        }
    }

    /// Entries of the function's table.
    pub const fn function_entries(&self) -> Option<usize> {
        match self.size {
            0 => Some(128),
            1 => Some(512),
            2 => Some(2048),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 0B03 of `run73-all.aq.gz`.
    #[test]
    fn the_functions_table_is_set_as_recorded() {
        let parameters = TableParameters::parse(&[0x01, 0x80, 0x09, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!((parameters.vsi, parameters.vsi_valid), (1, true));
        assert_eq!((parameters.table(), parameters.function_entries()), (TableKind::Function, Some(2048)));
    }
}
