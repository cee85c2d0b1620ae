//! Tests for strided lists, which repeat a pattern of ranges.

use super::*;

/// Returns a region with a strided list. The header is at entry 0.
fn strided(key: u32, len: u64, count: u32) -> MemoryRegion {
    let entry_len = EntryLen::Strided;
    region(key, 0, len, Translation::Indirect { entry_len, count, first_entry: 0, offset: 0 })
}

/// Returns the tables of a strided list. `ranges` are the entries after the header, each with its stride.
fn strided_tables(pattern: Pattern, ranges: &[(KeyRange, u64)]) -> Tables {
    let ranges = ranges.iter().map(|(range, stride)| KeyRange { stride: *stride, ..*range });
    let mut tables = Tables::new([hole(0)].into_iter().chain(ranges));
    tables.patterns.insert(0, pattern);
    tables
}

#[test]
fn strided_list_repeats_its_pattern() {
    let [low, high] = low_and_high();
    let pattern = Pattern { ranges: 2, len: 12, repetitions: 3 };
    let tables = strided_tables(pattern, &[(range(LOW, 0x1_0000, 8), 10), (range(HIGH, 0x2_0100, 4), 0x100)]);
    let keys = table([low, high, strided(OUTER, 36, 3)]);
    let all = [(0, 8), (0x8100, 4), (10, 8), (0x8200, 4), (20, 8), (0x8300, 4)];
    assert_eq!(read(&keys, &tables, 0, 36), Ok(all.to_vec()));
    assert_eq!(read(&keys, &tables, 19, 6), Ok(vec![(17, 1), (0x8200, 4), (20, 1)]));
    assert_eq!(read(&keys, &tables, 35, 1), Ok(vec![(0x8303, 1)]));
    assert_eq!(read(&keys, &tables, 35, 2), Err(AccessError::Bounds));
}

/// A range whose stride equals its length is contiguous. A stride of 0 repeats the same bytes.
#[test]
fn strides_can_equal_length_or_be_zero() {
    let [low, high] = low_and_high();
    let keys = table([low, high, strided(OUTER, 32, 2)]);
    let pattern = Pattern { ranges: 1, len: 8, repetitions: 4 };
    let tables = strided_tables(pattern, &[(range(LOW, 0x1_0010, 8), 8)]);
    assert_eq!(read(&keys, &tables, 0, 32), Ok(vec![(0x10, 32)]));
    let tables = strided_tables(pattern, &[(range(LOW, 0x1_0010, 8), 0)]);
    assert_eq!(read(&keys, &tables, 4, 12), Ok(vec![(0x14, 4), (0x10, 8)]));
}

#[test]
fn accesses_outside_pattern_fail() {
    let [low, high] = low_and_high();
    let keys = |count| table([low, high, strided(OUTER, 0x1000, count)]);
    let pattern = Pattern { ranges: 2, len: 8, repetitions: 2 };
    let ranges = [(range(LOW, 0x1_0000, 4), 0x10), (range(HIGH, 0x2_0000, 4), 0x10)];
    let tables = |pattern| strided_tables(pattern, &ranges);
    let all = vec![(0, 4), (0x8000, 4), (0x10, 4), (0x8010, 4)];
    assert_eq!(read(&keys(3), &tables(pattern), 0, 16), Ok(all));
    let unmapped = Err(AccessError::Unmapped);
    assert_eq!(
        read(&keys(3), &tables(pattern), 16, 1),
        unmapped,
        "bytes after the last repetition cannot be accessed"
    );
    assert_eq!(read(&keys(2), &tables(pattern), 4, 1), unmapped, "the list has room for only one range");
    for count in [0, 1] {
        assert_eq!(read(&keys(count), &tables(pattern), 0, 1), unmapped, "the list has no room for a range");
    }
    assert_eq!(read(&keys(3), &tables(Pattern { ranges: 1, ..pattern }), 4, 1), unmapped);
    assert_eq!(read(&keys(3), &tables(Pattern { len: 0, ..pattern }), 0, 1), unmapped);
    assert_eq!(read(&keys(3), &tables(Pattern { repetitions: 0, ..pattern }), 0, 1), unmapped);
    assert_eq!(
        read(&keys(3), &Tables::new([hole(0), ranges[0].0]), 0, 1),
        unmapped,
        "the first entry is not a header"
    );
}

/// The total length of the ranges differs from the repetition length that the header specifies.
#[test]
fn strided_header_sets_repetition_length() {
    let [low, high] = low_and_high();
    let keys = table([low, high, strided(OUTER, 0x20, 2)]);
    let pattern = |len| Pattern { ranges: 1, len, repetitions: 4 };
    let short = strided_tables(pattern(4), &[(range(LOW, 0x1_0000, 8), 0x10)]);
    assert_eq!(read(&keys, &short, 0, 8), Ok(vec![(0, 4), (0x10, 4)]));
    let long = strided_tables(pattern(12), &[(range(LOW, 0x1_0000, 8), 0x10)]);
    assert_eq!(read(&keys, &long, 0, 8), Ok(vec![(0, 8)]));
    assert_eq!(read(&keys, &long, 8, 1), Err(AccessError::Unmapped));
    assert_eq!(read(&keys, &long, 12, 1), Ok(vec![(0x10, 1)]));
}

#[test]
fn strided_addresses_do_not_wrap() {
    let all = MemoryRegion::whole_memory(Lkey::new(HIGH), PD, Rights::all());
    let keys = table([all, strided(OUTER, u64::MAX, 2)]);
    let pattern = Pattern { ranges: 1, len: 1, repetitions: u64::MAX };
    for (va, stride, offset) in [(1, u64::MAX, 1), (0, 1 << 63, 2)] {
        let tables = strided_tables(pattern, &[(range(HIGH, va, 1), stride)]);
        assert_eq!(read(&keys, &tables, 0, 1), Ok(vec![(va, 1)]));
        assert_eq!(read(&keys, &tables, offset, 1), Err(AccessError::Bounds));
    }
}

/// The cost of an access depends on the number of ranges in the pattern, but not on the number of repetitions.
#[test]
fn distant_repetition_is_located_directly() {
    let all = MemoryRegion::whole_memory(Lkey::new(LOW), PD, Rights::all());
    let keys = table([all, strided(OUTER, u64::MAX, 4)]);
    let ranges = [(range(LOW, 0, 1), 4), (range(LOW, 1, 0), 4), (range(LOW, 2, 1), 4)];
    let tables = strided_tables(Pattern { ranges: 3, len: 2, repetitions: 1 << 40 }, &ranges);
    assert_eq!(read(&keys, &tables, 1 << 40, 2), Ok(vec![(1 << 41, 1), ((1 << 41) + 2, 1)]));
    assert_eq!(tables.reads.get(), 5);
}

/// Each repetition consists of two bytes with a long run of empty ranges between them.
#[test]
fn strided_search_length_is_limited() {
    #[derive(Clone, Copy)]
    struct Bomb(u32);
    impl PageTable for Bomb {
        fn page(self, _: u64) -> Option<Iova> {
            None
        }

        fn range(self, entry: u64) -> Option<KeyRange> {
            Some(range(LOW, 0, u64::from(entry == 1 || entry == u64::from(self.0))))
        }

        fn pattern(self, _: u64) -> Option<Pattern> {
            Some(Pattern { ranges: self.0, len: 2, repetitions: u64::MAX })
        }
    }
    let dma = guest_memory(0, 1);
    let keys = table([contiguous(LOW, 0, 0x10, 0), strided(OUTER, 1 << 40, u32::MAX)]);
    let read = |ranges, len| {
        let access = RegionAccess { keys: &keys, pages: Bomb(ranges), dma: &dma };
        access.read(at(0), &mut vec![0; len], Access::LocalRead)
    };
    assert_eq!(read(0x1000, 0x100), Ok(()));
    assert_eq!(read(0x1000, 0x1000), Err(AccessError::Indirection));
    assert_eq!(read(u32::MAX - 1, 2), Err(AccessError::Indirection));
}
