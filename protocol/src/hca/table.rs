//! Context tables in the ICM, the device context memory.

use super::status::{CmdError, CmdStatus};
use crate::describe::describe;
use crate::ids::IcmAddr;

/// A context table in the ICM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    /// ICM virtual address of entry 0, a multiple of 256.
    pub base: IcmAddr,
    /// Log2 of the number of entries.
    pub log_entries: u8,
}

impl Table {
    /// Parses a 64-bit word. The low byte is the log2 of the number of entries, and the other bytes are the upper bytes
    /// of the base address.
    ///
    /// # Errors
    /// EXCEED_LIM if the table has more than `2^max_log` entries.
    pub const fn parse(word: u64, max_log: u8, what: &'static str) -> Result<Self, CmdError> {
        let [.., log_entries] = word.to_be_bytes();
        if log_entries > max_log {
            return Err(CmdError::new(CmdStatus::ExceedLim, what, log_entries as u64));
        }
        Ok(Self { base: IcmAddr::new(word & !0xff), log_entries })
    }

    /// Returns the 64-bit word of the table; the inverse of [`Table::parse`].
    pub const fn word(&self) -> u64 {
        self.base.get() & !0xff | self.log_entries as u64
    }

    /// Returns the table index for an object number. Drivers use the bits above the table size as a generation number.
    pub const fn index(&self, number: u32) -> u32 {
        // A table of 2^32 entries uses every bit.
        match 1u32.checked_shl(self.log_entries as u32) {
            Some(entries) => number & (entries - 1),
            None => number,
        }
    }

    /// Returns the number of entries.
    pub const fn entries(&self) -> u64 {
        match 1u64.checked_shl(self.log_entries as u32) {
            Some(entries) => entries,
            None => 0,
        }
    }
}

describe!(Table { base, log_entries });
