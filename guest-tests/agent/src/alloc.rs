//! Allocates runs of consecutive units: arena pages, translation entries or object numbers.

use std::collections::BTreeMap;

/// An allocator that stores the free units as a map from the first unit of each run to its length.
#[derive(Debug)]
pub(crate) struct Units {
    free: BTreeMap<u32, u32>,
}

impl Units {
    /// Creates an allocator in which all units in `range` are free.
    pub(crate) fn new(range: std::ops::Range<u32>) -> Self {
        Self { free: BTreeMap::from([(range.start, range.end - range.start)]) }
    }

    /// Allocates `count` consecutive units, starting at the lowest possible multiple of `align`.
    pub(crate) fn alloc(&mut self, count: u32, align: u32) -> Option<u32> {
        let (start, len, first) = self.free.iter().find_map(|(&start, &len)| {
            let first = start.checked_next_multiple_of(align.max(1))?;
            (first - start <= len && len - (first - start) >= count).then_some((start, len, first))
        })?;
        self.free.remove(&start);
        let before = first - start;
        if before > 0 {
            self.free.insert(start, before);
        }
        let after = len - before - count;
        if after > 0 {
            self.free.insert(first + count, after);
        }
        Some(first)
    }

    /// Frees units returned by [`Units::alloc`].
    pub(crate) fn free(&mut self, first: u32, count: u32) {
        let (mut start, mut len) = (first, count);
        if let Some((&before, &before_len)) = self.free.range(..first).next_back()
            && before + before_len == first
        {
            self.free.remove(&before);
            start = before;
            len += before_len;
        }
        if let Some(after_len) = self.free.remove(&(first + count)) {
            len += after_len;
        }
        self.free.insert(start, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_freed_runs_are_merged() {
        let mut units = Units::new(2..100);
        let a = units.alloc(3, 1).unwrap();
        let b = units.alloc(16, 16).unwrap();
        let c = units.alloc(10, 1).unwrap();
        assert_eq!((a, b, c), (2, 16, 5));
        units.free(b, 16);
        units.free(a, 3);
        units.free(c, 10);
        assert_eq!(units.free, BTreeMap::from([(2, 98)]));
    }

    #[test]
    fn run_longer_than_any_hole_is_rejected() {
        let mut units = Units::new(0..8);
        assert_eq!(units.alloc(9, 1), None);
        assert_eq!(units.alloc(8, 1), Some(0));
        assert_eq!(units.alloc(1, 1), None);
    }
}
