//! Objects of words of 64 bits, as the specification prints them.

/// The words that are not 0, by the offset of their first byte.
pub(crate) fn words<const LEN: usize>(words: &[(usize, u64)]) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    for (at, word) in words {
        bytes[*at..*at + 8].copy_from_slice(&word.to_le_bytes());
    }
    bytes
}
