//! Completion queue entry fields common to JingZhao and mthca.

/// Returns the syndrome of a CQE, or 0 if the request succeeded.
pub fn syndrome(entry: &[u8]) -> u8 {
    if entry[0x1c] >= 0xfe { entry[0x10] } else { 0 }
}
