//! Completion queue entries, as far as JingZhao and mthca have the same.

/// The syndrome of an entry: 0 of a request that succeeded.
pub fn syndrome(entry: &[u8]) -> u8 {
    if entry[0x1c] >= 0xfe { entry[0x10] } else { 0 }
}
