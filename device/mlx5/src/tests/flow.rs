//! Tests of flow table commands, including those of a recorded guest.

use protocol::hca::mlx5::counter::TrafficCounter;
use protocol::hca::mlx5::flow_counter::{
    AllocFlowCounter, FlowCounterNumber, QueriedFlowCounter, QueryFlowCounter,
};
use protocol::hca::mlx5::flow_entry::{
    Destination, FlowActions, FlowContext, FlowDestination, FlowEntrySelector, FlowTag, QueriedFlowEntry,
    SetFlowTableEntry,
};
use protocol::hca::mlx5::flow_group::{
    CreateFlowGroup, FlowGroupNumber, FlowGroupSelector, QueriedFlowGroup,
};
use protocol::hca::mlx5::flow_table::{
    CreateFlowTable, FlowTableContext, FlowTableFields, FlowTableNumber, FlowTableSelector, ModifyFlowTable,
    QueriedFlowTable, SetFlowTableRoot,
};
use protocol::hca::mlx5::input::Bytes;
use protocol::hca::mlx5::resource::{RqNumber, TirNumber, TransportDomainNumber};
use protocol::hca::mlx5::rq::{CreateRq, RqContext};
use protocol::hca::mlx5::srq::WorkQueue;
use protocol::hca::mlx5::tir::{CreateTir, TirContext};
use protocol::ids::{FlowCounterId, FlowGroupId, FlowTableId, MacAddr, Tirn};
use protocol::net::layers::Layers;

use super::golden::bytes;
use super::*;
use crate::resources::Resources;
use crate::steering::tests::frames::{C_TAG, OWN, S_TAG, UDP, arp, ethernet, ipv4, ipv6, tcp4, udp6};
use crate::uses::Object;

/// Recordings of a guest with an Ethernet port: probe, netdev up, VLAN and promiscuous mode, unload.
const TRACES: [&str; 4] = [
    include_str!("../../../../protocol/tests/data/mlx5/eth-1-core-and-netdev-probe.txt"),
    include_str!("../../../../protocol/tests/data/mlx5/eth-3-netdev-up.txt"),
    include_str!("../../../../protocol/tests/data/mlx5/eth-6-vlan-mtu-promisc.txt"),
    include_str!("../../../../protocol/tests/data/mlx5/eth-9-down-unload.txt"),
];

const FOREIGN: MacAddr = MacAddr([2, 0, 0, 0x55, 0, 9]);
/// The IPv6 all-nodes group, which the recorded guest has joined.
const ALL_NODES: MacAddr = MacAddr([0x33, 0x33, 0, 0, 0, 1]);

/// Executes a trace's flow commands whose numbers lie in `numbers`, and compares their outputs with the recording.
/// Returns the number of commands executed.
fn replay(driver: &mut Driver, trace: &str, numbers: std::ops::RangeInclusive<u32>) -> usize {
    let mut lines = trace.lines();
    let mut count = 0;
    while let Some(heading) = lines.next() {
        let mut words = heading.split(' ');
        let number = words.next().and_then(|word| word.parse().ok());
        if !words.next().is_some_and(|name| name.contains("FLOW")) || !numbers.contains(&number.unwrap()) {
            continue;
        }
        let [input, recorded] = ["  in ", "  out "]
            .map(|prefix| bytes(lines.next().and_then(|line| line.strip_prefix(prefix)).unwrap()));
        assert_eq!(driver.execute(&input, recorded.len()), recorded, "{heading}");
        assert_eq!(Command::parse(&input).unwrap().emit(0), input, "{heading}");
        count += 1;
    }
    count
}

/// Returns a device with an Ethernet port and TIRs 1 to `count`, which all deliver to the same RQ.
fn with_tirs(count: u32) -> Driver {
    let mut driver = initialised_with_ethernet();
    let uar = driver.alloc_uar();
    let eqn = driver.create_eq(uar, 0, EventMask::default(), 0x40_0000);
    let cqn = driver.create_cq(uar, eqn, 0x50_0000);
    let queue = WorkQueue { kind: 1, record: RECORD, log_stride: 6, log_entries: 6, ..WorkQueue::default() };
    let context = RqContext { cqn, queue, ..RqContext::default() };
    let list = pages(0x70_0000, 1);
    let create = Command::CreateRq(CreateRq { context }, Pages::parse(&list));
    let RqNumber { rqn } = RqNumber::parse(&output(&driver.ok(&create)));
    let alloc = Command::AllocTransportDomain(BARE);
    let TransportDomainNumber { domain } = TransportDomainNumber::parse(&output(&driver.ok(&alloc)));
    let context = TirContext { rqn, domain, ..TirContext::default() };
    for tirn in (1..=count).map(Tirn::new) {
        let created = driver.ok(&Command::CreateTir(CreateTir { context }));
        assert_eq!(TirNumber::parse(&output(&created)), TirNumber { tirn });
    }
    driver
}

fn resources(driver: &mut Driver) -> &mut Resources {
    driver.hca.frontend_and_memory().0.resources_mut().unwrap()
}

/// Returns the TIRs that receive a frame.
fn tirs(driver: &mut Driver, frame: &[u8]) -> Vec<u32> {
    let verdict = resources(driver).steering.evaluate(frame, &Layers::parse(frame).unwrap());
    verdict.deliveries.iter().map(|delivery| delivery.tirn.get()).collect()
}

fn check_frames(driver: &mut Driver, expected: &[(&str, Vec<u8>, &[u32])]) {
    for (name, frame, to) in expected {
        assert_eq!(tirs(driver, frame), *to, "{name}");
    }
}

/// Section 16.4: the TIRs of the recorded guest receive, in this order, TCP and UDP over IPv4 and IPv6, AH, ESP, other
/// IPv4 and IPv6 packets, and all other frames.
#[test]
fn frames_reach_tirs_of_recorded_guest() {
    let ip = |protocol, version| match version {
        4 => ethernet(OWN, &[], 0x0800, &ipv4(protocol, 0, &[0; 24])),
        _ => ethernet(OWN, &[], 0x86dd, &ipv6(protocol, &[0; 24])),
    };
    let mut driver = with_tirs(12);
    assert_eq!(replay(&mut driver, TRACES[0], 0..=u32::MAX), 48);
    check_frames(&mut driver, &[("no address yet", arp(OWN), &[])]);
    assert_eq!(replay(&mut driver, TRACES[1], 0..=u32::MAX), 5);
    let untagged = [
        ("ARP broadcast", arp(MacAddr::BROADCAST), &[11][..]),
        ("unicast TCP over IPv4", tcp4(OWN, &[]), &[1]),
        ("unicast UDP over IPv6", udp6(OWN, &[]), &[4]),
        ("unicast UDP over IPv4", ip(17, 4), &[3]),
        ("UDP fragment", ethernet(OWN, &[], 0x0800, &ipv4(17, 0x2000, &UDP)), &[3]),
        ("ESP over IPv4", ip(50, 4), &[7]),
        ("ICMP", ip(1, 4), &[9]),
        ("ICMPv6", ip(58, 6), &[10]),
        ("multicast to a joined group", udp6(ALL_NODES, &[]), &[4]),
    ];
    let dropped = [
        ("foreign multicast", udp6(MacAddr([0x33, 0x33, 0, 0, 0, 9]), &[]), &[][..]),
        ("foreign MAC", tcp4(FOREIGN, &[]), &[]),
    ];
    let tagged = ("VLAN 5", tcp4(OWN, &[C_TAG]), &[1][..]);
    check_frames(&mut driver, &untagged);
    check_frames(&mut driver, &dropped);
    check_frames(&mut driver, &[("no VLAN yet", tagged.1.clone(), &[])]);
    // The frame has an S-TAG and matches the entry for frames without a C-TAG.
    check_frames(&mut driver, &[("S-TAG", udp6(OWN, &[S_TAG]), &[4])]);

    assert_eq!(replay(&mut driver, TRACES[2], 0..=270), 3);
    check_frames(&mut driver, &untagged);
    check_frames(&mut driver, &dropped);
    check_frames(&mut driver, &[tagged.clone(), ("VLAN 6", tcp4(OWN, &[[0x81, 0, 0, 6]]), &[])]);

    assert_eq!(replay(&mut driver, TRACES[2], 271..=280), 4);
    let promiscuous = [
        ("foreign MAC", tcp4(FOREIGN, &[]), &[1][..]),
        ("VLAN 6", tcp4(FOREIGN, &[[0x81, 0, 0, 6]]), &[1]),
        ("foreign ARP", arp(FOREIGN), &[11]),
    ];
    check_frames(&mut driver, &promiscuous);

    assert_eq!(replay(&mut driver, TRACES[2], 281..=u32::MAX), 4);
    check_frames(&mut driver, &untagged);
    check_frames(&mut driver, &dropped);
    check_frames(&mut driver, &[tagged]);
    assert!(resources(&mut driver).uses.is_used(Object::Tir(11)));

    replay(&mut driver, TRACES[3], 0..=u32::MAX);
    assert_eq!(resources(&mut driver).steering.tables(), 0);
    assert!((1..=12).all(|tirn| !resources(&mut driver).uses.is_used(Object::Tir(tirn))));
}

/// Creates a 16-entry table at level 5. Returns its ID, and a command that creates a group of entries 0 to 7 that match
/// on the destination MAC.
fn table(driver: &mut Driver) -> (FlowTableId, CreateFlowGroup) {
    let context = FlowTableContext { level: 5, log_size: 4, ..FlowTableContext::default() };
    let create = Command::CreateFlowTable(CreateFlowTable { context, ..CreateFlowTable::default() });
    let table = FlowTableNumber::parse(&output(&driver.ok(&create))).table;
    let mut group = CreateFlowGroup { table, last: 7, criteria: 1, ..CreateFlowGroup::default() };
    group.mask.outer.dst_mac = MacAddr::BROADCAST;
    (table, group)
}

fn entry(table: FlowTableId, group: FlowGroupNumber, destinations: u32) -> SetFlowTableEntry {
    let mut context = FlowContext {
        group: group.group,
        tag: FlowTag::new(0x77),
        actions: FlowActions::FORWARD,
        destination_count: destinations,
        ..FlowContext::default()
    };
    context.value.outer.dst_mac = OWN;
    SetFlowTableEntry { table, index: 3, context, ..SetFlowTableEntry::default() }
}

#[test]
fn queries_return_previously_set_contexts() {
    let mut driver = with_tirs(12);
    let (table, create) = table(&mut driver);
    let number = FlowGroupNumber::parse(&output(&driver.ok(&Command::CreateFlowGroup(create))));
    let lists = FlowDestination::from(Destination::Tir(Tirn::new(9))).emit();
    let set = entry(table, number, 1);
    driver.ok(&Command::SetFlowTableEntry(set, Bytes::parse(&lists)));

    let selector = FlowTableSelector { table, ..FlowTableSelector::default() };
    let queried = QueriedFlowTable::parse(&output(&driver.ok(&Command::QueryFlowTable(selector))));
    assert_eq!((queried.context.level, queried.context.log_size), (5, 4));

    let selector = FlowGroupSelector { table, group: number.group, ..FlowGroupSelector::default() };
    let queried = QueriedFlowGroup::parse(&output(&driver.ok(&Command::QueryFlowGroup(selector))));
    assert_eq!((queried.last, queried.criteria, queried.mask), (7, 1, create.mask));

    let selector = FlowEntrySelector { table, index: 3, ..FlowEntrySelector::default() };
    let input = Command::QueryFlowTableEntry(selector).emit(0);
    let queried = driver.execute(&input, QueriedFlowEntry::LEN + 8);
    assert_eq!(QueriedFlowEntry::parse(&output(&queried)).context, set.context);
    assert_eq!(queried[QueriedFlowEntry::LEN..], lists);
}

#[test]
fn modified_flow_entry_keeps_its_match_value() {
    let mut driver = with_tirs(12);
    let (table, create) = table(&mut driver);
    let number = FlowGroupNumber::parse(&output(&driver.ok(&Command::CreateFlowGroup(create))));
    driver.ok(&Command::SetFlowTableRoot(SetFlowTableRoot { table, ..SetFlowTableRoot::default() }));
    let set = entry(table, number, 1);
    let mut modify = SetFlowTableEntry { change: 1, fields: 4_u8.into(), ..set };
    modify.context.value.outer.dst_mac = FOREIGN;
    let to = |tirn| FlowDestination::from(Destination::Tir(Tirn::new(tirn))).emit();
    let modified = Command::SetFlowTableEntry(modify, Bytes::parse(&[2, 0, 0, 2, 0, 0, 0, 0]));
    assert_eq!(driver.rejected(&modified), Check::FlowEntry);
    driver.ok(&Command::SetFlowTableEntry(set, Bytes::parse(&to(1))));
    driver.ok(&modified);
    assert_eq!((tirs(&mut driver, &arp(OWN)), tirs(&mut driver, &arp(FOREIGN))), (vec![2], vec![]));
    let used = |driver: &mut Driver| [1, 2].map(|tirn| resources(driver).uses.is_used(Object::Tir(tirn)));
    assert_eq!(used(&mut driver), [false, true]);
    let selector = FlowEntrySelector { table, index: 3, ..FlowEntrySelector::default() };
    driver.ok(&Command::DeleteFlowTableEntry(selector));
    assert_eq!(used(&mut driver), [false, false]);
}

#[test]
fn invalid_flow_commands_are_rejected() {
    let mut driver = with_tirs(12);
    let (table, create) = table(&mut driver);
    let number = FlowGroupNumber::parse(&output(&driver.ok(&Command::CreateFlowGroup(create))));
    let selector = FlowTableSelector { table, ..FlowTableSelector::default() };
    let group = FlowGroupSelector { table, group: number.group, ..FlowGroupSelector::default() };
    let unknown = FlowTableId::new(99);
    let modify = ModifyFlowTable { table, fields: FlowTableFields::MISS, ..ModifyFlowTable::default() };
    let root = SetFlowTableRoot { table, ..SetFlowTableRoot::default() };
    let set = |set| Command::SetFlowTableEntry(set, Bytes::parse(&[2, 0, 0, 1, 0, 0, 0, 0]));
    let valid = entry(table, number, 1);
    let fields = FlowTableFields::from_bits_retain;
    for (command, check) in [
        // The device supports only receive tables.
        (
            Command::CreateFlowTable(CreateFlowTable { table_type: 1, ..CreateFlowTable::default() }),
            Check::FlowTableType,
        ),
        (Command::DestroyFlowTable(FlowTableSelector { table_type: 4, ..selector }), Check::FlowTableType),
        (Command::QueryFlowTable(FlowTableSelector { table: unknown, ..selector }), Check::FlowTable),
        (Command::DestroyFlowTable(selector), Check::FlowTableInUse),
        (Command::ModifyFlowTable(ModifyFlowTable { fields: fields(2), ..modify }), Check::FlowTableChange),
        (Command::ModifyFlowTable(ModifyFlowTable { fields: fields(0), ..modify }), Check::FlowTableChange),
        (Command::ModifyFlowTable(ModifyFlowTable { table: unknown, ..modify }), Check::FlowTable),
        (Command::SetFlowTableRoot(SetFlowTableRoot { table: unknown, ..root }), Check::FlowTable),
        (Command::SetFlowTableRoot(SetFlowTableRoot { change: 2, ..root }), Check::FlowRootChange),
        (Command::CreateFlowGroup(CreateFlowGroup { table: unknown, ..create }), Check::FlowTable),
        (Command::CreateFlowGroup(create), Check::FlowGroupOverlap),
        (Command::QueryFlowGroup(FlowGroupSelector { table: unknown, ..group }), Check::FlowTable),
        (
            Command::DestroyFlowGroup(FlowGroupSelector { group: FlowGroupId::new(99), ..group }),
            Check::FlowGroup,
        ),
        (set(SetFlowTableEntry { table: unknown, ..valid }), Check::FlowTable),
        (set(SetFlowTableEntry { index: 8, ..valid }), Check::FlowEntryRange),
        (set(SetFlowTableEntry { change: 2, ..valid }), Check::FlowEntryChange),
        (set(entry(table, number, 2)), Check::FlowLists),
        (
            Command::DeallocFlowCounter(FlowCounterNumber { counter: FlowCounterId::new(1) }),
            Check::FlowCounter,
        ),
        (Command::AllocFlowCounter(AllocFlowCounter { bulk: 1 }), Check::FlowCounterBulk),
        (
            Command::QueryFlowCounter(QueryFlowCounter { count: 1025, ..QueryFlowCounter::default() }),
            Check::FlowCounterBulk,
        ),
        (Command::QueryFlowCounter(QueryFlowCounter::default()), Check::FlowCounter),
    ] {
        assert_eq!(driver.rejected(&command), check, "{}", command.opcode().name());
    }
    for index in [3, 9, u32::MAX] {
        let selector = FlowEntrySelector { table, index, ..FlowEntrySelector::default() };
        assert_eq!(driver.rejected(&Command::DeleteFlowTableEntry(selector)), Check::FlowEntry);
        assert_eq!(driver.rejected(&Command::QueryFlowTableEntry(selector)), Check::FlowEntry);
    }
    driver.ok(&set(valid));
    assert_eq!(driver.rejected(&Command::DestroyFlowGroup(group)), Check::FlowGroupInUse);
}

#[test]
fn flow_entry_requires_tir_and_prevents_its_destruction() {
    let mut driver = with_tirs(2);
    let (table, create) = table(&mut driver);
    let number = FlowGroupNumber::parse(&output(&driver.ok(&Command::CreateFlowGroup(create))));
    let set = entry(table, number, 1);
    let to = |tirn| FlowDestination::from(Destination::Tir(Tirn::new(tirn))).emit();
    let destroy = |tirn| Command::DestroyTir(TirNumber { tirn: Tirn::new(tirn) });
    for unknown in [0, 3] {
        let list = to(unknown);
        let set = Command::SetFlowTableEntry(set, Bytes::parse(&list));
        assert_eq!(driver.rejected(&set), Check::FlowDestinationTir);
    }
    let lists = [1, 2].map(to);
    driver.ok(&Command::SetFlowTableEntry(set, Bytes::parse(&lists[0])));
    assert_eq!(driver.rejected(&destroy(1)), Check::TirInUse);
    let modify = SetFlowTableEntry { change: 1, fields: 4_u8.into(), ..set };
    driver.ok(&Command::SetFlowTableEntry(modify, Bytes::parse(&lists[1])));
    driver.ok(&destroy(1));
    assert_eq!(driver.rejected(&destroy(2)), Check::TirInUse);
    let modify = Command::SetFlowTableEntry(modify, Bytes::parse(&lists[0]));
    assert_eq!(driver.rejected(&modify), Check::FlowDestinationTir);
    let selector = FlowEntrySelector { table, index: 3, ..FlowEntrySelector::default() };
    driver.ok(&Command::DeleteFlowTableEntry(selector));
    driver.ok(&destroy(2));
}

#[test]
fn flow_counters_are_queried_and_cleared() {
    let mut driver = with_tirs(12);
    let allocated = driver.ok(&Command::AllocFlowCounter(AllocFlowCounter::default()));
    let number = FlowCounterNumber::parse(&output(&allocated));
    assert_eq!(number.counter, FlowCounterId::new(1));
    let mut verdict = crate::steering::evaluate::Verdict::default();
    verdict.counters.push(number.counter);
    resources(&mut driver).steering.count(&verdict, 60);
    let query = QueryFlowCounter { clear: true, count: 1, counter: number.counter };
    for (packets, bytes) in [(1, 60), (0, 0)] {
        let queried = driver.ok(&Command::QueryFlowCounter(query));
        let traffic = QueriedFlowCounter::parse(&output(&queried)).traffic;
        assert_eq!(traffic, TrafficCounter { packets, bytes });
    }
    driver.ok(&Command::DeallocFlowCounter(number));
}

/// Section 16.4: the driver queries eight or more counters at once, starting at a multiple of four.
#[test]
fn range_query_returns_zeros_for_unknown_counters() {
    let mut driver = with_tirs(12);
    let allocate = Command::AllocFlowCounter(AllocFlowCounter::default());
    let numbers = [(); 2].map(|()| FlowCounterNumber::parse(&output(&driver.ok(&allocate))).counter);
    assert_eq!(numbers.map(FlowCounterId::get), [1, 2]);
    let mut verdict = crate::steering::evaluate::Verdict::default();
    verdict.counters.push(numbers[1]);
    resources(&mut driver).steering.count(&verdict, 60);
    let query = QueryFlowCounter { count: 8, counter: FlowCounterId::new(0), clear: false };
    let queried = driver.execute(&Command::QueryFlowCounter(query).emit(0), 16 + 8 * TrafficCounter::LEN);
    let traffic: Vec<_> =
        queried[16..].chunks_exact(16).map(|bytes| TrafficCounter::parse(&output(bytes))).collect();
    let mut expected = [TrafficCounter::default(); 8];
    expected[2] = TrafficCounter { packets: 1, bytes: 60 };
    assert_eq!((&queried[..16], &traffic[..]), (&[0; 16][..], &expected[..]));
    // A range can extend past the last counter number.
    let query = QueryFlowCounter { counter: FlowCounterId::new(u32::MAX), ..query };
    driver.ok(&Command::QueryFlowCounter(query));
}
