//! Completion queue entry fields common to JingZhao and mthca.

/// Syndrome of an entry; 0 for a successful request.
pub fn syndrome(entry: &[u8]) -> u8 {
    if entry[0x1c] >= 0xfe { entry[0x10] } else { 0 }
}
