//! Translation lists of memory keys: page addresses or ranges within other keys.
//!
//! # Spec
//! mlx5 interface, sections 13.1 to 13.3.

use card::memory::translate::{KeyRange, Pattern};
use engine::AccessError;
use protocol::hca::mlx5::mkey::{AccessMode, Klm, Mtt, TERMINATE_KEY, UNIT};
use protocol::hca::mlx5::strided::{RepeatBlock, StridedEntry};
use protocol::ids::{Iova, Lkey};

use crate::buffer::PageBudget;

/// Number of page addresses in a translation unit of [`UNIT`] bytes.
pub(super) const UNIT_PAGES: usize = UNIT / Mtt::LEN;
/// Work requests pad a list to a multiple of this number of units.
const PADDING: u64 = 4;

/// A key's translation list. It extends only to the last element written so far.
#[derive(Debug)]
pub(super) enum TranslationList {
    Pages(Vec<Iova>),
    /// List of ranges within other keys (KLM or KSM). If the list is strided, the first element is a [`RepeatBlock`],
    /// and the others are [`StridedEntry`]s.
    Ranges(Vec<Klm>),
}

impl TranslationList {
    pub(super) fn new(mode: Option<AccessMode>) -> Self {
        match mode {
            Some(AccessMode::Ranges | AccessMode::FixedRanges) => Self::Ranges(Vec::new()),
            _ => Self::Pages(Vec::new()),
        }
    }

    /// Parses a list that fills a whole number of units.
    pub(super) fn parse(mode: Option<AccessMode>, list: &[u8]) -> Self {
        match Self::new(mode) {
            Self::Pages(_) => {
                let (entries, _) = list.as_chunks::<{ Mtt::LEN }>();
                Self::Pages(entries.iter().map(|entry| Mtt::parse(*entry).page).collect())
            }
            Self::Ranges(_) => {
                let (units, _) = list.as_chunks::<UNIT>();
                Self::Ranges(units.iter().map(Klm::parse).collect())
            }
        }
    }

    /// Returns the size of the list in page addresses.
    pub(super) fn pages(&self) -> usize {
        match self {
            Self::Pages(pages) => pages.len(),
            Self::Ranges(ranges) => ranges.len() * UNIT_PAGES,
        }
    }

    /// Returns the page address at an index. Returns `None` past the end of the list, or if the list contains ranges.
    pub(super) fn page(&self, place: usize) -> Option<Iova> {
        match self {
            Self::Pages(pages) => pages.get(place).copied(),
            Self::Ranges(_) => None,
        }
    }

    /// Returns the range at an index, or `None` past the end of the list. The terminate key ends the list (section 20,
    /// M-19).
    pub(super) fn range(&self, place: usize) -> Option<KeyRange> {
        let Self::Ranges(ranges) = self else { return None };
        let klm = ranges.get(place).filter(|klm| klm.key != TERMINATE_KEY)?;
        let target = Some((Lkey::new(klm.key), klm.va));
        if self.is_strided() {
            let StridedEntry { stride, byte_count, .. } = StridedEntry::of(klm);
            return Some(KeyRange { target, len: byte_count.into(), stride: stride.into() });
        }
        Some(KeyRange { target, len: klm.len(), stride: 0 })
    }

    fn header(&self) -> Option<RepeatBlock> {
        match self {
            Self::Pages(_) => None,
            Self::Ranges(ranges) => ranges.first().and_then(RepeatBlock::of),
        }
    }

    fn is_strided(&self) -> bool {
        self.header().is_some()
    }

    /// Returns the pattern that a strided list repeats, or `None` if the list is not strided.
    pub(super) fn pattern(&self) -> Option<Pattern> {
        let RepeatBlock { byte_count, repetitions, entries, .. } = self.header()?;
        Some(Pattern { ranges: entries.into(), len: byte_count.into(), repetitions: repetitions.into() })
    }

    /// Writes units to a list of `capacity` units, starting at `offset`. Padding past the capacity is not stored.
    ///
    /// # Errors
    /// Fails with [`AccessError::Bounds`] and does not write anything if the units do not fit or the budget has too few
    /// pages.
    pub(super) fn write(
        &mut self,
        offset: u64,
        list: &[u8],
        capacity: u32,
        budget: &mut PageBudget,
    ) -> Result<(), AccessError> {
        let (units, _) = list.as_chunks::<UNIT>();
        let (capacity, count) = (u64::from(capacity), units.len() as u64);
        let end = offset.checked_add(count).ok_or(AccessError::Bounds)?;
        if offset > capacity || end > capacity.next_multiple_of(PADDING) {
            return Err(AccessError::Bounds);
        }
        let index = |units: u64| usize::try_from(units).map_err(|_| AccessError::Bounds);
        let (first, end) = (index(offset)?, index(end.min(capacity))?);
        let grown = (end * UNIT_PAGES).saturating_sub(self.pages());
        if !budget.take(grown) {
            return Err(AccessError::Bounds);
        }
        let units = units.iter().take(end - first);
        match self {
            Self::Pages(pages) => {
                let entries = units.flat_map(|unit| unit.as_chunks::<{ Mtt::LEN }>().0);
                let new = entries.map(|entry| Mtt::parse(*entry).page);
                replace(pages, first * UNIT_PAGES, end * UNIT_PAGES, Iova::new(0), new);
            }
            Self::Ranges(ranges) => replace(ranges, first, end, Klm::default(), units.map(Klm::parse)),
        }
        Ok(())
    }
}

/// Overwrites elements with `new`, starting at index `first`. If the vector has fewer than `end` elements, it is
/// first extended with `empty`.
fn replace<T: Copy>(all: &mut Vec<T>, first: usize, end: usize, empty: T, new: impl Iterator<Item = T>) {
    if all.len() < end {
        all.resize(end, empty);
    }
    let places = all.iter_mut().skip(first);
    places.zip(new).for_each(|(place, new)| *place = new);
}

#[cfg(test)]
mod tests {
    use protocol::hca::mlx5::strided::REPEAT_KEY;
    use protocol::ids::Va;

    use super::*;

    #[test]
    fn lists_grow_within_capacity() {
        let mut budget = PageBudget::default();
        let mut list = TranslationList::new(Some(AccessMode::Pages));
        let units = |first: u64| {
            (0..8).flat_map(|page| ((first + page) << 12 | 3).to_be_bytes()).collect::<Vec<u8>>()
        };
        // In golden trace ib-3, a work request writes four units, three of them padding, to a key whose list has one
        // unit.
        assert_eq!(list.write(0, &units(1), 1, &mut budget), Ok(()));
        assert_eq!((list.pages(), list.page(1), list.page(2)), (2, Some(Iova::new(0x2000)), None));
        assert_eq!(list.write(1, &units(1), 1, &mut budget), Err(AccessError::Bounds));
        assert_eq!(list.write(4, &units(9), 8, &mut budget), Ok(()));
        assert_eq!(
            (list.pages(), list.page(8), list.page(2)),
            (16, Some(Iova::new(0x9000)), Some(Iova::new(0)))
        );
        assert_eq!(list.write(u64::MAX, &units(9), 8, &mut budget), Err(AccessError::Bounds));
        assert_eq!(list.range(0), None);
    }

    #[test]
    fn terminate_key_ends_ranges() {
        let mut list = TranslationList::new(Some(AccessMode::Ranges));
        let klm = Klm { byte_count: 0x20, key: 0xf08, va: Va::new(0x1000) };
        let end = Klm { key: TERMINATE_KEY, ..Klm::default() };
        let bytes = [klm.emit(), end.emit()].concat();
        list.write(0, &bytes, 2, &mut PageBudget::default()).unwrap();
        let expected = KeyRange { target: Some((Lkey::new(0xf08), Va::new(0x1000))), len: 0x20, stride: 0 };
        assert_eq!((list.range(0), list.range(1), list.pages()), (Some(expected), None, 4));
    }

    /// A list is strided while its first element is a header, even if the header was written after other elements.
    #[test]
    fn first_element_determines_whether_list_is_strided() {
        let mut list = TranslationList::new(Some(AccessMode::Ranges));
        let mut budget = PageBudget::default();
        let header = RepeatBlock { byte_count: 16, key: REPEAT_KEY, repetitions: 3, entries: 1 };
        let entry = StridedEntry { stride: 10, byte_count: 8, key: 0xf08, va: Va::new(0x1000) };
        list.write(1, &entry.emit(), 2, &mut budget).unwrap();
        assert_eq!((list.pattern(), list.range(1).map(|range| range.len)), (None, Some(0xa_0008)));
        list.write(0, &header.emit(), 2, &mut budget).unwrap();
        assert_eq!(list.pattern(), Some(Pattern { ranges: 1, len: 16, repetitions: 3 }));
        let target = Some((Lkey::new(0xf08), Va::new(0x1000)));
        assert_eq!(list.range(1), Some(KeyRange { target, len: 8, stride: 10 }));
        list.write(0, &Klm { byte_count: 8, key: 0xf08, va: Va::new(0) }.emit(), 2, &mut budget).unwrap();
        assert_eq!((list.pattern(), list.range(1).map(|range| range.stride)), (None, Some(0)));
    }
}
