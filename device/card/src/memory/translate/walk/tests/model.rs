//! Compares access results with those of a model that has no caches.

use proptest::prelude::*;

use super::*;

/// Number of keys in the model. Keys are numbered from 1.
const KEYS: u32 = 7;
/// Number of entries in each of the model's tables: key ranges, patterns and pages.
const ENTRIES: u64 = 12;
/// Size of the model's guest memory in bytes.
const BYTES: u64 = 0x8000;

#[derive(Debug, Clone)]
enum Step {
    Insert(MemoryRegion),
    Remove(u32),
    SetRange(u64, Option<KeyRange>),
    SetPattern(u64, Option<Pattern>),
    SetPage(u64, Option<u64>),
    Read { key: u32, va: u64, len: usize, access: Access },
}

fn any_translation() -> impl Strategy<Value = Translation> {
    let entry_len = prop_oneof![
        2 => Just(EntryLen::PerEntry),
        1 => Just(EntryLen::Fixed(PageShift::MIN)),
        2 => Just(EntryLen::Strided),
    ];
    prop_oneof![
        (0..BYTES).prop_map(|bus| Translation::Contiguous { bus: Iova::new(bus) }),
        (0..ENTRIES, 0..0x1000_u64).prop_map(|(first_entry, offset)| Translation::Paged {
            page_shift: PageShift::MIN,
            first_entry,
            offset
        }),
        (entry_len, 0..6_u32, 0..ENTRIES, 0..0x40_u64).prop_map(|(entry_len, count, first_entry, offset)| {
            Translation::Indirect { entry_len, count, first_entry, offset }
        }),
    ]
}

fn any_region() -> impl Strategy<Value = MemoryRegion> {
    let kind = prop_oneof![
        9 => Just(Kind::Registered),
        1 => Just(Kind::Window { kind: WindowKind::Type1, owner: None, parent: 0 }),
    ];
    let rights = prop_oneof![4 => Just(Rights::all()), 1 => Just(Rights::REMOTE_READ)];
    let pd = prop_oneof![9 => Just(3), 1 => Just(4)];
    (1..=KEYS, pd, 0..0x20_u64, 0..0x2000_u64, any::<bool>(), rights, any_translation(), kind).prop_map(
        |(key, pd, start, len, is_zero_based, rights, translation, kind)| MemoryRegion {
            pd: Pdn::new(pd),
            origin: if is_zero_based { Origin::Start } else { Origin::Zero },
            rights,
            kind,
            ..region(key, start, len, translation)
        },
    )
}

fn any_range() -> impl Strategy<Value = Option<KeyRange>> {
    let len = prop_oneof![Just(0), 1..0x40_u64, Just(0x1000_u64)];
    prop_oneof![
        10 => (1..=KEYS, 0..0x80_u64, len.clone(), 0..0x40_u64)
            .prop_map(|(key, va, len, stride)| Some(KeyRange { stride, ..range(key, va, len) })),
        1 => len.prop_map(|len| Some(hole(len))),
        1 => Just(None),
    ]
}

fn any_pattern() -> impl Strategy<Value = Option<Pattern>> {
    let pattern = (0..5_u32, 0..0x60_u64, 0..20_u64);
    let pattern = pattern.prop_map(|(ranges, len, repetitions)| Pattern { ranges, len, repetitions });
    proptest::option::weighted(0.9, pattern)
}

fn any_step() -> impl Strategy<Value = Step> {
    let access = prop_oneof![Just(Access::LocalRead), Just(Access::RemoteRead), Just(Access::RemoteWrite)];
    prop_oneof![
        2 => any_region().prop_map(Step::Insert),
        1 => (1..=KEYS).prop_map(Step::Remove),
        1 => (0..ENTRIES, any_range()).prop_map(|(entry, range)| Step::SetRange(entry, range)),
        1 => (0..ENTRIES, any_pattern()).prop_map(|(entry, pattern)| Step::SetPattern(entry, pattern)),
        1 => (0..ENTRIES, proptest::option::weighted(0.9, 0..8_u64))
            .prop_map(|(entry, page)| Step::SetPage(entry, page.map(|page| page << 12))),
        12 => (1..=KEYS, 0..0x200_u64, 1..0x90_usize, access)
            .prop_map(|(key, va, len, access)| Step::Read { key, va, len, access }),
    ]
}

/// Returns the bus address of one byte, computed without caches.
fn naive(
    keys: &KeyTable,
    tables: &Tables,
    region: &MemoryRegion,
    offset: u64,
    modifies: bool,
    level: usize,
) -> Result<u64, AccessError> {
    let (entry_len, count, first_entry, linear) = match region.translation {
        Translation::Contiguous { bus } => return Ok(bus.get() + offset),
        Translation::Paged { first_entry, offset: first, .. } => {
            let page = tables.pages.get(&(first_entry + ((first + offset) >> 12)));
            return page.map(|page| page + ((first + offset) & 0xfff)).ok_or(AccessError::Unmapped);
        }
        Translation::TwoLevel { .. } => panic!("the model has no two-level tables"),
        Translation::Indirect { entry_len, count, first_entry, offset: first } => {
            (entry_len, count, first_entry, first + offset)
        }
    };
    if level == 4 {
        return Err(AccessError::Indirection);
    }
    let mut start = 0;
    let mut entries = first_entry..first_entry + u64::from(count);
    let (mut linear, mut repetition) = (linear, 0);
    if entry_len == EntryLen::Strided {
        let pattern = tables.patterns.get(&first_entry).ok_or(AccessError::Unmapped)?;
        // Unlike the device, count the repetitions one by one.
        while pattern.len != 0 && linear >= pattern.len {
            (linear, repetition) = (linear - pattern.len, repetition + 1);
        }
        if pattern.len == 0 || repetition >= pattern.repetitions {
            return Err(AccessError::Unmapped);
        }
        entries = first_entry + 1..entries.end.min(first_entry + 1 + u64::from(pattern.ranges));
    }
    for entry in entries {
        let range = tables.ranges.get(&entry).copied();
        let (target, len) = match (entry_len, range) {
            (EntryLen::PerEntry | EntryLen::Strided, None) => return Err(AccessError::Unmapped),
            (EntryLen::PerEntry | EntryLen::Strided, Some(range)) => (range.target, range.len),
            (EntryLen::Fixed(_), range) => (range.and_then(|range| range.target), 0x1000),
        };
        if linear < start + len {
            let (key, va) = target.ok_or(AccessError::Unmapped)?;
            let listed = keys.find(key)?;
            if let Kind::Window { .. } = listed.kind {
                return Err(AccessError::Kind);
            }
            if listed.pd != PD {
                return Err(AccessError::Pd);
            }
            if modifies && !listed.rights.contains(Rights::LOCAL_WRITE) {
                return Err(AccessError::Right);
            }
            let stride = range.filter(|_| entry_len == EntryLen::Strided).map_or(0, |range| range.stride);
            let va = va.get() + repetition * stride + (linear - start);
            let base = if listed.origin == Origin::Zero { listed.start.get() } else { 0 };
            let offset = va.checked_sub(base).filter(|offset| *offset < listed.len);
            let offset = offset.ok_or(AccessError::Bounds)?;
            return naive(keys, tables, listed, offset, modifies, level + 1);
        }
        start += len;
    }
    Err(AccessError::Unmapped)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Accesses through caches and cursors give the same results as the model, regardless of changes between
    /// the accesses.
    #[test]
    fn accesses_match_naive_model(
        regions in proptest::collection::vec(any_region(), 4..9),
        ranges in proptest::collection::vec(any_range(), 12),
        patterns in proptest::collection::vec(any_pattern(), 12),
        has_generation: bool,
        steps in proptest::collection::vec(any_step(), 1..120),
    ) {
        // Guest memory covers every translated address, since contiguous regions begin below `BYTES` and no region
        // exceeds two pages.
        let dma = guest_memory(0, 2 * BYTES / 0x1000);
        let words = 0..u16::try_from(BYTES).unwrap();
        dma.poke(0, &words.flat_map(u16::to_le_bytes).collect::<Vec<u8>>());
        let mut keys = table(regions);
        let mut tables = Tables::new([]);
        tables.ranges = (0..).zip(ranges).filter_map(|(entry, range)| Some((entry, range?))).collect();
        let patterns = (0..).zip(patterns);
        tables.patterns = patterns.filter_map(|(entry, pattern)| Some((entry, pattern?))).collect();
        tables.pages = (0..ENTRIES).map(|entry| (entry, (entry * 3 % 8) << 12)).collect();
        for step in steps {
            let mut is_table_change = true;
            match step {
                Step::Insert(region) => drop(keys.insert(region).unwrap()),
                Step::Remove(key) => drop(keys.remove(key)),
                Step::SetRange(entry, Some(range)) => drop(tables.ranges.insert(entry, range)),
                Step::SetRange(entry, None) => drop(tables.ranges.remove(&entry)),
                Step::SetPattern(entry, Some(pattern)) => drop(tables.patterns.insert(entry, pattern)),
                Step::SetPattern(entry, None) => drop(tables.patterns.remove(&entry)),
                Step::SetPage(entry, Some(page)) => drop(tables.pages.insert(entry, page)),
                Step::SetPage(entry, None) => drop(tables.pages.remove(&entry)),
                Step::Read { .. } => is_table_change = false,
            }
            if is_table_change {
                tables.generation = has_generation.then(Generation::fresh);
            }
            let Step::Read { key, va, len, access } = step else { continue };
            let target = AccessTarget::address(INITIATOR, Lkey::new(key), Va::new(va));
            let modifies = access == Access::RemoteWrite;
            let expected = keys.find(Lkey::new(key)).and_then(|region| {
                let offset = region.grant(INITIATOR, Va::new(va), Origin::Zero, len as u64, access)?;
                let byte = |at| {
                    let bus = naive(&keys, &tables, region, offset + at, modifies, 0)?;
                    Ok(dma.peek::<1>(bus)[0])
                };
                (0..len as u64).map(byte).collect::<Result<Vec<u8>, AccessError>>()
            });
            let access_of = RegionAccess { keys: &keys, pages: &tables, dma: &dma };
            // The second access may hit translations that the first access has cached.
            for _ in 0..2 {
                let mut found = vec![0; len];
                let outcome = access_of.read(target, &mut found, access).map(|()| found);
                prop_assert_eq!(&outcome, &expected);
            }
        }
    }
}
