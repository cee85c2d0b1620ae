//! Tables of contexts in the device's context memory (ICM).

use super::status::{CmdError, CmdStatus};
use crate::describe::describe;
use crate::ids::IcmAddr;

/// A table in ICM with a count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    /// ICM virtual address of entry 0, a multiple of 256.
    pub base: IcmAddr,
    /// Log2 of the entries.
    pub log_entries: u8,
}

impl Table {
    /// Reads a base whose low byte is the count.
    ///
    /// # Errors
    /// EXCEED_LIM for more than `2^max_log` entries.
    pub const fn parse(word: u64, max_log: u8, what: &'static str) -> Result<Self, CmdError> {
        let [.., log_entries] = word.to_be_bytes();
        if log_entries > max_log {
            return Err(CmdError::new(CmdStatus::ExceedLim, what, log_entries as u64));
        }
        Ok(Self { base: IcmAddr::new(word & !0xff), log_entries })
    }

    /// The word that [`Table::parse`] reads.
    pub const fn word(&self) -> u64 {
        self.base.get() & !0xff | self.log_entries as u64
    }

    /// Table index of a number that may have rolling high bits.
    pub const fn index(&self, number: u32) -> u32 {
        // A count of 2^32 leaves the number as it is.
        match 1u32.checked_shl(self.log_entries as u32) {
            Some(entries) => number & (entries - 1),
            None => number,
        }
    }

    /// Entries.
    pub const fn entries(&self) -> u64 {
        match 1u64.checked_shl(self.log_entries as u32) {
            Some(entries) => entries,
            None => 0,
        }
    }
}

describe!(Table { base, log_entries });
