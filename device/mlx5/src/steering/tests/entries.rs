//! Tests the precedence of entries and their actions.

use protocol::hca::mlx5::flow_entry::{EntryFields, FlowContext, FlowDestination, ListedCounter, PushedTag};
use protocol::ids::MacAddr;
use protocol::net::layers::{TagKind, Tci, VlanTag};

use super::super::rule::Parts;
use super::frames::{C_TAG, OWN, PEER, S_TAG, arp, tcp4, udp6};
use super::*;

const DST_MAC: OuterHeaders = OuterHeaders { dst_mac: MacAddr::BROADCAST, ..ANY };
const VLAN_ID: OuterHeaders = OuterHeaders { customer_tag: true, vlan_id: 0xfff, ..ANY };

#[test]
fn lowest_index_of_matching_entries_wins() {
    let mut steering = Steering::default();
    let table = Build::table(&mut steering, 1, 4, None);
    let exact = steering.group(table, [4, 7], DST_MAC);
    let any = steering.group(table, [8, 9], ANY);
    let first = steering.group(table, [0, 3], DST_MAC);
    steering.set_root(Some(table)).unwrap();
    let own = OuterHeaders { dst_mac: OWN, ..ANY };
    steering.set(Place { table, group: any, index: 8 }, ANY, forward(&[tir(8)]));
    assert_eq!(tirs(&steering, &arp(OWN)), [8]);
    for index in [6, 5] {
        steering.set(Place { table, group: exact, index }, own, forward(&[tir(index)]));
        assert_eq!(tirs(&steering, &arp(OWN)), [index]);
    }
    steering.set(Place { table, group: first, index: 3 }, own, forward(&[tir(3)]));
    assert_eq!(tirs(&steering, &arp(OWN)), [3]);
    assert_eq!(tirs(&steering, &arp(PEER)), [8]);
    for (deleted, next) in [(3, 5), (5, 6), (6, 8)] {
        steering.delete_entry(table, deleted).unwrap();
        assert_eq!(tirs(&steering, &arp(OWN)), [next]);
    }
}

#[test]
fn replaced_entry_no_longer_matches() {
    let mut steering = Steering::default();
    let table = Build::table(&mut steering, 1, 4, None);
    let group = steering.group(table, [0, 3], DST_MAC);
    steering.set_root(Some(table)).unwrap();
    for (dst_mac, other) in [(OWN, PEER), (PEER, OWN)] {
        let value = OuterHeaders { dst_mac, ..ANY };
        steering.set(Place { table, group, index: 0 }, value, forward(&[tir(1)]));
        assert_eq!((tirs(&steering, &arp(dst_mac)), tirs(&steering, &arp(other))), (vec![1], vec![]));
    }
    assert_eq!((steering.entries, steering.destinations), (1, 1));
}

/// SET_FLOW_TABLE_ENTRY with `Modify` keeps an entry's match value.
#[test]
fn modified_entry_keeps_its_frame_count() {
    let mut steering = Steering::default();
    let table = Build::table(&mut steering, 1, 4, None);
    let group = steering.group(table, [0, 3], DST_MAC);
    steering.set_root(Some(table)).unwrap();
    let place = Place { table, group, index: 0 };
    let matched = |steering: &Steering| steering.table(table).unwrap().entry(0).unwrap().1.matched();
    for (dst_mac, to, count) in [(OWN, 1, 1), (OWN, 2, 2), (PEER, 2, 1)] {
        steering.set(place, OuterHeaders { dst_mac, ..ANY }, forward(&[tir(to)]));
        assert_eq!(tirs(&steering, &arp(dst_mac)), [to]);
        assert_eq!(matched(&steering), count);
    }
}

#[test]
fn value_outside_mask_is_ignored() {
    let mut steering = Steering::default();
    let table = Build::table(&mut steering, 1, 0, None);
    let group = steering.group(table, [0, 0], DST_MAC);
    steering.set_root(Some(table)).unwrap();
    let value = OuterHeaders { dst_mac: OWN, ether_type: 0x1234, ttl: 1, ..ANY };
    steering.set(Place { table, group, index: 0 }, value, forward(&[tir(1)]));
    assert_eq!(tirs(&steering, &arp(OWN)), [1]);
}

#[test]
fn every_destination_receives_frame() {
    let mut steering = Steering::default();
    let far = steering.catch_all(3, forward(&[tir(3)]));
    let near = steering.catch_all(2, forward(&[Destination::Table(far), tir(4)]));
    let root = steering.catch_all(1, forward(&[tir(1), Destination::Table(near), tir(2)]));
    steering.set_root(Some(root)).unwrap();
    let verdict = evaluate(&steering, &arp(OWN));
    let deliveries = verdict.deliveries.iter().map(|to| to.tirn.get());
    assert_eq!(deliveries.collect::<Vec<_>>(), [1, 2, 4, 3]);
}

/// Section 16.4: an entry with tag 0 does not change the tag of a frame.
#[test]
fn frame_keeps_tag_until_entry_sets_another() {
    let mut steering = Steering::default();
    let tagged = |tag, to: &[Destination]| Rule { tag: FlowTag::new(tag), ..forward(to) };
    let last = steering.catch_all(4, tagged(7, &[tir(3)]));
    let untagged = steering.catch_all(3, tagged(0, &[tir(2), Destination::Table(last)]));
    let missing = Build::table(&mut steering, 2, 0, Some(untagged));
    let root = steering.catch_all(1, tagged(9, &[tir(1), Destination::Table(missing)]));
    steering.set_root(Some(root)).unwrap();
    let verdict = evaluate(&steering, &arp(OWN));
    let deliveries = verdict.deliveries.iter().map(|to| (to.tirn.get(), to.tag.get()));
    assert_eq!(deliveries.collect::<Vec<_>>(), [(1, 9), (2, 9), (3, 7)]);
}

#[test]
fn dropped_and_allowed_frames_have_no_destination() {
    for ending in [Fate::Drop, Fate::Allow] {
        let mut steering = Steering::default();
        let root = steering.catch_all(1, fate(ending));
        steering.set_root(Some(root)).unwrap();
        assert_eq!(evaluate(&steering, &arp(OWN)), Verdict::default());
    }
}

#[test]
fn counters_count_frames_and_bytes() {
    let mut steering = Steering::default();
    let [first, second] = [(); 2].map(|()| steering.alloc_counter().unwrap());
    let counted = |fate, counter| Rule { counters: Some(smallvec![counter]), fate, ..forward(&[]) };
    let end = steering.catch_all(2, counted(Fate::Drop, second));
    let root = steering.catch_all(1, counted(Fate::Forward(smallvec![Destination::Table(end)]), first));
    steering.set_root(Some(root)).unwrap();
    for frame in [arp(OWN), tcp4(OWN, &[])] {
        let verdict = evaluate(&steering, &frame);
        assert_eq!(verdict.counters[..], [first, second]);
        steering.count(&verdict, frame.len());
    }
    let traffic = TrafficCounter { packets: 2, bytes: 42 + 54 };
    assert_eq!(steering.query_counter(first, true), Ok(traffic));
    assert_eq!(steering.query_counter(first, false), Ok(TrafficCounter::default()));
    assert_eq!(steering.dealloc_counter(second).unwrap_err().check, Check::FlowCounterInUse);
    steering.delete_entry(end, 0).unwrap();
    steering.dealloc_counter(second).unwrap();
    assert_eq!(steering.query_counter(second, false).unwrap_err().check, Check::FlowCounter);
    let group = steering.table(end).unwrap().group(FlowGroupId::new(1)).unwrap().id();
    let set = steering.set_entry(
        Place { table: end, group, index: 0 },
        &Fields::default(),
        counted(Fate::Drop, second),
    );
    assert_eq!(set.unwrap_err().check, Check::FlowEntryCounter);
}

/// Later tables compare the edited frame.
#[test]
fn popped_tag_changes_later_matches() {
    let mut steering = Steering::default();
    let inner = Build::table(&mut steering, 2, 1, None);
    let group = steering.group(inner, [0, 1], VLAN_ID);
    let five = OuterHeaders { customer_tag: true, vlan_id: 5, ..ANY };
    steering.set(Place { table: inner, group, index: 0 }, five, forward(&[tir(5)]));
    steering.set(Place { table: inner, group, index: 1 }, ANY, forward(&[tir(6)]));
    let root = steering.catch_all(1, Rule { pop_vlan: true, ..forward(&[Destination::Table(inner)]) });
    steering.set_root(Some(root)).unwrap();
    assert_eq!(tirs(&steering, &udp6(OWN, &[S_TAG, C_TAG])), [5]);
    assert_eq!(tirs(&steering, &udp6(OWN, &[C_TAG])), [6]);
    assert_eq!(tirs(&steering, &udp6(OWN, &[])), [6]);
    let frame = udp6(OWN, &[S_TAG, C_TAG]);
    let verdict = evaluate(&steering, &frame);
    assert_eq!(verdict.deliveries[0].edits.apply(&frame), udp6(OWN, &[C_TAG]));
}

#[test]
fn tag_is_popped_before_another_is_pushed() {
    let mut steering = Steering::default();
    let tag = VlanTag { kind: TagKind::Service, tci: Tci::from_bits(7) };
    let rule = Rule { pop_vlan: true, push_vlan: Some(tag), ..forward(&[tir(1)]) };
    let root = steering.catch_all(1, rule);
    steering.set_root(Some(root)).unwrap();
    for tags in [&[C_TAG][..], &[]] {
        let frame = tcp4(OWN, tags);
        let edits = &evaluate(&steering, &frame).deliveries[0].edits;
        assert_eq!(edits.apply(&frame), tcp4(OWN, &[S_TAG]));
    }
}

fn parts(actions: u16, destinations: &[(u8, u32)], counters: &[u32]) -> Parts {
    let listed =
        destinations.iter().map(|(kind, number)| FlowDestination { kind: *kind, number: *number }.emit());
    let counted = counters.iter().map(|id| ListedCounter { counter: FlowCounterId::new(*id) }.emit());
    let lists: Vec<u8> = listed.chain(counted).flatten().collect();
    let context = FlowContext {
        actions: FlowActions::from_bits_retain(actions),
        destination_count: u32::try_from(destinations.len()).unwrap(),
        counter_count: u32::try_from(counters.len()).unwrap(),
        pushed_tag: PushedTag { ether_type: 0x8100, tci: 5 },
        ..FlowContext::default()
    };
    Parts::parse(&context, &lists).unwrap()
}

#[test]
fn contradictory_and_unsupported_actions_are_rejected() {
    let rejected = |parts: Parts| Rule::try_from(&parts).unwrap_err().check;
    for actions in [0, 8, 0x80, 3, 5, 6, 7] {
        assert_eq!(rejected(parts(actions, &[(2, 1)], &[])), Check::FlowFate, "{actions:#x}");
    }
    for actions in [0x14, 0x24, 0x44, 0x204, 0x404, 0x8004] {
        assert_eq!(rejected(parts(actions, &[(2, 1)], &[])), Check::FlowActions, "{actions:#x}");
    }
    assert_eq!(rejected(parts(4, &[], &[])), Check::FlowNoDestination);
    for kind in [0, 3, 5, 255] {
        assert_eq!(rejected(parts(4, &[(2, 1), (kind, 1)], &[])), Check::FlowDestinationKind);
    }
    let context = FlowContext {
        actions: FlowActions::DROP | FlowActions::PUSH_VLAN,
        pushed_tag: PushedTag { ether_type: 0x9100, tci: 0 },
        ..FlowContext::default()
    };
    assert_eq!(rejected(Parts::parse(&context, &[]).unwrap()), Check::FlowPushedTag);
}

#[test]
fn lists_of_flow_entry_are_bounded() {
    let parse = |destination_count, counter_count, len| {
        let context = FlowContext { destination_count, counter_count, ..FlowContext::default() };
        Parts::parse(&context, &vec![0; len]).map(drop).map_err(|rejection| rejection.check)
    };
    assert_eq!(parse(32, 4, 36 * 8), Ok(()));
    assert_eq!(parse(33, 0, 33 * 8), Err(Check::FlowDestinationLimit));
    assert_eq!(parse(0, 5, 40), Err(Check::FlowEntryCounters));
    assert_eq!(parse(1, 1, 15), Err(Check::FlowLists));
    assert_eq!(parse(0xff_ffff, 0xff_ffff, 0), Err(Check::FlowLists));
}

#[test]
fn rule_round_trips_through_context() {
    for parts in [
        parts(4, &[(2, 1), (1, 7)], &[]),
        parts(0x18c, &[(2, 1)], &[3, 4]),
        parts(2, &[], &[]),
        parts(9, &[], &[1]),
    ] {
        let rule = Rule::try_from(&parts).unwrap();
        let (context, lists) = Parts::from(&rule).emit();
        let read = Parts::parse(&context, &lists).unwrap();
        assert_eq!(Rule::try_from(&read), Ok(rule));
    }
}

#[test]
fn modify_changes_only_selected_parts() {
    let modified = |fields: u8| {
        let mut old = parts(0xc, &[(2, 1)], &[1]);
        old.modify(fields.into(), parts(0x10c, &[(2, 2)], &[2])).map(|()| Rule::try_from(&old).unwrap())
    };
    let numbers = |fields| {
        let rule = modified(fields).unwrap();
        let tirs: Vec<_> = rule.tirs().map(Tirn::get).collect();
        let counters: Vec<_> = rule.counters().iter().map(|counter| counter.get()).collect();
        (tirs, counters, rule.push_vlan.is_some())
    };
    assert_eq!(numbers(0), (vec![1], vec![1], false));
    assert_eq!(numbers(1), (vec![1], vec![1], true));
    assert_eq!(numbers(4), (vec![2], vec![1], false));
    assert_eq!(numbers(8), (vec![1], vec![2], false));
    assert_eq!(numbers(0xf), (vec![2], vec![2], true));
    assert_eq!(modified(0x10).unwrap_err().check, Check::FlowEntryFields);
    let mut tagged = parts(4, &[(2, 1)], &[]);
    let context = FlowContext { tag: FlowTag::new(7), ..FlowContext::default() };
    tagged.modify(EntryFields::TAG, Parts::parse(&context, &[]).unwrap()).unwrap();
    assert_eq!(Rule::try_from(&tagged).unwrap().tag, FlowTag::new(7));
}
