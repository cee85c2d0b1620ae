//! Tests bursts: several frames appended by one call of `Engine::poll_burst`.
#![allow(clippy::unwrap_used, reason = "test code")]

use std::cell::RefCell;
use std::time::Duration;

use crate::common::*;
use engine::*;
use protocol::Psn;
use protocol::ids::*;
use protocol::net::layers::Tci;
use protocol::roce::*;
use sim::host::{RegionRange, SimHost};

/// Frames of a node, in order, and the number of calls that returned them.
struct Sent {
    frames: Vec<Vec<u8>>,
    calls: usize,
}

/// Collects the frames that `node` can send now. `room` limits each call.
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

/// Checks that bursts contain the same frames as calls with room for one frame, and have the same effects.
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
fn burst_across_psn_wraparound_equals_single_frames() {
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

/// Records the requests that the engine fetches and the payload that it reads, in order.
struct LoggedHost<'a> {
    host: &'a mut SimHost,
    log: RefCell<Vec<String>>,
}

impl Host for LoggedHost<'_> {
    type Range = RegionRange;

    fn next_send(&mut self, qpn: Qpn) -> Fetch<SendRequest> {
        let fetch = self.host.next_send(qpn);
        self.log.borrow_mut().push(format!("{qpn:?} {fetch:?}"));
        fetch
    }

    fn next_recv(&mut self, source: RecvSource) -> Fetch<RecvRequest> {
        self.host.next_recv(source)
    }

    fn check(
        &self,
        initiator: Initiator,
        key: Lkey,
        va: Va,
        len: u64,
        access: engine::Access,
    ) -> Result<(), AccessError> {
        self.host.check(initiator, key, va, len, access)
    }

    fn read(
        &self,
        initiator: Initiator,
        key: Lkey,
        va: Va,
        len: usize,
        out: &mut Vec<u8>,
        access: engine::Access,
    ) -> Result<(), AccessError> {
        self.log.borrow_mut().push(format!("{:?} reads {len} bytes at {va:?}", initiator.qpn));
        self.host.read(initiator, key, va, len, out, access)
    }

    fn write(
        &mut self,
        initiator: Initiator,
        key: Lkey,
        va: Va,
        data: PayloadRef<'_>,
        access: engine::Access,
    ) -> Result<(), AccessError> {
        self.host.write(initiator, key, va, data, access)
    }

    fn atomic(&mut self, initiator: Initiator, key: Lkey, va: Va, op: AtomicOp) -> Result<u64, AccessError> {
        self.host.atomic(initiator, key, va, op)
    }
}

/// Polls A for up to `quota` frames, at most `most` per call. Returns the frames with their QPs, and a log of the
/// fetched requests and payload reads. Adds the number of calls that returned frames to `calls`.
fn poll(pair: &mut Pair, quota: usize, most: usize, calls: &mut usize) -> (Vec<(Qpn, Vec<u8>)>, Vec<String>) {
    let Side { engine, host, .. } = &mut pair.a;
    let (mut host, mut frames) = (LoggedHost { host, log: RefCell::default() }, Vec::new());
    while frames.len() < quota {
        let mut bytes = Vec::new();
        let room = Room { frames: most.min(quota - frames.len()), ..PLENTY };
        let Some(burst) = engine.poll_burst(pair.now, &mut host, &mut bytes, None, room) else { break };
        *calls += 1;
        frames.extend(bytes.chunks_exact(burst.len).map(|frame| (burst.qpn, frame.to_vec())));
    }
    let log = host.log.into_inner();
    pair.a.collect();
    (frames, log)
}

/// Deterministic pseudo-random numbers (xorshift).
struct Draws(u64);

impl Draws {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 16).unwrap() % limit
    }

    fn request(&mut self, wr_id: u64, (kind, len): (usize, u32)) -> SendRequest {
        let imm = Some(Imm([u8::try_from(wr_id % 256).unwrap(); 4]));
        let request = match kind {
            0 | 1 => send(wr_id, len),
            2 => SendRequest { op: SendOp::Send { imm }, ..send(wr_id, len) },
            3 | 4 => write(wr_id, 0xa000, len),
            5 => SendRequest { op: SendOp::Write { remote: remote(0xb000), imm }, ..write(wr_id, 0, len) },
            6 => read(wr_id, 0xc000, len),
            _ => request(wr_id, SendOp::Nop, &[]),
        };
        let solicited = self.below(3) == 0;
        let fence = if self.below(30) == 0 { Fence::Reads } else { Fence::None };
        let payload = match self.below(200) {
            0 => Payload::Sges([sge(1 << 40, len)].into_iter().collect()),
            1..40 if kind < 6 => inline(wr_id, 0x5a, len as usize).payload,
            _ => request.payload,
        };
        SendRequest { payload, solicited, fence, ..request }
    }
}

/// Drives two pairs with the same random requests, losses, retries and credits. One of them sends bursts.
#[test]
fn random_bursts_equal_single_frames() {
    const SECOND: u32 = 0x20;
    let mut calls = [0, 0];
    for seed in 1..60 {
        let mut draws = Draws(seed << 40 | 0x9e37_79b9);
        let counts_receives = draws.below(2) == 0;
        let window = u32::try_from(8 + draws.below(100)).unwrap();
        let mut pairs = [(); 2].map(|()| {
            let mut pair = Pair::with_window(window);
            for node in [A, B] {
                let remote_qpn = Qpn::new(SECOND + node.peer().qpn().get());
                pair.add(node, Qpn::new(SECOND + node.qpn().get()), QpAttrs { remote_qpn, ..attrs(node) });
            }
            pair.b.host.counts_receives = counts_receives;
            pair
        });
        let (mut shape, mut wr_id) = ((0, 64), 0);
        for _ in 0..100 {
            let second = if draws.below(2) == 0 { 0 } else { SECOND };
            for _ in 0..draws.below(30) {
                if draws.below(10) == 0 {
                    shape = (draws.below(8), [0, 1, 64, 65, 256, 600][draws.below(6)]);
                }
                wr_id += 1;
                let request = draws.request(wr_id, shape);
                for pair in &mut pairs {
                    pair.post_on(A, Qpn::new(A.qpn().get() + second), request.clone());
                }
            }
            let receives = draws.below(40);
            let time = [Duration::ZERO, Duration::from_millis(1), 2 * TIMEOUT][draws.below(3)];
            let (quota, loss) = (1 + draws.below(64), [5, 1000][draws.below(2)]);
            let [single, burst] = &mut pairs;
            for pair in [&mut *single, &mut *burst] {
                let qpn = Qpn::new(B.qpn().get() + second);
                (0..)
                    .take(receives)
                    .for_each(|wr_id| pair.b.host.post_recv(qpn, wr_id, &[sge(0x8000, 3000)]));
                pair.advance(time);
            }
            let expected = poll(single, quota, 1, &mut calls[0]);
            assert_eq!(poll(burst, quota, quota, &mut calls[1]), expected, "seed {seed}");
            assert_eq!(burst.a.engine.stats(), single.a.engine.stats(), "seed {seed}");
            assert_eq!(burst.a.events, single.a.events, "seed {seed}");
            assert_eq!(burst.a.engine.poll_timeout(), single.a.engine.poll_timeout(), "seed {seed}");
            for qpn in [A.qpn().get(), A.qpn().get() + SECOND].map(Qpn::new) {
                let [found, expected] = [&*burst, &*single]
                    .map(|pair| (pair.a.engine.query_qp(qpn), pair.a.engine.explain(pair.now, qpn)));
                assert_eq!(found, expected, "seed {seed}");
            }
            let arrives: Vec<_> = expected.0.iter().map(|_| draws.below(loss) > 0).collect();
            for pair in [single, burst] {
                let frames = expected.0.iter().zip(&arrives).filter(|(_, arrives)| **arrives);
                frames.for_each(|((_, frame), _)| pair.deliver(B, frame));
                pair.frames(B).iter().for_each(|reply| pair.deliver(A, reply));
            }
        }
    }
    assert!(calls[1] < calls[0] * 3 / 4, "{calls:?}");
}
