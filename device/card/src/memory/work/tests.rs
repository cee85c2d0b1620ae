use engine::Access;
use proptest::prelude::*;
use protocol::ids::{Iova, Pdn, Va};

use super::*;
use crate::memory::GuestMemory;
use crate::memory::key_op::Pages;
use crate::memory::region::PageShift;
use crate::memory::translate::{AccessTarget, PageTable, RegionAccess, Segment};

const PD: Pdn = Pdn::new(3);
const OWNER: Initiator = Initiator { pd: PD, qpn: Qpn::new(0x41), reserved_lkey: false };
const NEIGHBOUR: Initiator = Initiator { qpn: Qpn::new(0x42), ..OWNER };
const STRANGER: Initiator = Initiator { pd: Pdn::new(4), ..OWNER };
/// Key of a region registered by a command.
const REGION: u32 = 0x100;
/// Key allocated for fast registration.
const FAST: u32 = 0x200;
/// Key allocated for a memory window.
const WINDOW: u32 = 0x300;
const START: u64 = 0x7f00_0000_0400;
const LEN: u64 = 0x3000;

fn lkey(key: u32) -> Lkey {
    Lkey::new(key)
}

fn allocated(key: u32, purpose: Purpose) -> Allocated {
    Allocated { key: lkey(key), pd: PD, purpose }
}

/// Returns a table with a region that grants all rights, a key for fast registration, and a key for a window
/// of `kind`.
fn table(kind: WindowKind) -> KeyTable {
    let mut keys = KeyTable::rotated(14, 8);
    keys.insert(MemoryRegion {
        key: lkey(REGION),
        pd: PD,
        start: Va::new(START),
        len: LEN,
        origin: Origin::Zero,
        rights: Rights::all(),
        translation: Translation::paged(PageShift::MIN, 0x10, Va::new(START)),
        kind: Kind::Registered,
    })
    .unwrap();
    keys.allocate(allocated(FAST, Purpose::Region { most: LEN })).unwrap();
    keys.allocate(allocated(WINDOW, Purpose::Window(kind))).unwrap();
    keys
}

fn fast(key: u32) -> FastRegister {
    FastRegister {
        key: lkey(key),
        start: Va::new(START),
        len: LEN,
        rights: Rights::all(),
        zero_based: false,
        pages: Pages::List { first: 0x20, page_shift: PageShift::MIN },
    }
}

fn bind(key: u32, kind: WindowKind) -> Bind {
    Bind {
        window: Rkey::new(key),
        parent: lkey(REGION),
        va: Va::new(START + 0x1000),
        len: 0x800,
        rights: Rights::REMOTE_READ | Rights::REMOTE_WRITE,
        zero_based: false,
        kind,
    }
}

fn register(keys: &mut KeyTable, of: FastRegister) -> Result<(), AccessError> {
    keys.run(OWNER, &KeyOp::FastRegister(of))
}

fn bound(keys: &mut KeyTable, of: Bind) -> Result<(), AccessError> {
    keys.run(OWNER, &KeyOp::Bind(of))
}

fn invalidate(keys: &mut KeyTable, initiator: Initiator, key: u32) -> Result<(), AccessError> {
    keys.run(initiator, &KeyOp::Invalidate(lkey(key)))
}

fn check(
    keys: &KeyTable,
    initiator: Initiator,
    key: u32,
    va: u64,
    access: Access,
) -> Result<(), AccessError> {
    let dma = GuestMemory::default();
    RegionAccess { keys, pages: Spread, dma: &dma }.check(
        AccessTarget::address(initiator, lkey(key), Va::new(va)),
        1,
        access,
    )
}

fn bus(keys: &KeyTable, initiator: Initiator, key: u32, va: u64, access: Access) -> Result<u64, AccessError> {
    let dma = GuestMemory::default();
    let table = RegionAccess { keys, pages: Spread, dma: &dma };
    let mut found = table.segments(AccessTarget::address(initiator, lkey(key), Va::new(va)), 1, access)?;
    found.next().unwrap().map(|Segment { iova, .. }| iova.get())
}

/// A page table in which every entry and every list exists, and no two pages are contiguous.
#[derive(Debug, Clone, Copy)]
struct Spread;

impl Spread {
    const fn at(entry: u64) -> u64 {
        entry.wrapping_mul(3) << 32
    }
}

impl PageTable for Spread {
    fn page(self, entry: u64) -> Option<Iova> {
        Some(Iova::new(Self::at(entry)))
    }

    fn list(self, entry: u64) -> Option<u64> {
        Some(entry * 1000)
    }
}

#[test]
fn fast_registration_makes_only_new_key_valid() {
    let mut keys = table(WindowKind::Type1);
    assert_eq!(check(&keys, OWNER, FAST, START, Access::LocalRead), Err(AccessError::Invalid));
    assert_eq!(register(&mut keys, fast(FAST | 7)), Ok(()));
    assert_eq!(bus(&keys, OWNER, FAST | 7, START, Access::RemoteWrite), Ok(Spread::at(0x20) | 0x400));
    assert_eq!(check(&keys, OWNER, FAST, START, Access::LocalRead), Err(AccessError::Key));
    assert_eq!(check(&keys, STRANGER, FAST | 7, START, Access::LocalRead), Err(AccessError::Pd));
}

#[test]
fn fast_registered_key_needs_invalidation_before_reuse() {
    let mut keys = table(WindowKind::Type1);
    assert_eq!(register(&mut keys, fast(FAST | 1)), Ok(()));
    assert_eq!(register(&mut keys, fast(FAST | 2)), Err(AccessError::Valid));
    assert_eq!(invalidate(&mut keys, OWNER, FAST | 2), Err(AccessError::Key));
    assert_eq!(invalidate(&mut keys, STRANGER, FAST | 1), Err(AccessError::Pd));
    assert!(
        check(&keys, OWNER, FAST | 1, START, Access::LocalRead).is_ok(),
        "a rejected operation changes nothing"
    );
    assert_eq!(invalidate(&mut keys, OWNER, FAST | 1), Ok(()));
    for access in [Access::LocalRead, Access::RemoteRead, Access::RemoteAtomic] {
        assert_eq!(check(&keys, OWNER, FAST | 1, START, access), Err(AccessError::Invalid));
    }
    assert_eq!(invalidate(&mut keys, OWNER, FAST | 1), Err(AccessError::Invalid));
    assert_eq!(register(&mut keys, fast(FAST | 2)), Ok(()));
    assert_eq!(check(&keys, OWNER, FAST | 1, START, Access::LocalRead), Err(AccessError::Key));
}

#[test]
fn fast_registration_rejects_invalid_parameters() {
    let cases = [
        (FastRegister { key: lkey(0x900), ..fast(FAST) }, AccessError::Key),
        // This key has the same index as `FAST` but different upper bits.
        (FastRegister { key: lkey(FAST | 1 << 31), ..fast(FAST) }, AccessError::Key),
        (FastRegister { key: lkey(REGION), ..fast(FAST) }, AccessError::Kind),
        (FastRegister { key: lkey(WINDOW), ..fast(FAST) }, AccessError::Kind),
        (FastRegister { len: LEN + 1, ..fast(FAST) }, AccessError::Bounds),
        (FastRegister { len: 0, ..fast(FAST) }, AccessError::Bounds),
        (FastRegister { start: Va::new(u64::MAX - 1), ..fast(FAST) }, AccessError::Bounds),
        (FastRegister { rights: Rights::REMOTE_WRITE, ..fast(FAST) }, AccessError::Right),
    ];
    for (of, refused) in cases {
        assert_eq!(register(&mut table(WindowKind::Type1), of), Err(refused), "{of:?}");
    }
    let foreign = table(WindowKind::Type1).run(STRANGER, &KeyOp::FastRegister(fast(FAST)));
    assert_eq!(foreign, Err(AccessError::Pd));
}

#[test]
fn region_registered_by_command_cannot_be_invalidated() {
    let mut keys = table(WindowKind::Type1);
    assert_eq!(invalidate(&mut keys, OWNER, REGION), Err(AccessError::Kind));
    assert_eq!(keys.remote_invalidate(OWNER, Rkey::new(REGION)), Err(AccessError::Kind));
    assert!(check(&keys, OWNER, REGION, START, Access::RemoteRead).is_ok());
}

#[test]
fn remote_invalidation_requires_remote_rights() {
    let mut keys = table(WindowKind::Type2B);
    assert_eq!(keys.remote_invalidate(OWNER, Rkey::new(FAST)), Err(AccessError::Invalid));
    register(&mut keys, FastRegister { rights: Rights::LOCAL_WRITE, ..fast(FAST | 1) }).unwrap();
    assert_eq!(keys.remote_invalidate(OWNER, Rkey::new(FAST | 1)), Err(AccessError::Right));
    invalidate(&mut keys, OWNER, FAST | 1).unwrap();
    register(&mut keys, fast(FAST | 2)).unwrap();
    assert_eq!(keys.remote_invalidate(STRANGER, Rkey::new(FAST | 2)), Err(AccessError::Pd));
    assert_eq!(
        keys.remote_invalidate(NEIGHBOUR, Rkey::new(FAST | 2)),
        Ok(()),
        "any QP in the PD may invalidate the region"
    );
    assert_eq!(check(&keys, OWNER, FAST | 2, START, Access::RemoteRead), Err(AccessError::Invalid));

    bound(&mut keys, bind(WINDOW | 1, WindowKind::Type2B)).unwrap();
    assert_eq!(keys.remote_invalidate(NEIGHBOUR, Rkey::new(WINDOW | 1)), Err(AccessError::Qp));
    assert_eq!(keys.remote_invalidate(OWNER, Rkey::new(WINDOW | 1)), Ok(()));
    let mut keys = table(WindowKind::Type1);
    bound(&mut keys, bind(WINDOW | 1, WindowKind::Type1)).unwrap();
    assert_eq!(keys.remote_invalidate(OWNER, Rkey::new(WINDOW | 1)), Err(AccessError::Kind));
}

#[test]
fn window_exposes_part_of_region() {
    for kind in [WindowKind::Type1, WindowKind::Type2B] {
        let mut keys = table(kind);
        bound(&mut keys, bind(WINDOW | 1, kind)).unwrap();
        let first = START + 0x1000;
        let part = bus(&keys, OWNER, REGION, first, Access::RemoteRead);
        assert_eq!(bus(&keys, OWNER, WINDOW | 1, first, Access::RemoteRead), part);
        assert_eq!(check(&keys, OWNER, WINDOW | 1, first + 0x7ff, Access::RemoteWrite), Ok(()));
        assert_eq!(
            check(&keys, OWNER, WINDOW | 1, first + 0x800, Access::RemoteRead),
            Err(AccessError::Bounds)
        );
        assert_eq!(check(&keys, OWNER, WINDOW | 1, first - 1, Access::RemoteRead), Err(AccessError::Bounds));
        assert_eq!(check(&keys, OWNER, WINDOW | 1, first, Access::RemoteAtomic), Err(AccessError::Right));
        for access in [Access::LocalRead, Access::LocalWrite] {
            assert_eq!(check(&keys, OWNER, WINDOW | 1, first, access), Err(AccessError::Kind));
        }
        assert_eq!(check(&keys, STRANGER, WINDOW | 1, first, Access::RemoteRead), Err(AccessError::Pd));
    }
}

#[test]
fn only_type_2b_window_checks_qp() {
    let first = START + 0x1000;
    for (kind, neighbour) in [(WindowKind::Type1, Ok(())), (WindowKind::Type2B, Err(AccessError::Qp))] {
        let mut keys = table(kind);
        bound(&mut keys, bind(WINDOW | 1, kind)).unwrap();
        assert_eq!(check(&keys, NEIGHBOUR, WINDOW | 1, first, Access::RemoteRead), neighbour);
        assert_eq!(check(&keys, OWNER, WINDOW | 1, first, Access::RemoteRead), Ok(()));
    }
}

#[test]
fn zero_based_addresses_start_at_first_byte() {
    let mut keys = table(WindowKind::Type1);
    bound(&mut keys, Bind { zero_based: true, ..bind(WINDOW | 1, WindowKind::Type1) }).unwrap();
    let part = bus(&keys, OWNER, REGION, START + 0x1004, Access::RemoteRead);
    assert_eq!(bus(&keys, OWNER, WINDOW | 1, 4, Access::RemoteRead), part);
    register(&mut keys, FastRegister { zero_based: true, ..fast(FAST | 1) }).unwrap();
    assert_eq!(bus(&keys, OWNER, FAST | 1, 0, Access::LocalRead), Ok(Spread::at(0x20) | 0x400));
    assert_eq!(check(&keys, OWNER, FAST | 1, LEN, Access::LocalRead), Err(AccessError::Bounds));
}

#[test]
fn type_1_window_can_be_rebound() {
    let mut keys = table(WindowKind::Type1);
    bound(&mut keys, bind(WINDOW | 1, WindowKind::Type1)).unwrap();
    let again = Bind { va: Va::new(START), ..bind(WINDOW | 2, WindowKind::Type1) };
    bound(&mut keys, again).unwrap();
    assert_eq!(check(&keys, OWNER, WINDOW | 1, START, Access::RemoteRead), Err(AccessError::Key));
    assert_eq!(check(&keys, OWNER, WINDOW | 2, START, Access::RemoteRead), Ok(()));
    assert_eq!(invalidate(&mut keys, OWNER, WINDOW | 2), Err(AccessError::Kind));
    bound(&mut keys, Bind { len: 0, ..bind(WINDOW | 3, WindowKind::Type1) }).unwrap();
    assert_eq!(check(&keys, OWNER, WINDOW | 3, START, Access::RemoteRead), Err(AccessError::Invalid));
    assert_eq!(
        keys.deregister(1).map(|entry| entry.key()),
        Ok(lkey(REGION)),
        "the region has no bound windows left"
    );
}

#[test]
fn valid_type_2_window_cannot_be_rebound() {
    let mut keys = table(WindowKind::Type2B);
    bound(&mut keys, bind(WINDOW | 1, WindowKind::Type2B)).unwrap();
    assert_eq!(bound(&mut keys, bind(WINDOW | 2, WindowKind::Type2B)), Err(AccessError::Valid));
    let foreign = keys.run(NEIGHBOUR, &KeyOp::Bind(bind(WINDOW | 2, WindowKind::Type2B)));
    assert_eq!(foreign, Err(AccessError::Qp));
    assert_eq!(invalidate(&mut keys, NEIGHBOUR, WINDOW | 1), Err(AccessError::Qp));
    assert_eq!(invalidate(&mut keys, OWNER, WINDOW | 1), Ok(()));
    let first = START + 0x1000;
    assert_eq!(check(&keys, OWNER, WINDOW | 1, first, Access::RemoteRead), Err(AccessError::Invalid));
    let other = keys.run(NEIGHBOUR, &KeyOp::Bind(bind(WINDOW | 2, WindowKind::Type2B)));
    assert_eq!(other, Ok(()), "another QP may bind an invalidated window");
    assert_eq!(check(&keys, NEIGHBOUR, WINDOW | 2, first, Access::RemoteRead), Ok(()));
}

#[test]
fn bind_rejects_invalid_parameters() {
    let ours = bind(WINDOW | 1, WindowKind::Type1);
    let mut keys = table(WindowKind::Type1);
    let read_only = MemoryRegion {
        key: lkey(0x400),
        rights: Rights::BIND | Rights::REMOTE_READ,
        ..*keys.get(1).unwrap()
    };
    keys.insert(read_only).unwrap();
    keys.insert(MemoryRegion { key: lkey(0x500), rights: Rights::LOCAL_WRITE, ..read_only }).unwrap();
    keys.insert(MemoryRegion { key: lkey(0x600), pd: STRANGER.pd, ..read_only }).unwrap();
    keys.allocate(allocated(0x700, Purpose::Window(WindowKind::Type1))).unwrap();
    bound(&mut keys, Bind { window: Rkey::new(0x701), ..ours }).unwrap();
    for (of, refused) in [
        (Bind { window: Rkey::new(0x900), ..ours }, AccessError::Key),
        (Bind { window: Rkey::new(FAST), ..ours }, AccessError::Kind),
        (Bind { window: Rkey::new(REGION), ..ours }, AccessError::Kind),
        (Bind { kind: WindowKind::Type2B, ..ours }, AccessError::Kind),
        (Bind { parent: lkey(0x900), ..ours }, AccessError::Key),
        (Bind { parent: lkey(FAST), ..ours }, AccessError::Invalid),
        (Bind { parent: lkey(0x701), ..ours }, AccessError::Kind),
        (Bind { parent: lkey(0x500), ..ours }, AccessError::Right),
        (Bind { parent: lkey(0x600), ..ours }, AccessError::Pd),
        // Region 0x400 does not grant local write access. A window bound to it must not grant remote write access.
        (Bind { parent: lkey(0x400), ..ours }, AccessError::Right),
        (Bind { va: Va::new(START - 1), ..ours }, AccessError::Bounds),
        (Bind { len: LEN, ..ours }, AccessError::Bounds),
    ] {
        assert_eq!(bound(&mut keys, of), Err(refused), "{of:?}");
    }
    assert_eq!(keys.run(STRANGER, &KeyOp::Bind(ours)), Err(AccessError::Pd));
    assert_eq!(bound(&mut keys, Bind { parent: lkey(0x400), rights: Rights::REMOTE_READ, ..ours }), Ok(()));
}

#[test]
fn region_with_bound_windows_cannot_be_removed() {
    let mut keys = table(WindowKind::Type2B);
    register(&mut keys, fast(FAST | 1)).unwrap();
    keys.allocate(allocated(0x400, Purpose::Window(WindowKind::Type1))).unwrap();
    bound(&mut keys, bind(WINDOW | 1, WindowKind::Type2B)).unwrap();
    let on_fast = |key, kind| Bind { parent: lkey(FAST | 1), ..bind(key, kind) };
    bound(&mut keys, on_fast(0x401, WindowKind::Type1)).unwrap();
    assert_eq!(keys.deregister(1), Err(AccessError::Bound));
    assert_eq!(invalidate(&mut keys, OWNER, FAST | 1), Err(AccessError::Bound));
    assert_eq!(keys.remote_invalidate(OWNER, Rkey::new(FAST | 1)), Err(AccessError::Bound));
    invalidate(&mut keys, OWNER, WINDOW | 1).unwrap();
    assert!(keys.deregister(1).is_ok());
    // Deregistering a window unbinds it from its region.
    assert!(keys.deregister(4).is_ok());
    assert_eq!(invalidate(&mut keys, OWNER, FAST | 1), Ok(()));
}

#[test]
fn repeatedly_rebound_window_counts_once() {
    let mut keys = table(WindowKind::Type1);
    for generation in 1..4 {
        bound(&mut keys, bind(WINDOW | generation, WindowKind::Type1)).unwrap();
    }
    assert_eq!(keys.deregister(1), Err(AccessError::Bound));
    bound(&mut keys, Bind { len: 0, ..bind(WINDOW | 4, WindowKind::Type1) }).unwrap();
    assert!(keys.deregister(1).is_ok());
}

#[test]
fn reserved_lkey_uses_bus_addresses_if_enabled() {
    let keys = table(WindowKind::Type1);
    let kernel = Initiator { reserved_lkey: true, ..STRANGER };
    assert_eq!(bus(&keys, kernel, 0, 0x1234_5678, Access::LocalRead), Ok(0x1234_5678));
    assert_eq!(bus(&keys, kernel, 0, 0x1234_5678, Access::LocalWrite), Ok(0x1234_5678));
    for access in [Access::RemoteRead, Access::RemoteWrite, Access::RemoteAtomic] {
        assert_eq!(
            check(&keys, kernel, 0, 0x1234_5678, access),
            Err(AccessError::Key),
            "peers cannot use the reserved L_Key"
        );
    }
    assert_eq!(check(&keys, OWNER, 0, 0x1234_5678, Access::LocalRead), Err(AccessError::Key));
}

fn pages() -> impl Strategy<Value = Pages> {
    (0..3, 0..1u64 << 20, 12u8..=31).prop_map(|(level, first, shift)| {
        let page_shift = PageShift::new(shift).unwrap();
        match level {
            0 => Pages::Contiguous { base: Iova::new(first << 31), page_shift },
            1 => Pages::List { first, page_shift },
            _ => Pages::TwoLevel { first, page_shift },
        }
    })
}

/// Computes the bus address of the `nth` byte after the start of the first page, independently of the code
/// under test.
fn expected(pages: Pages, nth: u64) -> u64 {
    match pages {
        Pages::Contiguous { base, .. } => base.get() + nth,
        Pages::List { first, page_shift } => {
            let size = 1 << page_shift.get();
            (Spread::at(first + nth / size) & !(size - 1)) + nth % size
        }
        Pages::TwoLevel { first, page_shift } => {
            let size = 1 << page_shift.get();
            let page = nth / size;
            (Spread::at((first + page / 512) * 1000 + page % 512) & !(size - 1)) + nth % size
        }
    }
}

proptest! {
    /// Tests an arbitrary byte of an arbitrary region, directly and through a window, with all kinds of page lists.
    #[test]
    fn registered_addresses_translate_through_any_page_list(
        pages in pages(),
        start in 0..1u64 << 40,
        len in 1..1u64 << 40,
        zero_based: bool,
        window_zero_based: bool,
        at in any::<prop::sample::Index>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut keys = table(WindowKind::Type2B);
        keys.allocate(allocated(FAST, Purpose::Region { most: u64::MAX })).unwrap();
        let of = FastRegister { pages, start: Va::new(start), len, zero_based, ..fast(FAST | 1) };
        register(&mut keys, of).unwrap();
        let draw = |index: prop::sample::Index, of: u64| index.index(usize::try_from(of).unwrap()) as u64;
        let offset = draw(at, len);
        let (Pages::Contiguous { page_shift, .. }
            | Pages::List { page_shift, .. }
            | Pages::TwoLevel { page_shift, .. }) = pages;
        let due = expected(pages, (start & page_shift.offset_mask()) + offset);
        let base = if zero_based { 0 } else { start };
        prop_assert_eq!(bus(&keys, OWNER, FAST | 1, base + offset, Access::RemoteRead), Ok(due));
        prop_assert_eq!(
            bus(&keys, OWNER, FAST | 1, base + len, Access::RemoteRead),
            Err(AccessError::Bounds)
        );

        let first = draw(cut, offset + 1);
        let window = Bind {
            parent: lkey(FAST | 1),
            va: Va::new(base + first),
            len: len - first,
            zero_based: window_zero_based,
            ..bind(WINDOW | 1, WindowKind::Type2B)
        };
        bound(&mut keys, window).unwrap();
        let through = if window_zero_based { offset - first } else { base + offset };
        prop_assert_eq!(bus(&keys, OWNER, WINDOW | 1, through, Access::RemoteRead), Ok(due));
    }
}
