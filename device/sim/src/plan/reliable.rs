//! Draws requests for reliable services.

use protocol::ids::{Lkey, Rkey};
use protocol::roce::Imm;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::draw::{bare, draw_gather, draw_len, draw_recv, draw_scatter, draw_source, list, of_bytes, pick};
use super::{Area, CELLS, CELLS_BYTES, HOT, HOT_BYTES, Op, PRIVATE, Pair, Recv};
use engine::{AccessError, Fence, Payload, Remote, SendOp, SendRequest, Sge, SgeList, Status};

/// Operands for compare-and-swap. The range is small enough that the comparison often succeeds on a value stored by
/// another QP.
const SWAPPED: std::ops::Range<u64> = 0..4;

/// Draws a request that must succeed, and the receive request that it consumes, if any.
pub(super) fn draw_op(rng: &mut ChaCha8Rng, pair: &mut Pair, side: usize) -> (Op, Option<Recv>) {
    let len = draw_len(rng, pair.mtu.bytes());
    let imm = rng.random_bool(0.3).then(|| Imm(rng.random()));
    let shared = pair.shares_receives(1 - side);
    let (op, recv) = match rng.random_range(0..12) {
        0..=3 => {
            let (payload, from) = draw_gather(rng, pair, side, len);
            let slack = if rng.random_bool(0.5) { rng.random_range(0..100) } else { 0 };
            let recv = (!shared).then(|| draw_recv(rng, pair, 1 - side, len + slack));
            let to = recv.as_ref().map(|recv| recv.areas.clone()).unwrap_or_default();
            (of_bytes(SendOp::Send { imm }, payload, len, from, to), recv)
        }
        4..=7 => {
            let (payload, from) = draw_gather(rng, pair, side, len);
            let hot = len <= HOT_BYTES && rng.random_bool(0.5);
            let to = if hot {
                Area { region: HOT, offset: rng.random_range(0..=HOT_BYTES - len), len }
            } else {
                pair.allocate(1 - side, len)
            };
            let write = SendOp::Write { remote: pair.remote(1 - side, to), imm };
            let recv = imm.filter(|_| !shared).map(|_| Recv { areas: Vec::new(), fails: None });
            (of_bytes(write, payload, len, from, vec![to]), recv)
        }
        8..=9 => {
            let from = draw_source(rng, pair, 1 - side, len);
            let to = draw_scatter(rng, pair, side, len);
            let read = SendOp::Read { remote: pair.remote(1 - side, from), invalidate: None };
            (of_bytes(read, list(pair, side, &to), len, vec![from], to), None)
        }
        10 => (draw_atomic(rng, pair, side), None),
        _ => (bare(SendOp::Nop, Payload::Sges(SgeList::new())), None),
    };
    let fence = *pick(rng, &[Fence::Reads, Fence::All, Fence::None, Fence::None, Fence::None, Fence::None]);
    let solicited = rng.random_bool(0.2);
    (Op { request: SendRequest { fence, solicited, ..op.request }, ..op }, recv)
}

/// Draws an atomic on a cell shared by all QPs in a protection domain. The random addend of a fetch-and-add identifies
/// the request.
fn draw_atomic(rng: &mut ChaCha8Rng, pair: &mut Pair, side: usize) -> Op {
    let cell = rng.random_range(0..CELLS_BYTES / 8);
    let remote = pair.remote(1 - side, Area { region: CELLS, offset: cell * 8, len: 8 });
    let op = if cell % 2 == 0 {
        SendOp::FetchAdd { remote, add: rng.random() }
    } else {
        let (compare, swap) = (rng.random_range(SWAPPED), rng.random_range(SWAPPED));
        SendOp::CompareSwap { remote, compare, swap }
    };
    let to = pair.allocate(side, 8);
    of_bytes(op, list(pair, side, &[to]), 8, Vec::new(), vec![to])
}

/// Draws a request that must fail, and the receive request that it consumes, if any.
pub(super) fn draw_poison(rng: &mut ChaCha8Rng, pair: &mut Pair, side: usize) -> (Op, Option<Recv>) {
    let len = draw_len(rng, pair.mtu.bytes()).max(1);
    let (payload, from) = draw_gather(rng, pair, side, len);
    let private = Area { region: PRIVATE, offset: 0, len };
    let remote = pair.remote(1 - side, private);
    let wrong_key = Remote { rkey: Rkey::new(0xdead_beef), ..remote };
    let own = &pair.sges(side, &[private])[0];
    let broken = |sge| Payload::Sges(SgeList::from_iter([sge]));
    let write = |remote| SendOp::Write { remote, imm: None };
    let shared = pair.shares_receives(1 - side);
    let (op, fails) = match rng.random_range(0..8) {
        0 => (of_bytes(write(remote), payload, len, from, Vec::new()), Status::RemoteAccess),
        1 => {
            let read = SendOp::Read { remote, invalidate: None };
            (of_bytes(read, list(pair, side, &[private]), len, Vec::new(), Vec::new()), Status::RemoteAccess)
        }
        2 => (of_bytes(write(wrong_key), payload, len, from, Vec::new()), Status::RemoteAccess),
        3 => {
            // The WRITE exceeds the region by one byte.
            let offset = (HOT_BYTES + 1).saturating_sub(len);
            let len = HOT_BYTES + 1 - offset;
            let remote = pair.remote(1 - side, Area { region: HOT, offset, len });
            let (payload, from) = draw_gather(rng, pair, side, len);
            (of_bytes(write(remote), payload, len, from, Vec::new()), Status::RemoteAccess)
        }
        4 if !shared => {
            let areas = draw_scatter(rng, pair, 1 - side, len - 1);
            let recv = Recv { areas: areas.clone(), fails: Some(Status::LocalLength) };
            let op = of_bytes(SendOp::Send { imm: None }, payload, len, from, areas);
            return (Op { fails: vec![Status::RemoteInvalidRequest], ..op }, Some(recv));
        }
        5 => {
            let remote =
                pair.remote(1 - side, Area { region: CELLS, offset: *pick(rng, &[1, 4, 7]), len: 8 });
            let op = SendOp::FetchAdd { remote, add: 1 };
            let to = pair.allocate(side, 8);
            (bare(op, list(pair, side, &[to])), Status::RemoteInvalidRequest)
        }
        6 => {
            let payload = broken(Sge { lkey: Lkey::new(0xdead_beef), ..*own });
            (
                of_bytes(write(remote), payload, len, Vec::new(), Vec::new()),
                Status::LocalProtection(AccessError::Key),
            )
        }
        _ => (bare(write(remote), broken(Sge { len: u32::MAX, ..*own })), Status::LocalLength),
    };
    (Op { fails: vec![fails], ..op }, None)
}
