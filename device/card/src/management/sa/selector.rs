//! Selectors. A request uses a selector to bound a value instead of specifying it.
//!
//! # Spec
//! IBTA volume 1, sections 15.2.5.16 (PathRecord) and 15.2.5.17 (MCMemberRecord).

use protocol::mad::record::EXACTLY;

use super::Request;

/// A quantity that a selector can bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quantity {
    Mtu,
    Rate,
    LifeTime,
}

/// Codes of the MTUs from 256 to 4096 bytes.
const MTUS: [u8; 5] = [1, 2, 3, 4, 5];

/// Codes of the rates from 2.5 to 800 Gb/s, sorted by rate. A larger code does not always mean a faster rate.
const RATES: [u8; 22] = [2, 5, 3, 11, 6, 15, 19, 4, 7, 20, 12, 8, 9, 16, 13, 10, 14, 17, 18, 21, 22, 23];

/// Largest code of a packet lifetime. Every six-bit code is defined.
const MAX_LIFE_TIME: u8 = 63;

impl Quantity {
    /// Returns the rank of a code when the defined codes are sorted by value, or `None` if the code is not defined.
    fn rank(self, code: u8) -> Option<usize> {
        let in_table = |codes: &[u8]| codes.iter().position(|other| *other == code);
        match self {
            Self::Mtu => in_table(&MTUS),
            Self::Rate => in_table(&RATES),
            Self::LifeTime => (code <= MAX_LIFE_TIME).then_some(code.into()),
        }
    }

    fn code(self, rank: usize) -> Option<u8> {
        match self {
            Self::Mtu => MTUS.get(rank).copied(),
            Self::Rate => RATES.get(rank).copied(),
            Self::LifeTime => u8::try_from(rank).ok().filter(|code| *code <= MAX_LIFE_TIME),
        }
    }
}

/// A bound on a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bound {
    quantity: Quantity,
    /// How a value must compare with the one that `code` encodes: greater (0), less (1) or equal (2). Selector 3
    /// requests the best available value.
    selector: u8,
    code: u8,
}

impl Bound {
    /// Returns the bound specified in a request, or `None` if the request's component mask omits the value.
    /// `components` contains the mask bits of the selector and the value.
    pub(super) fn of(
        request: &Request<'_>,
        quantity: Quantity,
        components: [u64; 2],
        [selector, code]: [u8; 2],
    ) -> Option<Self> {
        let [has_selector, has_value] = components.map(|component| request.has(component));
        let selector = if has_selector { selector } else { EXACTLY };
        has_value.then_some(Self { quantity, selector, code })
    }

    /// Returns whether the bound admits the value that code `candidate` encodes. Selector 3 admits every value. With
    /// any other selector, a bound whose own code is undefined does not admit any value.
    pub(super) fn admits(self, candidate: u8) -> bool {
        let Self { quantity, selector, code } = self;
        if selector > EXACTLY {
            return true;
        }
        let (Some(bound), Some(candidate)) = (quantity.rank(code), quantity.rank(candidate)) else {
            return false;
        };
        match selector {
            0 => candidate > bound,
            1 => candidate < bound,
            _ => candidate == bound,
        }
    }

    /// Returns the code of a value within the bound, or `None` if no defined code is within the bound. With selector 1,
    /// the value is at most `best`. With selector 3, it is `best`.
    pub(super) fn select(self, best: u8) -> Option<u8> {
        let Self { quantity, selector, code } = self;
        if selector > EXACTLY {
            return Some(best);
        }
        let bound = quantity.rank(code)?;
        let rank = match selector {
            0 => bound + 1,
            1 => bound.checked_sub(1)?.min(quantity.rank(best)?),
            _ => bound,
        };
        quantity.code(rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIVE: u8 = 5;
    const TEN: u8 = 3;
    const TWENTY: u8 = 6;
    const THIRTY: u8 = 4;

    fn bound(quantity: Quantity, selector: u8, code: u8) -> Bound {
        Bound { quantity, selector, code }
    }

    #[test]
    fn rates_are_compared_by_speed() {
        let rate = |selector, code| bound(Quantity::Rate, selector, code);
        assert!(rate(0, FIVE).admits(TEN) && !rate(0, THIRTY).admits(TWENTY));
        assert!(rate(1, THIRTY).admits(TWENTY) && !rate(1, FIVE).admits(TEN));
        assert_eq!(rate(0, FIVE).select(TWENTY), Some(TEN));
        assert_eq!(rate(1, TEN).select(TWENTY), Some(FIVE));
        assert_eq!(rate(1, THIRTY).select(TWENTY), Some(TWENTY));
    }

    #[test]
    fn selectors_yield_only_defined_codes() {
        let cases = [
            (Quantity::Mtu, 1, 5, &[0, 6, 63][..]),
            (Quantity::Rate, 2, 23, &[0, 1, 24, 63]),
            (Quantity::LifeTime, 0, 63, &[]),
        ];
        for (quantity, least, most, undefined) in cases {
            for (selector, code) in
                (0..3).flat_map(|selector| undefined.iter().map(move |code| (selector, *code)))
            {
                let bound = bound(quantity, selector, code);
                assert_eq!((bound.select(least), bound.admits(least)), (None, false), "{bound:?}");
            }
            assert_eq!(
                bound(quantity, 0, most).select(least),
                None,
                "no value is greater than the largest {quantity:?}"
            );
            assert_eq!(
                bound(quantity, 1, least).select(most),
                None,
                "no value is less than the smallest {quantity:?}"
            );
            assert_eq!(bound(quantity, EXACTLY, most).select(least), Some(most));
            assert_eq!(bound(quantity, 3, 0).select(least), Some(least));
        }
    }
}
