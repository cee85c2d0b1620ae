//! Where a completion or event queue starts within its region.

use card::memory::queue::QueueMemory;
use hcr::entry_ring::LEN;
use protocol::ids::Lkey;

/// Returns the offset of a queue's first entry from the start of the region `key`. The vendor's document defines the
/// field `start` of an EQ's context as an address in the region, and marks that of a CQ's context as not used yet. An
/// offset into the region is also accepted, as it is for work queues. If the queue fits under both interpretations,
/// `start` is taken as an address. Returns `None` if the queue fits under neither.
///
/// # Spec
/// Interface document, tables 3-2-28 and 3-2-33; JingZhao interface, sections 4.4 and 4.5 (J-49).
pub fn offset(start: u64, log_entries: u8, key: Lkey, mem: &impl QueueMemory) -> Option<u64> {
    let room = mem.region_len(key)?.checked_sub((LEN as u64).checked_shl(log_entries.into())?)?;
    let from_address = start.checked_sub(mem.region_start(key)?).filter(|offset| *offset <= room);
    from_address.or((start <= room).then_some(start))
}

#[cfg(test)]
mod tests {
    use card::memory::queue::testing::Region;

    use super::*;

    const KEY: Lkey = Lkey::new(0x21);

    /// Returns the start offset of a two-entry queue. Its region has room for four entries and starts at
    /// `region_start`.
    fn found(region_start: u64, start: u64) -> Option<u64> {
        let mut mem = Region::new(4 * LEN);
        mem.start = region_start;
        offset(start, 1, KEY, &mem)
    }

    #[test]
    fn queue_start_is_address_in_region_or_offset() {
        const ADDRESS: u64 = 0x7f00_0000_1000;
        assert_eq!([found(ADDRESS, ADDRESS), found(ADDRESS, 0)], [Some(0), Some(0)]);
        assert_eq!([found(ADDRESS, ADDRESS + 64), found(ADDRESS, 64)], [Some(64), Some(64)]);
        assert_eq!([found(0, 0), found(0, 64)], [Some(0), Some(64)]);
        assert_eq!(found(32, 64), Some(32), "a start that fits both is taken as an address");
    }

    #[test]
    fn queue_that_exceeds_its_region_is_rejected() {
        const ADDRESS: u64 = 0x7f00_0000_1000;
        for start in [65, ADDRESS - 1, ADDRESS + 65, u64::MAX] {
            assert_eq!(found(ADDRESS, start), None, "{start:#x}");
        }
        assert_eq!(offset(0, 3, KEY, &Region::new(4 * LEN)), None, "the queue is longer than the region");
        assert_eq!(offset(0, 0, Lkey::new(1), &Region::new(4 * LEN)), None, "no region has this key");
    }
}
