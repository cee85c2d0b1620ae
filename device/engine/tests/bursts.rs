//! Tests bursts: several frames of one call.
#![allow(clippy::unwrap_used, reason = "test code")]

use crate::common::*;
use engine::*;
use protocol::Psn;
use protocol::ids::*;
use protocol::net::layers::Tci;
use protocol::roce::*;

/// Frames of a node, in order, and the number of calls that returned them.
struct Sent {
    frames: Vec<Vec<u8>>,
    calls: usize,
}

/// Collects the frames that `node` can send now. Each call has room for `room`.
fn sent(pair: &mut Pair, node: Node, room: Room) -> Sent {
    let now = pair.now;
    let side = pair.side(node);
    let mut sent = Sent { frames: Vec::new(), calls: 0 };
    loop {
        let mut bytes = Vec::new();
        let burst = side.engine.poll_burst(now, &mut side.host, &mut bytes, None, room);
        side.collect();
        let Some(burst) = burst else { return sent };
        assert_eq!(bytes.len(), burst.frames as usize * burst.len);
        sent.frames.extend(bytes.chunks_exact(burst.len).map(<[u8]>::to_vec));
        sent.calls += 1;
    }
}

const PLENTY: Room = Room { frames: 100, bytes: 1 << 20 };

fn inline(wr_id: u64, byte: u8, len: usize) -> SendRequest {
    let payload = Payload::Inline(std::iter::repeat_n(byte, len).collect());
    SendRequest { payload, ..send(wr_id, 0) }
}

/// Posts 14 requests of different kinds, each twice in a row.
fn post_all(pair: &mut Pair) {
    (0..20).for_each(|wr_id| pair.post_recv(B, wr_id, 0x8000, 3000));
    let imm = Some(Imm([7; 4]));
    let solicited = SendRequest { solicited: true, ..send(3, 64) };
    let fenced = SendRequest { fence: Fence::Reads, ..send(4, 64) };
    let requests = [
        send(1, 64),
        inline(2, 0x5a, 64),
        solicited,
        fenced,
        send(5, 65),
        send(6, 0),
        write(7, 0xa000, 65),
        request(8, SendOp::Write { remote: remote(0xb000), imm }, &[sge(0, 64)]),
        request(9, SendOp::Send { imm }, &[sge(1, 30), sge(7, 34)]),
        send(10, 300),
        read(11, 0xc000, 64),
        request(12, SendOp::Nop, &[]),
        request(13, SendOp::SendInvalidate { rkey: Rkey::new(KEY + 9) }, &[sge(0, 64)]),
        send(14, 64),
    ];
    for wr in requests {
        pair.post(A, wr.clone());
        pair.post(A, wr);
    }
}

fn tuned(tune: impl Fn(&mut QpAttrs)) -> Pair {
    Pair::with(|_, attrs| tune(attrs))
}

/// Checks that bursts contain the frames that calls with room for one frame return.
fn check_frames(make: impl Fn() -> Pair) {
    for offloads in [TxOffloads::None, TxOffloads::Icrc, TxOffloads::Segmentation] {
        let [mut single, mut burst] = [(); 2].map(|()| make());
        for pair in [&mut single, &mut burst] {
            pair.a.engine.set_offloads(offloads);
            post_all(pair);
        }
        let expected = sent(&mut single, A, Room::ONE_FRAME);
        let found = sent(&mut burst, A, PLENTY);
        assert_eq!(found.frames, expected.frames, "{offloads:?}");
        assert!(found.calls < expected.calls, "{offloads:?}");
        assert_eq!(burst.a.engine.stats(), single.a.engine.stats());
        assert_eq!(burst.a.events, single.a.events);
        assert_eq!(burst.snapshot(A), single.snapshot(A));
        assert_eq!(burst.a.engine.poll_timeout(), single.a.engine.poll_timeout());
    }
}

#[test]
fn burst_equals_single_frames() {
    check_frames(Pair::new);
}

/// The UDP checksum, which IPv6 requires, differs between the frames of a burst.
#[test]
fn burst_over_ipv6_equals_single_frames() {
    check_frames(|| {
        tuned(|attrs| {
            let [src, dst] = [1, 2].map(|last| [0xfe80, 0, 0, 0, 0, 0, 0, last].into());
            attrs.path.ip = IpAddrs::V6 { src, dst };
        })
    });
}

#[test]
fn burst_on_vlan_equals_single_frames() {
    check_frames(|| tuned(|attrs| attrs.path.tag = Some(Tci::from_bits(5))));
}

#[test]
fn burst_ends_at_window() {
    check_frames(|| Pair::with_window(9));
}

#[test]
fn burst_ends_at_psn_wraparound_like_single_frames() {
    check_frames(|| Pair::with_psns(Psn::new(0xff_fffe), psn_b()));
}

#[test]
fn burst_stops_when_room_is_used_up() {
    let mut pair = Pair::new();
    (0..70).for_each(|wr_id| pair.post(A, send(wr_id, 64)));
    let (now, side) = (pair.now, &mut pair.a);
    let mut bytes = Vec::new();
    let mut frames = |room| {
        let burst = side.engine.poll_burst(now, &mut side.host, &mut bytes, None, room);
        burst.map(|burst| (burst.frames, burst.packets, burst.octets, burst.wr_id))
    };
    // Each packet consists of a BTH, 64 bytes of payload and an ICRC.
    assert_eq!(frames(Room { frames: 3, ..PLENTY }), Some((3, 3, 3 * 80, Some(0))));
    assert_eq!(frames(Room { bytes: 200, ..PLENTY }), Some((2, 2, 2 * 80, Some(3))));
    assert_eq!(frames(PLENTY), Some((27, 27, 27 * 80, Some(5))), "a turn consists of 32 packets");
    assert_eq!(frames(PLENTY), Some((32, 32, 32 * 80, Some(32))));
    assert_eq!(frames(PLENTY), Some((6, 6, 6 * 80, Some(64))));
    assert_eq!(frames(PLENTY), None);
}

/// A request whose payload cannot be read fails after the requests before it have completed.
#[test]
fn burst_ends_before_inaccessible_payload() {
    let mut pair = Pair::new();
    (0..4).for_each(|wr_id| pair.post_recv(B, wr_id, 0x8000, 3000));
    (1..3).for_each(|wr_id| pair.post(A, send(wr_id, 64)));
    pair.post(A, request(3, SendOp::Send { imm: None }, &[sge(1 << 40, 64)]));
    pair.post(A, send(4, 64));
    let Sent { frames, calls } = sent(&mut pair, A, PLENTY);
    assert_eq!((frames.len(), calls), (2, 1));
    frames.iter().for_each(|frame| pair.deliver(B, frame));
    pair.flow();
    let failed = Err(Status::LocalProtection(AccessError::Bounds));
    let results = [(1, Ok(())), (2, Ok(())), (3, failed), (4, Err(Status::Flushed))];
    assert_eq!(pair.a.sends(), results);
}

#[test]
fn burst_precedes_error_of_unreadable_queue() {
    let mut pair = Pair::new();
    (1..4).for_each(|wr_id| pair.post(A, send(wr_id, 64)));
    pair.a.host.queues.get_mut(&A.qpn().get()).unwrap().send.push_back(Fetch::Broken);
    let Sent { frames, calls } = sent(&mut pair, A, PLENTY);
    assert_eq!((frames.len(), calls), (3, 1));
    assert_eq!(pair.a.asyncs, [AsyncEvent::WqCatastrophic]);
    assert_eq!(pair.snapshot(A).state, State::Err);
}
