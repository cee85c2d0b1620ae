//! Test helpers: objects written as 64-bit words, as in the specification.

/// Builds an object from its nonzero words, given as pairs of byte offset and word.
pub(crate) fn words<const LEN: usize>(words: &[(usize, u64)]) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    for (at, word) in words {
        bytes[*at..*at + 8].copy_from_slice(&word.to_le_bytes());
    }
    bytes
}
