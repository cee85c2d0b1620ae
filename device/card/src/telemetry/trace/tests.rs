use protocol::describe::{Describe, Field, Hex, Value};
use protocol::ids::Qpn;
use protocol::roce::{Opcode, Operation};

use super::*;
use crate::telemetry::testing::Written;

struct Inner(u64);

impl Describe for Inner {
    fn describe(&self, to: &mut dyn Visitor) {
        to.value("zero", Value::Number(0));
        to.value("address", Value::Hex(self.0));
        to.value("flags", Value::Set(&["A", "B"], self.0));
    }
}

fn fields(to: &mut dyn Visitor) {
    0_u32.show("count", to);
    Hex(0x1f_u32).show("key", to);
    true.show("fence", to);
    "OK".show("status", to);
    "it's \"quoted\"".show("error", to);
    [1_u8, 0xff].show("imm", to);
    to.object("in", &Inner(16));
    to.objects("sge", &mut [Inner(1), Inner(0)].iter().map(|inner| inner as &dyn Describe));
    to.addresses("pages", &mut [0x1000, 0x2000].into_iter());
    to.value("none", Value::Set(&[], 0));
}

fn line(format: TraceFormat) -> String {
    let written = Written::default();
    let mut trace = written.trace(format);
    trace.record(Kind::Command, "NOP", fields);
    trace.flush();
    written.text()
}

#[test]
fn text_record_is_one_line() {
    assert_eq!(
        line(TraceFormat::Text),
        "1.500000 hca1 command NOP count=0 key=0x1f fence=true status=OK error=\"it's \\\"quoted\\\"\" \
         imm=01ff in.address=0x10 in.flags=A|B|0x10 sge=[{zero=0 address=0x1 flags=A|B|0x1}{zero=0 address=0x0 flags=A|B}] \
         pages=0x1000,0x2000 none=0x0\n"
    );
}

#[test]
fn json_record_holds_every_field() {
    let line = line(TraceFormat::Json);
    assert_eq!(line.matches('\n').count(), 1);
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&line).unwrap(),
        serde_json::json!({
            "time": 1.5, "device": "hca1", "kind": "command", "name": "NOP",
            "count": 0, "key": 31, "fence": true, "status": "OK", "error": "it's \"quoted\"", "imm": "01ff",
            "in": { "zero": 0, "address": 16, "flags": ["A", "B", "0x10"] },
            "sge": [
                { "zero": 0, "address": 1, "flags": ["A", "B", "0x1"] },
                { "zero": 0, "address": 0, "flags": ["A", "B"] },
            ],
            "pages": [4096, 8192], "none": [],
        })
    );
}

#[test]
fn failed_write_ends_trace() {
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut trace = Trace::new(Box::new(Full), Path::new("test"), TraceFormat::Text, "hca1");
    trace.record(Kind::Reset, "vfio", |_| {});
    trace.flush();
    assert_eq!(trace.path(), None);
    trace.record(Kind::Reset, "vfio", |_| {});
}

const SEND_ONLY: Group = Group {
    kind: Kind::Ignored,
    name: "packet",
    qpn: Some(Qpn::new(5)),
    opcode: Some(Opcode::rc(Operation::SendOnly)),
    reason: Some("no_receive"),
};

#[test]
fn flood_ends_with_number_of_suppressed_records() {
    let written = Written::default();
    let mut trace = written.trace(TraceFormat::Text);
    let at = |millis: u64| Instant::from_nanos(millis * 1_000_000);
    for psn in 0..100_u32 {
        trace.record_repeated(at(0), SEND_ONLY, |to| psn.show("psn", to));
    }
    assert_eq!(trace.next_deadline(), Some(at(1000)));
    trace.handle_deadline(at(1000));
    trace.record_repeated(at(1001), SEND_ONLY, |to| 100_u32.show("psn", to));
    assert_eq!(trace.next_deadline(), None, "no record has been suppressed in the new period");
    trace.flush();
    let text = written.text();
    let lines: Vec<_> = text.lines().collect();
    let packet = "1.500000 hca1 ignored packet qpn=0x5 opcode=\"RC SEND Only\"";
    assert_eq!(lines.len(), 18);
    assert_eq!(lines[15], format!("{packet} psn=15 reason=no_receive"));
    assert_eq!(lines[16], format!("{packet} reason=no_receive suppressed=84"));
    assert_eq!(lines[17], format!("{packet} psn=100 reason=no_receive"));
}

#[test]
fn filtered_flood_leaves_no_records() {
    let written = Written::default();
    let filter = serde_json::from_str(r#"{"kinds": ["wqe"]}"#).unwrap();
    let mut trace = written.trace(TraceFormat::Text).with_filter(filter);
    (0..100).for_each(|_| trace.record_repeated(Instant::ZERO, SEND_ONLY, |_| {}));
    assert_eq!(trace.next_deadline(), None);
    trace.finish();
    assert_eq!(written.text(), "");
}

fn traced(filter: &str, records: impl Fn(&mut Trace)) -> Vec<String> {
    let written = Written::default();
    let filter = serde_json::from_str(filter).unwrap();
    let mut trace = written.trace(TraceFormat::Text).with_filter(filter);
    records(&mut trace);
    trace.flush();
    let words = |line: &str| line.split(' ').skip(2).take(2).collect::<Vec<_>>().join(" ");
    written.text().lines().map(words).collect()
}

#[test]
fn records_match_by_kind_opcode_and_qp() {
    let records = |trace: &mut Trace| {
        trace.record(Kind::Read, "HCR", |_| {});
        trace.record(Kind::Wqe, "a", |to| {
            Hex(5_u32).show("qpn", to);
            "RDMA_WRITE".show("opcode", to);
        });
        trace.record(Kind::Wqe, "b", |to| {
            Hex(6_u32).show("qpn", to);
            "SEND".show("opcode", to);
        });
        struct Entry;
        impl Describe for Entry {
            fn describe(&self, to: &mut dyn Visitor) {
                Hex(5_u32).show("qpn", to);
            }
        }
        trace.record(Kind::Cqe, "c", |to| to.object("entry", &Entry));
    };
    for (filter, wanted) in [
        ("{}", &["read HCR", "wqe a", "wqe b", "cqe c"][..]),
        (r#"{"kinds": ["wqe", "read"]}"#, &["read HCR", "wqe a", "wqe b"]),
        (r#"{"opcodes": ["rdma write"]}"#, &["wqe a"]),
        (r#"{"qpns": [5]}"#, &["wqe a", "cqe c"]),
        (r#"{"kinds": ["wqe"], "qpns": [6, 7], "opcodes": ["SEND"]}"#, &["wqe b"]),
        (r#"{"qpns": [9]}"#, &[]),
    ] {
        assert_eq!(traced(filter, records), wanted, "{filter}");
    }
}
