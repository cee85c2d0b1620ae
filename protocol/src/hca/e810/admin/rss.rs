//! Receive side scaling (RSS) commands: 0B02 to 0B05.
//!
//! # Spec
//! E810 interface, section 5.9.

use super::vsi::TableKind;
use crate::layout;

/// Length of an RSS key in bytes: 40 for the standard key and 12 for the extended key.
pub const KEY_LEN: usize = 52;

layout! {
    /// Parameters of "set RSS key" and "get RSS key".
    pub struct KeyParameters[16] {
        /// VSI that uses the key.
        @0[9:0]  vsi: u16,
        /// Whether the VSI number is valid.
        @0[15]   vsi_valid: bool,
    }
}

layout! {
    /// Parameters of "set RSS table" and "get RSS table".
    pub struct TableParameters[16] {
        /// VSI that uses the table.
        @0[9:0]  vsi: u16,
        /// Whether the VSI number is valid.
        @0[15]   vsi_valid: bool,
        /// Kind of table: 0 for the VSI's table, 1 for the function's table, 2 for a global table. See
        /// [`TableParameters::table`].
        @2[1:0]  kind: u8,
        /// Size of the function's table: 0 for 128 entries, 1 for 512, 2 for 2048.
        @2[3:2]  size: u8,
        /// Index of the global table.
        @2[7:4]  global: u8,
    }
}

impl TableParameters {
    /// Returns the kind of table. The encoding differs from the one in a VSI context.
    pub const fn table(&self) -> TableKind {
        match self.kind {
            0 => TableKind::Vsi,
            1 => TableKind::Function,
            2 => TableKind::Global,
            _ => TableKind::Reserved,
        }
    }

    /// Returns the number of entries in the function's table, or `None` for a reserved code.
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

    /// The bytes are the parameters of command 0B03 in the recording `run73-all.aq.gz`.
    #[test]
    fn parses_recorded_lookup_table_parameters() {
        let parameters = TableParameters::parse(&[0x01, 0x80, 0x09, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!((parameters.vsi, parameters.vsi_valid), (1, true));
        assert_eq!((parameters.table(), parameters.function_entries()), (TableKind::Function, Some(2048)));
    }
}
