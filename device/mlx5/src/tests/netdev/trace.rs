//! Trace records of SQs, RQs and flow tables.

use card::telemetry::testing::Written;
use card::telemetry::trace::TraceFormat;

use super::*;

/// Runs a test with tracing enabled. Returns the trace records without time and device.
fn records(net: &mut Net, run: impl FnOnce(&mut Net)) -> Vec<String> {
    let written = Written::default();
    net.driver.monitor.set_trace(Some(written.trace(TraceFormat::Text)));
    run(net);
    if let Some(trace) = net.driver.monitor.trace() {
        trace.flush();
    }
    net.driver.monitor.set_trace(None);
    let text = written.text();
    text.lines().filter_map(|line| Some(line.split_once(" hca1 ")?.1.to_owned())).collect()
}

fn of<'a>(records: &'a [String], start: &str) -> Vec<&'a str> {
    records.iter().filter_map(|record| record.strip_prefix(start)).collect()
}

#[test]
fn trace_shows_wqes_of_sq() {
    let mut net = Net::new();
    let segment = EthernetSegment { l4_checksum: true, insert_vlan: true, vlan_tag: 5, ..<_>::default() };
    let records = records(&mut net, |net| {
        net.post(&net.wqe(EthernetSegment { l3_checksum: true, ..<_>::default() }, &plain(2, 20), 80));
        net.post(&net.wqe(segment, &[], 80));
        let control = net.control(Opcode::Nop);
        net.post(&FrameWqe { control, operation: FrameOperation::Nop });
        let control = net.control(Opcode::Read);
        net.post_bytes(&ControlSegment { size: 2, ..control }.emit());
        net.driver.frames();
    });
    let wqes = of(&records, "wqe transmit ");
    let [first, tagged, nop, wrong] = wqes[..] else { panic!("{records:#?}") };
    assert!(first.starts_with("sqn=0x4000 wr=0 opcode=SEND signaled=true len=100 header_len=20 "), "{first}");
    assert!(first.contains("l3_checksum=true l4_checksum=false data=[{byte_count=80 lkey="), "{first}");
    assert!(tagged.contains(" l4_checksum=true vlan_tag=0x5 "), "{tagged}");
    assert!(nop.ends_with(" opcode=NOP signaled=true"), "{nop}");
    assert!(wrong.contains("refused=\"unsupported opcode 0x10\""), "{wrong}");
    let cqes = of(&records, "cqe send ");
    assert!(
        cqes.len() == 4 && cqes[0].contains("cqn=0x40 slot=0 ") && cqes[0].contains(" wr=0 "),
        "{cqes:#?}"
    );
}

#[test]
fn trace_shows_lso_once() {
    let mut net = Net::new();
    let mut header = plain(2, 14);
    header[12..].copy_from_slice(&[8, 0]);
    header
        .extend([0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 1, 0, 2, 0, 0, 0, 0]);
    let records = records(&mut net, |net| {
        net.post(&net.wqe(EthernetSegment { mss: 1000, ..<_>::default() }, &header, 2500));
        assert_eq!(net.driver.frames().len(), 3);
    });
    let wqes = of(&records, "wqe transmit ");
    let [lso] = wqes[..] else { panic!("{records:#?}") };
    assert!(lso.contains(" opcode=LSO ") && lso.contains(" len=2542 header_len=42 mss=1000 "), "{lso}");
}

#[test]
fn trace_shows_consumed_receives() {
    let mut net = Net::new();
    net.create_direct_tir();
    let records = records(&mut net, |net| {
        net.driver.receive(&plain(2, 60));
        net.post_receive(&[1522]);
        net.driver.receive(&plain(2, 60));
    });
    let wqes = of(&records, "wqe receive ");
    let [receive] = wqes[..] else { panic!("{records:#?}") };
    assert!(receive.starts_with("rqn=0x4001 wr=0 scatter=[{byte_count=1522 lkey="), "{receive}");
    assert_eq!(of(&records, "cqe frame ").len(), 1, "{records:#?}");
    assert!(of(&records, "ignored frame ")[0].contains("rq_empty"), "{records:#?}");
}

#[test]
fn trace_shows_match_and_actions_of_flow_entry() {
    let mut net = Net::new();
    let tirn = net.create_direct_tir();
    let records = records(&mut net, |net| {
        net.create_flow_table(55, 0x0806, Destination::Tir(tirn));
    });
    let [entry] = of(&records, "command SET_FLOW_TABLE_ENTRY ")[..] else { panic!("{records:#?}") };
    for part in
        ["status=OK", "in.context.actions=FORWARD", ".value.outer.ether_type=0x806", "kind=tir", "number=0x1"]
    {
        assert!(entry.contains(part), "{part}: {entry}");
    }
    let [group] = of(&records, "command CREATE_FLOW_GROUP ")[..] else { panic!("{records:#?}") };
    assert!(group.contains("in.mask.outer.ether_type=0xffff") && group.contains("in.first=2"), "{group}");
}
