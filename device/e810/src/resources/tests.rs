use super::*;

fn buffer(kind: u16, count: u16, identifiers: &[u16]) -> Vec<u8> {
    [kind, count].iter().chain(identifiers).flat_map(|word| word.to_le_bytes()).collect()
}

fn identifiers(buffer: &[u8]) -> Vec<u16> {
    buffer[4..].as_chunks().0.iter().map(|bytes| u16::from_le_bytes(*bytes)).collect()
}

#[test]
fn identifiers_are_unique_until_freed() {
    let mut resources = Resources::default();
    // The shared flag and the allocation flags do not change the type.
    for kind in [0x0003, 0x0084, 0x0021, 0x2058, 0x3059, 0x2060, 0x3061] {
        let mut pair = buffer(kind, 2, &[0, 0]);
        resources.allocate(&mut pair).unwrap();
        assert_eq!(identifiers(&pair), [1, 2], "{kind:#x}");
        let mut third = buffer(kind, 1, &[0]);
        resources.allocate(&mut third).unwrap();
        assert_eq!(identifiers(&third), [3], "{kind:#x}");
        resources.free(&mut buffer(kind & 0x7f, 1, &[2])).unwrap();
        resources.allocate(&mut third).unwrap();
        assert_eq!(identifiers(&third), [2], "{kind:#x}");
    }
    assert!(resources.is_allocated(ResourceKind::PruneList, 3));
    assert!(!resources.is_allocated(ResourceKind::PruneList, 4));
}

#[test]
fn allocated_resources_are_listed_in_order() {
    let mut resources = Resources::default();
    resources.allocate(&mut buffer(0x60, 4, &[0; 4])).unwrap();
    resources.free(&mut buffer(0x60, 1, &[2])).unwrap();
    let list = |kind, first, room: usize| {
        let mut listed = vec![0; 2 * room];
        let asked = AllocatedResources { kind, shared: true, first, count: 0 };
        let answer = resources.allocated(asked, &mut listed)?;
        let listed: Vec<_> = listed.as_chunks().0.iter().map(|id| u16::from_le_bytes(*id)).collect();
        Ok::<_, AdminError>((answer.count, answer.first, listed))
    };
    assert_eq!(list(ResourceKind::HashProfile, 1, 4).unwrap(), (3, 0, vec![1, 3, 4, 0]));
    assert_eq!(list(ResourceKind::HashProfile, 2, 1).unwrap(), (1, 4, vec![3]));
    assert_eq!(list(ResourceKind::FilterProfile, 1, 1).unwrap(), (0, 0, vec![0]));
    assert_eq!(list(ResourceKind::HashProfile, u16::MAX, 0).unwrap(), (0, 0, vec![]));
    assert!(list(ResourceKind::OwnFilters, 1, 1).is_err(), "these resources have no identifiers");
}

#[test]
fn rejects_freeing_unallocated_resources() {
    let mut resources = Resources::default();
    resources.allocate(&mut buffer(4, 1, &[0])).unwrap();
    resources.free(&mut buffer(4, 1, &[1])).unwrap();
    for identifier in [0, 1, 2, 0xffff] {
        let refused = resources.free(&mut buffer(4, 1, &[identifier])).unwrap_err();
        assert_eq!(refused.status, AdminStatus::NoEntry, "{identifier}");
    }
}

#[test]
fn failed_allocation_allocates_nothing() {
    let mut resources = Resources::default();
    let mut all = buffer(0x60, MAX_PROFILES - 1, &vec![0; usize::from(MAX_PROFILES - 1)]);
    resources.allocate(&mut all).unwrap();
    let refused = resources.allocate(&mut buffer(0x60, 2, &[0, 0])).unwrap_err();
    assert_eq!(refused.status, AdminStatus::NoSpace);
    resources.allocate(&mut buffer(0x60, 1, &[0])).unwrap();
    let refused = resources.allocate(&mut buffer(0x60, 1, &[0])).unwrap_err();
    assert_eq!(refused.status, AdminStatus::NoSpace);
}

#[test]
fn flow_director_filters_are_allocated_by_count_only() {
    let mut resources = Resources::default();
    for kind in [0x22, 0x23] {
        // Command 0208 as recorded in `run73-all.aq.gz`.
        resources.allocate(&mut buffer(kind, 512, &[0])).unwrap();
        let refused = resources.allocate(&mut buffer(kind, 1, &[0])).unwrap_err();
        assert_eq!(refused.status, AdminStatus::NoSpace);
        resources.free(&mut buffer(kind, 512, &[0])).unwrap();
        let refused = resources.free(&mut buffer(kind, 1, &[0])).unwrap_err();
        assert_eq!(refused.status, AdminStatus::NoEntry);
    }
}

#[test]
fn rejects_unknown_kinds_and_short_buffers() {
    let mut resources = Resources::default();
    for mut wrong in [buffer(5, 1, &[0]), buffer(3, 2, &[0]), vec![3, 0, 1]] {
        assert_eq!(resources.allocate(&mut wrong).unwrap_err().status, AdminStatus::Invalid, "{wrong:?}");
        assert_eq!(resources.free(&mut wrong).unwrap_err().status, AdminStatus::Invalid, "{wrong:?}");
    }
}
