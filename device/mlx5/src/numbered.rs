//! Tables of objects whose numbers the device assigns.

use std::collections::VecDeque;

use card::sparse::{Capacity, SparseTable};

/// A table of objects, indexed by number. A freed number is reused as late as possible so that delayed doorbells and
/// packets for the old object do not reach a new one.
#[derive(Debug)]
pub struct Numbered<T> {
    objects: SparseTable<T>,
    /// The lowest number that has never been used.
    fresh: u32,
    last: u32,
    /// First and last number of a range that is not assigned.
    hole: Option<(u32, u32)>,
    /// Freed numbers, oldest first. Each number occurs at most once.
    freed: VecDeque<u32>,
}

impl<T> Numbered<T> {
    /// Creates an empty table for the numbers from `first` to `last`.
    pub fn new(first: u32, last: u32) -> Self {
        const LEAF: usize = 64;
        let numbers = (last.saturating_sub(first) as usize).saturating_add(1);
        let capacity = Capacity { entries: numbers, leaves: numbers / LEAF + 2 };
        Self { objects: SparseTable::new(capacity), fresh: first, last, hole: None, freed: VecDeque::new() }
    }

    /// Excludes a range of numbers from an empty table. The range must not contain the table's first number.
    pub const fn without(mut self, first: u32, last: u32) -> Self {
        self.hole = Some((first, last));
        self
    }

    /// Returns the number for the next object, or `None` if the table is full.
    pub fn next(&self) -> Option<u32> {
        if self.fresh <= self.last { Some(self.fresh) } else { self.freed.front().copied() }
    }

    pub fn insert(&mut self, object: T) -> Option<u32> {
        let number = self.next()?;
        self.objects.insert(number, object).ok()?;
        if number == self.fresh {
            self.fresh = match self.hole {
                Some((first, last)) if number.checked_add(1) == Some(first) => last + 1,
                _ => number + 1,
            };
        } else {
            self.freed.pop_front();
        }
        Some(number)
    }

    pub fn get(&self, number: u32) -> Option<&T> {
        self.objects.get(number)
    }

    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.objects.get_mut(number)
    }

    pub fn contains(&self, number: u32) -> bool {
        self.get(number).is_some()
    }

    pub fn remove(&mut self, number: u32) -> Option<T> {
        let object = self.objects.remove(number)?;
        self.freed.push_back(number);
        Some(object)
    }

    pub fn count(&self) -> usize {
        self.objects.len()
    }

    /// Returns the objects in ascending order of their numbers, starting at `first`.
    pub fn iter_from(&self, first: u32) -> impl Iterator<Item = (u32, &T)> {
        self.objects.iter_from(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_number_is_reused_last() {
        let mut table = Numbered::new(0x80, 0x82);
        assert_eq!([table.insert('a'), table.insert('b')], [Some(0x80), Some(0x81)]);
        assert_eq!(table.remove(0x80), Some('a'));
        assert_eq!((table.remove(0x80), table.next()), (None, Some(0x82)));
        assert_eq!(table.remove(0x81), Some('b'));
        let numbers: Vec<_> = "cdef".chars().map(|object| table.insert(object)).collect();
        assert_eq!(numbers, [Some(0x82), Some(0x80), Some(0x81), None]);
        assert_eq!((table.count(), table.get(0x80)), (3, Some(&'d')));
        assert!(!table.contains(0x83) && table.contains(0x82));
    }
}
