//! Tests both sides of each RDMA limit: the last object within the limit works, and the next one is rejected with an
//! error code, counted and logged.

use card::frontend::snapshot::GroupRow;
use card::frontend::testing::logged;
use drivers::e810::queue_pair::{gather, inline};
use drivers::e810::{Performed, RDMA_BUFFER, segment};
use protocol::hca::e810::rdma::control::{HostContext, Status};
use protocol::hca::e810::rdma::error::CqpErrorCode;
use protocol::hca::e810::rdma::event_queue::CreateCeq;
use protocol::hca::e810::rdma::group::GroupCommand;
use protocol::hca::e810::rdma::hmc::{FpmCommand, SegmentDescriptor};
use protocol::hca::e810::rdma::node::{NodeAction, NodeCommand};
use protocol::hca::e810::rdma::path::ManageArp;
use protocol::hca::e810::regs::Register;

use super::*;

/// Small limits. Most are the minimum that the configuration permits.
const QPS: u32 = 32;
const CQS: u32 = 64;
const REGIONS: u32 = 256;
const PBLES: u32 = 1 << 18;
const ARP_ENTRIES: u16 = 16;
const AHS: u32 = 64;
const SEGMENTS: u16 = 64;
const CEQS: u16 = 16;

fn small() -> Driver {
    let limits = serde_json::from_value(serde_json::json!({
        "max_qps": QPS, "max_cqs": CQS, "max_regions": REGIONS, "max_pbles": PBLES, "max_arp_entries": ARP_ENTRIES,
        "max_ahs": AHS,
    }));
    opened_with(1, Options { limits: limits.unwrap(), ..Options::default() })
}

/// Returns the number of events ignored for `reason`.
fn ignored(driver: &Driver, reason: &str) -> u64 {
    driver.bus.hca.monitor().ignored_counts().find(|(name, _)| *name == reason).map_or(0, |(_, count)| count)
}

/// Asserts that `last` succeeds and that `next` is rejected, counted and logged.
#[track_caller]
fn last_and_next(driver: &mut Driver, last: &Operation, next: &Operation, refusal: CqpErrorCode) {
    driver.perform_well(last);
    refused(driver, next, refusal);
}

#[track_caller]
fn refused(driver: &mut Driver, operation: &Operation, refusal: CqpErrorCode) {
    let name = operation.opcode().name();
    let count = |driver: &Driver| {
        let counted = driver.bus.hca.monitor().commands().get(name);
        counted.and_then(|by_status| by_status.get(refusal.name())).copied().unwrap_or(0)
    };
    let before = count(driver);
    let text = logged(|| {
        let Performed { error, completion } = driver.perform(operation);
        assert_eq!(error, Some(refusal.codes()), "{name}");
        assert!(completion.expect("the operation completes in CQ 0").error);
    });
    assert_eq!(count(driver), before + 1);
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains(name), "{text}");
}

#[test]
fn queue_pair_limit_is_enforced() {
    let mut driver = small();
    driver.create_qp(Qpn::new(QPS - 1), QpKind::Rc, &context(1));
    let next = driver.qp_command(Qpn::new(QPS), QpKind::Rc, QpState::Idle);
    refused(&mut driver, &Operation::CreateQp(next), CqpErrorCode::Invalid);
}

#[test]
fn completion_queue_limit_is_enforced() {
    let mut driver = small();
    let [last, next] = [CQS - 1, CQS].map(|cqn| Operation::CreateCq(driver.cq_command(Cqn::new(cqn), 16)));
    last_and_next(&mut driver, &last, &next, CqpErrorCode::Invalid);
}

#[test]
fn completion_event_queue_limit_is_enforced() {
    let mut driver = small();
    let ceq = |ceq| {
        Operation::CreateCeq(CreateCeq { ceq, entries: 16, ring: Iova::new(SOURCE), ..CreateCeq::default() })
    };
    last_and_next(&mut driver, &ceq(CEQS - 1), &ceq(CEQS), CqpErrorCode::Invalid);
}

#[test]
fn region_limit_is_enforced() {
    let mut driver = small();
    for index in 0..REGIONS {
        register(&mut driver, index << 8, SOURCE, 4096, StagRights::LOCAL_WRITE);
    }
    // Drivers choose all bits of an STag. The low bits of its index select the table entry, here entry 0,
    // which is in use.
    let next = RegisterMr { stag: REGIONS << 8, len: 4096, ..RegisterMr::default() };
    refused(&mut driver, &Operation::RegisterMr(next), CqpErrorCode::Exists);
}

#[test]
fn address_handle_limit_is_enforced() {
    let mut driver = small();
    let ah = |index| {
        Operation::CreateAddressHandle(AddressHandleCommand { index: AhIndex::new(index), ..handle(1) })
    };
    last_and_next(&mut driver, &ah(AHS - 1), &ah(AHS), CqpErrorCode::Invalid);
}

#[test]
fn multicast_group_limit_is_enforced() {
    let mut driver = small();
    let group = |group: u32| {
        let group = u16::try_from(group).unwrap();
        Operation::CreateGroup(GroupCommand { group, ipv4: true, ..GroupCommand::default() })
    };
    last_and_next(&mut driver, &group(QPS - 1), &group(QPS), CqpErrorCode::Invalid);
}

#[test]
fn segment_limit_is_enforced() {
    let mut driver = small();
    let to = SegmentDescriptor { valid: true, direct: true, entries: 512, page: SOURCE >> 12 };
    last_and_next(&mut driver, &segment(SEGMENTS - 1, to), &segment(SEGMENTS, to), CqpErrorCode::Invalid);
}

/// Writes the number of objects of one kind to the buffer at `offset` and returns the "commit FPM" operation.
fn commit(driver: &mut Driver, offset: u64, count: u32) -> Operation {
    driver.bus.poke(RDMA_BUFFER, &[0; 176]);
    driver.bus.poke(RDMA_BUFFER + offset, &count.to_le_bytes());
    Operation::CommitFpm(FpmCommand { len: 176, buffer: Iova::new(RDMA_BUFFER), ..FpmCommand::default() })
}

#[test]
fn pble_limit_is_enforced() {
    let mut driver = small();
    let last = commit(&mut driver, 112, PBLES);
    driver.perform_well(&last);
    let next = commit(&mut driver, 112, PBLES + 1);
    refused(&mut driver, &next, CqpErrorCode::NoRoom);
}

/// The device does not use hash entries, transmit buffers, read responses, timers or headers. It places as many of
/// these objects as fit in the address space, even if their number exceeds the reported limit.
#[test]
fn unused_objects_are_limited_by_address_space() {
    const TIMERS: u64 = 88;
    const SPACE: u32 = (SEGMENTS as u32) << 21;
    let mut driver = small();
    for (offset, reported) in [(24, 4 * QPS), (56, 8 * QPS), (72, 1 << 14), (TIMERS, 4096), (144, QPS)] {
        for count in [reported, reported + 1] {
            let operation = commit(&mut driver, offset, count);
            driver.perform_well(&operation);
        }
    }
    let last = commit(&mut driver, TIMERS, SPACE);
    driver.perform_well(&last);
    let next = commit(&mut driver, TIMERS, SPACE + 1);
    refused(&mut driver, &next, CqpErrorCode::NoRoom);
}

/// The host context contains log2 of the ring size, minus 1.
#[test]
fn control_queue_length_limit_is_enforced() {
    const CONTEXT: u32 = 0x50_0000;
    let mut driver = small();
    for (size, done, lines) in [(10, true, "RDMA control queue started"), (11, false, "the ring is too long")]
    {
        let context = HostContext { size, protocol: 2, ring: Iova::new(SOURCE), ..HostContext::default() };
        driver.bus.poke(CONTEXT.into(), &context.emit());
        driver.end_cqp();
        driver.write(Register::PfpeCcqphigh, 0);
        let text = logged(|| driver.write(Register::PfpeCcqplow, CONTEXT));
        assert_eq!(driver.cqp_status(), Status { done, error: !done }, "{size}");
        assert!(text.lines().count() == 1 && text.contains(lines), "{text}");
    }
}

/// The context contains log2 of the number of quanta, minus 2.
#[test]
fn work_queue_length_limit_is_enforced() {
    let mut driver = small();
    driver.create_qp(Qpn::new(8), QpKind::Rc, &QpContext { send_size: 13, receive_size: 13, ..context(1) });
    for (send_size, receive_size) in [(14, 13), (13, 14)] {
        let context =
            QpContext { send_size, receive_size, send_ring: SOURCE, receive_ring: TARGET, ..context(1) };
        let command = driver.qp_command(Qpn::new(9), QpKind::Rc, QpState::Idle);
        driver.bus.poke(command.context.get(), &context.emit());
        refused(&mut driver, &Operation::CreateQp(command), CqpErrorCode::Invalid);
    }
}

/// A send WQE has at most eight quanta, which hold 15 fragments or 225 bytes of inline data. The driver itself limits
/// applications to 13 fragments and 101 bytes.
#[test]
fn send_wqe_size_limit_is_enforced() {
    const BAD_OPERATION: u16 = 0x20a;
    let fragments: Vec<_> = (0..15).map(|at| fragment(SOURCE + at, 0, 1)).collect();
    let gathered = gather(SIGNALED | SEND, 0, None, &fragments);
    let inlined = inline(SIGNALED | SEND, 0, None, &[7; 225]);
    // `bit` is the lowest bit of the fragment count or inline length in the control word.
    for (wqe, len, bit) in [(gathered, 15, 38), (inlined, 225, 48)] {
        assert_eq!(wqe.len(), 256);
        let mut pair = Pair::connected();
        pair.b.post_receive(QPN, &[fragment(TARGET, 0, 256)]);
        pair.a.post_send(QPN, &wqe);
        pair.settle();
        assert_eq!((pair.sent().error, pair.received().cqe.len), (false, len));

        let mut larger = wqe.clone();
        let control = u64::from_le_bytes(*larger[24..].first_chunk().unwrap()) + (1 << bit);
        larger[24..32].copy_from_slice(&control.to_le_bytes());
        let text = logged(|| {
            pair.a.post_send(QPN, &larger);
            pair.a.bus.settle();
        });
        assert_eq!(failure(&mut pair.a, 1).0, BAD_OPERATION);
        assert!(text.lines().count() == 1 && text.contains("QP entered the error state"), "{text}");
    }
}

/// The member list has eight entries, so the device does not read a ninth.
#[test]
fn ninth_group_member_is_ignored() {
    const MEMBERS: u64 = 0xc00_0000;
    let mut driver = small();
    let member = |qpn: u64| (4791 << 32 | 1 << 31 | qpn).to_le_bytes();
    driver.bus.poke(MEMBERS, (8..17).map(member).collect::<Vec<_>>().as_flattened());
    let command =
        GroupCommand { group: 1, ipv4: true, members: Iova::new(MEMBERS), ..GroupCommand::default() };
    driver.perform_well(&Operation::CreateGroup(command));
    let rows = driver.bus.hca.rows::<GroupRow>(0);
    assert_eq!(rows[0].members, (8..16).collect::<Vec<u32>>());
}

/// Each queue set needs one of the 512 nodes, so the 1,023 queue set handles are never exhausted.
#[test]
fn scheduler_node_limit_is_enforced() {
    const NODES: u16 = 512;
    let mut driver = small();
    let add = |node: u16| {
        let leaf = node != 0;
        Operation::ManageNode(NodeCommand { node, leaf, action: NodeAction::Add, ..NodeCommand::default() })
    };
    for node in 0..NODES {
        assert_eq!(driver.perform_well(&add(node)), u32::from(node), "the handle of a leaf, or 0");
    }
    refused(&mut driver, &add(NODES), CqpErrorCode::NoRoom);
}

/// Drivers reserve entry 0. If the neighbour has no entry, the connection's context contains index 0xffff.
#[test]
fn full_arp_table_is_reported_once() {
    let mut driver = small();
    for index in 1..ARP_ENTRIES - 1 {
        driver.set_neighbour(index, mac(2));
    }
    assert_eq!(ignored(&driver, "arp_table_full"), 0);
    let text = logged(|| driver.set_neighbour(ARP_ENTRIES - 1, mac(2)));
    assert_eq!(ignored(&driver, "arp_table_full"), 1);
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains("WARN") && text.contains("the ARP table is full"), "{text}");
    assert!(text.contains("arp_table_full"), "{text}");
    let again = logged(|| driver.set_neighbour(ARP_ENTRIES - 1, mac(3)));
    assert_eq!(again, "", "a change to an entry in a full table is not reported again");
    let next = ManageArp { index: ArpIndex::new(ARP_ENTRIES), valid: true, ..ManageArp::default() };
    refused(&mut driver, &Operation::ManageArp(next), CqpErrorCode::Invalid);

    let reason = |driver: &Driver, qpn| driver.bus.hca.explain(qpn).ignored.map(|ignored| ignored.last);
    start(&mut driver, QPN, QpKind::Rc, &context(1));
    assert_eq!(reason(&driver, QPN), None, "ARP entry 2 exists, so the QP is not affected");
    let other = Qpn::new(QPN.get() + 1);
    start(&mut driver, other, QpKind::Rc, &QpContext { arp_index: ArpIndex::new(0xffff), ..context(1) });
    assert_eq!(reason(&driver, other).as_deref(), Some("arp_table_full"));

    // Free an entry and fill the table up again.
    let delete = ManageArp { index: ArpIndex::new(3), ..ManageArp::default() };
    driver.perform_well(&Operation::ManageArp(delete));
    let before = ignored(&driver, "arp_table_full");
    driver.set_neighbour(3, mac(2));
    assert_eq!(ignored(&driver, "arp_table_full"), before + 1);
}

/// By default, all twelve bits of the index in "manage ARP" can be used.
#[test]
fn default_arp_table_has_4096_entries() {
    let mut driver = opened(1);
    driver.set_neighbour(4095, mac(2));
    start(&mut driver, QPN, QpKind::Rc, &QpContext { arp_index: ArpIndex::new(4095), ..context(1) });
    driver.post_send(QPN, &gather(SIGNALED | SEND, 0, None, &[fragment(SOURCE, 0, 8)]));
    let frames = driver.bus.settle();
    assert_eq!(frames[0][..6], mac(2).0);
}

/// Messages are limited to 2^31 - 1 bytes, which the driver reports as `max_msg_sz`. IBTA volume 1, section 9.4,
/// permits 2^31 bytes, so a peer may send one byte more.
#[test]
fn rejects_two_gibibyte_message() {
    const LIMIT: u32 = (1 << 31) - 1;
    for (len, code) in [(LIMIT, None), (LIMIT + 1, Some(0x0132))] {
        let mut pair = Pair::connected();
        let half = fragment(SOURCE, 0, len / 2);
        let rest = fragment(SOURCE, 0, len - len / 2);
        let text = logged(|| {
            pair.a.post_send(QPN, &gather(SIGNALED | WRITE, TARGET, None, &[half, rest]));
            pair.a.bus.settle();
        });
        assert_eq!(text.lines().count(), usize::from(code.is_some()), "{text}");
        let event = pair.a.next_async_event().map(|event| u16::from(event.code));
        assert_eq!(event, code, "{len} bytes");
    }
}
