//! Tests limits, and the number of steps needed to match a frame against the largest tables.

use super::frames::{OWN, arp, tcp4};
use super::*;
use crate::limits::flow::{
    MAX_COUNTERS, MAX_DELIVERIES, MAX_DESTINATIONS, MAX_ENTRIES, MAX_GROUPS, MAX_HOPS, MAX_TABLE_GROUPS,
    MAX_TABLES,
};

/// Returns a mask that selects all fields that the device evaluates.
fn everything() -> OuterHeaders {
    OuterHeaders { unsupported: 0, ..OuterHeaders::parse(&[0xff; OuterHeaders::LEN]) }
}

fn source(number: u32) -> OuterHeaders {
    let [a, b, c, d] = number.to_be_bytes();
    OuterHeaders { src_ip: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d], ..ANY }
}

/// Fills a group that compares all fields, and evaluates a frame that matches only the group's last entry.
fn evaluate_among(entries: usize) {
    let mut steering = Steering::default();
    let last = u32::try_from(entries).unwrap() - 1;
    let table = Build::table(&mut steering, 1, 24, None);
    let group = steering.group(table, [0, last + 1], everything());
    steering.set_root(Some(table)).unwrap();
    let frame = tcp4(OWN, &[]);
    let value = Fields::of(&frame, &Layers::parse(&frame).unwrap()).headers();
    for index in 0..last {
        steering.set(Place { table, group, index }, source(index), fate(Fate::Drop));
    }
    assert!(tirs(&steering, &frame).is_empty());
    steering.set(Place { table, group, index: last }, value, forward(&[tir(1)]));
    steering.entries += MAX_ENTRIES - entries;
    let place = Place { table, group, index: last + 1 };
    let more = steering.set_entry(place, &Fields::default(), fate(Fate::Drop));
    assert_eq!(more.unwrap_err().check, Check::FlowEntryLimit);
    // An existing entry can still be replaced.
    steering.set(Place { table, group, index: 0 }, source(0), fate(Fate::Allow));
    steps::take();
    assert_eq!(tirs(&steering, &frame), [1]);
    // A B-tree node has at most 11 values, and a tree of 2^20 values has at most 8 levels.
    let steps = steps::take();
    assert!(steps.lookups == 1 && steps.comparisons <= 11 * 8 + 1, "{entries} entries: {steps:?}");
}

/// Returns whether tests are allowed to run for minutes.
fn is_daily() -> bool {
    std::env::var_os("HCAD_DAILY").is_some_and(|daily| !daily.is_empty())
}

#[test]
fn many_entries_do_not_slow_evaluation() {
    evaluate_among(if is_daily() { MAX_ENTRIES } else { 1 << 15 });
}

/// On the longest path, each group of each table is looked up once.
#[test]
fn longest_path_costs_one_lookup_per_group() {
    let mut steering = Steering::default();
    let (hops, groups) = (u8::try_from(MAX_HOPS).unwrap(), u32::try_from(MAX_TABLE_GROUPS).unwrap());
    let mut next = None;
    for level in (0..hops).rev() {
        let table = Build::table(&mut steering, level, 7, next);
        for index in 0..groups {
            let group = steering.group(table, [index, index], everything());
            steering.set(Place { table, group, index }, source(index), fate(Fate::Drop));
        }
        next = Some(table);
    }
    steering.set_root(next).unwrap();
    steps::take();
    assert!(tirs(&steering, &arp(OWN)).is_empty());
    assert_eq!(steps::take().lookups, MAX_HOPS * MAX_TABLE_GROUPS);
}

/// Even if each table forwards many copies of a frame to the next, the number of lookups does not multiply.
#[test]
fn forwarded_copies_do_not_multiply_lookups() {
    let mut steering = Steering::default();
    let mut root = steering.catch_all(255, forward(&[tir(1); 32]));
    for level in (0..40).rev() {
        root = steering.catch_all(level, forward(&[Destination::Table(root); 32]));
    }
    steering.set_root(Some(root)).unwrap();
    steps::take();
    tirs(&steering, &arp(OWN));
    assert_eq!(steps::take().lookups, MAX_HOPS);
}

#[test]
fn identical_entries_do_not_slow_deletion() {
    let mut steering = Steering::default();
    let table = Build::table(&mut steering, 1, 24, None);
    let group = steering.group(table, [0, 0xff_ffff], ANY);
    steering.set_root(Some(table)).unwrap();
    for index in (0..50_000).rev() {
        steering.set(Place { table, group, index }, ANY, forward(&[tir(index)]));
    }
    for index in 0..1000 {
        assert_eq!(tirs(&steering, &arp(OWN)), [index]);
        steps::take();
        steering.delete_entry(table, index).unwrap();
        assert!(steps::take().comparisons <= 11 * 8, "entry {index}");
    }
}

#[test]
fn long_chain_ends_at_hop_limit() {
    let mut steering = Steering::default();
    let mut next = steering.catch_all(255, forward(&[tir(1)]));
    let mut chain = vec![next];
    for level in (0..100).rev() {
        next = Build::table(&mut steering, level, 0, Some(next));
        chain.push(next);
    }
    steering.set_root(Some(chain[MAX_HOPS - 1])).unwrap();
    assert_eq!(tirs(&steering, &arp(OWN)), [1]);
    steering.set_root(Some(chain[MAX_HOPS])).unwrap();
    assert!(tirs(&steering, &arp(OWN)).is_empty());
}

/// Each table forwards 32 copies to the next.
#[test]
fn number_of_frame_copies_is_limited() {
    let mut steering = Steering::default();
    let mut root = steering.catch_all(255, forward(&[tir(1); 32]));
    for level in (0..40).rev() {
        root = steering.catch_all(level, forward(&[Destination::Table(root); 32]));
    }
    steering.set_root(Some(root)).unwrap();
    assert_eq!(tirs(&steering, &arp(OWN)).len(), MAX_DELIVERIES);
}

#[test]
fn tables_groups_and_counters_are_limited() {
    let mut steering = Steering::default();
    let tables: Vec<_> = (0..MAX_TABLES).map(|_| Build::table(&mut steering, 0, 8, None)).collect();
    assert_eq!(steering.create_table(&context(0, 0, None)).unwrap_err().check, Check::FlowTableLimit);
    let per_table = u32::try_from(MAX_TABLE_GROUPS).unwrap();
    for table in tables.iter().take(usize::try_from(MAX_GROUPS / per_table).unwrap()) {
        for index in 0..per_table {
            steering.group(*table, [index, index], ANY);
        }
        let more = steering.create_group(*table, group(per_table, per_table, ANY));
        assert_eq!(more.unwrap_err().check, Check::FlowTableGroups);
    }
    let more = steering.create_group(*tables.last().unwrap(), group(0, 0, ANY));
    assert_eq!(more.unwrap_err().check, Check::FlowGroupLimit);
    for _ in 0..MAX_COUNTERS {
        steering.alloc_counter().unwrap();
    }
    assert_eq!(steering.alloc_counter().unwrap_err().check, Check::FlowCounterLimit);
}

#[test]
fn total_number_of_destinations_is_limited() {
    let mut steering = Steering::default();
    let table = Build::table(&mut steering, 0, 24, None);
    let group = steering.group(table, [0, 0xff_ffff], ANY);
    let entries = u32::try_from(MAX_DESTINATIONS / 32).unwrap();
    for index in 0..entries {
        steering.set(Place { table, group, index }, ANY, forward(&[tir(1); 32]));
    }
    let place = Place { table, group, index: entries };
    let set = |steering: &mut Steering, rule| steering.set_entry(place, &Fields::default(), rule).map(drop);
    let more = set(&mut steering, forward(&[tir(1)]));
    assert_eq!(more.unwrap_err().check, Check::FlowDestinationLimit);
    set(&mut steering, fate(Fate::Drop)).unwrap();
    steering.set(Place { table, group, index: 0 }, ANY, forward(&[tir(2)]));
    set(&mut steering, forward(&[tir(1); 31])).unwrap();
}
