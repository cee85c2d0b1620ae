//! Tests frames that carry several packets (segmentation offload).
#![allow(clippy::unwrap_used, reason = "test code")]

use crate::common::*;
use engine::*;
use protocol::roce::*;

/// A frame from the engine, and the offload that it still needs.
type Sent = (Vec<u8>, Offload);

/// Creates a pair with segmentation offload enabled on both engines.
fn pair_with(tune: impl Fn(Node, &mut QpAttrs)) -> Pair {
    let mut pair = Pair::with(tune);
    pair.a.engine.set_offloads(TxOffloads::Segmentation);
    pair.b.engine.set_offloads(TxOffloads::Segmentation);
    pair
}

fn pair() -> Pair {
    pair_with(|_, _| {})
}

fn sent(pair: &mut Pair, node: Node) -> Vec<Sent> {
    let now = pair.now;
    let side = pair.side(node);
    let mut frames = Vec::new();
    loop {
        side.collect();
        let mut frame = Vec::new();
        let Some(transmit) = side.engine.poll_transmit(now, &mut side.host, &mut frame) else {
            return frames;
        };
        let packet = RoceFrame::parse_with(&frame, transmit.offload).unwrap().packet;
        let packets = match transmit.offload {
            Offload::Segmentation(mtu) => packet.segment_count(mtu),
            Offload::None | Offload::Icrc => 1,
        };
        assert_eq!((transmit.len, transmit.packets), (frame.len(), packets));
        frames.push((frame, transmit.offload));
    }
}

fn deliver(pair: &mut Pair, node: Node, (frame, offload): &Sent) {
    let RoceFrame { encap, packet } = RoceFrame::parse_with(frame, *offload).unwrap();
    let now = pair.now;
    let side = pair.side(node);
    match *offload {
        Offload::Segmentation(mtu) => {
            side.engine.handle_segments(now, &encap, &packet.convert(), mtu, &mut side.host);
        }
        Offload::None | Offload::Icrc => {
            side.engine.handle_packet(now, &encap, &packet.convert(), &mut side.host)
        }
    }
    side.collect();
}

/// Exchanges frames without loss and returns the payload length of each.
fn exchange(pair: &mut Pair) -> Vec<(Node, usize)> {
    let mut lengths = Vec::new();
    loop {
        let before = lengths.len();
        for node in [A, B] {
            for frame in sent(pair, node) {
                lengths.push((node, RoceFrame::parse_with(&frame.0, frame.1).unwrap().packet.payload.len()));
                deliver(pair, node.peer(), &frame);
            }
        }
        if lengths.len() == before {
            return lengths;
        }
    }
}

#[test]
fn frame_carries_up_to_32_kib() {
    let mut pair = pair();
    pair.post(A, write(1, 0, 40_000));
    assert_eq!(exchange(&mut pair), [(A, 32 << 10), (A, 40_000 - (32 << 10)), (B, 0)]);
    assert_eq!(pair.a.sends(), ok([1]));
    assert_eq!(pair.snapshot(B).recv_psn, psn_a().advance(40_000_u32.div_ceil(256)));
    assert_eq!(pair.bytes(B, 0, 40_000), pair.bytes(A, 0, 40_000));
}

/// Posts messages of every kind that can be segmented.
fn post_all(pair: &mut Pair) {
    (0..3).for_each(|wr_id| pair.post_recv(B, wr_id, 0x8000, 3000));
    pair.post(A, send(1, 3000));
    pair.post(A, request(2, SendOp::Send { imm: Some(Imm([1; 4])) }, &[sge(1, 512)]));
    pair.post(A, write(3, 0xa000, 1000));
    let imm = Some(Imm([2; 4]));
    pair.post(A, request(4, SendOp::Write { remote: remote(0xb000), imm }, &[sge(0, 257)]));
    pair.post(A, read(5, 0xc000, 2049));
    pair.post(A, send(6, 0));
}

/// Once the detached payload has been inserted, each frame is the same as with copied payload.
#[test]
fn detached_and_copied_payload_yield_same_frames() {
    let [mut copied, mut other] = [(); 2].map(|()| pair());
    post_all(&mut copied);
    post_all(&mut other);
    let now = other.now;
    let mut detached_lengths = Vec::new();
    for node in [A, B, A, B] {
        let frames = sent(&mut copied, node);
        for frame in &frames {
            let side = other.side(node);
            let (mut bytes, mut ranges) = (Vec::new(), Vec::new());
            let detached = Some(&mut ranges);
            let transmit =
                side.engine.poll_burst(now, &mut side.host, &mut bytes, detached, Room::ONE_FRAME).unwrap();
            assert_eq!(transmit.len, bytes.len());
            if let Some(payload) = transmit.detached {
                detached_lengths.push(payload.len.get());
                side.host.insert(&mut bytes, payload, &ranges);
            }
            side.collect();
            assert_eq!((bytes, transmit.offload), *frame);
        }
        for frame in &frames {
            deliver(&mut copied, node.peer(), frame);
            deliver(&mut other, node.peer(), frame);
        }
    }
    assert_eq!(detached_lengths, [3000, 2049], "shorter payloads are copied");
    assert_eq!(copied.a.engine.stats(), other.a.engine.stats());
}

/// If the memory cannot be accessed, no frame is built.
#[test]
fn inaccessible_payload_is_not_detached() {
    let mut pair = pair();
    pair.post(A, request(1, SendOp::Send { imm: None }, &[sge(0, 2000), sge(1 << 40, 2000)]));
    let (now, side) = (pair.now, &mut pair.a);
    let (mut bytes, mut ranges) = (Vec::new(), Vec::new());
    let detached = Some(&mut ranges);
    let frame = side.engine.poll_burst(now, &mut side.host, &mut bytes, detached, Room::ONE_FRAME);
    assert_eq!((frame, bytes.len(), ranges.len()), (None, 0, 0));
    side.collect();
    assert_eq!(pair.a.sends(), [(1, Err(Status::LocalProtection(AccessError::Bounds)))]);
}

/// Events, counters and memory contents are the same with and without the offload.
#[test]
fn offload_changes_neither_results_nor_counters() {
    let [plain, divided] = [TxOffloads::None, TxOffloads::Segmentation].map(|offloads| {
        let mut pair = Pair::new();
        pair.a.engine.set_offloads(offloads);
        pair.b.engine.set_offloads(offloads);
        post_all(&mut pair);
        exchange(&mut pair);
        pair
    });
    for (mut one, mut other) in [(plain.a, divided.a), (plain.b, divided.b)] {
        assert_eq!(one.events, other.events);
        assert_eq!(one.engine.stats(), other.engine.stats());
        assert_eq!(one.host.bytes(KEY), other.host.bytes(KEY));
    }
}

#[test]
fn uc_frame_carries_several_packets() {
    let mut pair = pair_with(|_, attrs| attrs.service = Service::Uc);
    pair.post_recv(B, 7, 0x8000, 3000);
    pair.post(A, send(1, 3000));
    assert_eq!(exchange(&mut pair), [(A, 3000)]);
    assert_eq!(pair.b.recvs(), ok([7]));
    assert_eq!(pair.bytes(B, 0x8000, 3000), pair.bytes(A, 0, 3000));
}

/// If only some packets of a frame arrive, the retransmitted frame overlaps them.
#[test]
fn only_missing_packets_of_overlapping_frame_are_executed() {
    let mut pair = pair();
    pair.post_recv(B, 7, 0x8000, 1024);
    pair.post(A, send(1, 1024));
    let frames = sent(&mut pair, A);
    let [(frame, Offload::Segmentation(mtu))] = frames.as_slice() else { panic!("{frames:?}") };
    let RoceFrame { encap, packet } = RoceFrame::parse_with(frame, Offload::Segmentation(*mtu)).unwrap();
    for segment in packet.segments(*mtu).take(2) {
        pair.deliver_packet(B, &encap, &segment);
    }
    deliver(&mut pair, B, &frames[0]);
    assert_eq!(pair.b.recvs(), ok([7]));
    assert_eq!(pair.b.engine.stats().recovery.duplicates, 2);
    assert_eq!(pair.snapshot(B).recv_psn, psn_a().advance(4));
    assert_eq!(pair.bytes(B, 0x8000, 1024), pair.bytes(A, 0, 1024));
}

/// IBTA 9.7.5.2: after an RNR NAK, the whole message is retransmitted.
#[test]
fn frame_is_retransmitted_in_full_after_rnr_nak() {
    let mut pair = pair();
    pair.post(A, send(1, 1000));
    exchange(&mut pair);
    assert_eq!(pair.a.engine.stats().naks_received.rnr, 1);
    pair.post_recv(B, 7, 0x8000, 1000);
    pair.advance(RnrTimer::new(12).duration());
    assert_eq!(exchange(&mut pair), [(A, 1000), (B, 0)]);
    assert_eq!((pair.a.sends(), pair.b.recvs()), (ok([1]), ok([7])));
    assert_eq!(pair.a.engine.stats().recovery.retransmitted_packets, 4);
}

/// IBTA 9.7.7.2: once the credits are used up, only a single packet may be outstanding, as a probe. The probe is the
/// packet that needs a new receive request. Here, that is the first packet of the message.
#[test]
fn probe_for_credits_is_sent_alone() {
    let mut pair = pair();
    pair.b.host.counts_receives = true;
    pair.post_recv(B, 7, 0x8000, 1000);
    pair.post(A, send(1, 1000));
    exchange(&mut pair);
    pair.post_recv(B, 8, 0x8000, 1000);
    pair.post(A, send(2, 1000));
    assert_eq!(exchange(&mut pair), [(A, 256), (B, 0), (A, 1000 - 256), (B, 0)]);
    assert_eq!(pair.b.recvs(), ok([7, 8]));
}

/// A frame to a peer whose MAC is not resolved yet may have to wait in wire format, so it carries one packet.
#[test]
fn unresolved_peer_gets_one_packet_per_frame() {
    let mut pair = pair_with(|_, attrs| attrs.path.dst_mac = protocol::ids::MacAddr::default());
    pair.post(A, write(1, 0, 1000));
    assert_eq!(sent(&mut pair, A).len(), 4);
}

#[test]
fn packets_with_wrong_mtu_are_rejected() {
    let mut pair = pair();
    pair.post(A, write(1, 0, 1024));
    let frames = sent(&mut pair, A);
    let frame = (frames[0].0.clone(), Offload::Segmentation(Mtu::Mtu512));
    deliver(&mut pair, B, &frame);
    assert_eq!(pair.b.asyncs, [AsyncEvent::InvalidRequest]);
}

#[test]
fn window_limits_packets_per_frame() {
    let mut pair = Pair::with_window(16);
    pair.a.engine.set_offloads(TxOffloads::Segmentation);
    pair.post(A, write(1, 0, 40 * 256));
    // The last packet within the window has the AckReq bit set.
    let frames = [(A, 16 * 256), (B, 0), (A, 16 * 256), (B, 0), (A, 8 * 256), (B, 0)];
    assert_eq!(exchange(&mut pair), frames);
    assert_eq!(pair.a.sends(), ok([1]));
}

#[test]
fn read_response_carries_up_to_32_kib() {
    let mut pair = pair();
    pair.post(A, read(1, 0, 50_000));
    assert_eq!(exchange(&mut pair), [(A, 0), (B, 32 << 10), (B, 50_000 - (32 << 10))]);
    assert_eq!(pair.a.sends(), ok([1]));
    assert_eq!(pair.bytes(A, 0, 50_000), pair.bytes(B, 0, 50_000));
}

/// If a retransmission starts in the middle of an earlier frame, its first frame ends where the earlier frame ended.
#[test]
fn retransmitted_frame_ends_at_same_packet() {
    let mut pair = pair();
    pair.post(A, write(1, 0, 34_000));
    let frames = sent(&mut pair, A);
    let (frame, offload) = &frames[0];
    let RoceFrame { encap, packet } = RoceFrame::parse_with(frame, *offload).unwrap();
    for segment in packet.segments(Mtu::Mtu256).take(8) {
        pair.deliver_packet(B, &encap, &segment);
    }
    // The second frame arrives after a gap, so B requests the rest of the first one.
    deliver(&mut pair, B, &frames[1]);
    let rest = (32 << 10) - 8 * 256;
    assert_eq!(exchange(&mut pair), [(B, 0), (A, rest), (A, 34_000 - (32 << 10)), (B, 0)]);
    assert_eq!(pair.a.sends(), ok([1]));
    assert_eq!(pair.bytes(B, 0, 34_000), pair.bytes(A, 0, 34_000));
}

/// Packets that a QP does not accept are dropped and counted one by one, as if each had arrived in its own frame.
#[test]
fn packets_from_other_source_are_dropped_individually() {
    let mut pair = pair();
    pair.post(A, write(1, 0, 1000));
    let frames = sent(&mut pair, A);
    let (frame, Offload::Segmentation(mtu)) = &frames[0] else { panic!("{frames:?}") };
    let RoceFrame { mut encap, packet } = RoceFrame::parse_with(frame, Offload::Segmentation(*mtu)).unwrap();
    encap.ip = IpAddrs::V4 { src: [10, 77, 0, 9].into(), dst: [10, 77, 0, 2].into() };
    let now = pair.now;
    pair.b.engine.handle_segments(now, &encap, &packet.convert(), *mtu, &mut pair.b.host);
    let stats = pair.b.engine.stats();
    assert_eq!((stats.received_packets, stats.received_ip.v4.discarded), (4, 4));
    assert_eq!(stats.drops.of(DropReason::WrongSource), 4);
}

/// The pause after a frame grows with the frame's length, so a congested connection sends single packets.
#[test]
fn congested_connection_sends_one_packet_per_frame() {
    let mut pair = pair();
    let cnp = Bth {
        opcode: Opcode::CNP,
        solicited: false,
        mig_req: true,
        pkey: protocol::ids::Pkey::DEFAULT,
        fecn: false,
        becn: true,
        dest_qp: A.qpn(),
        ack_req: false,
        psn: protocol::Psn::default(),
    };
    let packet = Packet { bth: cnp, srqn: None, ext: Ext::None, payload: &[0; 16] };
    pair.deliver_packet(A, &B.path(), &packet);
    pair.post(A, write(1, 0, 1000));
    assert_eq!(sent(&mut pair, A).len(), 4);
}
