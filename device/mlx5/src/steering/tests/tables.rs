//! Tests flow tables, flow groups, table levels and references.

use super::frames::{OWN, arp};
use super::*;

fn check<T>(result: Result<T, Rejection>) -> Check {
    result.err().expect("the operation is rejected").check
}

#[test]
fn frames_are_dropped_without_root_table() {
    let mut steering = Steering::default();
    let table = steering.catch_all(60, forward(&[tir(1)]));
    assert!(tirs(&steering, &arp(OWN)).is_empty());
    steering.set_root(Some(table)).unwrap();
    assert_eq!(tirs(&steering, &arp(OWN)), [1]);
    steering.set_root(None).unwrap();
    assert!(tirs(&steering, &arp(OWN)).is_empty());
    assert_eq!(check(steering.set_root(Some(FlowTableId::new(9)))), Check::FlowTable);
}

/// Section 4.3: the driver destroys its last table while that table is the root.
#[test]
fn destroying_root_table_clears_root() {
    let mut steering = Steering::default();
    let table = Build::table(&mut steering, 67, 0, None);
    steering.set_root(Some(table)).unwrap();
    steering.destroy_table(table).unwrap();
    assert_eq!(steering.root, None);
    assert_eq!(check(steering.destroy_table(table)), Check::FlowTable);
}

#[test]
fn evaluation_continues_in_miss_table() {
    let mut steering = Steering::default();
    let last = steering.catch_all(3, forward(&[tir(7)]));
    let other = steering.catch_all(3, forward(&[tir(8)]));
    let middle = Build::table(&mut steering, 2, 0, Some(last));
    let first = Build::table(&mut steering, 1, 4, Some(middle));
    steering.set_root(Some(first)).unwrap();
    assert_eq!(tirs(&steering, &arp(OWN)), [7]);
    steering.set_miss(middle, &context(0, 0, Some(other))).unwrap();
    assert_eq!(tirs(&steering, &arp(OWN)), [8]);
    assert_eq!(steering.table(middle).unwrap().context(), context(2, 0, Some(other)));
    steering.set_miss(middle, &context(0, 0, None)).unwrap();
    assert!(tirs(&steering, &arp(OWN)).is_empty());
}

#[test]
fn tables_forward_only_to_higher_levels() {
    let mut steering = Steering::default();
    let table = steering.catch_all(5, fate(Fate::Drop));
    let group = steering.table(table).unwrap().entry(0).unwrap().0.id();
    for level in [5, 6, 255] {
        let create = steering.create_table(&context(level, 0, Some(table)));
        assert_eq!(check(create), Check::FlowMissLevel);
    }
    let low = Build::table(&mut steering, 4, 0, None);
    assert_eq!(check(steering.set_miss(table, &context(9, 0, Some(low)))), Check::FlowMissLevel);
    assert_eq!(check(steering.set_miss(table, &context(0, 0, Some(table)))), Check::FlowMissLevel);
    for to in [low, table] {
        let rule = forward(&[tir(1), Destination::Table(to)]);
        let set = steering.set_entry(Place { table, group, index: 0 }, &Fields::default(), rule);
        assert_eq!(check(set), Check::FlowDestinationLevel);
    }
    let unknown = FlowTableId::new(99);
    assert_eq!(check(steering.create_table(&context(1, 0, Some(unknown)))), Check::FlowMissTable);
    let rule = forward(&[Destination::Table(unknown)]);
    let set = steering.set_entry(Place { table, group, index: 0 }, &Fields::default(), rule);
    assert_eq!(check(set), Check::FlowDestinationTable);
}

#[test]
fn referenced_table_cannot_be_destroyed() {
    let mut steering = Steering::default();
    let target = Build::table(&mut steering, 9, 0, None);
    let missing = Build::table(&mut steering, 1, 0, Some(target));
    let forwarding = steering.catch_all(2, forward(&[Destination::Table(target), tir(1)]));
    let group = steering.table(forwarding).unwrap().entry(0).unwrap().0.id();
    assert_eq!(check(steering.destroy_table(target)), Check::FlowTableInUse);
    steering.destroy_table(missing).unwrap();
    assert_eq!(check(steering.destroy_table(target)), Check::FlowTableInUse);
    steering.set(Place { table: forwarding, group, index: 0 }, ANY, forward(&[tir(1)]));
    steering.destroy_table(target).unwrap();
    assert_eq!(check(steering.destroy_table(forwarding)), Check::FlowTableInUse);
    assert_eq!(check(steering.destroy_group(forwarding, group)), Check::FlowGroupInUse);
    steering.delete_entry(forwarding, 0).unwrap();
    assert_eq!(check(steering.delete_entry(forwarding, 0)), Check::FlowEntry);
    steering.destroy_group(forwarding, group).unwrap();
    assert_eq!(check(steering.destroy_group(forwarding, group)), Check::FlowGroup);
    steering.destroy_table(forwarding).unwrap();
    assert_eq!((steering.tables(), steering.entries, steering.destinations), (0, 0, 0));
}

#[test]
fn group_ranges_must_not_overlap() {
    let mut steering = Steering::default();
    let table = Build::table(&mut steering, 1, 4, None);
    let mut create = |first, last| steering.create_group(table, group(first, last, ANY));
    create(4, 7).unwrap();
    for (first, last) in [(7, 8), (0, 4), (5, 6), (4, 7), (0, 15)] {
        assert_eq!(check(create(first, last)), Check::FlowGroupOverlap);
    }
    for (first, last) in [(8, 16), (9, 8), (0, u32::MAX)] {
        assert_eq!(check(create(first, last)), Check::FlowGroupRange);
    }
    create(8, 15).unwrap();
    create(0, 3).unwrap();
}

#[test]
fn entry_must_be_within_group_range() {
    let mut steering = Steering::default();
    let table = Build::table(&mut steering, 1, 4, None);
    let low = steering.group(table, [0, 3], ANY);
    steering.group(table, [4, 7], ANY);
    for index in [4, 8, u32::MAX] {
        let place = Place { table, group: low, index };
        let set = steering.set_entry(place, &Fields::default(), forward(&[tir(1)]));
        assert_eq!(check(set), Check::FlowEntryRange);
    }
    let place = Place { table, group: FlowGroupId::new(99), index: 0 };
    assert_eq!(check(steering.set_entry(place, &Fields::default(), fate(Fate::Drop))), Check::FlowGroup);
}

#[test]
fn masks_with_unsupported_fields_are_rejected() {
    let create = |criteria, at: usize| {
        let mut mask = [0; MatchParameters::LEN];
        mask[at] = 1;
        let mask = MatchParameters::parse(&mask);
        Group::new(&CreateFlowGroup { criteria, mask, ..CreateFlowGroup::default() }).map(drop)
    };
    for (criteria, at) in [(2, 0x40), (3, 0x7f), (4, 0x80), (8, 0xc0), (0x80, 0x1ff)] {
        assert_eq!(check(create(criteria, at)), Check::FlowCriteria);
    }
    assert_eq!(check(create(1, 0x1a)), Check::FlowMask);
    // Parameters are ignored if their criteria are not enabled.
    for (criteria, at) in [(1, 0x40), (5, 0x40), (0, 0x1a), (2, 0x3f)] {
        create(criteria, at).unwrap();
    }
}

#[test]
fn table_size_and_miss_action_are_checked() {
    let mut steering = Steering::default();
    steering.create_table(&context(1, 24, None)).unwrap();
    assert_eq!(check(steering.create_table(&context(1, 25, None))), Check::FlowTableSize);
    let unknown = FlowTableContext { miss_action: 2, ..context(1, 0, None) };
    assert_eq!(check(steering.create_table(&unknown)), Check::FlowMissAction);
}
