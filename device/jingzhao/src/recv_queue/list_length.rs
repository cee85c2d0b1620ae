//! The maximum number of elements in a queue's receives, inferred from the contents of the queue's slots.
//!
//! Software ends a list with a terminator only if the list is shorter than the queue's maximum. Since the context does
//! not contain that maximum, a list that has no terminator and does not fill its slot may be incomplete. The first list
//! known to be complete without a terminator determines the maximum.

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MaxListLength {
    /// Lower bound for the maximum length.
    at_least: usize,
    exactly: Option<usize>,
}

impl MaxListLength {
    /// Records a list with at least `units` elements.
    pub(super) fn at_least(&mut self, units: usize) {
        self.at_least = self.at_least.max(units);
    }

    /// Records a list of `units` elements that ended with a terminator. The maximum is greater.
    pub(super) fn saw_terminator(&mut self, units: usize) {
        self.more_than(units);
    }

    /// Records a list of `units` elements that is complete without a terminator. It has the maximum length.
    pub(super) fn complete_with(&mut self, units: usize) {
        // A list that is shorter than an earlier one should have ended with a terminator. This software apparently
        // writes no terminators, so the maximum becomes unknown again.
        *self = if units < self.at_least {
            Self::default()
        } else {
            Self { at_least: units, exactly: Some(units) }
        };
    }

    /// Records that software continued a list beyond `units` elements.
    pub(super) fn more_than(&mut self, units: usize) {
        self.at_least = self.at_least.max(units + 1);
        self.exactly = self.exactly.filter(|exactly| *exactly >= self.at_least);
    }

    pub(super) fn is_known(&self) -> bool {
        self.exactly.is_some()
    }

    /// Returns whether a list of `units` elements without a terminator is complete, or `None` if unknown.
    pub(super) fn is_complete(&self, units: usize) -> Option<bool> {
        match self.exactly {
            Some(exactly) if units == exactly => Some(true),
            _ if units < self.at_least => Some(false),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdicts(longest: MaxListLength) -> [Option<bool>; 5] {
        [0, 1, 2, 3, 4].map(|units| longest.is_complete(units))
    }

    #[test]
    fn maximum_list_length_is_initially_unknown() {
        assert_eq!(verdicts(MaxListLength::default()), [None; 5]);
    }

    #[test]
    fn terminated_list_is_shorter_than_maximum() {
        let mut longest = MaxListLength::default();
        longest.saw_terminator(1);
        assert_eq!(verdicts(longest), [Some(false), Some(false), None, None, None]);
        longest.saw_terminator(0);
        assert_eq!(longest.is_complete(1), Some(false));
    }

    #[test]
    fn complete_list_without_terminator_has_maximum_length() {
        let mut longest = MaxListLength::default();
        longest.saw_terminator(1);
        longest.complete_with(3);
        assert_eq!(verdicts(longest), [Some(false), Some(false), Some(false), Some(true), None]);
    }

    #[test]
    fn longer_list_invalidates_maximum() {
        let mut longest = MaxListLength::default();
        longest.complete_with(1);
        longest.more_than(1);
        assert_eq!(verdicts(longest), [Some(false), Some(false), None, None, None]);
    }

    #[test]
    fn maximum_stays_unknown_without_terminators() {
        let mut longest = MaxListLength::default();
        longest.complete_with(3);
        longest.complete_with(1);
        assert_eq!(verdicts(longest), [None; 5]);
    }
}
