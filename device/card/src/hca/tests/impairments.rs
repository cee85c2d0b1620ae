use std::fs::File;
use std::time::Duration;

use pcap_file::pcapng::{Block, PcapNgReader};

use super::*;
use crate::fabric::Origin;
use crate::fabric::impair::{Rule, RuleEntry};

/// Returns a device that is about to send one packet to the fabric, from QP 1 to LID 1.
fn about_to_send() -> Hca<Stub> {
    let mut hca = powered_on();
    hca.port.addresses_mut().own =
        Identity { ipv4: Ipv4Addr::new(10, 77, 9, 9), ..Identity::from_lid(Lid::new(9)) };
    hca.region_write(Region::Config, 4, &[6, 0]);
    hca.region_write(Region::Bar(Bar::Bar0), 8, &[1]);
    hca
}

fn add(hca: &mut Hca<Stub>, rule: &str) {
    let entry: RuleEntry = serde_json::from_str(rule).unwrap();
    hca.impair(Rule::try_from(entry).unwrap()).unwrap();
}

/// Returns the options (as debug text) and the bytes of every captured frame.
pub(super) fn captured(path: &std::path::Path) -> Vec<(String, Vec<u8>)> {
    let mut reader = PcapNgReader::new(File::open(path).unwrap()).unwrap();
    let mut packets = Vec::new();
    while let Some(block) = reader.next_block() {
        if let Block::EnhancedPacket(packet) = block.unwrap() {
            packets.push((format!("{:?}", packet.options), packet.data.to_vec()));
        }
    }
    packets
}

#[test]
fn dropped_outbound_frame_is_captured_and_annotated() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.pcapng");
    let mut hca = about_to_send();
    hca.set_capture(Some(Capture::create(&path, "hca9").unwrap()));
    add(&mut hca, r#"{"direction": "tx", "action": "drop", "qpn": 2, "opcode": "SEND Only", "nth": 1}"#);
    assert_eq!(hca.drain(), WorkLeft { frames: false, other: false });
    assert!(hca.outbound().is_empty());
    hca.flush();
    let packets = captured(&path);
    assert_eq!(packets.len(), 1);
    let comment = "qpn=0x1 wr=77; impairment 1: dropped";
    assert!(packets[0].0.contains("Flags(2)") && packets[0].0.contains(comment), "{}", packets[0].0);
}

#[test]
fn delayed_outbound_frame_leaves_at_deadline() {
    let mut hca = about_to_send();
    add(&mut hca, r#"{"direction": "tx", "action": {"delay": {"us": 250}}}"#);
    hca.drain();
    assert!(hca.outbound().is_empty());
    let deadline = Instant::ZERO + Duration::from_micros(250);
    assert_eq!(hca.next_deadline(), Some(deadline));
    hca.set_now(deadline);
    hca.handle_deadline();
    let sent: Vec<_> = hca.outbound().iter().map(|(dst, _)| dst).collect();
    assert_eq!(sent, [Identity::from_lid(Lid::new(1)).mac]);
    assert_eq!(hca.next_deadline(), None);
}

#[test]
fn inbound_frame_is_captured_before_impairment() {
    let mut sender = about_to_send();
    sender.drain();
    let frame = from_lid_9(sender.outbound().last().unwrap());

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.pcapng");
    let mut hca = ready();
    hca.set_capture(Some(Capture::create(&path, "hca1").unwrap()));
    add(&mut hca, r#"{"direction": "rx", "action": "corrupt", "nth": 1}"#);
    add(&mut hca, r#"{"direction": "rx", "action": "drop", "nth": 2}"#);
    add(&mut hca, r#"{"direction": "rx", "action": {"duplicate": {}}, "nth": 3}"#);
    for _ in 0..4 {
        hca.handle_frame(&frame);
    }
    assert_eq!(hca.port_stats().dropped(DropReason::Icrc), 1, "the corrupted frame is dropped");
    assert_eq!(hca.port_stats().roce, 3, "both copies and the unmodified frame are delivered");
    hca.flush();
    let packets = captured(&path);
    assert_eq!(packets.len(), 4);
    assert!(packets.iter().all(|(options, data)| options.contains("Flags(1)") && *data == frame));
    let notes =
        ["impairment 1: one bit of byte ", "impairment 2: dropped", "impairment 3: duplicated after 0 us"];
    assert!(packets.iter().zip(notes).all(|((options, _), note)| options.contains(note)));
    assert!(!packets[3].0.contains("impairment"));
}

/// An impaired frame keeps its origin, which tells the fabric whether the frame is a reply. The fabric must not flood a
/// reply, even if it was corrupted, duplicated or delayed.
#[test]
fn impaired_reply_is_still_marked_as_reply() {
    for action in [r#""corrupt""#, r#"{"duplicate": {}}"#, r#"{"delay": {"us": 250}}"#] {
        let mut hca = ready();
        add(&mut hca, &format!(r#"{{"direction": "tx", "action": {action}}}"#));
        hca.handle_frame(&who_has_lid_1());
        hca.set_now(Instant::ZERO + Duration::from_millis(2));
        hca.handle_deadline();
        assert!(!hca.outbound().is_empty(), "{action}");
        while !hca.outbound().is_empty() {
            assert_eq!(hca.outbound().last_origin(), Origin::Answer, "{action}");
            hca.outbound().take_last();
        }
    }
}

/// Returns an ARP request (RFC 826) from LID 9 for the MAC of LID 1.
fn who_has_lid_1() -> Vec<u8> {
    let requester = [2, 0, 0, 0, 0, 9];
    [
        &[0xff; 6],
        &requester[..],
        &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1],
        &requester,
        &[10, 77, 0, 9],
        &[0; 6],
        &[10, 77, 0, 1],
    ]
    .concat()
}
