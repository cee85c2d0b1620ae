//! Test helpers: objects given as 64-bit words, as in the specification.

/// Builds an object from its nonzero words, each with its byte offset.
pub(crate) fn words<const LEN: usize>(words: &[(usize, u64)]) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    for (at, word) in words {
        bytes[*at..*at + 8].copy_from_slice(&word.to_le_bytes());
    }
    bytes
}
