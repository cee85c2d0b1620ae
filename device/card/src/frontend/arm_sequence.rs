//! Sequence numbers of CQ arm requests, for strict mode.
//!
//! The two-bit sequence number of an arm request counts the events that software has received from the CQ. This count
//! may lag behind the number of events that the device has written. If the driver owns both the CQ and the EQ, the EQ's
//! consumer index shows which events the driver has received. A user program receives events through the driver, and
//! only the program's arm requests show which events it has received.
//!
//! # Spec
//! mthca interface, sections 7.6 and 11; mlx5 interface, sections 7.1 and 9.2.

/// Event counts of a CQ.
#[derive(Clone, Copy, Debug)]
pub struct ArmSequence {
    /// Sequence number that software uses before the first event.
    first: u8,
    /// Number of events written to the EQ.
    written: u32,
    /// Number of events that software is known to have received.
    seen: u32,
    /// Free-running index of the newest event in the EQ; `None` once software has read it.
    newest: Option<u32>,
}

impl ArmSequence {
    pub const fn new(first: u8) -> Self {
        Self { first, written: 0, seen: 0, newest: None }
    }

    /// Counts an event written to the EQ at the free-running index `index`.
    pub fn event_written(&mut self, index: u32) {
        self.written = self.written.wrapping_add(1);
        self.newest = Some(index);
    }

    /// Records that software has read the EQ up to a consumer index. Called only if the CQ and the EQ have the same
    /// owner.
    pub fn mark_read(&mut self, consumer: u32) {
        const BEHIND: u32 = 1 << 31;
        if self.newest.is_some_and(|index| consumer.wrapping_sub(index).wrapping_sub(1) < BEHIND) {
            self.newest = None;
            self.seen = self.written;
        }
    }

    /// Returns the first two-bit sequence number that is currently valid, and how many of the numbers after it are also
    /// valid.
    pub fn valid_range(&self) -> (u8, u8) {
        let first = self.seen.wrapping_add(self.first.into()) & 3;
        let more = self.written.wrapping_sub(self.seen).min(3) & 3;
        (first as u8, more as u8)
    }

    /// Handles an arm request and returns whether its sequence number is currently valid. A valid number proves that
    /// software has received all events that the number covers.
    pub fn arm(&mut self, number: u8) -> bool {
        let (first, more) = self.valid_range();
        let ahead = number.wrapping_sub(first) & 3;
        let allowed = ahead <= more;
        if allowed {
            self.seen = self.seen.wrapping_add(ahead.into());
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(sequence: &ArmSequence) -> Vec<u8> {
        (0..4).filter(|number| { *sequence }.arm(*number)).collect()
    }

    #[test]
    fn arm_sequence_may_lag_until_events_are_read() {
        let mut sequence = ArmSequence::new(1);
        assert_eq!(allowed(&sequence), [1]);
        sequence.event_written(7);
        assert_eq!(allowed(&sequence), [1, 2]);
        sequence.mark_read(7);
        assert_eq!(allowed(&sequence), [1, 2], "a consumer index of 7 does not cover entry 7");
        sequence.mark_read(8);
        assert_eq!(allowed(&sequence), [2]);
        (8..10).for_each(|index| sequence.event_written(index));
        assert_eq!(allowed(&sequence), [0, 2, 3]);
        (10..20).for_each(|index| sequence.event_written(index));
        assert_eq!(allowed(&sequence), [0, 1, 2, 3]);
        sequence.mark_read(20);
        assert_eq!(allowed(&sequence), [2], "13 events were written and read, and 13 + 1 = 2 modulo 4");
    }

    #[test]
    fn valid_arm_marks_its_events_as_received() {
        let mut sequence = ArmSequence::new(1);
        (0..2).for_each(|index| sequence.event_written(index));
        assert!(sequence.arm(1), "software may not have seen any event yet");
        assert!(sequence.arm(2));
        assert_eq!(allowed(&sequence), [2, 3], "arming with 2 proves that software has seen one event");
        assert!(!sequence.arm(0), "only two events were written");
        assert_eq!(allowed(&sequence), [2, 3]);
    }

    #[test]
    fn arm_sequence_starts_at_given_number() {
        let mut sequence = ArmSequence::new(0);
        assert_eq!(allowed(&sequence), [0]);
        sequence.event_written(0);
        sequence.mark_read(1);
        assert_eq!(allowed(&sequence), [1]);
    }

    #[test]
    fn event_counters_wrap() {
        let mut sequence = ArmSequence { written: u32::MAX, seen: u32::MAX, ..ArmSequence::new(1) };
        assert_eq!(allowed(&sequence), [0]);
        sequence.event_written(u32::MAX);
        sequence.mark_read(0);
        assert_eq!(allowed(&sequence), [1]);
    }
}
