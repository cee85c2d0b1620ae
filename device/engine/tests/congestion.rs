//! Tests ECN marks, congestion notification packets and flow rates (IBTA annex A17, section A17.9).

use std::time::Duration;

use crate::common::*;
use engine::{Room, SendRequest, Service, State, TxOffloads};
use protocol::Psn;
use protocol::ids::Pkey;
use protocol::roce::{Bth, Deth, Encap, Ext, IpAddrs, Opcode, Operation, Packet, RoceFrame};

/// IP traffic class of marked packets (CE, 11b in RFC 3168).
const CE: u8 = 0b11;
const INTERVAL: Duration = Duration::from_micros(50);

fn of(service: Service) -> Pair {
    Pair::with(|_, attrs| attrs.service = service)
}

/// Delivers `frame` as if a congested switch had marked it.
fn deliver_marked(pair: &mut Pair, to: Node, frame: &[u8]) {
    let frame = RoceFrame::parse(frame).expect("engine frames are valid");
    let encap = Encap { traffic_class: frame.encap.traffic_class | CE, ..frame.encap };
    pair.deliver_packet(to, &encap, &frame.packet);
}

fn cnp(to: Node) -> Bth {
    Bth {
        opcode: Opcode::CNP,
        solicited: false,
        mig_req: false,
        pkey: Pkey::DEFAULT,
        fecn: false,
        becn: true,
        dest_qp: to.qpn(),
        ack_req: false,
        psn: Psn::new(0),
    }
}

fn notify(pair: &mut Pair, to: Node) {
    let packet = Packet { bth: cnp(to), srqn: None, ext: Ext::None, payload: &[0; 16] };
    pair.deliver_packet(to, &to.peer().path(), &packet);
}

fn bytes_in(pair: &mut Pair, node: Node, time: Duration) -> usize {
    let end = pair.now + time;
    let mut bytes = 0;
    while pair.now < end {
        let frames = pair.frames(node);
        bytes += frames.iter().map(Vec::len).sum::<usize>();
        for frame in frames {
            pair.deliver(node.peer(), &frame);
        }
        for frame in pair.frames(node.peer()) {
            pair.deliver(node, &frame);
        }
        pair.advance(Duration::from_micros(1));
    }
    bytes
}

#[test]
fn connected_qp_packets_use_ect_and_keep_dscp() {
    for (service, given, sent) in [
        (Service::Rc, 0x00, 0x02),
        (Service::Rc, 0xb8, 0xba),
        (Service::Uc, 0x61, 0x62),
        // Datagrams are not rate-limited, so they are not marked ECN-capable.
        (Service::Ud, 0xb8, 0xb8),
    ] {
        let mut pair = Pair::with(|_, attrs| (attrs.service, attrs.path.traffic_class) = (service, given));
        let path = Encap { traffic_class: given, ..A.path() };
        let ud =
            engine::UdDestination { path, qpn: B.qpn(), qkey: protocol::ids::Qkey::new(1), header: None };
        pair.post(A, SendRequest { ud: Some(ud), ..send(1, 10) });
        let frame = pair.frames(A).remove(0);
        assert_eq!(RoceFrame::parse(&frame).unwrap().encap.traffic_class, sent, "{service:?}");
    }
}

/// All bytes of the CNP, except for the QP number, match the CNPs that hardware adapters send (annex A17, section
/// A17.9.3).
#[test]
fn marked_data_triggers_cnp_to_sender() {
    for service in [Service::Rc, Service::Uc] {
        let mut pair = Pair::with(|_, attrs| {
            (attrs.service, attrs.path.traffic_class) = (service, 0xb8);
        });
        pair.post_recv(B, 1, 0x8000, 100);
        pair.post(A, send(1, 10));
        let frame = pair.frames(A).remove(0);
        deliver_marked(&mut pair, B, &frame);
        let answer = pair.frames(B).remove(0);
        let parsed = RoceFrame::parse(&answer).unwrap();
        assert_eq!(
            parsed.encap,
            Encap { traffic_class: 0xb8, ..B.path() },
            "the CNP itself must not be ECN-capable"
        );
        let expected = [0x81, 0x00, 0xff, 0xff, 0x40, 0x00, 0x00, 0x10, 0, 0, 0, 0];
        assert_eq!(answer[42..54], expected);
        assert_eq!(answer[54..70], [0; 16]);
        assert_eq!(answer.len(), 74);
        let stats = pair.b.engine.stats().congestion;
        assert_eq!((stats.received_marked, stats.sent_cnps), (1, 1));
        assert_eq!(pair.b.recvs(), ok([1]), "the data of a marked packet must be delivered");
    }
}

#[test]
fn flow_receives_one_cnp_per_interval() {
    let mut pair = Pair::new();
    let mut sent = 0;
    for n in 0..100 {
        pair.post(A, write(n, 0x8000, 10));
        let frame = pair.frames(A).remove(0);
        deliver_marked(&mut pair, B, &frame);
        for frame in pair.frames(B) {
            sent += usize::from(describe(&frame) == "Cnp");
            // Deliver only the ACKs, because CNPs would slow the flow down too much for this test.
            if describe(&frame) != "Cnp" {
                pair.deliver(A, &frame);
            }
        }
        pair.advance(INTERVAL / 10);
    }
    assert_eq!(sent, 10);
}

#[test]
fn marked_read_response_triggers_cnp() {
    let mut pair = Pair::new();
    pair.post(A, read(1, 0x8000, 10));
    let request = pair.frames(A).remove(0);
    pair.deliver(B, &request);
    let response = pair.frames(B).remove(0);
    deliver_marked(&mut pair, A, &response);
    assert_eq!(pair.flow(), ["A Cnp"]);
    assert_eq!(pair.b.engine.stats().congestion.received_cnps, 1);
}

#[test]
fn cnp_is_not_triggered_by_acks_datagrams_or_drops() {
    // An acknowledgement carries no data and does not trigger a CNP, even if it is marked.
    let mut pair = Pair::new();
    pair.post(A, write(1, 0x8000, 10));
    let frame = pair.frames(A).remove(0);
    pair.deliver(B, &frame);
    let ack = pair.frames(B).remove(0);
    deliver_marked(&mut pair, A, &ack);
    assert_eq!(pair.flow(), [""; 0]);
    // Datagrams are not rate-limited, so a marked datagram does not trigger a CNP.
    let mut pair = of(Service::Ud);
    let deth = Ext::Deth(Deth { qkey: protocol::ids::Qkey::new(0x1111_1111), src_qp: A.qpn() });
    let bth = Bth { opcode: Opcode::ud(Operation::SendOnly), becn: false, ..cnp(B) };
    let encap = Encap { traffic_class: CE, ..A.path() };
    pair.deliver_packet(B, &encap, &Packet { bth, srqn: None, ext: deth, payload: b"data" });
    assert_eq!(pair.flow(), [""; 0]);
    assert_eq!(pair.b.engine.stats().congestion.received_marked, 1);
    // Dropped packets do not trigger notifications.
    let mut pair = Pair::new();
    let bth = Bth { opcode: Opcode::rc(Operation::SendOnly), pkey: Pkey::new(0x8001), ..cnp(B) };
    pair.deliver_packet(B, &encap, &Packet { bth, srqn: None, ext: Ext::None, payload: b"data" });
    assert_eq!(pair.flow(), [""; 0]);
}

#[test]
fn cnp_reduces_rate_and_rate_recovers_afterwards() {
    for service in [Service::Rc, Service::Uc] {
        let mut pair = Pair::with(|_, attrs| {
            (attrs.service, attrs.mtu) = (service, engine::Mtu::Mtu4096);
        });
        for n in 0..400 {
            pair.a.host.post_send(A.qpn(), write(n, 0, 65536));
        }
        // The rate is about 1.5 GB/s after one notification and 100 MB/s after several; see `Pace`.
        for _ in 0..5 {
            notify(&mut pair, A);
        }
        assert_eq!(pair.a.engine.stats().congestion.received_cnps, 5);
        let now = pair.now;
        let side = pair.side(A);
        side.engine.notify_send(now, A.qpn(), &mut side.host);
        let slow = bytes_in(&mut pair, A, Duration::from_micros(500));
        assert!((10_000..250_000).contains(&slow), "{service:?}: {slow} bytes in 500 us");
        // After a second, the limit has expired.
        pair.advance(Duration::from_secs(1));
        let unlimited = bytes_in(&mut pair, A, Duration::from_micros(500));
        assert!(unlimited > 20 * slow, "{service:?}: {unlimited} bytes after recovery, {slow} bytes before");
    }
}

/// The rate limit counts the whole frame, whether the engine copies its payload or only refers to it.
#[test]
fn detached_payload_counts_towards_rate() {
    let frame_count = |detaches: bool| {
        let mut pair = Pair::with(|_, attrs| attrs.mtu = engine::Mtu::Mtu4096);
        pair.a.engine.set_offloads(TxOffloads::Segmentation);
        for _ in 0..8 {
            notify(&mut pair, A);
        }
        pair.post(A, write(1, 0, 65536));
        let (now, Side { engine, host, .. }) = (pair.now, &mut pair.a);
        let poll = || {
            let mut ranges = Vec::new();
            engine.poll_burst(now, host, &mut Vec::new(), detaches.then_some(&mut ranges), Room::ONE_FRAME)
        };
        let frames: Vec<_> = std::iter::from_fn(poll).collect();
        assert!(frames.iter().all(|frame| frame.detached.is_some() == detaches));
        frames.len()
    };
    assert!(frame_count(false) < 16, "the pause interrupts the message");
    assert_eq!(frame_count(true), frame_count(false));
}

#[test]
fn cnp_slows_read_responses_but_not_acks() {
    let mut pair = Pair::with(|_, attrs| attrs.mtu = engine::Mtu::Mtu4096);
    for _ in 0..8 {
        notify(&mut pair, B);
    }
    pair.post(A, read(1, 0, 65536));
    pair.post(A, read(2, 0, 65536));
    let requests = pair.frames(A);
    requests.iter().for_each(|frame| pair.deliver(B, frame));
    let burst = pair.frames(B).len();
    assert!(burst < 32, "a burst of {burst} packets is too long");
    assert_eq!(pair.frames(B).len(), 0);
    let until = pair.b.engine.poll_timeout().expect("the pause ends");
    assert!(until > pair.now);

    // A reply without data (here, the NAK for a SEND) is sent immediately, even during a pause.
    let mut pair = Pair::with(|_, attrs| attrs.mtu = engine::Mtu::Mtu4096);
    for _ in 0..8 {
        notify(&mut pair, B);
    }
    pair.post(B, write(1, 0, 65536));
    let burst = pair.frames(B).len();
    assert!(burst < 16, "a burst of {burst} packets is too long");
    pair.inject(B, Operation::SendOnly, psn_a().advance(3), Ext::None, b"");
    assert_eq!(pair.frames(B).len(), 1);
}

/// Even at the minimum rate, two pauses must be shorter than 1 ms, because the peer may use 1 ms as its ACK timeout.
#[test]
fn queued_reply_waits_at_most_two_pauses() {
    let mut pair = Pair::with(|_, attrs| attrs.mtu = engine::Mtu::Mtu4096);
    for _ in 0..100 {
        notify(&mut pair, B);
        pair.advance(INTERVAL);
    }
    for n in 0..8 {
        pair.post(B, write(n, 0, 65536));
    }
    pair.frames(B);
    pair.post(A, read(9, 0, 10));
    let request = pair.frames(A).remove(0);
    pair.deliver(B, &request);
    let asked_at = pair.now;
    while !pair.frames(B).iter().any(|frame| describe(frame).starts_with("ReadResponse")) {
        let until = pair.b.engine.poll_timeout().expect("the pause ends");
        pair.advance(until.saturating_since(pair.now));
        assert!(
            pair.now <= asked_at + Duration::from_micros(800),
            "the reply must be sent within two pauses"
        );
    }
}

#[test]
fn invalid_cnp_is_ignored() {
    let mut pair = Pair::new();
    let with = |pair: &mut Pair, bth: Bth, encap: Encap| {
        pair.deliver_packet(A, &encap, &Packet { bth, srqn: None, ext: Ext::None, payload: &[0; 16] });
    };
    let stranger = IpAddrs::V4 { src: [10, 77, 0, 9].into(), dst: [10, 77, 0, 1].into() };
    with(&mut pair, cnp(A), Encap { ip: stranger, ..B.path() });
    with(&mut pair, Bth { pkey: Pkey::new(0x8001), ..cnp(A) }, B.path());
    pair.modify(A, State::Err);
    with(&mut pair, cnp(A), B.path());
    let stats = pair.a.engine.stats();
    assert_eq!(stats.congestion.received_cnps, 0);
    assert_eq!((stats.drops.wrong_source, stats.drops.wrong_pkey, stats.drops.wrong_state), (1, 1, 1));
}
