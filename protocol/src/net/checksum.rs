//! The Internet checksum (RFC 1071).

/// Running sum of 16-bit big-endian words. Data can be added in parts; all parts except the last must have even length.
#[derive(Clone, Copy, Debug, Default)]
pub struct Checksum(u64);

impl Checksum {
    /// Creates an empty sum, which is 0.
    pub const fn new() -> Self {
        Self(0)
    }

    /// Adds `bytes` to the sum. In data of odd length, the last byte is the high half of a word.
    #[must_use]
    pub fn with(self, bytes: &[u8]) -> Self {
        let (words, tail) = bytes.as_chunks::<4>();
        let mut last = [0; 4];
        last.iter_mut().zip(tail).for_each(|(to, from)| *to = *from);
        // RFC 1071, section 2 (B) and (C): swapping the bytes of every word also swaps the bytes of the sum. The data
        // can therefore be added 32 bits at a time and in native byte order. The sum has room for 2^32 such 32-bit
        // words (16 GiB).
        let native = |word: &[u8; 4]| u64::from(u32::from_ne_bytes(*word));
        let sum = words.iter().map(native).sum::<u64>() + native(&last);
        Self(self.0 + u64::from(u16::from_be(fold(sum))))
    }

    /// Adds one 16-bit word to the sum.
    #[must_use]
    pub fn with_u16(self, word: u16) -> Self {
        Self(self.0 + u64::from(word))
    }

    /// Returns the value of the checksum field: the complement of the sum. It is 0 if the data already includes a
    /// correct checksum.
    pub fn value(self) -> u16 {
        !fold(self.0)
    }
}

/// Folds the sum to 16 bits with end-around carry.
#[allow(clippy::cast_possible_truncation, reason = "the halves are added separately")]
fn fold(sum: u64) -> u16 {
    let (word, carry) = (sum as u32).overflowing_add((sum >> 32) as u32);
    let word = word.wrapping_add(carry.into());
    let (half, carry) = (word as u16).overflowing_add((word >> 16) as u16);
    half.wrapping_add(carry.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sum_matches_rfc_1071_example() {
        let sum = Checksum::new().with(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!(sum.value(), !0xddf2);
    }

    #[test]
    fn largest_sums_are_folded_to_16_bits() {
        assert_eq!(Checksum(u64::MAX).value(), 0);
        assert_eq!(Checksum(0xffff_0001_ffff).value(), !1);
        assert_eq!(Checksum::new().value(), 0xffff);
    }

    proptest! {
        #[test]
        fn sum_matches_definition(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let mut sum = 0u32;
            for pair in bytes.chunks(2) {
                sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
                sum = (sum & 0xffff) + (sum >> 16);
            }
            prop_assert_eq!(u32::from(Checksum::new().with(&bytes).value()), 0xffff - sum);
        }
    }
}
