//! Tests the traces of the reference bring-up (section 13) and of rejected commands.

use card::frontend::testing::assert_golden;
use card::telemetry::testing::Written;
use card::telemetry::trace::TraceFormat;

use super::bringup::{CQ0, CQ0_REGION, MAP_EQC};
use super::contexts::RTR;
use super::*;

/// Issues the commands of section 13, with the mailbox contents given in section 14.
fn bring_up(machine: &mut Machine) {
    machine.ok(Op::QueryAdapter, 0, 0, &[]);
    machine.ok(Op::QueryDevLim, 0, 0, &[]);
    machine.ok(Op::InitHca, 0, 0, &dump(INIT, 0x40));
    machine.ok(Op::MapIcm, 1, 1, &dump(MAP_EQC, 0x20));
    let qpc = "
        00: 00 00 00 00 00 04 00 00 00 00 00 00 10 04 00 20
        10: 00 00 00 00 00 00 00 00 00 00 00 00 10 00 00 40
        30: 00 00 00 00 00 06 00 00 00 00 00 00 10 20 00 20";
    machine.ok(Op::MapIcm, 1, 3, &dump(qpc, 0x40));
    machine.map(IcmTable::Context, CQC, 0x1100_0000, 64);
    machine.map(IcmTable::Tpt, MTT, 0x1200_0000, 64);
    machine.map(IcmTable::Tpt, MPT, 0x1300_0000, 64);
    machine.write_mtt(0, [0x20_0000]);
    machine.ok(Op::Sw2HwMpt, 0, 0, &dump(CQ0_REGION, 0x40));
    machine.ok(Op::Sw2HwCq, 0, 0, &dump(CQ0, 0x40));
    for op in [Op::Rst2Init, Op::Init2Rtr] {
        machine.ok(op, 0, 5, &dump(RTR, 0xc0));
    }
    machine.ok(Op::QueryQp, 0, 5, &[]);
    // Write to MSI-X entry 2 and to an offset without a register.
    machine.write32(0, 0x2_0020, 0xfee0_0000);
    machine.write32(0, 0x2_002c, 0);
    machine.write32(0, 0x1000, 7);
    machine.read32(0, 0xf20);
    // The device rejects the next three commands: an unknown opcode, an invalid page size and an inaccessible mailbox.
    machine.write32(0, 0x18, 0x0080_0055);
    machine.command(Op::Sw2HwMpt, 0, 1, &dump("00: F0 02 01 81 00 00 30 00 00 00 00 01 00 00 00 00", 0x40));
    machine.command_at(NOWHERE, Op::Sw2HwCq, 0, 1);
    machine.ok(Op::UnmapIcm, 1, 64, &[]);
    machine.hca.reset();
}

fn traced(format: TraceFormat, run: impl FnOnce(&mut Machine)) -> String {
    let written = Written::default();
    let mut machine = powered_on(1, Options::default());
    machine.hca.set_trace(Some(written.trace(format)));
    run(&mut machine);
    machine.hca.flush();
    written.text()
}

/// To update the golden file, run with HCAD_UPDATE_GOLDEN=1 and review the diff.
#[test]
fn bring_up_trace_matches_golden_file() {
    let text = traced(TraceFormat::Text, bring_up);
    assert_golden(concat!(env!("CARGO_MANIFEST_DIR"), "/src/tests/trace_bring_up.txt"), &text);
}

#[test]
fn json_trace_of_bring_up_contains_mailbox_fields() {
    let text = traced(TraceFormat::Json, bring_up);
    let records: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let find =
        |name: &str| records.iter().find(|record| record["kind"] == "command" && record["name"] == name);
    let init = find("INIT_HCA").unwrap();
    assert_eq!(init["in"]["cqc"], serde_json::json!({ "base": 0x200_0000, "log_entries": 16 }));
    let map = records.iter().find(|record| record["entries"] == 3).unwrap();
    assert_eq!(
        map["in"]["chunks"][2],
        serde_json::json!({ "virt": 0x6_0000, "bus": 0x1020_0000, "pages": 32 })
    );
    let query = find("QUERY_QP").unwrap();
    assert_eq!((&query["out"]["state"], &query["out"]["ssn"]), (&"RTR".into(), &0.into()));
}

#[test]
fn disabled_trace_records_nothing() {
    let written = Written::default();
    let mut machine = powered_on(1, Options::default());
    machine.hca.set_trace(Some(written.trace(TraceFormat::Text)));
    drop(machine.hca.set_trace(None));
    bring_up(&mut machine);
    assert_eq!(written.text(), "");
}
