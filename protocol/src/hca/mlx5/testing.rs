//! Test helper that builds objects from 32-bit words, the notation of the golden traces.

/// Builds an object from its nonzero words, each with its byte offset.
pub(crate) fn words<const LEN: usize>(words: &[(usize, u32)]) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    for (at, word) in words {
        bytes[*at..*at + 4].copy_from_slice(&word.to_be_bytes());
    }
    bytes
}
