//! The sequence number with which software arms a CQ.
//!
//! Software counts the events of a CQ that it has seen, from 1 on, and the device those that it has written. Arming with
//! less than was written is right as long as software has not seen the rest, and wrong as soon as it has. A driver has
//! seen what it has read from the EQ; a program has seen what it fetched from its driver, which only its own numbers tell.
//!
//! # Spec
//! mthca interface, sections 7.6 and 11.

/// Events of a CQ.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct Sequence {
    /// Written to the EQ.
    written: u32,
    /// Of those, the ones that software has seen for certain.
    seen: u32,
    /// Place of the newest in the EQ, until software has read it.
    newest: Option<u32>,
}

impl Sequence {
    /// An event was written as this entry of the EQ, counted on for ever.
    pub(in super::super) fn event_written(&mut self, place: u32) {
        self.written = self.written.wrapping_add(1);
        self.newest = Some(place);
    }

    /// Software whose EQ it is has read it up to an entry.
    pub(in super::super) fn mark_read(&mut self, consumer: u32) {
        const BEHIND: u32 = 1 << 31;
        if self.newest.is_some_and(|place| consumer.wrapping_sub(place).wrapping_sub(1) < BEHIND) {
            self.newest = None;
            self.seen = self.written;
        }
    }

    /// The numbers that software may use now, of two bits: from one on, so many more.
    pub(in super::super) fn valid_range(&self) -> (u8, u8) {
        let first = self.seen.wrapping_add(1) & 3;
        let more = self.written.wrapping_sub(self.seen).min(3) & 3;
        (first as u8, more as u8)
    }

    /// Whether software may use a number now. If so it does, and has seen what that number counts.
    pub(in super::super) fn arm(&mut self, number: u8) -> bool {
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

    fn allowed(sequence: &Sequence) -> Vec<u8> {
        (0..4).filter(|number| { *sequence }.arm(*number)).collect()
    }

    #[test]
    fn what_software_has_not_seen_it_need_not_count() {
        let mut sequence = Sequence::default();
        assert_eq!(allowed(&sequence), [1]);
        sequence.event_written(7);
        assert_eq!(allowed(&sequence), [1, 2]);
        sequence.mark_read(7);
        assert_eq!(allowed(&sequence), [1, 2], "entry 7 is not among the first seven");
        sequence.mark_read(8);
        assert_eq!(allowed(&sequence), [2]);
        (8..10).for_each(|place| sequence.event_written(place));
        assert_eq!(allowed(&sequence), [0, 2, 3]);
        (10..20).for_each(|place| sequence.event_written(place));
        assert_eq!(allowed(&sequence), [0, 1, 2, 3]);
        sequence.mark_read(20);
        assert_eq!(allowed(&sequence), [2], "13 events");
    }

    #[test]
    fn a_program_has_seen_what_it_counts() {
        let mut sequence = Sequence::default();
        (0..2).for_each(|place| sequence.event_written(place));
        assert!(sequence.arm(1), "none seen");
        assert!(sequence.arm(2));
        assert_eq!(allowed(&sequence), [2, 3], "one was seen, and is not forgotten");
        assert!(!sequence.arm(0), "a third was not written");
        assert_eq!(allowed(&sequence), [2, 3]);
    }

    #[test]
    fn counts_wrap() {
        let mut sequence = Sequence { written: u32::MAX, seen: u32::MAX, newest: None };
        assert_eq!(allowed(&sequence), [0]);
        sequence.event_written(u32::MAX);
        sequence.mark_read(0);
        assert_eq!(allowed(&sequence), [1]);
    }
}
