//! Frames are those of scapy wherever they come from outside.

use super::*;
use protocol::ids::Lid;

const NOW: Instant = Instant::ZERO;

/// LID 2: every frame of `protocol/tests/data/scapy_frames.txt` is for it.
fn port() -> Port {
    Port::new(Identity::from_lid(Lid::new(2)))
}

fn mac(lid: u16) -> MacAddr {
    MacAddr::from_lid(Lid::new(lid))
}

fn frame(hex: &str) -> Vec<u8> {
    let pairs = hex.as_bytes().as_chunks::<2>().0;
    pairs.iter().map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn roce(name: &str) -> Vec<u8> {
    let frames = include_str!("../../../../protocol/tests/data/scapy_frames.txt");
    frame(frames.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).unwrap())
}

/// Made by scapy 2.8.0: who has 10.77.0.2, tell 10.77.0.1 at 02:00:00:00:00:01.
fn arp_request() -> Vec<u8> {
    frame("ffffffffffff020000000001080600010800060400010200000000010a4d00010000000000000a4d0002")
}

/// Made by scapy 2.8.0: 10.77.0.2 is at 02:00:00:00:00:02, to 10.77.0.1.
fn arp_reply() -> Vec<u8> {
    frame("020000000001020000000002080600010800060400020200000000020a4d00020200000000010a4d0001")
}

/// Made by scapy 2.8.0: echo request from 10.77.0.1 to 10.77.0.2, identifier 4321h, sequence 7.
fn ping() -> Vec<u8> {
    frame(
        "02000000000202000000000108004500002512344000400114080a4d00010a4d00020800fa3043210007686361642070696e67",
    )
}

/// Made by scapy 2.8.0: the answer.
fn pong() -> Vec<u8> {
    frame(
        "020000000001020000000002080045000025000040004001263c0a4d00020a4d00010000023143210007686361642070696e67",
    )
}

/// Gives frames to the port, wants no RoCE packet, and returns the answers.
fn answers(port: &mut Port, frames: &[Vec<u8>]) -> Vec<(MacAddr, Vec<u8>)> {
    let mut out = TxBatch::default();
    for frame in frames {
        assert_eq!(port.receive(NOW, frame, &mut out), None);
    }
    out.iter().map(|(dst, frame)| (dst, frame.to_vec())).collect()
}

/// The reason for which a frame is dropped, without an answer.
fn drop_reason(frame: Vec<u8>) -> DropReason {
    let mut port = port();
    assert_eq!(answers(&mut port, &[frame]), []);
    let counted: Vec<_> =
        DropReason::ALL.into_iter().filter(|reason| port.stats().dropped(*reason) > 0).collect();
    assert_eq!(counted.len(), 1, "{counted:?}");
    assert_eq!(port.stats().roce + port.stats().arp + port.stats().echo, 0);
    counted[0]
}

#[test]
fn packets_for_a_qp_are_handed_on() {
    let mut port = port();
    let frame = roce("rc_write_only");
    let mut out = TxBatch::default();
    let packet = port.receive(NOW, &frame, &mut out).unwrap();
    assert_eq!(packet.packet.payload.len(), 5);
    assert_eq!((out.len(), port.stats().roce), (0, 1));
}

#[test]
fn arp_requests_for_our_address_are_answered_broadcast_or_not() {
    let mut unicast = arp_request();
    unicast[..6].copy_from_slice(&mac(2).0);
    let mut port = port();
    let expected = (mac(1), arp_reply());
    assert_eq!(answers(&mut port, &[arp_request(), unicast]), [expected.clone(), expected]);
    assert_eq!(port.stats().arp, 2);
}

#[test]
fn arp_for_others_is_not_answered() {
    let mut other = arp_request();
    other[41] = 3;
    assert_eq!(answers(&mut port(), &[other]), []);
}

#[test]
fn asker_becomes_a_neighbour() {
    let mut port = port();
    answers(&mut port, &[arp_request()]);
    let mut out = TxBatch::default();
    assert_eq!(port.resolve(NOW, Ipv4Addr::new(10, 77, 0, 1), &mut out), Some(mac(1)));
    assert!(out.is_empty());
}

#[test]
fn unknown_neighbours_are_asked_for_and_their_reply_is_taken() {
    let mut port = Port::new(Identity::from_lid(Lid::new(1)));
    let (mut out, ip) = (TxBatch::default(), Ipv4Addr::new(10, 77, 0, 2));
    assert_eq!(port.resolve(NOW, ip, &mut out), None);
    assert_eq!(port.resolve(NOW, ip, &mut out), None);
    assert_eq!(out.iter().collect::<Vec<_>>(), [(MacAddr::BROADCAST, arp_request().as_slice())]);
    assert_eq!(answers(&mut port, &[arp_reply()]), []);
    assert_eq!(port.resolve(NOW, ip, &mut out), Some(mac(2)));
}

#[test]
fn our_own_address_needs_no_neighbour() {
    let mut out = TxBatch::default();
    assert_eq!(port().resolve(NOW, Ipv4Addr::new(10, 77, 0, 2), &mut out), Some(mac(2)));
    assert!(out.is_empty());
}

#[test]
fn somebody_with_our_address_teaches_nothing() {
    let mut rival = arp_request();
    rival[28..32].copy_from_slice(&[10, 77, 0, 2]);
    assert_eq!(drop_reason(rival), DropReason::BadSource);
}

#[test]
fn probes_are_answered_and_not_learned() {
    let mut probe = arp_request();
    probe[28..32].fill(0);
    let mut port = port();
    assert_eq!(answers(&mut port, &[probe]).len(), 1);
    let mut out = TxBatch::default();
    assert_eq!(port.resolve(NOW, Ipv4Addr::UNSPECIFIED, &mut out), None);
}

#[test]
fn pings_are_answered() {
    let mut port = port();
    assert_eq!(answers(&mut port, &[ping()]), [(mac(1), pong())]);
    assert_eq!(port.stats().echo, 1);
}

#[test]
fn pings_padded_by_ethernet_are_answered_without_the_padding() {
    let mut padded = ping();
    padded.resize(60, 0xee);
    assert_eq!(answers(&mut port(), &[padded]), [(mac(1), pong())]);
}

#[test]
fn answers_wait_in_a_bounded_line() {
    let mut port = port();
    let frames: Vec<_> = std::iter::repeat_n(ping(), MAX_WAITING + 3).collect();
    assert_eq!(answers(&mut port, &frames).len(), MAX_WAITING);
    assert_eq!(port.stats().dropped(DropReason::NoRoom), 3);
}

#[test]
fn each_drop_has_its_reason() {
    let edit = |mut frame: Vec<u8>, at: usize, byte: u8| {
        frame[at] = byte;
        frame
    };
    let roce = || roce("rc_ack");
    let last = roce().len() - 1;
    for (reason, frame) in [
        (DropReason::OtherMac, edit(roce(), 5, 3)),
        (DropReason::OtherMac, [vec![0xff; 6], roce()[6..].to_vec()].concat()),
        (DropReason::OtherMac, [vec![0xff; 6], ping()[6..].to_vec()].concat()),
        (DropReason::BadSource, edit(roce(), 6, 3)),
        (DropReason::Protocol, edit(roce(), 12, 0x88)),
        (DropReason::Protocol, pong_to_us()),
        (DropReason::Short, roce()[..13].to_vec()),
        (DropReason::Short, roce()[..last].to_vec()),
        (DropReason::Invalid, edit(arp_request(), 15, 6)),
        (DropReason::Checksum, edit(ping(), 22, 63)),
        (DropReason::Checksum, edit(ping(), 50, 0)),
        (DropReason::Icrc, edit(roce(), last, 0)),
        (DropReason::OtherIp, port_3_over_ip_of_2()),
        (DropReason::OtherIp, self::roce("v6_rc_ack")),
    ] {
        assert_eq!(drop_reason(frame.clone()), reason, "{frame:02x?}");
    }
}

/// An echo reply that nobody asked for. Made by scapy 2.8.0: addresses and type of `ping` and `pong` exchanged.
fn pong_to_us() -> Vec<u8> {
    let mut frame = pong();
    frame[..12].copy_from_slice(&ping()[..12]);
    frame[26..34].copy_from_slice(&ping()[26..34]);
    frame
}

/// A ping to our MAC for another IP address; the checksum makes up for it.
fn port_3_over_ip_of_2() -> Vec<u8> {
    let mut frame = ping();
    frame[33] = 3;
    frame[25] -= 1;
    frame
}
