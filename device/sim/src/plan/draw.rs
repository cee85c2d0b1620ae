//! Generates a random plan from a seed. Functions named `draw_*` choose random values.

use std::collections::{BTreeMap, VecDeque};
use std::net::Ipv6Addr;
use std::time::Duration;

use protocol::Psn;
use protocol::ids::{Pkey, Qkey, Qpn};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::script::{Script, schedule};
use super::{
    Action, Area, Connection, End, Group, Op, Pair, Plan, Recv, SOURCE, Work, XRC_SRQS, XrcSrqId, keys,
    reliable, srq_of, unreliable, xrc,
};
use crate::net::Faults;
use engine::{
    AckTimeout, Fence, Flush, GrhArea, Instant, Mtu, Payload, Piece, RnrRetry, SendOp, SendRequest, Service,
    SgeList,
};

pub(crate) const NODES: usize = 2;

pub fn draw(seed: u64) -> Plan {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let rng = &mut rng;
    let faults = draw_faults(rng);
    let window_packets = *pick(rng, &[1, 2, 5, 8, 16, 64, 128, 256]);
    let frames_per_step = *pick(rng, &[1, 3, u32::MAX, u32::MAX, u32::MAX, u32::MAX]);
    let credits = rng.random();
    let span_ns = rng.random_range(1..20_000_000);
    let count = rng.random_range(1..=4);
    // Some plans consist mostly of XRC pairs, because XRC is best tested with several targets that share SRQs.
    let services: &[_] = if rng.random_ratio(1, 4) {
        &[Service::XrcIni, Service::XrcIni, Service::XrcIni, Service::Rc]
    } else {
        &[Service::Rc, Service::Rc, Service::Rc, Service::Uc, Service::Ud]
    };
    let mut scripts = Vec::new();
    let mut pairs: Vec<Pair> = Vec::new();
    for index in 0..count {
        let mut pair = draw_pair(rng, index, services);
        let script = Script::draw(rng, pair.service, span_ns);
        draw_life(rng, &mut pair, &script);
        if script.connects_again() {
            draw_life(rng, &mut pair, &Script::Plain);
        }
        pairs.push(pair);
        scripts.push(script);
    }
    let groups = draw_groups(rng, &pairs);
    unreliable::address_datagrams(rng, &mut pairs, &groups);
    let slots = slots(&pairs);
    let mut actions = Vec::new();
    for (pair, script) in pairs.iter().zip(&scripts) {
        schedule(rng, span_ns, pair, script, &mut actions);
    }
    for &srq in slots.keys() {
        for _ in 0..rng.random_range(0..12) {
            let at = Instant::from_nanos(rng.random_range(0..span_ns));
            actions.push((at, Action::Share { srq, count: rng.random_range(1..=8) }));
        }
    }
    actions.sort_by_key(|&(at, _)| at);
    let heal_at = Instant::from_nanos(rng.random_range(span_ns / 2..=span_ns * 3));
    Plan { faults, heal_at, window_packets, frames_per_step, credits, pairs, groups, slots, actions }
}

fn draw_faults(rng: &mut ChaCha8Rng) -> Faults {
    let quiet = rng.random_ratio(1, 10);
    let ordered = quiet || rng.random_ratio(1, 4);
    let rate = |rng: &mut ChaCha8Rng, none: bool| if none { 0 } else { rng.random_range(0..=200) };
    Faults {
        loss: rate(rng, quiet),
        corrupt: rate(rng, quiet) / 8,
        duplicate: rate(rng, ordered),
        reorder: rate(rng, ordered),
        mark: if rng.random_ratio(1, 4) { rate(rng, quiet) } else { 0 },
        delay: Duration::from_nanos(rng.random_range(500..20_000)),
        detour: Duration::from_nanos(rng.random_range(0..200_000)),
    }
}

fn draw_pair(rng: &mut ChaCha8Rng, index: usize, services: &[Service]) -> Pair {
    let mtu = *pick(rng, &[Mtu::Mtu256, Mtu::Mtu256, Mtu::Mtu512, Mtu::Mtu1024, Mtu::Mtu2048, Mtu::Mtu4096]);
    let service = *pick(rng, services);
    // In some pairs, both sides are on the same node.
    let nodes = if rng.random_ratio(1, 8) { [index % NODES; 2] } else { [0, 1] };
    let pd = rng.random_range(1..=super::PDS);
    let pkeys = draw_pkeys(rng, service);
    let mut end = |side: usize| {
        let mut source = vec![0; mtu.bytes() * 8];
        rng.fill(source.as_mut_slice());
        let number = u32::try_from(index * 2 + side).expect("there are few pairs");
        let qpn = Qpn::new((rng.random_range(0..16u32) << 16) + 0x40 + number);
        let own_srq = rng.random_ratio(1, 3) && service != Service::XrcIni;
        let srq = own_srq.then(|| srq_of(nodes[side], pd));
        let qkey = Qkey::new(if rng.random_ratio(1, 4) { 0 } else { rng.random_range(1..1 << 31) });
        // A QP whose requests are flushed by the engine's owner needs its own receive queue.
        let target = service == Service::XrcIni && side == 1;
        let owner = srq.is_none() && !target && rng.random_ratio(1, 4);
        let flush = if owner { Flush::Owner } else { Flush::Each };
        End { node: nodes[side], qpn, source, target_len: 0, qkey, srq, pkey: pkeys[side], flush }
    };
    let ends = [end(0), end(1)];
    Pair {
        index,
        service,
        pd,
        xrc_domain: xrc::draw_domain(rng),
        mtu,
        ends,
        lives: Vec::new(),
        ack_timeout: draw_ack_timeout(rng, index),
        rnr_timer: rng.random_range(1..12),
        rd_atomic: *pick(rng, &[1, 1, 2, 4, 16]),
        grh_area: *pick(rng, &[GrhArea::None, GrhArea::Roce, GrhArea::InfiniBand]),
        keys: Vec::new(),
    }
}

/// Draws the ACK timeout. Every second pair uses a doubling timeout, which starts lower so that connections fail
/// quickly.
fn draw_ack_timeout(rng: &mut ChaCha8Rng, index: usize) -> AckTimeout {
    let timeout = Duration::from_nanos(4096 << rng.random_range(7..11));
    if index % 2 == 1 { AckTimeout::doubling(timeout / 4) } else { AckTimeout::constant(timeout) }
}

/// Draws multicast groups with members of all service types. Only UD members receive datagrams.
fn draw_groups(rng: &mut ChaCha8Rng, pairs: &[Pair]) -> Vec<Group> {
    let mut groups = Vec::new();
    for nth in 0..rng.random_range(0..3u16) {
        let ends = pairs.iter().flat_map(|pair| [(pair.index, 0), (pair.index, 1)]);
        let members = ends.filter(|_| rng.random_ratio(2, 3)).collect();
        groups.push(Group { gid: Ipv6Addr::new(0xff12, 0x401b, 0xffff, 0, 0, 0, 0, nth), members });
    }
    groups
}

/// Returns the buffer size for each shared queue. A buffer has room for the longest message to any QP that uses the
/// queue.
fn slots(pairs: &[Pair]) -> BTreeMap<usize, usize> {
    let mut slots = BTreeMap::new();
    for pair in pairs {
        let own = pair.ends.iter().filter_map(|end| end.srq);
        let node = pair.ends[1].node;
        let of_domain = (0..XRC_SRQS)
            .map(|index| XrcSrqId { node, index })
            .filter(|id| pair.is_xrc() && id.domain() == pair.xrc_domain)
            .map(XrcSrqId::number);
        for srq in own.chain(of_domain) {
            let len = slots.entry(srq).or_default();
            *len = (pair.mtu.bytes() * 6 + super::GRH_BYTES).max(*len);
        }
    }
    slots
}

/// Draws P_Keys. The two P_Keys of a connection match; datagram QPs have arbitrary P_Keys.
fn draw_pkeys(rng: &mut ChaCha8Rng, service: Service) -> [Pkey; 2] {
    const FULL: u16 = 0x8000;
    let keys = if service.is_datagram() {
        [(); 2].map(|()| *pick(rng, &[FULL | 0x11, FULL | 0x11, 0x11, FULL | 0x12]))
    } else {
        let partition = rng.random_range(1..FULL);
        *pick(rng, &[[FULL; 2], [0, FULL], [FULL, 0]].map(|member| member.map(|full| partition | full)))
    };
    keys.map(Pkey::new)
}

fn draw_life(rng: &mut ChaCha8Rng, pair: &mut Pair, script: &Script) {
    let mut work = || {
        let near_wrap = rng.random_bool(0.5);
        let psn = if near_wrap { 0xff_ffff - rng.random_range(0..40) } else { rng.random_range(0..1 << 24) };
        Work { psn: Psn::new(psn), ops: Vec::new(), recvs: Vec::new() }
    };
    let sides = [work(), work()];
    let impatient = script.may_become_unreachable() && rng.random();
    pair.lives.push(Connection {
        sides,
        retry_count: if impatient { rng.random_range(0..7) } else { 7 },
        rnr_retry: match script {
            Script::Unready => RnrRetry::Limited(rng.random_range(0..=6)),
            _ => RnrRetry::Infinite,
        },
        late_ns: if rng.random_ratio(1, 4) { rng.random_range(1..500_000) } else { 0 },
    });
    let total = rng.random_range(1..=40);
    let poison_at = (*script == Script::Poison).then(|| rng.random_range(0..total));
    let mut begun = [VecDeque::new(), VecDeque::new()];
    for nth in 0..total {
        for (side, begun) in begun.iter_mut().enumerate() {
            if !pair.service_of(side).has_send_queue() {
                continue;
            }
            let poison = poison_at == Some(nth) && side == 0;
            let (mut op, recv) = match (pair.is_reliable(), poison) {
                (true, true) if pair.is_xrc() && rng.random() => draw_xrc_poison(rng, pair),
                (true, false) => draw_reliable(rng, pair, side, begun),
                (true, true) if rng.random() => keys::draw_poison(rng, pair, side),
                (true, true) => reliable::draw_poison(rng, pair, side),
                (false, false) => (unreliable::draw_op(rng, pair, side), None),
                (false, true) => (unreliable::draw_poison(rng, pair, side), None),
            };
            if pair.is_xrc() && op.request.remote_srq.is_none() {
                op.request.remote_srq = Some(xrc::draw_srq_for(rng, pair, &op));
            }
            let life = pair.lives.last_mut().expect("one was pushed");
            life.sides[1 - side].recvs.extend(recv);
            life.sides[side].ops.push(op);
        }
    }
    if !pair.is_reliable() {
        for side in (0..2).filter(|&side| pair.ends[side].srq.is_none()).collect::<Vec<_>>() {
            unreliable::draw_recvs(rng, pair, side);
        }
    }
    let life = pair.lives.len() as u64 - 1;
    let sides = &mut pair.lives.last_mut().expect("one was pushed").sides;
    for op in sides.iter_mut().flat_map(|side| side.ops.iter_mut().enumerate()) {
        op.1.request.wr_id = wr_id(life, op.0);
    }
}

/// Draws a single request, or takes the next request from `begun`, a series of requests that use the same memory key.
/// If `begun` is empty, a new series may begin.
fn draw_reliable(
    rng: &mut ChaCha8Rng,
    pair: &mut Pair,
    side: usize,
    begun: &mut VecDeque<(Op, Option<Recv>)>,
) -> (Op, Option<Recv>) {
    if begun.is_empty() && rng.random_ratio(1, 6) {
        begun.extend(keys::draw_episode(rng, pair, side));
    }
    let next = if rng.random_ratio(2, 3) { begun.pop_front() } else { None };
    next.unwrap_or_else(|| reliable::draw_op(rng, pair, side))
}

/// Draws an XRC initiator's request that must fail because of the SRQ it names.
fn draw_xrc_poison(rng: &mut ChaCha8Rng, pair: &mut Pair) -> (Op, Option<Recv>) {
    loop {
        let (mut op, recv) = reliable::draw_op(rng, pair, 0);
        op.request.remote_srq = Some(xrc::draw_srq_for(rng, pair, &op));
        if xrc::poison(rng, pair, &mut op) {
            return (op, recv);
        }
    }
}

/// Returns the `wr_id` of a queue's `nth` request in the connection numbered `life`.
pub(crate) fn wr_id(life: u64, nth: usize) -> u64 {
    life << 32 | nth as u64
}

/// Returns an operation without data that must succeed.
pub(super) fn bare(op: SendOp, payload: Payload) -> Op {
    let request = SendRequest {
        wr_id: 0,
        op,
        payload,
        fence: Fence::None,
        solicited: false,
        ud: None,
        remote_srq: None,
    };
    Op {
        request,
        len: 0,
        from: Vec::new(),
        to: Vec::new(),
        fails: Vec::new(),
        refused: false,
        changes_srq: None,
    }
}

/// Returns an operation that transfers `len` bytes and must succeed.
pub(super) fn of_bytes(op: SendOp, payload: Payload, len: usize, from: Vec<Area>, to: Vec<Area>) -> Op {
    Op { len: u32::try_from(len).expect("messages are short"), from, to, ..bare(op, payload) }
}

/// Draws a message length, which is either near a packet boundary or arbitrary.
pub(crate) fn draw_len(rng: &mut ChaCha8Rng, mtu: usize) -> usize {
    match rng.random_range(0..6) {
        0 => 0,
        1 => rng.random_range(1..=64),
        2 => mtu * rng.random_range(1..=4),
        3 => mtu * rng.random_range(1..=4) + 1,
        4 => mtu * rng.random_range(1..=4) - 1,
        _ => rng.random_range(0..=mtu * 6),
    }
}

pub(crate) fn draw_source(rng: &mut ChaCha8Rng, pair: &Pair, side: usize, len: usize) -> Area {
    let whole = pair.ends[side].source.len();
    Area { region: SOURCE, offset: rng.random_range(0..=whole - len), len }
}

/// Draws a gather list in SOURCE, inline data, or both.
pub(super) fn draw_gather(
    rng: &mut ChaCha8Rng,
    pair: &Pair,
    side: usize,
    len: usize,
) -> (Payload, Vec<Area>) {
    if len <= 64 && rng.random_bool(0.3) {
        let area = draw_source(rng, pair, side, len);
        let bytes = pair.source_bytes(side, &[area]);
        return (Payload::Inline(bytes.into()), vec![area]);
    }
    let areas: Vec<_> = split(rng, len).into_iter().map(|len| draw_source(rng, pair, side, len)).collect();
    if rng.random_bool(0.1) {
        let pieces = areas.iter().zip(pair.sges(side, &areas)).map(|(area, sge)| {
            if rng.random_bool(0.5) {
                Piece::Sge(sge)
            } else {
                Piece::Inline(pair.source_bytes(side, &[*area]).into())
            }
        });
        return (Payload::Mixed(pieces.collect()), areas);
    }
    (Payload::Sges(pair.sges(side, &areas).into()), areas)
}

/// Allocates areas in TARGET for `len` bytes, split at random offsets.
pub(super) fn draw_scatter(rng: &mut ChaCha8Rng, pair: &mut Pair, side: usize, len: usize) -> Vec<Area> {
    split(rng, len).into_iter().map(|len| pair.allocate(side, len)).collect()
}

pub(super) fn draw_recv(rng: &mut ChaCha8Rng, pair: &mut Pair, side: usize, len: usize) -> Recv {
    Recv { areas: draw_scatter(rng, pair, side, len), fails: None }
}

pub(super) fn list(pair: &Pair, side: usize, areas: &[Area]) -> Payload {
    Payload::Sges(SgeList::from(pair.sges(side, areas)))
}

fn split(rng: &mut ChaCha8Rng, len: usize) -> Vec<usize> {
    let mut lens = Vec::new();
    let mut left = len;
    for _ in 0..rng.random_range(0..4) {
        let piece = rng.random_range(0..=left);
        lens.push(piece);
        left -= piece;
    }
    lens.push(left);
    lens
}

pub(super) fn pick<'a, T>(rng: &mut ChaCha8Rng, from: &'a [T]) -> &'a T {
    &from[rng.random_range(0..from.len())]
}
