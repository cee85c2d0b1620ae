use std::cell::Cell;
use std::collections::BTreeMap;

use protocol::ids::{Iova, Lkey, Pdn, Qpn};

use super::*;
use crate::memory::GuestMemory;
use crate::memory::key_op::WindowKind;
use crate::memory::keys::{Allocated, Generation, Purpose};
use crate::memory::region::{Kind, PageShift};
use crate::memory::testing::guest_memory;
use crate::memory::translate::{AccessTarget, Pattern, RegionAccess, Segment};

mod model;
mod strided;

const PD: Pdn = Pdn::new(3);
const INITIATOR: Initiator = Initiator { pd: PD, qpn: Qpn::new(0x41), reserved_lkey: false };
/// Key that the tested accesses use.
const OUTER: u32 = 1;
/// Keys that the translation lists of indirect regions refer to.
const LOW: u32 = 2;
const HIGH: u32 = 3;

#[derive(Debug)]
struct Tables {
    pages: BTreeMap<u64, u64>,
    ranges: BTreeMap<u64, KeyRange>,
    patterns: BTreeMap<u64, Pattern>,
    generation: Option<Generation>,
    reads: Cell<u32>,
}

impl Tables {
    fn new(ranges: impl IntoIterator<Item = KeyRange>) -> Self {
        Self {
            pages: BTreeMap::new(),
            ranges: (0..).zip(ranges).collect(),
            patterns: BTreeMap::new(),
            generation: Some(Generation::fresh()),
            reads: Cell::new(0),
        }
    }

    fn set(&mut self, entry: u64, range: KeyRange) {
        self.ranges.insert(entry, range);
        self.generation = Some(Generation::fresh());
    }
}

impl PageTable for &Tables {
    fn page(self, entry: u64) -> Option<Iova> {
        self.pages.get(&entry).copied().map(Iova::new)
    }

    fn range(self, entry: u64) -> Option<KeyRange> {
        self.reads.set(self.reads.get() + 1);
        self.ranges.get(&entry).copied()
    }

    fn pattern(self, entry: u64) -> Option<Pattern> {
        self.patterns.get(&entry).copied()
    }

    fn generation(self) -> Option<Generation> {
        self.generation
    }
}

fn range(key: u32, va: u64, len: u64) -> KeyRange {
    KeyRange { target: Some((Lkey::new(key), Va::new(va))), len, stride: 0 }
}

fn hole(len: u64) -> KeyRange {
    KeyRange { target: None, len, stride: 0 }
}

fn region(key: u32, start: u64, len: u64, translation: Translation) -> MemoryRegion {
    MemoryRegion {
        key: Lkey::new(key),
        pd: PD,
        start: Va::new(start),
        len,
        origin: Origin::Zero,
        rights: Rights::all(),
        translation,
        kind: Kind::Registered,
    }
}

fn contiguous(key: u32, start: u64, len: u64, bus: u64) -> MemoryRegion {
    region(key, start, len, Translation::Contiguous { bus: Iova::new(bus) })
}

/// Returns an indirect region whose first byte has address 0. Its list has `count` entries, starting at
/// `first_entry`.
fn indirect(key: u32, len: u64, first_entry: u64, count: u32) -> MemoryRegion {
    let entry_len = EntryLen::PerEntry;
    region(key, 0, len, Translation::Indirect { entry_len, count, first_entry, offset: 0 })
}

fn fixed(key: u32, len: u64, first_entry: u64, count: u32) -> MemoryRegion {
    let entry_len = EntryLen::Fixed(PageShift::MIN);
    region(key, 0, len, Translation::Indirect { entry_len, count, first_entry, offset: 0 })
}

/// Returns two regions of one page each. `LOW` maps virtual address 0x10000 to bus address 0, and `HIGH` maps
/// 0x20000 to 0x8000.
fn low_and_high() -> [MemoryRegion; 2] {
    [contiguous(LOW, 0x1_0000, 0x1000, 0), contiguous(HIGH, 0x2_0000, 0x1000, 0x8000)]
}

fn table(regions: impl IntoIterator<Item = MemoryRegion>) -> KeyTable {
    let mut keys = KeyTable::new(8);
    for region in regions {
        keys.insert(region).unwrap();
    }
    keys
}

fn at(va: u64) -> AccessTarget {
    AccessTarget::address(INITIATOR, Lkey::new(OUTER), Va::new(va))
}

fn segments(
    keys: &KeyTable,
    pages: &Tables,
    va: u64,
    len: usize,
    access: Access,
) -> Result<Vec<(u64, usize)>, AccessError> {
    let dma = GuestMemory::default();
    let found = RegionAccess { keys, pages, dma: &dma }.segments(at(va), len, access)?;
    found.map(|segment| segment.map(|Segment { iova, len }| (iova.get(), len))).collect()
}

fn read(keys: &KeyTable, pages: &Tables, va: u64, len: usize) -> Result<Vec<(u64, usize)>, AccessError> {
    segments(keys, pages, va, len, Access::LocalRead)
}

#[test]
fn list_concatenates_ranges() {
    let [low, high] = low_and_high();
    let list = [range(HIGH, 0x2_0100, 0x80), range(LOW, 0x1_0ff0, 0x10), range(LOW, 0x1_0000, 0x70)];
    let (keys, tables) = (table([low, high, indirect(OUTER, 0x100, 0, 3)]), Tables::new(list));
    assert_eq!(read(&keys, &tables, 0, 0x100), Ok(vec![(0x8100, 0x80), (0xff0, 0x10), (0, 0x70)]));
    assert_eq!(read(&keys, &tables, 0x7f, 2), Ok(vec![(0x817f, 1), (0xff0, 1)]));
    assert_eq!(read(&keys, &tables, 0x90, 0x70), Ok(vec![(0, 0x70)]));
    assert_eq!(
        read(&keys, &tables, 0x90, 0x71),
        Err(AccessError::Bounds),
        "the whole range is checked first"
    );
}

#[test]
fn contiguous_ranges_form_one_segment() {
    let [low, high] = low_and_high();
    let list = [range(LOW, 0x1_0000, 0x10), range(LOW, 0x1_0010, 0), range(LOW, 0x1_0010, 0x10)];
    let (keys, tables) = (table([low, high, indirect(OUTER, 0x20, 0, 3)]), Tables::new(list));
    assert_eq!(read(&keys, &tables, 0, 0x20), Ok(vec![(0, 0x20)]));
}

#[test]
fn list_skips_empty_ranges_but_not_holes() {
    let [low, high] = low_and_high();
    let list = [
        range(9, 0, 0), // An empty range is never accessed, so its key need not exist.
        range(LOW, 0x1_0000, 0x10),
        hole(0),
        hole(0x10),
        range(HIGH, 0x2_0000, 0x10),
        range(9, 0, 0),
    ];
    let (keys, tables) = (table([low, high, indirect(OUTER, 0x40, 0, 6)]), Tables::new(list));
    assert_eq!(read(&keys, &tables, 0, 0x10), Ok(vec![(0, 0x10)]));
    assert_eq!(read(&keys, &tables, 0x20, 0x10), Ok(vec![(0x8000, 0x10)]));
    assert_eq!(read(&keys, &tables, 0xf, 2), Err(AccessError::Unmapped), "a hole cannot be accessed");
    assert_eq!(
        read(&keys, &tables, 0x2f, 2),
        Err(AccessError::Unmapped),
        "bytes after the list cannot be accessed"
    );
}

#[test]
fn fixed_length_list_is_indexed_directly() {
    let high = contiguous(HIGH, 0, 0x2000, 0x8000);
    let list = [range(HIGH, 0x1000, 7), hole(7), range(HIGH, 0, 7)];
    let (keys, tables) = (table([high, fixed(OUTER, 0x4000, 0, 3)]), Tables::new(list));
    assert_eq!(read(&keys, &tables, 0xffe, 2), Ok(vec![(0x9ffe, 2)]));
    assert_eq!(read(&keys, &tables, 0xffe, 3), Err(AccessError::Unmapped));
    tables.reads.set(0);
    assert_eq!(read(&keys, &tables, 0x2123, 1), Ok(vec![(0x8123, 1)]));
    assert_eq!(tables.reads.get(), 1);
    assert_eq!(
        read(&keys, &tables, 0x3000, 1),
        Err(AccessError::Unmapped),
        "the list has only three entries"
    );
}

#[test]
fn access_through_missing_list_entry_fails() {
    let [low, high] = low_and_high();
    let tables = Tables::new([range(LOW, 0x1_0000, 0x10)]);
    let keys = table([low, high, indirect(OUTER, 0x20, 0, u32::MAX)]);
    assert_eq!(read(&keys, &tables, 0, 0x10), Ok(vec![(0, 0x10)]));
    assert_eq!(read(&keys, &tables, 0x10, 1), Err(AccessError::Unmapped));
}

#[test]
fn lists_nest_up_to_limit() {
    let max = u32::try_from(MAX_NESTING).unwrap();
    for levels in 1..=max + 1 {
        // The list of each key refers to the next key. The last key is contiguous.
        let list = (1..=levels).map(|key| range(key + 1, 0, 0x100));
        let lists = (1..=levels).map(|key| indirect(key, 0x100, u64::from(key - 1), 1));
        let tables = Tables::new(list);
        let keys = table(lists.chain([contiguous(levels + 1, 0, 0x100, 0x8000)]));
        let expected = if levels <= max { Ok(vec![(0x8010, 8)]) } else { Err(AccessError::Indirection) };
        assert_eq!(read(&keys, &tables, 0x10, 8), expected, "{levels} levels");
    }
}

#[test]
fn self_referencing_list_is_rejected() {
    for list in [[range(OUTER, 0, 0x100), hole(0)], [range(LOW, 0, 0x100), range(OUTER, 0, 0x100)]] {
        let tables = Tables::new(list);
        let keys = table([indirect(OUTER, 0x100, 0, 1), indirect(LOW, 0x100, 1, 1)]);
        assert_eq!(read(&keys, &tables, 0, 1), Err(AccessError::Indirection));
    }
}

#[test]
fn invalid_listed_keys_are_rejected() {
    let of = |listed: Option<MemoryRegion>, access| {
        let tables = Tables::new([range(LOW, 0x1_0000, 0x10)]);
        let mut keys = table([indirect(OUTER, 0x10, 0, 1)]);
        match listed {
            Some(listed) => drop(keys.insert(listed).unwrap()),
            None => {
                let purpose = Purpose::Region { most: 0x10 };
                keys.allocate(Allocated { key: Lkey::new(LOW), pd: PD, purpose }).unwrap();
            }
        }
        segments(&keys, &tables, 0, 0x10, access).map(drop)
    };
    let [low, _] = low_and_high();
    let window = Kind::Window { kind: WindowKind::Type1, owner: None, parent: 9 };
    let read_only = MemoryRegion { rights: Rights::empty(), ..low };
    let local = MemoryRegion { rights: Rights::LOCAL_WRITE, ..low };
    let with_other_bits = Lkey::new(LOW | 0x100);
    for access in [Access::LocalRead, Access::RemoteRead, Access::LocalWrite, Access::RemoteWrite] {
        let rights = if matches!(access, Access::LocalWrite | Access::RemoteWrite) {
            Err(AccessError::Right)
        } else {
            Ok(())
        };
        for (listed, expected) in [
            (Some(low), Ok(())),
            (Some(local), Ok(())),
            (Some(read_only), rights),
            (None, Err(AccessError::Invalid)),
            (Some(MemoryRegion { key: with_other_bits, ..low }), Err(AccessError::Key)),
            (Some(MemoryRegion { pd: Pdn::new(4), ..low }), Err(AccessError::Pd)),
            (Some(MemoryRegion { kind: window, ..low }), Err(AccessError::Kind)),
            (Some(MemoryRegion { len: 0xf, ..low }), Err(AccessError::Bounds)),
            (Some(MemoryRegion { start: Va::new(0x1_0001), ..low }), Err(AccessError::Bounds)),
        ] {
            assert_eq!(of(listed, access), expected, "{access:?} {listed:?}");
        }
    }
}

#[test]
fn outer_key_is_checked_first() {
    let outer = MemoryRegion { rights: Rights::empty(), ..indirect(OUTER, 0x10, 0, 1) };
    let tables = Tables::new([range(9, 0, 0x10)]);
    let write = segments(&table([outer]), &tables, 0, 1, Access::LocalWrite);
    assert_eq!(write, Err(AccessError::Right));
    assert_eq!(
        read(&table([MemoryRegion { pd: Pdn::new(4), ..outer }]), &tables, 0, 1),
        Err(AccessError::Pd)
    );
    assert_eq!(tables.reads.get(), 0);
    assert_eq!(read(&table([outer]), &tables, 0, 1), Err(AccessError::Key));
}

#[test]
fn window_on_list_starts_at_offset() {
    let [low, high] = low_and_high();
    let parent = indirect(OUTER, 0x20, 0, 2);
    let translation = parent.translation_at(0x18).unwrap();
    let kind = Kind::Window { kind: WindowKind::Type1, owner: None, parent: OUTER };
    let window = MemoryRegion { len: 8, translation, kind, ..parent };
    let tables = Tables::new([range(LOW, 0x1_0000, 0x10), range(HIGH, 0x2_0000, 0x10)]);
    let found = segments(&table([low, high, window]), &tables, 0, 8, Access::RemoteWrite);
    assert_eq!(found, Ok(vec![(0x8008, 8)]));
}

#[test]
fn overflowing_addresses_are_rejected() {
    let all = MemoryRegion::whole_memory(Lkey::new(HIGH), PD, Rights::all());
    let list = [range(HIGH, u64::MAX - 1, u64::MAX), range(HIGH, 0, u64::MAX)];
    let outer = indirect(OUTER, u64::MAX, 0, 2);
    let keys = table([all, outer]);
    let tables = Tables::new(list);
    assert_eq!(read(&keys, &tables, 0, 1), Ok(vec![(u64::MAX - 1, 1)]));
    assert_eq!(read(&keys, &tables, 2, 1), Err(AccessError::Bounds));
    assert_eq!(
        read(&keys, &tables, u64::MAX - 1, 1),
        Err(AccessError::Bounds),
        "the address in the first range overflows"
    );
    let Translation::Indirect { entry_len, count, .. } = outer.translation else { unreachable!() };
    for (first_entry, offset) in [(u64::MAX, 1), (0, u64::MAX)] {
        let translation = Translation::Indirect { entry_len, count, first_entry, offset };
        let keys = table([all, MemoryRegion { translation, ..outer }]);
        assert!(read(&keys, &tables, 1, 1).is_err());
    }
}

/// The list describes 4 GiB. Its entries are read only up to the one that contains the accessed byte, and the next
/// access continues from that entry.
#[test]
fn long_list_is_read_on_demand() {
    const COUNT: u32 = 1 << 20;
    #[derive(Clone, Copy)]
    struct Long<'a>(&'a Cell<u32>, Option<Generation>);
    impl PageTable for Long<'_> {
        fn page(self, _: u64) -> Option<Iova> {
            None
        }

        fn range(self, entry: u64) -> Option<KeyRange> {
            self.0.set(self.0.get() + 1);
            Some(range(LOW, entry << 13, 0x1000))
        }

        fn generation(self) -> Option<Generation> {
            self.1
        }
    }
    let len = u64::from(COUNT) << 12;
    let keys = table([contiguous(LOW, 0, 1 << 40, 0), indirect(OUTER, len, 0, COUNT)]);
    let reads = Cell::new(0);
    let dma = GuestMemory::default();
    let locate = |pages: Long<'_>, va: u64| {
        reads.set(0);
        let access = RegionAccess { keys: &keys, pages, dma: &dma };
        let found = access.segments(at(va), 8, Access::LocalRead).unwrap().next().unwrap();
        (found.map(|segment| segment.iova.get()), reads.get())
    };
    let pages = Long(&reads, Some(Generation::fresh()));
    let last = u64::from(COUNT - 1);
    assert_eq!(locate(pages, 0), (Ok(0), 1));
    assert_eq!(locate(pages, 0x1008), (Ok(0x2008), 2));
    assert_eq!(locate(pages, last << 12), (Ok(last << 13), COUNT - 1));
    assert_eq!(locate(pages, (last << 12) + 8), (Ok((last << 13) + 8), 1));
    assert_eq!(locate(pages, 0), (Ok(0), 1), "an earlier byte restarts the search");
    assert_eq!(locate(pages, 10 << 12), (Ok(10 << 13), 11));
    let changed = Long(&reads, Some(Generation::fresh()));
    assert_eq!(locate(changed, 10 << 12), (Ok(10 << 13), 11), "a new generation restarts the search");
    let unversioned = Long(&reads, None);
    assert_eq!(locate(unversioned, 10 << 12), (Ok(10 << 13), 11));
    assert_eq!(locate(unversioned, 10 << 12), (Ok(10 << 13), 11));
}

#[test]
fn list_search_length_is_limited() {
    #[derive(Clone, Copy)]
    struct Empty;
    impl PageTable for Empty {
        fn page(self, _: u64) -> Option<Iova> {
            None
        }

        fn range(self, _: u64) -> Option<KeyRange> {
            Some(range(LOW, 0, 0))
        }
    }
    let dma = GuestMemory::default();
    for (count, expected) in [(MAX_ENTRIES, AccessError::Unmapped), (u32::MAX, AccessError::Indirection)] {
        let keys = table([indirect(OUTER, 0x1000, 0, count)]);
        let access = RegionAccess { keys: &keys, pages: Empty, dma: &dma };
        assert_eq!(access.read(at(0), &mut [0], Access::LocalRead), Err(expected));
    }
}

/// Returns two pages of memory, the first filled with 1 and the second with 2.
fn memory() -> GuestMemory {
    let dma = guest_memory(0, 2);
    dma.poke(0, &[1; 0x1000]);
    dma.poke(0x1000, &[2; 0x1000]);
    dma
}

#[test]
fn listed_key_change_affects_next_access() {
    let dma = memory();
    let tables = Tables::new([range(LOW, 0, 0x10), range(HIGH, 0, 0x10)]);
    let regions =
        [contiguous(LOW, 0, 0x10, 0), contiguous(HIGH, 0, 0x10, 0x1000), indirect(OUTER, 0x20, 0, 2)];
    let byte = |keys: &KeyTable, va| {
        let mut byte = [0];
        let access = RegionAccess { keys, pages: &tables, dma: &dma };
        access.read(at(va), &mut byte, Access::RemoteRead).map(|()| byte[0])
    };
    type Change<'a> = &'a dyn Fn(&mut KeyTable);
    type Byte = Result<u8, AccessError>;
    let moved = contiguous(LOW, 0, 0x10, 0x1000);
    let changes: [(Change<'_>, Byte, Byte); 6] = [
        (&|keys| assert!(keys.deregister(LOW).is_ok()), Err(AccessError::Key), Ok(2)),
        (&|keys| assert!(keys.deregister(HIGH).is_ok()), Ok(1), Err(AccessError::Key)),
        (&|keys| assert!(keys.deregister(OUTER).is_ok()), Err(AccessError::Key), Err(AccessError::Key)),
        (&|keys| assert!(keys.insert(moved).is_ok()), Ok(2), Ok(2)),
        (
            &|keys| assert!(keys.insert(MemoryRegion { pd: Pdn::new(4), ..moved }).is_ok()),
            Err(AccessError::Pd),
            Ok(2),
        ),
        (
            &|keys| assert!(keys.insert(MemoryRegion { len: 8, ..moved }).is_ok()),
            Err(AccessError::Bounds),
            Ok(2),
        ),
    ];
    for (number, (change, low, high)) in changes.into_iter().enumerate() {
        let mut keys = table(regions);
        for _ in 0..2 {
            assert_eq!((byte(&keys, 0xf), byte(&keys, 0x10)), (Ok(1), Ok(2)));
        }
        change(&mut keys);
        for _ in 0..2 {
            assert_eq!((byte(&keys, 0xf), byte(&keys, 0x10)), (low, high), "change {number}");
        }
    }
}

#[test]
fn list_change_invalidates_cached_entries() {
    let dma = memory();
    let mut tables = Tables::new([range(LOW, 0, 0x10)]);
    let keys =
        table([contiguous(LOW, 0, 0x10, 0), contiguous(HIGH, 0, 0x10, 0x1000), indirect(OUTER, 0x10, 0, 1)]);
    let byte = |tables: &Tables| {
        let mut byte = [0];
        let access = RegionAccess { keys: &keys, pages: tables, dma: &dma };
        access.read(at(0), &mut byte, Access::LocalRead).map(|()| byte[0])
    };
    assert_eq!(
        (byte(&tables), byte(&tables), tables.reads.get()),
        (Ok(1), Ok(1), 1),
        "the second access hits the cache"
    );
    tables.set(0, range(HIGH, 0, 0x10));
    assert_eq!(byte(&tables), Ok(2));
    tables.set(0, hole(0x10));
    assert_eq!(byte(&tables), Err(AccessError::Unmapped));
    // A list without a generation may change unnoticed, so it is never cached.
    tables.generation = None;
    for (key, expected) in [(LOW, 1), (HIGH, 2)] {
        tables.ranges.insert(0, range(key, 0, 0x10));
        assert_eq!(byte(&tables), Ok(expected));
    }
}

#[test]
fn cached_key_list_respects_region_rights() {
    let dma = memory();
    let tables = Tables::new([range(LOW, 0, 0x10)]);
    let read_only = MemoryRegion { rights: Rights::empty(), ..contiguous(LOW, 0, 0x10, 0) };
    let keys = table([read_only, indirect(OUTER, 0x10, 0, 1)]);
    let access = RegionAccess { keys: &keys, pages: &tables, dma: &dma };
    for _ in 0..2 {
        assert_eq!(access.read(at(0), &mut [0; 8], Access::RemoteRead), Ok(()));
        for kind in [Access::LocalWrite, Access::RemoteWrite] {
            assert_eq!(access.write(at(0), &[0], kind), Err(AccessError::Right));
        }
        let add = engine::AtomicOp::FetchAdd { add: 1 };
        assert_eq!(access.atomic(at(0), add), Err(AccessError::Right));
    }
    assert_eq!(dma.peek(0), [1; 8]);
}
