//! Generates the book's example of a lost acknowledgement, with traces and captures on both sides.

use std::path::Path;

use card::capture::Capture;
use card::frontend::testing::{assert_golden, pattern, wait};
use card::telemetry::filter::CaptureFilter;
use card::telemetry::testing::Written;
use card::telemetry::trace::TraceFormat;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use protocol::roce::RoceFrame;

use super::user::{RC, User, send};

/// Formats a capture as one line per packet, with the direction, the transport header and the comment.
fn packets(path: &Path) -> Vec<String> {
    let bytes = std::fs::read(path).unwrap();
    let mut reader = PcapNgReader::new(&bytes[..]).unwrap();
    let mut lines = Vec::new();
    while let Some(block) = reader.next_block() {
        let Block::EnhancedPacket(packet) = block.unwrap() else { continue };
        let (mut way, mut comment) = ("", String::new());
        for option in &packet.options {
            match option {
                EnhancedPacketOption::Flags(1) => way = "in ",
                EnhancedPacketOption::Flags(_) => way = "out",
                EnhancedPacketOption::Comment(text) => comment = text.to_string(),
                _ => {}
            }
        }
        let bth = RoceFrame::parse(&packet.data).unwrap().packet.bth;
        lines.push(format!("{way}  PSN {:<8} {:<15} {comment}", bth.psn.get(), bth.opcode.to_string()));
    }
    lines
}

/// Returns the trace records for queue entries, without timestamps.
fn records(written: &Written) -> Vec<String> {
    let text = written.text();
    let records = text.lines().filter_map(|line| line.split_once(' ')).map(|(_, record)| record);
    records.filter(|record| record.contains(" wqe ") || record.contains(" cqe ")).map(str::to_owned).collect()
}

/// Set HCAD_UPDATE_GOLDEN=1 to update the book's example. Set HCAD_CAPTURES to a directory to keep the captures there.
#[test]
fn trace_and_capture_show_lost_ack() {
    let kept = std::env::var_os("HCAD_CAPTURES");
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| kept.as_deref().map_or(folder.path(), Path::new).join(name);
    let (mut a, mut b) = User::pair(RC);
    let (at_a, at_b) = (Written::default(), Written::default());
    let watch = |guest: &mut User, written: &Written, name: &str| {
        guest.hca.set_trace(Some(written.trace(TraceFormat::Text)));
        // The filter omits the subnet management traffic between the ports.
        let connected = CaptureFilter { opcodes: vec!["RC".into()], ..CaptureFilter::default() };
        let capture = Capture::create(&file(name), "hca").unwrap().with_filter(connected);
        guest.hca.set_capture(Some(capture));
    };
    watch(&mut a, &at_a, "a.pcapng");
    watch(&mut b, &at_b, "b.pcapng");
    b.impair(r#"{"direction": "tx", "action": "drop", "opcode": "RC Acknowledge", "nth": 2}"#);
    for n in 0..3 {
        b.post_recv(0x400 * n, 64);
        a.put(0x400 * n, &pattern(64, 7));
        a.post(&send(0x400 * n, 64));
        wait(&mut a, &mut b);
    }
    a.hca.flush();
    b.hca.flush();
    let (from_a, from_b) = (packets(&file("a.pcapng")), packets(&file("b.pcapng")));
    let text = format!(
        "sender's trace\n{}\n\nsender's capture\n{}\n\nreceiver's capture\n{}\n\nreceiver's trace\n{}\n",
        records(&at_a).join("\n"),
        from_a.join("\n"),
        from_b.join("\n"),
        records(&at_b).join("\n"),
    );

    let sent = |lines: &[String]| lines.iter().filter(|line| line.contains("SEND Only")).count();
    assert_eq!((sent(&from_a), sent(&from_b)), (4, 4), "one packet is sent twice:\n{text}");
    let second = |line: &&String| line.starts_with("out") && line.contains("wr=640");
    assert_eq!(from_a.iter().filter(second).count(), 2, "{text}");
    assert_eq!(from_b.iter().filter(|line| line.contains("impairment 1: dropped")).count(), 1, "{text}");
    assert!(records(&at_a).iter().any(|line| line.contains(" cqe ") && line.contains(" wr=640 ")), "{text}");
    assert_golden(concat!(env!("CARGO_MANIFEST_DIR"), "/../book/src/lost-ack.txt"), &text);
}
