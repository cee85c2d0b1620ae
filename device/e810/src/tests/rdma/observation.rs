//! Tests of the snapshot rows and trace records of RDMA objects.

use card::frontend::snapshot::{
    self, Armed, ControlRow, ControlState, CqRow, EqRow, HandleRow, IcmRow, MrRow, QpRow, Service,
};
use card::frontend::table::Row;
use card::telemetry::testing::Written;
use card::telemetry::trace::TraceFormat;
use drivers::e810::queue_pair::gather;
use protocol::hca::e810::rdma::queue_pair::DestroyQp;

use super::*;

fn rows<T: Row>(driver: &Driver) -> Vec<T> {
    driver.bus.hca.rows(0)
}

#[test]
fn qp_row_shows_peer_and_counters() {
    let mut pair = Pair::connected();
    pair.b.post_receive(QPN, &[fragment(TARGET, 0, 64)]);
    pair.a.post_send(QPN, &gather(SIGNALED | SEND, 0, None, &[fragment(SOURCE, 0, 64)]));
    pair.settle();
    let all = rows::<QpRow>(&pair.a);
    let [row] = &all[..] else { panic!("{all:?}") };
    assert_eq!((row.qpn, row.state, row.service, row.pd), (3, snapshot::QpState::Rts, Service::Rc, 6));
    assert_eq!((row.send_psn, row.unacked_psn, row.expected_psn), (0x1001, 0x1001, 0x2000));
    let peer = row.peer.as_ref().unwrap();
    assert_eq!((peer.qpn, &*peer.mac, peer.ip), (3, "02:e8:10:00:00:02", [10, 81, 0, 2].into()));
    assert_eq!((row.send_cqn, row.recv_cqn, row.counters.doorbells), (4, 5, 1));
    assert_eq!((row.counters.sends, row.counters.sends_completed, row.counters.failed), (1, 1, 0));
    pair.a.perform_well(&Operation::DestroyQp(DestroyQp { qpn: QPN, ..DestroyQp::default() }));
    assert_eq!(rows::<QpRow>(&pair.a), []);
}

#[test]
fn cq_and_eq_rows_show_size_and_state() {
    let mut pair = Pair::connected();
    pair.a.arm_cq(SEND_CQ, 1 << 14);
    let cqs = rows::<CqRow>(&pair.a);
    let found: Vec<_> = cqs.iter().map(|cq| (cq.cqn, cq.entries, cq.armed, cq.fault)).collect();
    let expected = [(0, 2050, Armed::No, None), (4, 256, Armed::Any, None), (5, 256, Armed::No, None)];
    assert_eq!(found, expected);
    let eqs = rows::<EqRow>(&pair.a);
    let found: Vec<_> = eqs.iter().map(|eq| (eq.eqn, eq.entries, eq.vector, eq.overflowed)).collect();
    assert_eq!(
        found,
        [(0, 2048, Some(4), false), (16, 3072, Some(3), false)],
        "one CEQ and, as the last row, the AEQ"
    );
}

#[test]
fn objects_have_rows_until_cqp_is_destroyed() {
    let mut pair = Pair::connected();
    register(&mut pair.a, 0x1234_5601, SOURCE, 0x1000, StagRights::REMOTE_WRITE);
    pair.a.perform_well(&Operation::CreateAddressHandle(handle(1)));
    let regions = rows::<MrRow>(&pair.a);
    let [region] = &regions[..] else { panic!("{regions:?}") };
    assert_eq!((region.key, region.pd, region.start, region.length), (0x1234_5601, 6, SOURCE, 0x1000));
    assert_eq!(region.rights, [snapshot::Right::RemoteWrite]);
    let handles = rows::<HandleRow>(&pair.a);
    let [row] = &handles[..] else { panic!("{handles:?}") };
    assert_eq!((row.handle, row.pd, row.mac.as_deref()), (1, 6, Some("02:e8:10:00:00:02")));
    assert_eq!((row.source, row.destination), ([10, 81, 0, 1].into(), [10, 81, 0, 2].into()));
    let control = rows::<ControlRow>(&pair.a);
    let [row] = &control[..] else { panic!("{control:?}") };
    assert_eq!((row.state, row.entries, row.pbles), (ControlState::Running, 2048, 1 << 18));
    assert_eq!((row.handles, row.groups, row.error), (1, 0, 0));
    let segments = rows::<IcmRow>(&pair.a);
    assert_eq!(segments.len(), 2, "one segment for all other objects, and one for PBLEs");
    pair.a.end_cqp();
    for table in [MrRow::TABLE, HandleRow::TABLE, QpRow::TABLE, CqRow::TABLE, IcmRow::TABLE] {
        let page = pair.a.bus.hca.page(table, 0);
        assert!(page.rows.is_empty(), "no object outlives the control queue: {page:?}");
    }
}

/// Returns the trace records of one kind, without time and device name.
fn records(text: &str, kind: &str) -> Vec<String> {
    let all = text.lines().filter_map(|line| line.split_once(" hca1 ")).map(|(_, record)| record);
    all.filter(|record| record.starts_with(kind)).map(str::to_owned).collect()
}

#[test]
fn trace_contains_requests_completions_and_events() {
    let mut pair = Pair::connected();
    let written = Written::default();
    pair.a.bus.hca.set_trace(Some(written.trace(TraceFormat::Text)));
    pair.b.post_receive(QPN, &[fragment(TARGET, 0, 64)]);
    pair.a.arm_cq(SEND_CQ, 1 << 14);
    pair.a.post_send(QPN, &gather(SIGNALED | SEND, 0, None, &[fragment(SOURCE, 0, 64)]));
    pair.settle();
    let list = [fragment(SOURCE, 0x1234_5600, 8)];
    pair.a.post_send(QPN, &gather(SIGNALED | WRITE | 0x77, TARGET, None, &list));
    pair.settle();
    pair.a.bus.hca.flush();
    let text = written.text();
    assert_eq!(
        records(&text, "wqe"),
        [
            "wqe send qpn=0x3 wr=0 index=0 opcode=send signaled=true solicited=false len=64 \
             sge=[{va=0x8000000 key=0x0 len=64}]",
            "wqe send qpn=0x3 wr=1 index=1 opcode=write signaled=true solicited=false remote_va=0xa000000 \
             rkey=0x77 len=8 sge=[{va=0x8000000 key=0x12345600 len=8}]",
        ]
    );
    assert_eq!(
        records(&text, "cqe"),
        [
            "cqe send cqn=0x4 slot=0 qpn=0x3 wr=0 entry.len=64 entry.context=0x55ecbd10d511 entry.qpn=0x3 entry.opcode=0x3 \
          entry.send=true"
        ]
    );
    let events = records(&text, "eqe");
    let [completion, failure] = &events[..] else { panic!("{events:?}") };
    assert_eq!(completion, "eqe completion ceq=0 cookie=0x4");
    let expected = "eqe key_unallocated event.context=0x55ecbd10d511 event.number_low=3 event.wqe=1 ";
    assert!(failure.starts_with(expected), "{failure}");
}
