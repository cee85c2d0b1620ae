//! Tests with the scapy-generated frames in `data/scapy_frames.txt`.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::net::{Ipv4Addr, Ipv6Addr};

use protocol::ids::{FlowLabel, Lid, MacAddr, Msn, Pkey, Qkey, Qpn, Rkey, Va};
use protocol::net::ether::EtherFrame;
use protocol::net::ipv4::Fragmentation;
use protocol::net::layers::Tci;
use protocol::roce::{
    Aeth, AtomicEth, Bth, Deth, Encap, Ext, FrameWriter, Imm, IpAddrs, NakCode, Offload, Opcode,
    Operation as O, Packet, Reth, RoceFrame, Syndrome, Transport, seal,
};
use protocol::{Psn, WireError};

const FRAMES: &str = include_str!("data/scapy_frames.txt");
const IMM: Imm = Imm([0x11, 0x22, 0x33, 0x44]);

fn frames() -> impl Iterator<Item = (&'static str, Vec<u8>)> {
    FRAMES.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let (name, hex) = line.split_once(' ').unwrap();
        let bytes = hex.as_bytes().as_chunks::<2>().0.iter();
        (name, bytes.map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect())
    })
}

fn frame(name: &str) -> Vec<u8> {
    frames().find(|(other, _)| *other == name).unwrap().1
}

fn v4() -> Encap {
    Encap {
        src_mac: MacAddr::from_lid(Lid::new(1)),
        dst_mac: MacAddr::from_lid(Lid::new(2)),
        ip: IpAddrs::V4 { src: Ipv4Addr::new(10, 77, 0, 1), dst: Ipv4Addr::new(10, 77, 0, 2) },
        traffic_class: 0,
        flow_label: FlowLabel::default(),
        hop_limit: 64,
        fragment: Fragmentation::default(),
        tag: None,
        src_port: 0xc123,
    }
}

fn v6() -> Encap {
    let addr = |last| Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0xff, 0xfe00, last);
    Encap { ip: IpAddrs::V6 { src: addr(1), dst: addr(2) }, hop_limit: 255, ..v4() }
}

fn bth(opcode: Opcode) -> Bth {
    Bth {
        opcode,
        solicited: false,
        mig_req: false,
        pkey: Pkey::DEFAULT,
        fecn: false,
        becn: false,
        dest_qp: Qpn::new(0xab_cdef),
        ack_req: false,
        psn: Psn::new(0x12_3456),
    }
}

fn rc(operation: O) -> Bth {
    bth(Opcode::rc(operation))
}

fn rc_ack(operation: O) -> Bth {
    Bth { ack_req: true, ..rc(operation) }
}

fn pay(len: usize, first: u8) -> Vec<u8> {
    (0..len).map(|i| first.wrapping_add(u8::try_from(i % 256).unwrap().wrapping_mul(7))).collect()
}

fn reth(va: u64, rkey: u32, dma_len: u32) -> Reth {
    Reth { va: Va::new(va), rkey: Rkey::new(rkey), dma_len }
}

fn aeth(syndrome: Syndrome, msn: u32) -> Aeth {
    Aeth { syndrome, msn: Msn::new(msn) }
}

fn atomic(va: u64, swap_add: u64, compare: u64) -> Ext {
    Ext::Atomic(AtomicEth { va: Va::new(va), rkey: Rkey::new(0x77), swap_add, compare })
}

fn deth(qkey: u32, src_qp: u32) -> Deth {
    Deth { qkey: Qkey::new(qkey), src_qp: Qpn::new(src_qp) }
}

type ExpectedFrame = (&'static str, Encap, Bth, Ext, Vec<u8>);

/// Returns the expected content of each frame, in the order of the file.
fn expected_frames() -> Vec<ExpectedFrame> {
    let ack = Syndrome::ACK;
    vec![
        ("rc_send_first", v4(), rc(O::SendFirst), Ext::None, pay(64, 0)),
        (
            "rc_send_middle",
            v4(),
            Bth { psn: Psn::new(0xff_ffff), ..rc(O::SendMiddle) },
            Ext::None,
            pay(64, 1),
        ),
        ("rc_send_last", v4(), Bth { solicited: true, ..rc_ack(O::SendLast) }, Ext::None, pay(17, 0)),
        ("rc_send_last_imm", v4(), rc_ack(O::SendLastImm), Ext::Imm(IMM), pay(2, 0)),
        ("rc_send_only_empty", v4(), Bth { psn: Psn::new(0), ..rc_ack(O::SendOnly) }, Ext::None, vec![]),
        (
            "rc_send_only_3_bytes",
            Encap { traffic_class: 0x6a, ..v4() },
            Bth { mig_req: true, ..rc_ack(O::SendOnly) },
            Ext::None,
            pay(3, 0),
        ),
        (
            "rc_send_only_imm",
            v4(),
            Bth { solicited: true, ..rc_ack(O::SendOnlyImm) },
            Ext::Imm(IMM),
            pay(8, 0),
        ),
        (
            "rc_write_first",
            v4(),
            rc(O::WriteFirst),
            Ext::Reth(reth(0xfedc_ba98_7654_3210, 0xdead_beef, 128)),
            pay(64, 0),
        ),
        ("rc_write_last_imm", v4(), rc_ack(O::WriteLastImm), Ext::Imm(IMM), pay(1, 0)),
        ("rc_write_only", v4(), rc_ack(O::WriteOnly), Ext::Reth(reth(0x1000, 0x223, 5)), pay(5, 0)),
        (
            "rc_write_only_imm",
            v4(),
            rc_ack(O::WriteOnlyImm),
            Ext::RethImm(reth(0x1000, 0x223, 4), IMM),
            pay(4, 0),
        ),
        (
            "rc_read_request",
            v4(),
            rc_ack(O::ReadRequest),
            Ext::Reth(reth(0x7f00_1234_5678, 0x223, 0x6_0000)),
            vec![],
        ),
        ("rc_read_response_first", v4(), rc(O::ReadResponseFirst), Ext::Aeth(aeth(ack, 7)), pay(64, 0)),
        ("rc_read_response_middle", v4(), rc(O::ReadResponseMiddle), Ext::None, pay(64, 9)),
        ("rc_read_response_only", v4(), rc(O::ReadResponseOnly), Ext::Aeth(aeth(ack, 0x80_0001)), pay(6, 0)),
        ("rc_ack", v4(), rc(O::Acknowledge), Ext::Aeth(aeth(ack, 0x1_0203)), vec![]),
        (
            "rc_nak_sequence",
            v4(),
            rc(O::Acknowledge),
            Ext::Aeth(aeth(Syndrome::Nak(NakCode::PsnSequence), 0xff_ffff)),
            vec![],
        ),
        ("rc_rnr_nak", v4(), rc(O::Acknowledge), Ext::Aeth(aeth(Syndrome::RnrNak { timer: 12 }, 1)), vec![]),
        (
            "rc_atomic_ack",
            v4(),
            rc(O::AtomicAcknowledge),
            Ext::AtomicAck(aeth(ack, 3), 0x0102_0304_0506_0708),
            vec![],
        ),
        (
            "rc_compare_swap",
            v4(),
            rc_ack(O::CompareSwap),
            atomic(0x2000, 0x1111_1111_2222_2222, 0x3333_3333_4444_4444),
            vec![],
        ),
        ("rc_fetch_add", v4(), rc_ack(O::FetchAdd), atomic(0x2008, 1, 0), vec![]),
        (
            "rc_send_only_invalidate",
            v4(),
            rc_ack(O::SendOnlyInvalidate),
            Ext::Invalidate(Rkey::new(0x5566_7788)),
            pay(4, 0),
        ),
        (
            "uc_write_middle_congested",
            Encap { traffic_class: 3, ..v4() },
            Bth { fecn: true, becn: true, ..bth(Opcode::uc(O::WriteMiddle)) },
            Ext::None,
            pay(4, 0),
        ),
        ("ud_send_only", v4(), bth(Opcode::ud(O::SendOnly)), Ext::Deth(deth(0x1111_1111, 0x123)), pay(20, 0)),
        (
            "ud_send_only_imm",
            v4(),
            bth(Opcode::ud(O::SendOnlyImm)),
            Ext::DethImm(deth(0x8001_0000, 0xff_fffe), IMM),
            pay(7, 0),
        ),
        ("rc_reserved_15", v4(), rc(O::Reserved(0x15)), Ext::None, pay(4, 0)),
        ("v6_rc_send_only", v6(), rc_ack(O::SendOnly), Ext::None, pay(13, 0)),
        (
            "v6_rc_write_only",
            Encap { traffic_class: 0x6a, ..v6() },
            rc_ack(O::WriteOnly),
            Ext::Reth(reth(0x1000, 0x223, 32)),
            pay(32, 0),
        ),
        ("v6_rc_ack", v6(), rc(O::Acknowledge), Ext::Aeth(aeth(ack, 1)), vec![]),
        ("cnp", v4(), Bth { becn: true, psn: Psn::new(0), ..bth(Opcode::CNP) }, Ext::None, vec![0; 16]),
    ]
}

#[test]
fn parses_scapy_frames() {
    let frames: Vec<_> = frames().collect();
    assert_eq!(frames.len(), expected_frames().len());
    for ((name, bytes), (expected_name, encap, bth, ext, payload)) in frames.iter().zip(expected_frames()) {
        assert_eq!(*name, expected_name);
        assert!(EtherFrame::parse(bytes).unwrap().is_roce(), "{name}");
        let expected = RoceFrame { encap, packet: Packet { bth, srqn: None, ext, payload: &payload } };
        assert_eq!(RoceFrame::parse(bytes), Ok(expected), "{name}");
    }
}

#[test]
fn emitted_frames_equal_scapy_frames() {
    for ((name, bytes), (_, encap, bth, ext, payload)) in frames().zip(expected_frames()) {
        // The writer must overwrite old contents of the buffer, but not the bytes before the frame.
        let mut out = vec![0xa5; 8192];
        out.truncate(3);
        let mut writer = FrameWriter::new(&mut out, &encap, &bth, &ext, payload.len());
        writer.extend(&payload);
        assert_eq!(writer.finish(), bytes.len(), "{name}");
        assert_eq!(out[..3], [0xa5; 3], "{name}");
        assert_eq!(out[3..], bytes, "{name}");
    }
}

#[test]
fn seal_adds_missing_icrc() {
    for ((name, bytes), (_, encap, bth, ext, payload)) in frames().zip(expected_frames()) {
        let mut out = Vec::new();
        let mut writer = FrameWriter::new(&mut out, &encap, &bth, &ext, payload.len());
        writer.extend(&payload);
        assert_eq!(writer.finish_with(Offload::Icrc), bytes.len(), "{name}");
        let expected = RoceFrame { encap, packet: Packet { bth, srqn: None, ext, payload: &payload } };
        assert_eq!(RoceFrame::parse_with(&out, Offload::Icrc), Ok(expected), "{name}");
        assert!(matches!(RoceFrame::parse(&out), Err(WireError::Icrc { .. })), "{name}");
        seal(&mut out).unwrap();
        assert_eq!(out, bytes, "{name}");
        seal(&mut out).unwrap();
        assert_eq!(out, bytes, "{name}: a complete frame must not change");
    }
}

/// Neither the UDP checksum (RFC 8200, section 8.1) nor the ICRC (IBTA annex A17) covers the flow label.
#[test]
fn flow_label_round_trips() {
    let mut bytes = frame("v6_rc_write_only");
    bytes[14..18].copy_from_slice(&[0x66, 0xaa, 0xbc, 0xde]);
    let RoceFrame { encap, packet: Packet { bth, ext, payload, .. } } = RoceFrame::parse(&bytes).unwrap();
    assert_eq!(encap, Encap { traffic_class: 0x6a, flow_label: FlowLabel::new(0xa_bcde), ..v6() });
    let mut out = Vec::new();
    let mut writer = FrameWriter::new(&mut out, &encap, &bth, &ext, payload.len());
    writer.extend(payload);
    writer.finish();
    assert_eq!(out, bytes);
}

/// IEEE 802.1Q-2018, section 9: a tag follows the addresses. No checksum covers the tag.
#[test]
fn vlan_tag_round_trips() {
    let tag = Tci::new().with_vid(5).with_priority(3);
    for (name, untagged) in ["v6_rc_write_only", "rc_send_only_empty"].map(|name| (name, frame(name))) {
        let mut bytes = untagged.clone();
        bytes.splice(12..12, [0x81, 0x00, 0x60, 0x05]);
        let RoceFrame { encap, packet: Packet { bth, ext, payload, .. } } = RoceFrame::parse(&bytes).unwrap();
        let without = RoceFrame::parse(&untagged).unwrap().encap;
        assert_eq!(encap, Encap { tag: Some(tag), ..without }, "{name}");
        let mut out = Vec::new();
        let mut writer = FrameWriter::new(&mut out, &encap, &bth, &ext, payload.len());
        writer.extend(payload);
        assert_eq!(writer.finish(), bytes.len(), "{name}");
        assert_eq!(out, bytes, "{name}");
        assert!(matches!(RoceFrame::parse(&bytes[..17]), Err(WireError::Short { .. })));
    }
}

#[test]
fn dropped_writer_truncates_buffer() {
    let mut out = vec![1, 2, 3];
    FrameWriter::new(&mut out, &v4(), &rc(O::SendOnly), &Ext::None, 100).extend(&[7; 100]);
    assert_eq!(out, [1, 2, 3]);
}

#[test]
fn ignores_ethernet_padding() {
    let mut bytes = frame("rc_send_only_empty");
    bytes.resize(64, 0xee);
    assert!(RoceFrame::parse(&bytes).unwrap().packet.payload.is_empty());
}

#[test]
fn rejects_truncated_frame_as_short() {
    for (name, bytes) in frames() {
        for len in 0..bytes.len() {
            let result = RoceFrame::parse(&bytes[..len]);
            assert!(matches!(result, Err(WireError::Short { .. })), "{name} cut to {len}: {result:?}");
        }
    }
}

#[test]
fn bit_flips_in_covered_fields_are_detected() {
    // No checksum covers the Ethernet addresses, or the traffic class, flow label and hop limit of IPv6. Without a UDP
    // checksum, FECN, BECN and the reserved bits of BTH byte 4 are not covered either.
    let cases: [(&str, &[usize]); 2] =
        [("rc_write_only", &[BTH + 4]), ("v6_rc_write_only", &[15, 16, 17, 21])];
    for (name, uncovered) in cases {
        let bytes = frame(name);
        for bit in 12 * 8..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let high_half_of_traffic_class = name.starts_with("v6") && (14 * 8..14 * 8 + 4).contains(&bit);
            if !uncovered.contains(&(bit / 8)) && !high_half_of_traffic_class {
                assert!(RoceFrame::parse(&bad).is_err(), "{name}: bit {bit}");
            }
        }
    }
}

/// Offset of the BTH in an IPv4 frame.
const BTH: usize = 14 + 20 + 8;

#[test]
fn icrc_ignores_fields_that_routers_change() {
    let mut bytes = frame("rc_write_only");
    // A router decrements the TTL, sets the ECN bits to congestion experienced, and adjusts the header checksum.
    bytes[14 + 8] -= 1;
    bytes[14 + 1] |= 3;
    let old = u16::from_be_bytes([bytes[24], bytes[25]]);
    bytes[24..26].copy_from_slice(&(old + 0x100 - 3).to_be_bytes());
    bytes[BTH + 4] |= 0x80;
    let parsed = RoceFrame::parse(&bytes).unwrap();
    assert_eq!((parsed.encap.hop_limit, parsed.encap.traffic_class), (63, 3));
    assert!(parsed.packet.bth.fecn);
}

#[test]
fn icrc_covers_ipv4_identification() {
    let mut bytes = frame("rc_ack");
    bytes[19] = 1;
    let old = u16::from_be_bytes([bytes[24], bytes[25]]);
    bytes[24..26].copy_from_slice(&(old - 1).to_be_bytes());
    assert!(matches!(RoceFrame::parse(&bytes), Err(WireError::Icrc { .. })));
}

#[test]
fn udp_checksum_is_checked_before_icrc() {
    let mut bytes = frame("rc_ack");
    bytes[40..42].copy_from_slice(&[0x12, 0x34]);
    assert_eq!(RoceFrame::parse(&bytes), Err(WireError::Checksum { what: "UDP" }));
}

#[test]
fn rejects_other_transport_versions() {
    let mut bytes = frame("rc_send_only_imm");
    let covered = bytes.len() - 4;
    bytes[BTH + 1] |= 1;
    let result = Packet::parse(&bytes[BTH..covered]);
    assert_eq!(result, Err(WireError::Invalid { what: "BTH TVer", value: 1 }));
}

#[test]
fn rejects_pad_longer_than_payload() {
    let mut bytes = frame("rc_ack");
    let covered = bytes.len() - 4;
    bytes[BTH + 1] |= 0x30;
    let result = Packet::parse(&bytes[BTH..covered]);
    assert_eq!(result, Err(WireError::Short { what: "pad", need: 3, have: 0 }));
}

#[test]
fn rejects_unaligned_payload() {
    let bytes = frame("rc_send_only_imm");
    let result = Packet::parse(&bytes[BTH..bytes.len() - 5]);
    assert_eq!(result, Err(WireError::Invalid { what: "padded payload length", value: 7 }));
}

#[test]
fn parses_congestion_notification_packet() {
    let bytes = frame("cnp");
    let opcode = RoceFrame::parse(&bytes).unwrap().packet.bth.opcode;
    assert_eq!(opcode, Opcode::CNP);
    assert_eq!(opcode, Opcode { transport: Transport::Other(4), operation: O::Reserved(1) });
}
