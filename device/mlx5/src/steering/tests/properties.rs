//! Compares the evaluation of flow tables with a linear scan over all entries.

use proptest::prelude::*;
use protocol::ids::MacAddr;

use super::frames::{C_TAG, OWN, PEER, S_TAG, TCP, UDP, arp, ethernet, ipv4, tcp4, udp6};
use super::*;

/// A table in the model: the mask of each group and the entries in the group.
#[derive(Clone, Debug)]
struct Model {
    miss: bool,
    groups: Vec<(OuterHeaders, Vec<ModelEntry>)>,
}

/// The value of an entry and the bits that select its destinations, or `None` if the entry is not set.
type ModelEntry = Option<(OuterHeaders, u8)>;

const GROUP_LEN: u32 = 4;
const TABLES: usize = 4;

fn frames() -> Vec<Vec<u8>> {
    vec![
        arp(MacAddr::BROADCAST),
        arp(OWN),
        tcp4(OWN, &[]),
        tcp4(PEER, &[C_TAG]),
        udp6(OWN, &[]),
        udp6(PEER, &[S_TAG, C_TAG]),
        ethernet(OWN, &[], 0x0800, &ipv4(17, 0x2000, &UDP)),
        ethernet(OWN, &[C_TAG], 0x0800, &ipv4(6, 0, &TCP[..10])),
    ]
}

/// Generates a mask that selects a few fields, or arbitrary bits.
fn mask() -> impl Strategy<Value = OuterHeaders> {
    let fields = prop::sample::select(vec![
        ANY,
        OuterHeaders { dst_mac: MacAddr::BROADCAST, ..ANY },
        OuterHeaders { ip_protocol: 0xff, ip_version: 0xf, ..ANY },
        OuterHeaders { customer_tag: true, vlan_id: 0xfff, ..ANY },
        OuterHeaders { ether_type: 0xffff, tcp_dst_port: 0xffff, src_ip: [0xff; 16], ..ANY },
        OuterHeaders { fragment: true, ..ANY },
    ]);
    let bits = any::<[u8; 8]>().prop_map(|bits| {
        let mut bytes = [0; OuterHeaders::LEN];
        bytes.iter_mut().step_by(5).zip(bits).for_each(|(byte, bits)| *byte = bits);
        OuterHeaders { unsupported: 0, ..OuterHeaders::parse(&bytes) }
    });
    prop_oneof![3 => fields, 1 => bits]
}

/// Generates the value of an entry: usually the fields of one of the frames, so that most entries can match.
fn value() -> impl Strategy<Value = OuterHeaders> {
    let values = frames().into_iter().map(|frame| {
        let layers = Layers::parse(&frame).unwrap();
        Fields::of(&frame, &layers).headers()
    });
    prop_oneof![3 => prop::sample::select(values.collect::<Vec<_>>()), 1 => Just(ANY)]
}

fn table() -> impl Strategy<Value = Model> {
    let entry = prop::option::of((value(), 0..16_u8));
    let group = (mask(), prop::collection::vec(entry, 4));
    (any::<bool>(), prop::collection::vec(group, 0..5)).prop_map(|(miss, groups)| Model { miss, groups })
}

/// Returns the destinations of an entry: bits 1:0 select TIRs, and bits 3:2 select the next table and the one after it.
fn destinations(bits: u8, at: usize, ids: &[FlowTableId]) -> Vec<Destination> {
    let tirs = [(1, 10), (2, 20)].into_iter().filter(|(bit, _)| bits & bit != 0);
    let tables = [(4, 1), (8, 2)].into_iter().filter(|(bit, _)| bits & bit != 0);
    let tables = tables.filter_map(|(_, distance)| ids.get(at + distance));
    let number = u32::try_from(at).unwrap();
    tirs.map(|(_, tirn)| tir(tirn + number)).chain(tables.map(|id| Destination::Table(*id))).collect()
}

/// Evaluates the model by a linear scan. Returns the TIRs in no particular order.
fn scan(models: &[Model], at: usize, frame: &[u8; 64], ids: &[FlowTableId], found: &mut Vec<u32>) {
    let Some(model) = models.get(at) else { return };
    let entries = model.groups.iter().flat_map(|(mask, entries)| {
        entries.iter().flatten().map(move |(value, bits)| (mask.emit(), value.emit(), *bits))
    });
    let matches = |mask: &[u8; 64], value: &[u8; 64]| {
        frame.iter().zip(value).zip(mask).all(|((frame, value), mask)| (frame ^ value) & mask == 0)
    };
    let entry = entries.into_iter().find(|(mask, value, _)| matches(mask, value));
    match entry {
        Some((_, _, bits)) => {
            for destination in destinations(bits, at, ids) {
                match destination {
                    Destination::Tir(tirn) => found.push(tirn.get()),
                    Destination::Table(id) => {
                        let next = ids.iter().position(|other| *other == id).unwrap();
                        scan(models, next, frame, ids, found);
                    }
                }
            }
        }
        None if model.miss => scan(models, at + 1, frame, ids, found),
        None => {}
    }
}

/// Builds the tables of a model. Entries are set in descending index order.
fn build(steering: &mut Steering, models: &[Model]) -> Vec<FlowTableId> {
    let mut ids = vec![FlowTableId::default(); models.len()];
    for (at, model) in models.iter().enumerate().rev() {
        let miss = ids.get(at + 1).copied().filter(|_| model.miss);
        ids[at] = Build::table(steering, u8::try_from(at).unwrap(), 5, miss);
        let table = ids[at];
        for (number, (mask, entries)) in (0_u32..).zip(&model.groups).collect::<Vec<_>>().into_iter().rev() {
            let first = number * GROUP_LEN;
            let group = steering.group(table, [first, first + GROUP_LEN - 1], *mask);
            for (index, entry) in (first..).zip(entries).collect::<Vec<_>>().into_iter().rev() {
                let Some((value, bits)) = entry else { continue };
                let to = destinations(*bits, at, &ids);
                let rule = if to.is_empty() { fate(Fate::Drop) } else { forward(&to) };
                steering.set(Place { table, group, index }, *value, rule);
            }
        }
    }
    ids
}

fn compare(steering: &Steering, models: &[Model], ids: &[FlowTableId]) -> Result<(), TestCaseError> {
    for frame in frames() {
        let fields = Fields::of(&frame, &Layers::parse(&frame).unwrap()).headers().emit();
        let mut expected = Vec::new();
        scan(models, 0, &fields, ids, &mut expected);
        let mut found = tirs(steering, &frame);
        expected.sort_unstable();
        found.sort_unstable();
        prop_assert_eq!(found, expected);
    }
    Ok(())
}

proptest! {
    #[test]
    fn evaluation_matches_linear_scan(
        mut models in prop::collection::vec(table(), TABLES),
        deleted in prop::collection::vec((0..TABLES, 0..20_u32), 0..8),
    ) {
        let mut steering = Steering::default();
        let ids = build(&mut steering, &models);
        steering.set_root(Some(ids[0])).unwrap();
        compare(&steering, &models, &ids)?;
        for (at, index) in deleted {
            let groups = &mut models[at].groups;
            let group = groups.get_mut(usize::try_from(index / GROUP_LEN).unwrap());
            let entry = group.and_then(|(_, entries)| entries[usize::try_from(index % GROUP_LEN).unwrap()].take());
            prop_assert_eq!(steering.delete_entry(ids[at], index).is_ok(), entry.is_some());
            compare(&steering, &models, &ids)?;
        }
    }

    #[test]
    fn arbitrary_frames_are_parsed(bytes in prop::collection::vec(any::<u8>(), 14..128), kind in 0..4_usize) {
        let mut frame = bytes;
        let ether_type: [u8; 2] = [[0x08, 0x00], [0x86, 0xdd], [0x81, 0x00], [0x88, 0xa8]][kind];
        frame[12..14].copy_from_slice(&ether_type);
        if let Ok(layers) = Layers::parse(&frame) {
            let headers = Fields::of(&frame, &layers).headers();
            prop_assert_eq!(&headers.dst_mac.0[..], &frame[..6]);
            prop_assert_eq!(headers.ip_version != 0, layers.any_ip(&frame).is_some());
        }
    }
}
