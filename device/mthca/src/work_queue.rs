//! The buffer of a work queue: slots in a memory region, with free-running counters.
//!
//! # Spec
//! mthca interface, sections 6.5, 7.3 and 7.4.

use card::memory::queue::QueueMemory;
use engine::AccessError;
use protocol::hca::mthca::qpc::Geometry;
use protocol::ids::{Lkey, Pdn};

/// Log2 of the maximum number of slots. With more slots, 16-bit counters could not distinguish a full queue from an
/// empty one, or a new counter value from a stale one.
const MAX_LOG_SLOTS: u8 = 15;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkQueue {
    /// Protection domain for accesses to the buffer and the data.
    pub pd: Pdn,
    pub lkey: Lkey,
    /// Offset of slot 0 in the region.
    pub base: u32,
    pub geometry: Geometry,
}

impl WorkQueue {
    pub fn slots(&self) -> u16 {
        1 << self.geometry.log_slots.min(MAX_LOG_SLOTS)
    }

    /// Returns the slot size in bytes.
    pub fn slot_len(&self) -> usize {
        1 << self.geometry.log_slot.min(Geometry::MAX_LOG_SLOT)
    }

    /// Returns the offset of the slot with free-running index `count`. The guest chooses the base, and the sum may
    /// wrap. This is harmless: a wrapped offset is either outside the region or refers to other memory of the same
    /// guest.
    pub fn offset(&self, count: u16) -> u32 {
        let slot = u32::from(count & (self.slots() - 1));
        self.base.wrapping_add(slot << self.geometry.log_slot.min(Geometry::MAX_LOG_SLOT))
    }

    /// Copies bytes out of the buffer.
    ///
    /// # Errors
    /// Fails if the buffer is not accessible.
    pub fn read(&self, mem: &impl QueueMemory, offset: u32, out: &mut [u8]) -> Result<(), AccessError> {
        mem.read(self.pd, self.lkey, offset.into(), out)
    }
}

/// Free-running producer and consumer counters, modulo 2^16.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Number of requests posted, according to the last record or doorbell.
    pub posted: u16,
    pub taken: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advance {
    More,
    /// The counter is unchanged or stale; there are no new requests.
    Nothing,
    /// The counter is ignored because it covers more requests than the queue has slots.
    TooMany,
}

impl Counters {
    pub fn waiting(&self) -> u16 {
        self.posted.wrapping_sub(self.taken)
    }

    /// Updates the producer counter from the lower half of a doorbell record. An invalid or unreadable record is
    /// ignored.
    pub fn learn(&mut self, record: Option<u32>, slots: u16) -> Advance {
        record.map_or(Advance::Nothing, |count| self.advance((count & 0xffff) as u16, slots))
    }

    /// Updates the producer counter. Section 5.2: stale values are ignored, because a doorbell may arrive after the
    /// device has read the same or a newer counter from the doorbell record.
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
    fn stale_or_excessive_counter_is_ignored() {
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
    fn slot_offsets_start_at_base_and_wrap() {
        let geometry = Geometry { log_slots: 2, log_slot: 7 };
        let queue = WorkQueue { pd: Pdn::new(1), lkey: Lkey::new(2), base: 0x4000, geometry };
        assert_eq!(
            [0, 1, 3, 4, 0xffff].map(|count| queue.offset(count)),
            [0x4000, 0x4080, 0x4180, 0x4000, 0x4180]
        );
        assert_eq!((queue.slots(), queue.slot_len()), (4, 128));
    }
}
