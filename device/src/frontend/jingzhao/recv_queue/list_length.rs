//! How many elements the receives of a queue have at the most, as far as its slots tell.
//!
//! Software ends a list that is shorter than the longest it allows with a terminator, and one of that length with
//! nothing. The context does not say what it allows, so behind a list that ends with neither a terminator nor its slot
//! the next element may still be to come. The first list that is known to be whole settles it.

/// The longest list software allows in a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MaxListLength {
    /// It has at least so many elements.
    at_least: usize,
    /// It has so many.
    exactly: Option<usize>,
}

impl MaxListLength {
    /// A list has so many elements, or more.
    pub(super) fn at_least(&mut self, units: usize) {
        self.at_least = self.at_least.max(units);
    }

    /// A terminator was found behind so many elements.
    pub(super) fn saw_terminator(&mut self, units: usize) {
        self.more_than(units);
    }

    /// A list of so many elements is whole without a terminator.
    pub(super) fn complete_with(&mut self, units: usize) {
        // Fewer than were seen: software that writes no terminators, of which nothing is known.
        *self = if units < self.at_least {
            Self::default()
        } else {
            Self { at_least: units, exactly: Some(units) }
        };
    }

    /// Software went on behind so many elements.
    pub(super) fn more_than(&mut self, units: usize) {
        self.at_least = self.at_least.max(units + 1);
        self.exactly = self.exactly.filter(|exactly| *exactly >= self.at_least);
    }

    /// Whether its length is known.
    pub(super) fn is_known(&self) -> bool {
        self.exactly.is_some()
    }

    /// Whether so many elements without a terminator are a whole list; `None` if nothing tells.
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
    fn nothing_is_known_of_a_new_queue() {
        assert_eq!(verdicts(MaxListLength::default()), [None; 5]);
    }

    #[test]
    fn a_terminator_tells_that_there_is_room_for_more() {
        let mut longest = MaxListLength::default();
        longest.saw_terminator(1);
        assert_eq!(verdicts(longest), [Some(false), Some(false), None, None, None]);
        longest.saw_terminator(0);
        assert_eq!(longest.is_complete(1), Some(false));
    }

    #[test]
    fn a_whole_list_without_terminator_has_the_greatest_length() {
        let mut longest = MaxListLength::default();
        longest.saw_terminator(1);
        longest.complete_with(3);
        assert_eq!(verdicts(longest), [Some(false), Some(false), Some(false), Some(true), None]);
    }

    #[test]
    fn a_longer_list_corrects_what_was_thought() {
        let mut longest = MaxListLength::default();
        longest.complete_with(1);
        longest.more_than(1);
        assert_eq!(verdicts(longest), [Some(false), Some(false), None, None, None]);
    }

    #[test]
    fn of_software_without_terminators_nothing_is_known() {
        let mut longest = MaxListLength::default();
        longest.complete_with(3);
        longest.complete_with(1);
        assert_eq!(verdicts(longest), [None; 5]);
    }
}
