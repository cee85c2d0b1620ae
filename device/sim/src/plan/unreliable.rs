//! Draws requests for UC and UD.

use protocol::ids::{Lkey, Qkey, Rkey};
use protocol::roce::Imm;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::draw::{bare, draw_gather, draw_len, draw_recv, list, of_bytes, pick};
use super::{Area, GROUP_QPN, Group, Op, PRIVATE, Pair, group_path, path};
use engine::{
    AccessError, Payload, Remote, SendOp, SendRequest, Service, Sge, SgeList, Status, UdDestination,
};

/// Draws a request that completes successfully, whether or not the receiver accepts it.
pub(super) fn draw_op(rng: &mut ChaCha8Rng, pair: &mut Pair, side: usize) -> Op {
    let imm = rng.random_bool(0.5).then(|| Imm(rng.random()));
    let op = match (pair.service, rng.random_range(0..10)) {
        (_, 0) => bare(SendOp::Nop, Payload::Sges(SgeList::new())),
        (Service::Ud, _) => {
            let len = rng.random_range(0..=pair.mtu.bytes());
            let (payload, from) = draw_gather(rng, pair, side, len);
            of_bytes(SendOp::Send { imm }, payload, len, from, Vec::new())
        }
        (_, 1..=5) => {
            let len = draw_len(rng, pair.mtu.bytes());
            let (payload, from) = draw_gather(rng, pair, side, len);
            of_bytes(SendOp::Send { imm }, payload, len, from, Vec::new())
        }
        _ => {
            let len = draw_len(rng, pair.mtu.bytes());
            let (payload, from) = draw_gather(rng, pair, side, len);
            let to = pair.allocate(1 - side, len);
            let remote = pair.remote(1 - side, to);
            let refused = len > 0 && rng.random_ratio(1, 10);
            let remote = if refused { Remote { rkey: Rkey::new(0xdead_beef), ..remote } } else { remote };
            Op { refused, ..of_bytes(SendOp::Write { remote, imm }, payload, len, from, vec![to]) }
        }
    };
    Op { request: SendRequest { solicited: rng.random_bool(0.2), ..op.request }, ..op }
}

/// Draws a request that must fail at the sender.
pub(super) fn draw_poison(rng: &mut ChaCha8Rng, pair: &mut Pair, side: usize) -> Op {
    let mtu = pair.mtu.bytes();
    let private = Area { region: PRIVATE, offset: 0, len: 64 };
    let own = pair.sges(side, &[private])[0];
    let (op, fails) = match rng.random_range(0..3) {
        0 => {
            let read = SendOp::Read { remote: pair.remote(1 - side, private), invalidate: None };
            (bare(read, list(pair, side, &[private])), Status::LocalQpOperation)
        }
        1 => {
            let payload = match pair.service {
                Service::Ud => list(pair, side, &[Area { len: mtu + 1, ..private }]),
                _ => Payload::Sges(SgeList::from_iter([Sge { len: u32::MAX, ..own }])),
            };
            (bare(SendOp::Send { imm: None }, payload), Status::LocalLength)
        }
        _ => {
            // On UC, the request fails after some packets have been sent.
            let before = if pair.service == Service::Ud { 0 } else { mtu * rng.random_range(0..3) };
            let (payload, from) = draw_gather(rng, pair, side, before);
            let mut sges = match payload {
                Payload::Sges(sges) => sges,
                Payload::Inline(_) | Payload::Mixed(_) => pair.sges(side, &from).into(),
            };
            sges.push(Sge { lkey: Lkey::new(0xdead_beef), ..own });
            let op = of_bytes(SendOp::Send { imm: None }, Payload::Sges(sges), before + 64, from, Vec::new());
            (op, Status::LocalProtection(AccessError::Key))
        }
    };
    Op { fails: vec![fails], ..op }
}

/// Draws receive requests for the peer's messages. There may be too few of them, and some may be too short.
pub(super) fn draw_recvs(rng: &mut ChaCha8Rng, pair: &mut Pair, side: usize) {
    let life = pair.lives.len() - 1;
    let messages = pair.lives[life].sides[1 - side].ops.iter().filter(|op| op.takes_receive()).count();
    let count = if rng.random_bool(0.7) { messages * 2 } else { rng.random_range(0..=messages) };
    let longest = match pair.service {
        Service::Ud => pair.mtu.bytes() + super::GRH_BYTES,
        _ => pair.mtu.bytes() * 6,
    };
    for _ in 0..count {
        // Short requests are rare, because a short request at the head of the queue blocks the queue until a message
        // fits into the request.
        let short = rng.random_ratio(1, 30);
        let len = if short { rng.random_range(0..longest) } else { longest };
        let recv = draw_recv(rng, pair, side, len);
        pair.lives[life].sides[side].recvs.push(recv);
    }
}

/// Assigns each datagram a UD QP or a multicast group as its destination, and a Q_Key that may be wrong.
pub(super) fn address_datagrams(rng: &mut ChaCha8Rng, pairs: &mut [Pair], groups: &[Group]) {
    let ends = pairs.iter().filter(|pair| pair.service == Service::Ud).flat_map(|pair| &pair.ends);
    let destinations: Vec<_> = ends.map(|end| (end.node, end.qpn, end.qkey)).collect();
    for pair in pairs.iter_mut().filter(|pair| pair.service == Service::Ud) {
        for life in &mut pair.lives {
            for (side, work) in life.sides.iter_mut().enumerate() {
                for op in &mut work.ops {
                    let &(node, qpn, right) = pick(rng, &destinations);
                    let qkey = match rng.random_range(0..10) {
                        0 => Qkey::new(rng.random_range(1..1 << 31)),
                        // If the request contains a controlled Q_Key (high bit set), the packet carries the sending
                        // QP's Q_Key instead.
                        1 => Qkey::new(rng.random_range(1 << 31..=u32::MAX)),
                        _ => right,
                    };
                    let from = pair.ends[side].node;
                    let (path, qpn) = match groups {
                        [_, ..] if rng.random_ratio(1, 4) => {
                            (group_path(from, pick(rng, groups).gid), GROUP_QPN)
                        }
                        _ => (path(from, node), qpn),
                    };
                    op.request.ud = Some(UdDestination { path, qpn, qkey, header: None });
                }
            }
        }
    }
}
