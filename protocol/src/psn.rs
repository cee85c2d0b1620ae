//! Packet sequence numbers (PSN), IBTA 9.7.1.

use std::fmt;

use crate::layout;

/// Packet sequence number (PSN), 24 bits.
///
/// Since PSNs wrap around, `Ord` is not implemented. Use [`Psn::since`] to compare them.
///
/// # Spec
/// IBTA volume 1, section 9.7.1 (packet sequence numbers).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// Truncates `raw` to 24 bits.
    pub const fn new(raw: u32) -> Self {
        Self(raw & 0xff_ffff)
    }

    /// Returns the PSN as an integer below 2^24.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Returns the PSN `n` packets later, modulo 2^24.
    #[must_use]
    pub const fn advance(self, n: u32) -> Self {
        Self::new(self.0.wrapping_add(n))
    }

    /// Returns the PSN `n` packets earlier, modulo 2^24.
    #[must_use]
    pub const fn retreat(self, n: u32) -> Self {
        Self::new(self.0.wrapping_sub(n))
    }

    /// Returns the signed distance from `base`, -2^23 to 2^23 - 1. It is positive if `self` is later than `base`.
    pub const fn since(self, base: Self) -> i32 {
        (self.0.wrapping_sub(base.0) << 8).cast_signed() >> 8
    }
}

impl layout::Value for Psn {
    const WIDTH: usize = <u32 as layout::Value>::WIDTH;

    fn take<O: layout::BitOrder>(object: &[u8], first: usize, width: usize) -> Self {
        Self::new(layout::Value::take::<O>(object, first, width))
    }

    fn put<O: layout::BitOrder>(&self, object: &mut [u8], first: usize, width: usize) {
        layout::Value::put::<O>(&self.0, object, first, width);
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "psn:{:#x}", self.0)
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn psn_distance_is_signed_across_wraparound() {
        assert_eq!(Psn::new(1).since(Psn::new(0xff_ffff)), 2);
        assert_eq!(Psn::new(0xff_ffff).since(Psn::new(1)), -2);
        assert_eq!(Psn::new(0x80_0000).since(Psn::new(0)), -(1 << 23));
    }

    proptest! {
        #[test]
        fn psn_arithmetic_wraps_at_24_bits(base in 0u32..1 << 24, step in 0u32..1 << 23) {
            let later = Psn::new(base).advance(step);
            prop_assert_eq!(u64::from(later.get()), (u64::from(base) + u64::from(step)) % (1 << 24));
            prop_assert_eq!(later.since(Psn::new(base)), step.cast_signed());
            prop_assert_eq!(later.retreat(step), Psn::new(base));
        }
    }
}
