//! Allocator of 16-bit identifiers. It always returns the lowest free one.

/// A range of identifiers, each free or in use.
#[derive(Clone, Debug)]
pub(super) struct IdPool {
    first: u16,
    used: Vec<bool>,
    count: u16,
    /// All identifiers below this position are in use.
    search_from: usize,
}

impl IdPool {
    /// Creates a pool of `len` free identifiers, starting at `first`. The highest identifier must not exceed
    /// 65,535.
    pub(super) fn new(first: u16, len: u16) -> Self {
        Self { first, used: vec![false; len.into()], count: 0, search_from: 0 }
    }

    /// Allocates the lowest free identifier. Returns `None` if all identifiers are in use.
    pub(super) fn allocate(&mut self) -> Option<u16> {
        let free = self.search_from + self.used.get(self.search_from..)?.iter().position(|used| !used)?;
        let number = u16::try_from(free).ok()?.checked_add(self.first)?;
        self.used[free] = true;
        self.count += 1;
        self.search_from = free + 1;
        Some(number)
    }

    /// Frees an identifier. Returns whether it was in use.
    pub(super) fn release(&mut self, number: u16) -> bool {
        let Some(at) = number.checked_sub(self.first).map(usize::from) else { return false };
        let was_used = self.used.get_mut(at).is_some_and(std::mem::take);
        if was_used {
            self.count -= 1;
            self.search_from = self.search_from.min(at);
        }
        was_used
    }

    pub(super) fn is_used(&self, number: u16) -> bool {
        number.checked_sub(self.first).and_then(|at| self.used.get(usize::from(at))).is_some_and(|used| *used)
    }

    /// Returns the identifiers that are in use, in ascending order, starting from `first`.
    pub(super) fn used_from(&self, first: u16) -> impl Iterator<Item = u16> {
        let used = (self.first..).zip(&self.used).filter(|(_, used)| **used).map(|(number, _)| number);
        used.skip_while(move |number| *number < first)
    }

    /// Returns the number of identifiers in use.
    pub(super) const fn used(&self) -> u16 {
        self.count
    }

    /// Returns the number of free identifiers.
    pub(super) fn free(&self) -> u16 {
        // `new` takes the length as a `u16`, so the conversion always succeeds.
        u16::try_from(self.used.len()).unwrap_or(u16::MAX) - self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_unique_until_released() {
        let mut numbers = IdPool::new(1, 3);
        assert_eq!(
            [numbers.allocate(), numbers.allocate(), numbers.allocate(), numbers.allocate()],
            [Some(1), Some(2), Some(3), None]
        );
        assert!(numbers.release(2) && !numbers.release(2) && !numbers.is_used(2));
        assert!(
            !numbers.release(0) && !numbers.release(4),
            "identifiers outside the range cannot be released"
        );
        assert_eq!((numbers.used(), numbers.free()), (2, 1));
        assert_eq!(numbers.allocate(), Some(2));
    }
}
