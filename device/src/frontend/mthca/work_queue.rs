//! The buffer of a work queue: slots in a memory region, counted on for ever.
//!
//! # Spec
//! mthca interface, sections 6.5, 7.3 and 7.4.

use engine::AccessError;
use protocol::hca::mthca::qpc::Geometry;
use protocol::ids::{Lkey, Pdn};

use crate::memory::queue::QueueMemory;

/// Most slots of a queue that 16-bit counters can tell full from empty, and new from stale.
const MAX_LOG_SLOTS: u8 = 15;

/// Where a queue's slots are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkQueue {
    /// Protection domain of the buffer and of data.
    pub pd: Pdn,
    /// Region that holds the queue.
    pub lkey: Lkey,
    /// Offset of slot 0 in the region.
    pub base: u32,
    /// Size.
    pub geometry: Geometry,
}

impl WorkQueue {
    /// Slots.
    pub fn slots(&self) -> u16 {
        1 << self.geometry.log_slots.min(MAX_LOG_SLOTS)
    }

    /// Bytes of a slot.
    pub fn slot_len(&self) -> usize {
        1 << self.geometry.log_slot.min(Geometry::MAX_LOG_SLOT)
    }

    /// Offset of the slot that a count stands for. The base comes from the guest, so that the sum may wrap; what is
    /// there is then outside the region or the guest's own.
    pub fn offset(&self, count: u16) -> u32 {
        let slot = u32::from(count & (self.slots() - 1));
        self.base.wrapping_add(slot << self.geometry.log_slot.min(Geometry::MAX_LOG_SLOT))
    }

    /// Copies bytes out of the region.
    ///
    /// # Errors
    /// See [`QueueMemory::read`].
    pub fn read(&self, mem: &impl QueueMemory, offset: u32, out: &mut [u8]) -> Result<(), AccessError> {
        mem.read(self.pd, self.lkey, offset.into(), out)
    }
}

/// What one side has posted and the other has taken, modulo 2^16.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Posted, as far as the device knows.
    pub posted: u16,
    /// Taken.
    pub taken: u16,
}

/// What a new count of posted requests says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advance {
    /// There are more than were known.
    More,
    /// It was known, or is older than what is known.
    Nothing,
    /// There would be more than the queue has slots; it is ignored.
    TooMany,
}

impl Counters {
    /// Requests that wait.
    pub fn waiting(&self) -> u16 {
        self.posted.wrapping_sub(self.taken)
    }

    /// Takes note of what a doorbell record says. Only its lower half is a count. A record that cannot be right, or
    /// cannot be read, says nothing new.
    pub fn learn(&mut self, record: Option<u32>, slots: u16) -> Advance {
        record.map_or(Advance::Nothing, |count| self.advance((count & 0xffff) as u16, slots))
    }

    /// Takes note of a count of posted requests, which never goes backwards: doorbells may arrive after the device has
    /// seen in memory what they announce.
    pub fn advance(&mut self, posted: u16, slots: u16) -> Advance {
        const OLDER: u16 = 1 << 15;
        match posted.wrapping_sub(self.posted) {
            0 => Advance::Nothing,
            more if more <= slots.saturating_sub(self.waiting()) => {
                self.posted = posted;
                Advance::More
            }
            more if more < OLDER => Advance::TooMany,
            _ => Advance::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_go_forward_only() {
        let mut counters = Counters { posted: 0xfffe, taken: 0xfffd };
        assert_eq!(counters.advance(3, 8), Advance::More);
        assert_eq!((counters.posted, counters.waiting()), (3, 6));
        for stale in [3, 2, 0xfffe, 0xff00] {
            assert_eq!(counters.advance(stale, 8), Advance::Nothing);
        }
        assert_eq!(counters.advance(6, 8), Advance::TooMany);
        assert_eq!(counters.posted, 3);
        assert_eq!(counters.advance(5, 8), Advance::More);
        assert_eq!(counters.waiting(), 8);
    }

    #[test]
    fn slots_repeat_behind_the_base() {
        let geometry = Geometry { log_slots: 2, log_slot: 7 };
        let queue = WorkQueue { pd: Pdn::new(1), lkey: Lkey::new(2), base: 0x4000, geometry };
        assert_eq!(
            [0, 1, 3, 4, 0xffff].map(|count| queue.offset(count)),
            [0x4000, 0x4080, 0x4180, 0x4000, 0x4180]
        );
        assert_eq!((queue.slots(), queue.slot_len()), (4, 128));
    }
}
