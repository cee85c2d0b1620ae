//! Payload content: 64-bit words that depend only on a seed and a position, and are cheap to write and check.
//!
//! The stream for a seed is the little-endian concatenation of [`word`]`(seed, 0)`, `word(seed, 1)`, ... The content of
//! a message starts at position 0 of its stream, regardless of its address in memory. Missing, shifted or stale bytes,
//! or bytes from another message, therefore do not match.

/// Size of a stream word, in bytes.
const WORD: usize = 8;

/// Returns the 64-bit word at `index` in the stream for `seed`.
pub const fn word(seed: u64, index: u64) -> u64 {
    // The two odd multipliers make the words of neighbouring seeds and positions differ. The shifts spread high bits
    // downwards.
    let x =
        seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ index.wrapping_mul(0xd1b5_4a32_d192_ed03);
    let x = (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 32)
}

/// Fills `into` with bytes from the stream for `seed`, starting at byte `position` of the stream.
pub fn fill(seed: u64, position: u64, into: &mut [u8]) {
    for_each_word(seed, position, into.len(), |range, bytes| {
        into[range].copy_from_slice(bytes);
        true
    });
}

/// Compares `bytes` with the stream for `seed`, starting at byte `position` of the stream. Returns the offset of the
/// first difference.
pub fn first_difference(seed: u64, position: u64, bytes: &[u8]) -> Option<usize> {
    let mut found = None;
    for_each_word(seed, position, bytes.len(), |range, expected| {
        let start = range.start;
        let actual = &bytes[range];
        if actual == expected {
            return true;
        }
        found = actual.iter().zip(expected).position(|(a, b)| a != b).map(|i| start + i);
        false
    });
    found
}

/// A 64-bit digest of a byte sequence. The result does not depend on how the sequence is split.
#[derive(Clone, Copy, Debug)]
pub struct Digest {
    state: u64,
}

impl Default for Digest {
    fn default() -> Self {
        Self { state: 0xcbf2_9ce4_8422_2325 }
    }
}

impl Digest {
    /// Adds the next bytes of the sequence.
    pub fn update(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.state = (self.state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// Returns the digest of all bytes so far (FNV-1a).
    pub const fn finish(self) -> u64 {
        self.state
    }
}

/// Calls `visit` with consecutive ranges of a buffer and their expected content, and stops when `visit` returns
/// `false`.
fn for_each_word(
    seed: u64,
    position: u64,
    len: usize,
    mut visit: impl FnMut(std::ops::Range<usize>, &[u8]) -> bool,
) {
    let mut done = 0;
    let mut index = position / WORD as u64;
    let mut skip = usize::try_from(position % WORD as u64).unwrap_or(0);
    while done < len {
        let bytes = word(seed, index).to_le_bytes();
        let take = (WORD - skip).min(len - done);
        if !visit(done..done + take, &bytes[skip..skip + take]) {
            return;
        }
        done += take;
        index = index.wrapping_add(1);
        skip = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_is_independent_of_chunking() {
        let mut whole = [0u8; 100];
        fill(7, 0, &mut whole);
        for cut in 0..=whole.len() {
            let mut pieces = [0u8; 100];
            fill(7, 0, &mut pieces[..cut]);
            fill(7, cut as u64, &mut pieces[cut..]);
            assert_eq!(pieces, whole, "the content must be the same when split at {cut}");
        }
    }

    #[test]
    fn first_wrong_byte_is_reported() {
        let mut bytes = [0u8; 64];
        fill(3, 5, &mut bytes);
        assert_eq!(first_difference(3, 5, &bytes), None);
        for wrong in 0..bytes.len() {
            let mut copy = bytes;
            copy[wrong] ^= 0x10;
            assert_eq!(first_difference(3, 5, &copy), Some(wrong));
        }
    }

    #[test]
    fn pattern_depends_on_seed_and_position() {
        let mut bytes = [0u8; 64];
        fill(3, 0, &mut bytes);
        assert_eq!(first_difference(4, 0, &bytes), Some(0));
        assert!(first_difference(3, 8, &bytes).is_some());
        assert!(first_difference(3, 1, &bytes).is_some());
    }
}
