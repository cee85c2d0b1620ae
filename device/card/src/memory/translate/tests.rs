use std::collections::BTreeMap;

use super::*;
use crate::memory::key_op::WindowKind;
use crate::memory::region::{Kind, MemoryRegion, PageShift, Rights, Translation};
use crate::memory::testing::guest_memory;

const PD: Pdn = Pdn::new(3);
const KEY: Lkey = Lkey::new(0x20005);

#[derive(Debug, Default)]
struct Pages(BTreeMap<u64, u64>);

impl PageTable for &Pages {
    fn page(self, entry: u64) -> Option<Iova> {
        self.0.get(&entry).copied().map(Iova::new)
    }
}

/// Returns the tables for the user-region example in section 14.5 of the JingZhao interface. The region consists of the
/// pages listed in section 14.4.
fn published() -> (KeyTable, Pages) {
    let region = MemoryRegion {
        key: KEY,
        pd: PD,
        start: Va::new(0x7f00_1234_5678),
        len: 0x2100,
        origin: Origin::Zero,
        rights: Rights::LOCAL_WRITE | Rights::REMOTE_WRITE | Rights::REMOTE_READ,
        translation: Translation::paged(PageShift::MIN, 0x10, Va::new(0x7f00_1234_5678)),
        kind: Kind::Registered,
    };
    let pages = Pages((0..5).map(|n| (0x10 + n, 0x2_0000_1000 + n * 0x1000)).collect());
    (table([region]), pages)
}

fn table(regions: impl IntoIterator<Item = MemoryRegion>) -> KeyTable {
    let mut keys = KeyTable::new(17);
    for region in regions {
        keys.insert(region).unwrap();
    }
    keys
}

fn initiator(pd: Pdn) -> Initiator {
    Initiator { pd, qpn: Qpn::new(0x41), reserved_lkey: false }
}

fn at(va: u64) -> AccessTarget {
    AccessTarget::address(initiator(PD), KEY, Va::new(va))
}

fn segments(
    keys: &KeyTable,
    pages: &Pages,
    at: AccessTarget,
    len: usize,
) -> Result<Vec<(u64, usize)>, AccessError> {
    let dma = GuestMemory::default();
    let access = RegionAccess { keys, pages, dma: &dma };
    let found = access.segments(at, len, Access::LocalRead)?;
    found.map(|segment| segment.map(|Segment { iova, len }| (iova.get(), len))).collect()
}

#[test]
fn example_addresses_match_specification() {
    let (keys, pages) = published();
    for (va, bus) in [
        (0x7f00_1234_5678, 0x2_0000_1678),
        (0x7f00_1234_6000, 0x2_0000_2000),
        (0x7f00_1234_7777, 0x2_0000_3777),
    ] {
        assert_eq!(segments(&keys, &pages, at(va), 1), Ok(vec![(bus, 1)]));
    }
    assert_eq!(segments(&keys, &pages, at(0x7f00_1234_7778), 1), Err(AccessError::Bounds));
    assert_eq!(segments(&keys, &pages, at(0x7f00_1234_5677), 1), Err(AccessError::Bounds));
}

#[test]
fn range_must_end_inside_region() {
    let (keys, pages) = published();
    let start = 0x7f00_1234_5678;
    assert_eq!(segments(&keys, &pages, at(start), 0x2100), Ok(vec![(0x2_0000_1678, 0x2100)]));
    assert_eq!(segments(&keys, &pages, at(start), 0x2101), Err(AccessError::Bounds));
    assert_eq!(segments(&keys, &pages, at(start + 0x20ff), 2), Err(AccessError::Bounds));
    assert_eq!(segments(&keys, &pages, at(u64::MAX), 2), Err(AccessError::Bounds));
}

#[test]
fn noncontiguous_pages_split_range() {
    let (keys, mut pages) = published();
    pages.0.insert(0x11, 0x9000);
    let split = vec![(0x2_0000_1678, 0x988), (0x9000, 0x1000), (0x2_0000_3000, 0x778)];
    assert_eq!(segments(&keys, &pages, at(0x7f00_1234_5678), 0x2100), Ok(split));
}

#[test]
fn missing_page_affects_only_accesses_to_it() {
    let (keys, mut pages) = published();
    pages.0.remove(&0x11);
    assert!(segments(&keys, &pages, at(0x7f00_1234_5678), 0x988).is_ok());
    assert_eq!(segments(&keys, &pages, at(0x7f00_1234_5678), 0x989), Err(AccessError::Unmapped));
}

#[test]
fn access_checks_run_in_fixed_order() {
    let (keys, pages) = published();
    let dma = GuestMemory::default();
    let access = RegionAccess { keys: &keys, pages: &pages, dma: &dma };
    let outside = Va::new(0);
    let (other_pd, other_key) = (Pdn::new(4), Lkey::new(5));
    let check = |pd, key, right| access.check(AccessTarget::address(initiator(pd), key, outside), 1, right);
    assert_eq!(check(other_pd, other_key, Access::RemoteAtomic), Err(AccessError::Key));
    assert_eq!(check(other_pd, KEY, Access::RemoteAtomic), Err(AccessError::Pd));
    assert_eq!(check(PD, KEY, Access::RemoteAtomic), Err(AccessError::Right));
    assert_eq!(check(PD, KEY, Access::RemoteRead), Err(AccessError::Bounds));
    assert_eq!(
        access.check(AccessTarget::address(initiator(other_pd), other_key, outside), 0, Access::RemoteAtomic),
        Ok(())
    );
}

#[test]
fn each_access_kind_requires_its_own_right() {
    use Access::{LocalRead, LocalWrite, RemoteAtomic, RemoteRead, RemoteWrite};
    for (rights, granted) in [
        (Rights::empty(), &[LocalRead][..]),
        (Rights::LOCAL_WRITE, &[LocalRead, LocalWrite]),
        (Rights::REMOTE_WRITE, &[LocalRead, RemoteWrite]),
        (Rights::REMOTE_READ, &[LocalRead, RemoteRead]),
        (Rights::REMOTE_ATOMIC, &[LocalRead, RemoteAtomic]),
    ] {
        for access in [LocalRead, LocalWrite, RemoteRead, RemoteWrite, RemoteAtomic] {
            assert_eq!(rights.permit(access), granted.contains(&access), "{rights:?} and {access:?}");
        }
    }
}

#[test]
fn translation_supports_every_page_size() {
    for shift in 12..=31 {
        let page_shift = PageShift::new(shift).unwrap();
        let size = 1u64 << shift;
        let start = 5 * size + size / 2 + 1;
        let region = MemoryRegion {
            key: KEY,
            pd: PD,
            start: Va::new(start),
            len: 2 * size,
            origin: Origin::Zero,
            rights: Rights::empty(),
            translation: Translation::paged(page_shift, 7, Va::new(start)),
            kind: Kind::Registered,
        };
        // Low bits of an entry are ignored.
        let pages = Pages([(7, 100 * size + 0xfff), (8, 300 * size), (9, 200 * size)].into());
        let keys = table([region]);
        let first = 100 * size + size / 2 + 1;
        assert_eq!(segments(&keys, &pages, at(start), 1), Ok(vec![(first, 1)]), "shift {shift}");
        let turn = at(6 * size - 1);
        let across = vec![(101 * size - 1, 1), (300 * size, 1)];
        assert_eq!(segments(&keys, &pages, turn, 2), Ok(across), "shift {shift}");
        let last = 200 * size + size / 2;
        assert_eq!(
            segments(&keys, &pages, at(start + 2 * size - 1), 1),
            Ok(vec![(last, 1)]),
            "shift {shift}"
        );
    }
    assert_eq!((PageShift::new(11), PageShift::new(32)), (None, None));
}

#[test]
fn zero_based_addresses_start_at_first_byte() {
    let (keys, pages) = published();
    let relative = AccessTarget::offset(PD, KEY, 0x988);
    assert_eq!(segments(&keys, &pages, relative, 1), Ok(vec![(0x2_0000_2000, 1)]));
    assert_eq!(segments(&keys, &pages, AccessTarget::offset(PD, KEY, 0x2100), 1), Err(AccessError::Bounds));

    let zero_based = MemoryRegion { origin: Origin::Start, ..*keys.find(KEY).unwrap() };
    let keys = table([zero_based]);
    assert_eq!(segments(&keys, &pages, at(0x988), 1), Ok(vec![(0x2_0000_2000, 1)]));
    assert_eq!(segments(&keys, &pages, at(0x7f00_1234_5678), 1), Err(AccessError::Bounds));
}

#[test]
fn physical_region_extends_to_last_bus_address() {
    let all = MemoryRegion::whole_memory(KEY, PD, Rights::empty());
    let translation = Translation::Contiguous { bus: Iova::new(u64::MAX - 3) };
    let top = MemoryRegion { start: Va::new(u64::MAX - 3), translation, ..all };
    let pages = Pages::default();
    assert_eq!(segments(&table([all]), &pages, at(0x1234), 9), Ok(vec![(0x1234, 9)]));
    assert_eq!(segments(&table([top]), &pages, at(u64::MAX - 3), 4), Ok(vec![(u64::MAX - 3, 4)]));
    let beyond = AccessTarget::offset(PD, KEY, 0);
    assert_eq!(segments(&table([top]), &pages, beyond, 5), Err(AccessError::Bounds));
}

#[test]
fn overflowing_addresses_are_rejected() {
    let region = MemoryRegion {
        key: KEY,
        pd: PD,
        start: Va::new(0xfff),
        len: u64::MAX,
        origin: Origin::Start,
        rights: Rights::empty(),
        translation: Translation::paged(PageShift::MIN, u64::MAX, Va::new(0xfff)),
        kind: Kind::Registered,
    };
    let pages = Pages([(u64::MAX, 0)].into());
    let keys = table([region]);
    assert_eq!(segments(&keys, &pages, at(0), 1), Ok(vec![(0xfff, 1)]));
    assert_eq!(
        segments(&keys, &pages, at(1), 1),
        Err(AccessError::Unmapped),
        "the page table index overflows"
    );
    assert_eq!(segments(&keys, &pages, at(u64::MAX - 1), 1), Err(AccessError::Bounds));
}

/// Returns two pages of memory at bus address 1000h, and a region that maps them in reverse order. The region
/// begins at offset 800h of its first page.
fn swapped() -> (GuestMemory, KeyTable, Pages) {
    let region = MemoryRegion {
        key: KEY,
        pd: PD,
        start: Va::new(0x800),
        len: 0x1800,
        origin: Origin::Zero,
        rights: Rights::LOCAL_WRITE | Rights::REMOTE_ATOMIC,
        translation: Translation::paged(PageShift::MIN, 0, Va::new(0x800)),
        kind: Kind::Registered,
    };
    (guest_memory(0x1000, 2), table([region]), Pages([(0, 0x2000), (1, 0x1000)].into()))
}

#[test]
fn reads_and_writes_cross_page_boundaries() {
    let (dma, keys, pages) = swapped();
    let access = RegionAccess { keys: &keys, pages: &pages, dma: &dma };
    access.write(at(0xffe), b"abcd", Access::LocalWrite).unwrap();
    assert_eq!((dma.peek(0x2ffe), dma.peek(0x1000)), (*b"ab", *b"cd"));
    let mut back = [0; 4];
    access.read(at(0xffe), &mut back, Access::LocalRead).unwrap();
    assert_eq!(&back, b"abcd");
}

#[test]
fn publish_works_within_and_across_pages() {
    let (dma, keys, pages) = swapped();
    let access = RegionAccess { keys: &keys, pages: &pages, dma: &dma };
    access.publish(at(0x900), b"entry").unwrap();
    assert_eq!(&dma.peek(0x2900), b"entry");
    access.publish(at(0xffd), b"entry").unwrap();
    assert_eq!((dma.peek(0x2ffd), dma.peek(0x1000)), (*b"ent", *b"ry"));
    access.publish(at(0xffc), b"ENTRY").unwrap();
    assert_eq!((dma.peek(0x2ffc), dma.peek(0x1000)), (*b"ENTR", *b"Yy"));
}

#[test]
fn atomics_return_original_word() {
    let (dma, keys, pages) = swapped();
    let access = RegionAccess { keys: &keys, pages: &pages, dma: &dma };
    dma.poke(0x1008, &7u64.to_le_bytes());
    let word = at(0x1008);
    assert_eq!(access.atomic(word, AtomicOp::FetchAdd { add: u64::MAX }), Ok(7));
    assert_eq!(access.atomic(word, AtomicOp::CompareSwap { compare: 5, swap: 1 }), Ok(6));
    assert_eq!(access.atomic(word, AtomicOp::CompareSwap { compare: 6, swap: 9 }), Ok(6));
    assert_eq!(dma.peek(0x1008), 9u64.to_le_bytes());
    assert_eq!(access.atomic(at(0x1004), AtomicOp::FetchAdd { add: 1 }), Err(AccessError::Unmapped));
}

#[test]
fn access_to_unmapped_memory_fails() {
    let (mut dma, keys, pages) = swapped();
    dma.unmap(Iova::new(0x1000), 0x1000).unwrap();
    let access = RegionAccess { keys: &keys, pages: &pages, dma: &dma };
    let mut out = [0; 4];
    assert_eq!(access.read(at(0x1000), &mut out, Access::LocalRead), Err(AccessError::Unmapped));
    assert_eq!(access.write(at(0x1000), &out, Access::LocalWrite), Err(AccessError::Unmapped));
    assert_eq!(access.publish(at(0x1000), &out), Err(AccessError::Unmapped));
    assert_eq!(access.read(at(0x800), &mut out, Access::LocalRead), Ok(()));
}

#[test]
fn any_range_is_translated_or_rejected() {
    let mut state = 1u64;
    let mut draw = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        // The second shift yields both small and huge values.
        (state >> 8) >> (state % 57)
    };
    let mut granted = 0;
    for _ in 0..50_000 {
        let page_shift = PageShift::new(u8::try_from(12 + draw() % 20).unwrap()).unwrap();
        let start = Va::new(draw());
        let paged = Translation::paged(page_shift, draw(), start);
        let contiguous = Translation::Contiguous { bus: Iova::new(start.get()) };
        let region = MemoryRegion {
            key: KEY,
            pd: PD,
            start,
            len: draw() | draw() << 32,
            origin: if draw() % 2 == 0 { Origin::Start } else { Origin::Zero },
            rights: Rights::empty(),
            translation: if draw() % 4 == 0 { contiguous } else { paged },
            kind: Kind::Registered,
        };
        let len = usize::try_from(1 + draw() % 100_000).unwrap();
        let target = at(region.start.get().wrapping_add(draw() % 0x1_0000));
        let keys = table([region]);
        let dma = GuestMemory::default();
        let access = RegionAccess { keys: &keys, pages: Everywhere, dma: &dma };
        let Ok(found) = access.segments(target, len, Access::LocalRead) else { continue };
        let found: Result<Vec<Segment>, AccessError> = found.collect();
        if let Ok(found) = found {
            granted += 1;
            assert_eq!(found.iter().map(|segment| segment.len).sum::<usize>(), len);
        }
    }
    assert!(granted > 1000, "{granted}");
}

/// A page table in which every page exists, and no two pages are contiguous.
#[derive(Debug, Clone, Copy)]
struct Everywhere;

impl PageTable for Everywhere {
    fn page(self, entry: u64) -> Option<Iova> {
        Some(Iova::new(entry.wrapping_mul(3) << 12))
    }
}

/// Tests of the translation cache. Each test begins with an access that populates the cache.
mod cached_translations {
    use super::*;
    use crate::memory::keys::{Allocated, Entry, Generation, Purpose};

    struct VersionedTable {
        pages: BTreeMap<u64, u64>,
        generation: Generation,
    }

    impl VersionedTable {
        fn new(pages: impl IntoIterator<Item = (u64, u64)>) -> Self {
            Self { pages: pages.into_iter().collect(), generation: Generation::fresh() }
        }
    }

    impl PageTable for &VersionedTable {
        fn page(self, entry: u64) -> Option<Iova> {
            self.pages.get(&entry).copied().map(Iova::new)
        }

        fn generation(self) -> Option<Generation> {
            Some(self.generation)
        }
    }

    /// Returns four pages, each filled with its number, counting from 1.
    fn memory() -> GuestMemory {
        let dma = guest_memory(0, 4);
        for page in 0..4u8 {
            dma.write(Iova::new(u64::from(page) * PAGE_LEN), &[page + 1; 4096]).unwrap();
        }
        dma
    }

    fn region() -> MemoryRegion {
        MemoryRegion {
            key: KEY,
            pd: PD,
            start: Va::new(0x7000_0800),
            len: 0x1000,
            origin: Origin::Zero,
            rights: Rights::LOCAL_WRITE,
            translation: Translation::paged(PageShift::MIN, 0, Va::new(0x7000_0800)),
            kind: Kind::Registered,
        }
    }

    fn byte<P: PageTable>(access: &RegionAccess<'_, P>, target: AccessTarget) -> Result<u8, AccessError> {
        let mut byte = [0];
        access.read(target, &mut byte, Access::LocalRead).map(|()| byte[0])
    }

    const FIRST: u64 = 0x7000_0800;

    #[test]
    fn cache_hits_equal_fresh_lookups() {
        let (keys, pages, dma) =
            (table([region()]), VersionedTable::new([(0, 0x1000), (1, 0x3000)]), memory());
        let access = RegionAccess { keys: &keys, pages: &pages, dma: &dma };
        for _ in 0..2 {
            assert_eq!(byte(&access, at(FIRST)), Ok(2));
            assert_eq!(byte(&access, at(FIRST + 0x7ff)), Ok(2));
            assert_eq!(byte(&access, at(FIRST + 0x800)), Ok(4));
            assert_eq!(byte(&access, at(FIRST + 0xfff)), Ok(4));
            assert_eq!(byte(&access, at(FIRST + 0x1000)), Err(AccessError::Bounds));
            assert_eq!(byte(&access, at(FIRST - 1)), Err(AccessError::Bounds));
            let mut across = [0; 2];
            access.read(at(FIRST + 0x7ff), &mut across, Access::LocalRead).unwrap();
            assert_eq!(across, [2, 4]);
            let queue = AccessTarget {
                initiator: initiator(PD),
                key: KEY,
                va: Va::new(0x800),
                origin: Origin::Start,
            };
            assert_eq!(byte(&access, queue), Ok(4));
        }
    }

    #[test]
    fn cache_hits_check_initiator_and_rights() {
        let (keys, pages, dma) =
            (table([region()]), VersionedTable::new([(0, 0x1000), (1, 0x3000)]), memory());
        let access = RegionAccess { keys: &keys, pages: &pages, dma: &dma };
        assert_eq!(byte(&access, at(FIRST)), Ok(2));
        let target = |pd, key| AccessTarget::address(initiator(pd), key, Va::new(FIRST));
        assert_eq!(byte(&access, target(Pdn::new(4), KEY)), Err(AccessError::Pd));
        // This key has the same index but different upper bits.
        assert_eq!(byte(&access, target(PD, Lkey::new(0x40005))), Err(AccessError::Key));
        assert_eq!(access.write(at(FIRST), &[1], Access::RemoteWrite), Err(AccessError::Right));
        assert_eq!(access.write(at(FIRST), &[9], Access::LocalWrite), Ok(()));
        assert_eq!(byte(&access, at(FIRST)), Ok(9));
    }

    #[test]
    fn key_change_invalidates_entries() {
        let (pages, dma) = (VersionedTable::new([(0, 0x1000), (1, 0x3000), (8, 0)]), memory());
        let elsewhere =
            MemoryRegion { translation: Translation::paged(PageShift::MIN, 8, Va::new(FIRST)), ..region() };
        let foreign = MemoryRegion { pd: Pdn::new(4), ..region() };
        let allocated = Allocated { key: KEY, pd: PD, purpose: Purpose::Region { most: 0x1000 } };
        type Change<'a> = &'a dyn Fn(&mut KeyTable);
        let changes: [(Change<'_>, Result<u8, AccessError>); 6] = [
            (&|keys| assert!(keys.remove(5).is_some()), Err(AccessError::Key)),
            (&|keys| assert!(keys.deregister(5).is_ok()), Err(AccessError::Key)),
            (&|keys| assert!(keys.insert(elsewhere).is_ok()), Ok(1)),
            (&|keys| assert!(keys.insert(foreign).is_ok()), Err(AccessError::Pd)),
            (&|keys| keys.allocate(allocated).unwrap(), Err(AccessError::Invalid)),
            (&|keys| keys.set(Entry::Valid(elsewhere)), Ok(1)),
        ];
        for (number, (change, expected)) in changes.into_iter().enumerate() {
            let mut keys = table([region()]);
            for _ in 0..2 {
                assert_eq!(byte(&RegionAccess { keys: &keys, pages: &pages, dma: &dma }, at(FIRST)), Ok(2));
            }
            change(&mut keys);
            let after = byte(&RegionAccess { keys: &keys, pages: &pages, dma: &dma }, at(FIRST));
            assert_eq!(after, expected, "change {number}");
        }
    }

    #[test]
    fn page_table_change_invalidates_entries() {
        let (keys, dma) = (table([region()]), memory());
        let (mut pages, read) = (VersionedTable::new([(0, 0x1000), (1, 0x3000)]), at(FIRST));
        assert_eq!(byte(&RegionAccess { keys: &keys, pages: &pages, dma: &dma }, read), Ok(2));
        pages = VersionedTable::new([(0, 0x2000), (1, 0x3000)]);
        assert_eq!(byte(&RegionAccess { keys: &keys, pages: &pages, dma: &dma }, read), Ok(3));
        pages = VersionedTable::new([(1, 0x3000)]);
        let access = RegionAccess { keys: &keys, pages: &pages, dma: &dma };
        assert_eq!(byte(&access, read), Err(AccessError::Unmapped));
    }

    /// The E810's page lists are in guest memory and can change without the device noticing.
    #[test]
    fn guest_page_table_is_not_cached() {
        let (keys, dma) = (table([region()]), memory());
        let mut pages = Pages(BTreeMap::from([(0, 0x1000), (1, 0x3000)]));
        assert_eq!(byte(&RegionAccess { keys: &keys, pages: &pages, dma: &dma }, at(FIRST)), Ok(2));
        pages.0.insert(0, 0x2000);
        assert_eq!(byte(&RegionAccess { keys: &keys, pages: &pages, dma: &dma }, at(FIRST)), Ok(3));
    }

    #[test]
    fn reserved_key_is_not_cached() {
        let (keys, pages, dma) = (KeyTable::new(17), VersionedTable::new([]), memory());
        let access = RegionAccess { keys: &keys, pages: &pages, dma: &dma };
        let target = |reserved_lkey| {
            let initiator = Initiator { reserved_lkey, ..initiator(Pdn::new(0)) };
            AccessTarget::address(initiator, RESERVED_LKEY, Va::new(0x1000))
        };
        assert_eq!(byte(&access, target(true)), Ok(2));
        assert_eq!(byte(&access, target(false)), Err(AccessError::Key));
    }

    #[test]
    fn windows_are_not_cached() {
        let window = |owner| MemoryRegion {
            rights: Rights::REMOTE_READ,
            kind: Kind::Window { kind: WindowKind::Type2B, owner: Some(Qpn::new(owner)), parent: 0 },
            ..region()
        };
        let (pages, dma) = (VersionedTable::new([(0, 0x1000), (1, 0x3000)]), memory());
        let keys = table([window(0x41)]);
        let access = RegionAccess { keys: &keys, pages: &pages, dma: &dma };
        let mut out = [0];
        assert_eq!(access.read(at(FIRST), &mut out, Access::RemoteRead), Ok(()));
        let other = Initiator { qpn: Qpn::new(0x42), ..initiator(PD) };
        let target = AccessTarget::address(other, KEY, Va::new(FIRST));
        assert_eq!(access.read(target, &mut out, Access::RemoteRead), Err(AccessError::Qp));
        assert_eq!(byte(&access, at(FIRST)), Err(AccessError::Kind));
    }
}
