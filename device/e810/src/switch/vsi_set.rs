//! A set of VSIs as a bitmap.

use super::super::vsi::VsiNumber;

/// Number of 64-bit words in the bitmap. The bitmap has one bit for each of the 1024 VSI numbers.
const WORDS: usize = 1024 / 64;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct VsiSet([u64; WORDS]);

impl VsiSet {
    pub(in super::super) fn insert(&mut self, vsi: VsiNumber) {
        if let Some(word) = self.0.get_mut(usize::from(vsi.get() / 64)) {
            *word |= 1 << (vsi.get() % 64);
        }
    }

    pub(in super::super) fn remove(&mut self, vsi: VsiNumber) {
        if let Some(word) = self.0.get_mut(usize::from(vsi.get() / 64)) {
            *word &= !(1 << (vsi.get() % 64));
        }
    }

    pub(in super::super) fn contains(&self, vsi: VsiNumber) -> bool {
        self.0.get(usize::from(vsi.get() / 64)).is_some_and(|word| word >> (vsi.get() % 64) & 1 != 0)
    }

    pub(in super::super) fn extend(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(word, other)| *word |= other);
    }

    pub(in super::super) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// Returns the VSIs in ascending order.
    pub(in super::super) fn iter(&self) -> impl Iterator<Item = VsiNumber> + use<> {
        let words = (0_u16..).step_by(64).zip(self.0);
        words.flat_map(|(first, mut word)| {
            std::iter::from_fn(move || {
                let bit = u16::try_from(word.trailing_zeros()).ok().filter(|bit| *bit < 64)?;
                word &= word - 1;
                Some(VsiNumber::new(first + bit))
            })
        })
    }

    pub(super) fn retain(&mut self, mut keep: impl FnMut(VsiNumber) -> bool) {
        for vsi in self.iter() {
            if !keep(vsi) {
                self.remove(vsi);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_operations_cover_all_words() {
        let mut set = VsiSet::default();
        let numbers = [0, 1, 63, 64, 768, 1023].map(VsiNumber::new);
        numbers.into_iter().for_each(|vsi| set.insert(vsi));
        assert!(set.iter().eq(numbers));
        set.retain(|vsi| vsi.get() % 2 == 1);
        assert!(set.iter().eq([1, 63, 1023].map(VsiNumber::new)));
        set.remove(VsiNumber::new(63));
        assert!(!set.contains(VsiNumber::new(63)) && set.contains(VsiNumber::new(1)));
        let mut other = VsiSet::default();
        assert!(other.is_empty());
        other.extend(&set);
        assert_eq!(other, set);
    }
}
