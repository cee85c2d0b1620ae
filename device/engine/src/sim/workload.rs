//! What is posted in a simulated run, and what must come of it: all drawn before the run begins.
//!
//! Each connection has two sides, each on its own node with five regions:
//!
//! - SOURCE: random bytes that nobody writes; gathered from, and READ by the peer;
//! - TARGET: one area per message that arrives here, with gaps that must stay zero;
//! - HOT: WRITEs overlap here, so that their order shows;
//! - WORDS: 64-bit words for atomics;
//! - PRIVATE: no rights for anybody but its owner, for requests that must fail.

use std::time::Duration;

use protocol::Psn;
use protocol::ids::{Lkey, Qpn, Rkey, Va};
use protocol::roce::Imm;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::net::Faults;
use crate::{Instant, Mtu, Payload, Remote, SendOp, SendRequest, Sge, SgeList, Status};

/// Region numbers; a connection's keys are these plus 16 times its index.
pub const SOURCE: u32 = 1;
/// See [`SOURCE`].
pub const TARGET: u32 = 2;
/// See [`SOURCE`].
pub const HOT: u32 = 3;
/// See [`SOURCE`].
pub const WORDS: u32 = 4;
/// See [`SOURCE`].
pub const PRIVATE: u32 = 5;

/// Bytes of HOT.
pub const HOT_BYTES: usize = 8192;
/// Bytes of WORDS.
pub const WORDS_BYTES: usize = 32;
/// Bytes of PRIVATE.
pub const PRIVATE_BYTES: usize = 4096;
/// Bytes between two areas of TARGET.
const GAP: usize = 8;

/// A range of a region of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// Region number.
    pub region: u32,
    /// First byte.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
}

/// What a request does, and its effect.
#[derive(Clone, Debug)]
pub struct Op {
    /// As posted.
    pub request: SendRequest,
    /// Bytes of the message.
    pub len: u32,
    /// Where the bytes come from: own areas, or the peer's for a READ.
    pub from: Vec<Area>,
    /// Where they go to: the peer's areas, or own ones for READs and atomics. Of a request that fails: what it may
    /// leave half written.
    pub to: Vec<Area>,
    /// The receive request that it consumes at the peer.
    pub recv: Option<Recv>,
    /// How it must complete when it gets its turn: success, or one of these.
    pub fails: Vec<Status>,
}

/// A receive request.
#[derive(Clone, Debug)]
pub struct Recv {
    /// Scatter list.
    pub sges: Vec<Sge>,
    /// It must complete with this if the request that consumes it is refused for its sake.
    pub fails: Option<Status>,
}

/// One side of a connection.
#[derive(Clone, Debug)]
pub struct Side {
    /// Node it is on.
    pub node: usize,
    /// Its QP.
    pub qpn: Qpn,
    /// First PSN it sends.
    pub psn: Psn,
    /// Content of SOURCE.
    pub source: Vec<u8>,
    /// Size of TARGET.
    pub target_len: usize,
    /// Requests in posting order.
    pub ops: Vec<Op>,
}

/// Two connected QPs.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Protection domain and key base.
    pub index: u32,
    /// Path MTU.
    pub mtu: Mtu,
    /// Its ends.
    pub sides: [Side; 2],
    /// ACK timeout.
    pub ack_timeout: Duration,
    /// RNR timer code.
    pub rnr_timer: u8,
    /// READs and atomics outstanding.
    pub rd_atomic: u8,
    /// Some request must fail: then only side 0 posts any.
    pub poisoned: bool,
}

/// Software's doings over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Post the next `count` send requests of a side and ring.
    Send {
        /// Connection.
        connection: usize,
        /// Side.
        side: usize,
        /// Requests.
        count: usize,
    },
    /// Post the next `count` receive requests of a side.
    Recv {
        /// Connection.
        connection: usize,
        /// Side.
        side: usize,
        /// Requests.
        count: usize,
    },
}

/// Everything about a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Of the net.
    pub faults: Faults,
    /// When the net is healed.
    pub heal_at: Instant,
    /// Of the engines.
    pub window_packets: u32,
    /// Connections.
    pub connections: Vec<Connection>,
    /// In order of time.
    pub actions: Vec<(Instant, Action)>,
}

impl Connection {
    /// Key of a region.
    pub fn key(&self, region: u32) -> u32 {
        (self.index + 1) * 16 + region
    }

    /// Address of a region's first byte.
    pub fn va(region: u32) -> u64 {
        u64::from(region) << 32 | 0x7f0
    }

    fn sge(&self, area: Area) -> Sge {
        Sge {
            va: Va::new(Self::va(area.region) + area.offset as u64),
            lkey: Lkey::new(self.key(area.region)),
            len: u32::try_from(area.len).expect("areas are small"),
        }
    }

    fn remote(&self, area: Area) -> Remote {
        let sge = self.sge(area);
        Remote { va: sge.va, rkey: sge.lkey.as_rkey() }
    }
}

/// Draws a plan.
pub fn draw(seed: u64) -> Plan {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let rng = &mut rng;
    let quiet = rng.random_ratio(1, 10);
    let rate = |rng: &mut ChaCha8Rng| if quiet { 0 } else { rng.random_range(0..=200) };
    let faults = Faults {
        loss: rate(rng),
        corrupt: rate(rng) / 8,
        duplicate: rate(rng),
        reorder: rate(rng),
        delay: Duration::from_nanos(rng.random_range(500..20_000)),
        detour: Duration::from_nanos(rng.random_range(0..200_000)),
    };
    let window_packets = *pick(rng, &[1, 2, 5, 8, 16, 64, 128]);
    let count = rng.random_range(1..=3);
    let connections: Vec<_> = (0..count).map(|index| draw_connection(rng, index)).collect();
    let span_ns = rng.random_range(1..20_000_000);
    let mut actions = Vec::new();
    for (index, connection) in connections.iter().enumerate() {
        for side in 0..2 {
            let sends = connection.sides[side].ops.len();
            let recvs = connection.sides[1 - side].ops.iter().filter(|op| op.recv.is_some()).count();
            draw_actions(rng, span_ns, sends, &mut actions, |count| Action::Send {
                connection: index,
                side,
                count,
            });
            draw_actions(rng, span_ns, recvs, &mut actions, |count| Action::Recv {
                connection: index,
                side,
                count,
            });
        }
    }
    actions.sort_by_key(|&(at, _)| at);
    let heal_at = Instant::from_nanos(rng.random_range(span_ns / 2..=span_ns * 3));
    Plan { faults, heal_at, window_packets, connections, actions }
}

/// Posts `total` requests in bursts over the run; many at once at the beginning, or late.
fn draw_actions(
    rng: &mut ChaCha8Rng,
    span_ns: u64,
    total: usize,
    actions: &mut Vec<(Instant, Action)>,
    action: impl Fn(usize) -> Action,
) {
    let mut left = total;
    let early = rng.random_bool(0.5);
    while left > 0 {
        let count = rng.random_range(1..=left);
        let at = if early && left == total { 0 } else { rng.random_range(0..span_ns) };
        actions.push((Instant::from_nanos(at), action(count)));
        left -= count;
    }
}

fn draw_connection(rng: &mut ChaCha8Rng, index: u32) -> Connection {
    let mtu = *pick(rng, &[Mtu::Mtu256, Mtu::Mtu256, Mtu::Mtu512, Mtu::Mtu1024, Mtu::Mtu2048, Mtu::Mtu4096]);
    let source_len = mtu.bytes() * 8;
    let mut side = |node: usize| {
        let mut source = vec![0; source_len];
        rng.fill(source.as_mut_slice());
        let near_wrap = rng.random_bool(0.5);
        let psn = if near_wrap { 0xff_ffff - rng.random_range(0..40) } else { rng.random_range(0..1 << 24) };
        let qpn = Qpn::new((rng.random_range(0..16u32) << 16) + 0x40 + index * 2 + u32::from(node == 1));
        Side { node, qpn, psn: Psn::new(psn), source, target_len: 0, ops: Vec::new() }
    };
    let sides = [side(0), side(1)];
    let mut connection = Connection {
        index,
        mtu,
        sides,
        ack_timeout: Duration::from_nanos(4096 << rng.random_range(7..11)),
        rnr_timer: rng.random_range(1..12),
        rd_atomic: *pick(rng, &[1, 1, 2, 4, 16]),
        poisoned: rng.random_ratio(1, 6),
    };
    let total = rng.random_range(1..=40);
    let poison_at = rng.random_range(0..total);
    // What atomics find is predicted: one side after the other has words of its own.
    let mut words = [[0u64; WORDS_BYTES / 8]; 2];
    for nth in 0..total {
        for side in 0..2 {
            if connection.poisoned && side == 1 {
                continue;
            }
            let op = if connection.poisoned && nth == poison_at {
                draw_poison(rng, &mut connection)
            } else {
                draw_op(rng, &mut connection, side, &mut words[1 - side])
            };
            let ops = &mut connection.sides[side].ops;
            let wr_id = (u64::from(index) << 32) + ((side as u64) << 16) + ops.len() as u64;
            ops.push(Op { request: SendRequest { wr_id, ..op.request.clone() }, ..op });
        }
    }
    connection
}

fn draw_op(rng: &mut ChaCha8Rng, connection: &mut Connection, side: usize, words: &mut [u64]) -> Op {
    let len = draw_len(rng, connection.mtu.bytes());
    let imm = rng.random_bool(0.3).then(|| Imm(rng.random()));
    let (fence, solicited) = (rng.random_bool(0.1), rng.random_bool(0.2));
    let request = |op, payload| SendRequest { wr_id: 0, op, payload, fence, solicited, ud: None };
    let op = |request, len: usize, from, to, recv| Op {
        request,
        len: u32::try_from(len).expect("messages are short"),
        from,
        to,
        recv,
        fails: Vec::new(),
    };
    match rng.random_range(0..12) {
        0..=3 => {
            let (payload, from) = draw_gather(rng, connection, side, len);
            let slack = if rng.random_bool(0.5) { rng.random_range(0..100) } else { 0 };
            let (to, sges) = draw_scatter(rng, connection, 1 - side, len + slack);
            let recv = Some(Recv { sges, fails: None });
            op(request(SendOp::Send { imm }, payload), len, from, to, recv)
        }
        4..=7 => {
            let (payload, from) = draw_gather(rng, connection, side, len);
            let hot = len <= HOT_BYTES && rng.random_bool(0.5);
            let to = if hot {
                Area { region: HOT, offset: rng.random_range(0..=HOT_BYTES - len), len }
            } else {
                allocate(&mut connection.sides[1 - side], len)
            };
            let recv = imm.map(|_| Recv { sges: Vec::new(), fails: None });
            op(
                request(SendOp::Write { remote: connection.remote(to), imm }, payload),
                len,
                from,
                vec![to],
                recv,
            )
        }
        8..=9 => {
            let from = draw_source(rng, connection, 1 - side, len);
            let (to, sges) = draw_scatter(rng, connection, side, len);
            let read = SendOp::Read { remote: connection.remote(from) };
            op(request(read, Payload::Sges(SgeList::from(sges))), len, vec![from], to, None)
        }
        10 => {
            let index = rng.random_range(0..words.len());
            let word = &mut words[index];
            let remote = connection.remote(Area { region: WORDS, offset: index * 8, len: 8 });
            let atomic = if rng.random_bool(0.5) {
                let add = rng.random();
                *word = word.wrapping_add(add);
                SendOp::FetchAdd { remote, add }
            } else {
                let compare = if rng.random_bool(0.7) { *word } else { rng.random() };
                let swap = rng.random();
                if *word == compare {
                    *word = swap;
                }
                SendOp::CompareSwap { remote, compare, swap }
            };
            let to = allocate(&mut connection.sides[side], 8);
            let payload = Payload::Sges(SgeList::from_iter([connection.sge(to)]));
            op(request(atomic, payload), 8, Vec::new(), vec![to], None)
        }
        _ => op(request(SendOp::Nop, Payload::Sges(SgeList::new())), 0, Vec::new(), Vec::new(), None),
    }
}

/// A request of side 0 that must fail.
fn draw_poison(rng: &mut ChaCha8Rng, connection: &mut Connection) -> Op {
    let len = draw_len(rng, connection.mtu.bytes()).max(1);
    let (payload, from) = draw_gather(rng, connection, 0, len);
    let private = Area { region: PRIVATE, offset: 0, len };
    let remote = connection.remote(private);
    let request =
        |op, payload| SendRequest { wr_id: 0, op, payload, fence: false, solicited: false, ud: None };
    let local = Payload::Sges(SgeList::from_iter([connection.sge(private)]));
    let mut spoilt = Vec::new();
    // The NAK may be lost, and the responder is silent from then on.
    let remote_fails = |status| vec![status, Status::RetryExceeded];
    let (request, recv, fails) = match rng.random_range(0..7) {
        0 => {
            let op = SendOp::Write { remote, imm: None };
            (request(op, payload), None, remote_fails(Status::RemoteAccess))
        }
        1 => {
            let op = SendOp::Read { remote };
            (request(op, local), None, remote_fails(Status::RemoteAccess))
        }
        2 => {
            let remote = Remote { rkey: Rkey::new(0xdead_beef), ..remote };
            (request(SendOp::Write { remote, imm: None }, payload), None, remote_fails(Status::RemoteAccess))
        }
        3 => {
            // Reaches beyond the region with its last byte only.
            let beyond = Area { region: HOT, offset: (HOT_BYTES + 1).saturating_sub(len), len };
            let len = HOT_BYTES + 1 - beyond.offset;
            let (payload, _) = draw_gather(rng, connection, 0, len);
            let op = SendOp::Write { remote: connection.remote(beyond), imm: None };
            (request(op, payload), None, remote_fails(Status::RemoteAccess))
        }
        4 => {
            let (to, sges) = draw_scatter(rng, connection, 1, len - 1);
            spoilt = to;
            let recv = Recv { sges, fails: Some(Status::LocalLength) };
            let op = SendOp::Send { imm: None };
            (request(op, payload), Some(recv), remote_fails(Status::RemoteInvalidRequest))
        }
        5 => {
            let sge = Sge { lkey: Lkey::new(0xdead_beef), ..connection.sge(private) };
            let op = SendOp::Write { remote: connection.remote(private), imm: None };
            (request(op, Payload::Sges(SgeList::from_iter([sge]))), None, vec![Status::LocalProtection])
        }
        _ => {
            let sge = Sge { len: u32::MAX, ..connection.sge(private) };
            let op = SendOp::Write { remote: connection.remote(private), imm: None };
            (request(op, Payload::Sges(SgeList::from_iter([sge]))), None, vec![Status::LocalLength])
        }
    };
    Op { request, len: 0, from, to: spoilt, recv, fails }
}

/// Lengths around the borders of packets, and anything in between.
fn draw_len(rng: &mut ChaCha8Rng, mtu: usize) -> usize {
    match rng.random_range(0..6) {
        0 => 0,
        1 => rng.random_range(1..=64),
        2 => mtu * rng.random_range(1..=4),
        3 => mtu * rng.random_range(1..=4) + 1,
        4 => mtu * rng.random_range(1..=4) - 1,
        _ => rng.random_range(0..=mtu * 6),
    }
}

fn draw_source(rng: &mut ChaCha8Rng, connection: &Connection, side: usize, len: usize) -> Area {
    let whole = connection.sides[side].source.len();
    Area { region: SOURCE, offset: rng.random_range(0..=whole - len), len }
}

/// Pieces of SOURCE, or inline bytes.
fn draw_gather(
    rng: &mut ChaCha8Rng,
    connection: &Connection,
    side: usize,
    len: usize,
) -> (Payload, Vec<Area>) {
    if len <= 64 && rng.random_bool(0.3) {
        let area = draw_source(rng, connection, side, len);
        let bytes = &connection.sides[side].source[area.offset..area.offset + len];
        return (Payload::Inline(bytes.into()), vec![area]);
    }
    let areas: Vec<_> =
        split(rng, len).into_iter().map(|len| draw_source(rng, connection, side, len)).collect();
    let sges = areas.iter().map(|&area| connection.sge(area)).collect();
    (Payload::Sges(sges), areas)
}

fn draw_scatter(
    rng: &mut ChaCha8Rng,
    connection: &mut Connection,
    side: usize,
    len: usize,
) -> (Vec<Area>, Vec<Sge>) {
    let lens = split(rng, len);
    let areas: Vec<_> = lens.into_iter().map(|len| allocate(&mut connection.sides[side], len)).collect();
    let sges = areas.iter().map(|&area| connection.sge(area)).collect();
    (areas, sges)
}

/// The next area of TARGET.
fn allocate(side: &mut Side, len: usize) -> Area {
    let offset = side.target_len + GAP;
    side.target_len = offset + len + GAP;
    Area { region: TARGET, offset, len }
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

fn pick<'a, T>(rng: &mut ChaCha8Rng, from: &'a [T]) -> &'a T {
    &from[rng.random_range(0..from.len())]
}
