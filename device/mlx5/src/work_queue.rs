//! Counters for a work queue whose producer counter is in a doorbell record.
//!
//! # Spec
//! mlx5 interface, sections 7, 11 and 12.

/// Free-running producer and consumer counters, modulo 2^16. They count the queue's units: blocks in a send queue and
/// entries in a receive queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Producer counter, as last read from the doorbell record.
    posted: u16,
    pub taken: u16,
}

/// Error for a doorbell record that announces more waiting units than the queue has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMany;

/// Result of polling a doorbell record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advance {
    More,
    /// The record contains the same counter as before, or an implausible counter that has already been reported.
    Nothing,
    /// The counter is ignored because it announces more waiting units than the queue has.
    TooMany,
}

impl Counters {
    /// Returns the producer counter, as last read from the doorbell record.
    pub const fn posted(self) -> u16 {
        self.posted
    }

    /// Returns the number of units that are posted but not yet consumed.
    pub const fn waiting(self) -> u16 {
        self.posted.wrapping_sub(self.taken)
    }

    /// Updates the producer counter to `posted`, the value in the doorbell record. The queue has `capacity` units.
    ///
    /// # Errors
    /// Fails and keeps the old counter if more than `capacity` units would be waiting.
    pub const fn learn(&mut self, posted: u16, capacity: u32) -> Result<(), TooMany> {
        if posted.wrapping_sub(self.taken) as u32 > capacity {
            return Err(TooMany);
        }
        self.posted = posted;
        Ok(())
    }

    /// Consumes `units` units, or all that are waiting if there are fewer.
    pub fn take(&mut self, units: u16) {
        self.taken = self.taken.wrapping_add(units.min(self.waiting()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_wrap_and_reject_overrun() {
        let mut counters = Counters { posted: 0xfffe, taken: 0xfffe };
        assert_eq!(counters.learn(3, 8), Ok(()));
        assert_eq!(counters.waiting(), 5);
        assert_eq!((counters.learn(7, 8), counters.waiting()), (Err(TooMany), 5));
        counters.take(2);
        assert_eq!((counters.taken, counters.waiting()), (0, 3));
        counters.take(9);
        assert_eq!((counters.taken, counters.waiting()), (3, 0));
        assert_eq!(counters.learn(2, 8), Err(TooMany), "the counter never moves backwards");
    }
}
