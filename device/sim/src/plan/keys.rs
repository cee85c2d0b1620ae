//! Key operations: requests that make a key valid, use it and invalidate it, in that order.

use protocol::ids::{Iova, Lkey, Pdn, Rkey, Va};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::draw::{bare, draw_gather, draw_len, draw_recv, draw_source, of_bytes, pick};
use super::{Area, HOT, HOT_BYTES, Op, Pair, Recv, SOURCE, va};
use crate::host::{Key, KeyKind, Mapping};
use crate::key_op::{Bind, FastRegister, KeyOp, WindowKind};
use engine::{AccessError, Fence, Payload, Remote, Rights, SendOp, SendRequest, Sge, SgeList, Status};

type Work = (Op, Option<Recv>);

/// Draws a sequence of requests that use a key. If only some of these requests are posted, the key may stay valid.
pub(super) fn draw_episode(rng: &mut ChaCha8Rng, pair: &mut Pair, side: usize) -> Vec<Work> {
    match rng.random_range(0..4) {
        0 | 1 => fast_registration(rng, pair, side),
        2 => remote(rng, pair, side),
        _ => binding(rng, pair, side),
    }
}

/// Draws a request that must fail because of its key, and the receive request that it consumes, if any.
pub(super) fn draw_poison(rng: &mut ChaCha8Rng, pair: &mut Pair, side: usize) -> Work {
    let len = draw_len(rng, pair.mtu.bytes()).max(1);
    let (own, theirs) = (side, 1 - side);
    let (op, fails) = match rng.random_range(0..9) {
        8 => {
            // Invalidate a region that a window is still bound to.
            let area = Area { region: HOT, offset: 0, len: HOT_BYTES };
            let rights = Rights::LOCAL_WRITE | Rights::REMOTE_READ | Rights::BIND;
            let key = valid(pair, own, KeyKind::Fast, area, rights);
            valid(pair, own, KeyKind::Window(WindowKind::Type2B), area, Rights::REMOTE_READ);
            if let Some((_, Key { mapping: Some(mapping), .. })) = pair.keys.last_mut() {
                mapping.parent = Some(key >> 8);
            }
            (local(invalidate(key)), Status::MemoryManagement(AccessError::Bound))
        }
        0 => {
            let key = new_key(pair, own, KeyKind::Fast, None);
            (local(invalidate(key)), Status::MemoryManagement(AccessError::Invalid))
        }
        1 => {
            let area = draw_source(rng, pair, own, len);
            let key = valid(pair, own, KeyKind::Fast, area, Rights::empty());
            let op = fast_register(rng, pair, own, key | 1, area, Rights::empty()).0;
            (local(op), Status::MemoryManagement(AccessError::Valid))
        }
        2 => {
            let key = new_key(pair, own, KeyKind::Window(WindowKind::Type1), None);
            let op = bind(rng, pair, own, key, WindowKind::Type2B);
            (local(op), Status::MemoryManagement(AccessError::Kind))
        }
        3 => {
            let key = new_key(pair, own, KeyKind::Fast, None);
            let sge = Sge { va: Va::new(0), lkey: Lkey::new(key), len: 1 };
            let op = of_bytes(SendOp::Send { imm: None }, list([sge]), 1, Vec::new(), Vec::new());
            (op, Status::LocalProtection(AccessError::Invalid))
        }
        // Access memory with the key of a window that is bound to another QP.
        4 => {
            let area = pair.allocate(theirs, len);
            let key = valid(pair, theirs, KeyKind::Window(WindowKind::Type2B), area, Rights::all());
            if let Some((_, Key { mapping: Some(mapping), .. })) = pair.keys.last_mut() {
                mapping.qpn = Some(protocol::ids::Qpn::new(0xff_fff0));
            }
            let (payload, from) = draw_gather(rng, pair, own, len);
            let remote = Remote { va: Va::new(0), rkey: Rkey::new(key) };
            (of_bytes(SendOp::Write { remote, imm: None }, payload, len, from, vec![]), Status::RemoteAccess)
        }
        _ if pair.shares_receives(theirs) || rng.random_ratio(1, 4) => {
            let key = new_key(pair, theirs, KeyKind::Fast, None);
            let remote = Remote { va: Va::new(0), rkey: Rkey::new(key) };
            let (payload, from) = draw_gather(rng, pair, own, len);
            (of_bytes(SendOp::Write { remote, imm: None }, payload, len, from, vec![]), Status::RemoteAccess)
        }
        nth => {
            // A SEND must not invalidate any of these keys: an invalid key, the key of an ordinary region, and the key
            // of a type 1 window.
            let key = match nth {
                5 => new_key(pair, theirs, KeyKind::Fast, None),
                _ if rng.random() => pair.key(theirs, SOURCE),
                _ => {
                    let area = pair.allocate(theirs, 1);
                    valid(pair, theirs, KeyKind::Window(WindowKind::Type1), area, Rights::all())
                }
            };
            let (op, recv) = send(rng, pair, own, SendOp::SendInvalidate { rkey: Rkey::new(key) }, len);
            let recv = recv.map(|recv| Recv { fails: Some(Status::RemoteInvalidRequest), ..recv });
            return (Op { fails: vec![Status::RemoteAccess], ..op }, recv);
        }
    };
    (Op { fails: vec![fails], ..op }, None)
}

/// Draws requests that repeatedly register a region, each time with a different key and different memory.
fn fast_registration(rng: &mut ChaCha8Rng, pair: &mut Pair, side: usize) -> Vec<Work> {
    let number = new_key(pair, side, KeyKind::Fast, None);
    let mut work = Vec::new();
    for generation in 1..=rng.random_range(1..=3) {
        let key = number | generation;
        let len = draw_len(rng, pair.mtu.bytes()).max(1);
        let reads = rng.random_bool(0.4);
        let (area, rights) = match reads {
            true => (pair.allocate(side, len), Rights::LOCAL_WRITE),
            false => (draw_source(rng, pair, side, len), Rights::empty()),
        };
        let (register, start) = fast_register(rng, pair, side, key, area, rights);
        // A region must be invalid before it is registered again. An earlier READ may be the request that
        // invalidates the region, so the fence waits for READs.
        let fence = if generation == 1 { Fence::None } else { *pick(rng, &[Fence::Reads, Fence::All]) };
        let op = local(register);
        work.push((Op { request: SendRequest { fence, ..op.request }, ..op }, None));
        let part = |from: usize, len: usize| Sge {
            va: Va::new(start.wrapping_add(from as u64)),
            lkey: Lkey::new(key),
            len: u32::try_from(len).expect("areas are small"),
        };
        let mut ended = false;
        if reads {
            let from = draw_source(rng, pair, 1 - side, len);
            ended = rng.random();
            let invalidate = ended.then(|| Lkey::new(key));
            let read = SendOp::Read { remote: pair.remote(1 - side, from), invalidate };
            let cut = rng.random_range(0..=len);
            let sges = list([part(0, cut), part(cut, len - cut)]);
            work.push((of_bytes(read, sges, len, vec![from], vec![area]), None));
        } else {
            for _ in 0..rng.random_range(1..=3) {
                let from = rng.random_range(0..=len);
                let len = rng.random_range(0..=len - from);
                let source = Area { offset: area.offset + from, len, ..area };
                let payload = list([part(from, len)]);
                work.push(if rng.random() {
                    let (op, recv) = send(rng, pair, side, SendOp::Send { imm: None }, len);
                    let request = SendRequest { payload, ..op.request };
                    (Op { request, from: vec![source], ..op }, recv)
                } else {
                    let to = pair.allocate(1 - side, len);
                    let write = SendOp::Write { remote: pair.remote(1 - side, to), imm: None };
                    (of_bytes(write, payload, len, vec![source], vec![to]), None)
                });
            }
        }
        if !ended {
            work.push((local(invalidate(key)), None));
        }
    }
    work
}

/// Draws requests that use one of the peer's keys. The key is valid from the start, and the last request invalidates
/// it, unless it belongs to a type 1 window.
fn remote(rng: &mut ChaCha8Rng, pair: &mut Pair, side: usize) -> Vec<Work> {
    let windows = [WindowKind::Type1, WindowKind::Type2B].map(KeyKind::Window);
    let kind = *pick(rng, &[KeyKind::Fast, windows[0], windows[1], windows[1]]);
    let (peer, mtu) = (1 - side, pair.mtu.bytes());
    let reads = rng.random();
    let lens: Vec<_> = (0..rng.random_range(1..=4)).map(|_| draw_len(rng, mtu).min(mtu * 2)).collect();
    let whole: usize = lens.iter().sum();
    let area = if reads { draw_source(rng, pair, peer, whole) } else { pair.allocate(peer, whole) };
    let key = valid(pair, peer, kind, area, Rights::REMOTE_READ | Rights::REMOTE_WRITE);
    let mut offset = 0;
    let mut work = Vec::new();
    for len in lens {
        let theirs = Area { offset: area.offset + offset, len, ..area };
        let remote = Remote { va: Va::new(offset as u64), rkey: Rkey::new(key) };
        work.push(if reads {
            let to = pair.allocate(side, len);
            let read = SendOp::Read { remote, invalidate: None };
            (of_bytes(read, list(pair.sges(side, &[to])), len, vec![theirs], vec![to]), None)
        } else {
            let (payload, from) = draw_gather(rng, pair, side, len);
            (of_bytes(SendOp::Write { remote, imm: None }, payload, len, from, vec![theirs]), None)
        });
        offset += len;
    }
    if kind != windows[0] {
        let len = draw_len(rng, mtu);
        let (op, recv) = send(rng, pair, side, SendOp::SendInvalidate { rkey: Rkey::new(key) }, len);
        // Without a fence, the responder could invalidate the key while it is still responding to a READ.
        let fence = if rng.random() || !reads { Fence::All } else { Fence::Reads };
        work.push((Op { request: SendRequest { fence, ..op.request }, ..op }, recv));
    }
    work
}

/// Draws requests that repeatedly bind a window, each time to different memory. The memory is part of an ordinary
/// region, or of a region that is registered before each bind and invalidated once the window is no longer bound.
fn binding(rng: &mut ChaCha8Rng, pair: &mut Pair, side: usize) -> Vec<Work> {
    let kind = *pick(rng, &[WindowKind::Type1, WindowKind::Type2B]);
    let number = new_key(pair, side, KeyKind::Window(kind), None);
    let region = rng.random_bool(0.5).then(|| new_key(pair, side, KeyKind::Fast, None));
    let mut work = Vec::new();
    for generation in 1..=rng.random_range(1..=3) {
        let window = number | generation;
        let parent = region.map(|region| region | generation);
        let op = match parent {
            None => bind(rng, pair, side, window, kind),
            Some(parent) => {
                let area = Area { region: HOT, offset: 0, len: HOT_BYTES };
                let rights = Rights::LOCAL_WRITE | Rights::REMOTE_READ | Rights::BIND;
                let (register, start) = loop {
                    // A bind specifies addresses in the region, so the region must not be zero-based.
                    let (register, start) = fast_register(rng, pair, side, parent, area, rights);
                    if start != 0 {
                        break (register, start);
                    }
                };
                work.push((local(register), None));
                within(bind(rng, pair, side, window, kind), parent, start)
            }
        };
        work.push((local(op), None));
        match (kind, parent) {
            (WindowKind::Type2B, _) => work.push((local(invalidate(window)), None)),
            // Unbind the window with a zero-length bind. The region cannot be invalidated while the window is bound.
            (WindowKind::Type1, Some(parent)) => {
                let op = match op {
                    KeyOp::Bind(bind) => KeyOp::Bind(Bind { len: 0, parent: Lkey::new(parent), ..bind }),
                    other => other,
                };
                work.push((local(op), None));
            }
            (WindowKind::Type1, None) => {}
        }
        if let Some(parent) = parent {
            work.push((local(invalidate(parent)), None));
        }
    }
    work
}

/// Changes a bind operation to use the region with key `parent`, whose first address is `start`.
fn within(op: KeyOp, parent: u32, start: u64) -> KeyOp {
    match op {
        KeyOp::Bind(bind) => KeyOp::Bind(Bind {
            parent: Lkey::new(parent),
            va: Va::new(start + (bind.va.get() - va(HOT))),
            ..bind
        }),
        other => other,
    }
}

/// Creates a key for a side and returns the complete key. Its low 8 bits are 0.
fn new_key(pair: &mut Pair, side: usize, kind: KeyKind, mapping: Option<Mapping>) -> u32 {
    let nth = u32::try_from(pair.index << 12 | pair.keys.len()).expect("there are few keys");
    let key = (0x20_0000 + nth) << 8;
    pair.keys.push((side, Key { key, pd: Pdn::new(pair.pd), kind, mapping }));
    key
}

/// Creates a valid, zero-based key for an area. A type 2 window is bound to the QP of its side.
fn valid(pair: &mut Pair, side: usize, kind: KeyKind, area: Area, rights: Rights) -> u32 {
    let mapping = Mapping {
        region: pair.key(side, area.region),
        first: va(area.region) + area.offset as u64,
        start: 0,
        len: area.len as u64,
        rights,
        qpn: (kind == KeyKind::Window(WindowKind::Type2B)).then_some(pair.ends[side].qpn),
        parent: None,
    };
    new_key(pair, side, kind, Some(mapping))
}

/// Returns a fast registration and the start address of the registered region.
fn fast_register(
    rng: &mut ChaCha8Rng,
    pair: &Pair,
    side: usize,
    key: u32,
    area: Area,
    rights: Rights,
) -> (KeyOp, u64) {
    let zero_based = rng.random();
    let start = rng.random_range(0..1u64 << 48);
    let base = Iova::new(u64::from(pair.key(side, area.region)) << 32 | area.offset as u64);
    let op = FastRegister {
        key: Lkey::new(key),
        start: Va::new(start),
        len: area.len as u64,
        rights,
        zero_based,
        base,
    };
    (KeyOp::FastRegister(op), if zero_based { 0 } else { start })
}

fn bind(rng: &mut ChaCha8Rng, pair: &Pair, side: usize, key: u32, kind: WindowKind) -> KeyOp {
    let offset = rng.random_range(0..HOT_BYTES);
    let least = u64::from(kind == WindowKind::Type2B);
    KeyOp::Bind(Bind {
        window: Rkey::new(key),
        parent: Lkey::new(pair.key(side, HOT)),
        va: Va::new(va(HOT) + offset as u64),
        len: rng.random_range(least..=(HOT_BYTES - offset) as u64),
        rights: Rights::REMOTE_READ,
        zero_based: rng.random(),
        kind,
    })
}

fn invalidate(key: u32) -> KeyOp {
    KeyOp::Invalidate(Lkey::new(key))
}

fn local(op: KeyOp) -> Op {
    bare(SendOp::Local(op.into()), list([]))
}

/// Draws a message and, unless the peer uses a shared receive queue, a receive request of the same length.
fn send(rng: &mut ChaCha8Rng, pair: &mut Pair, side: usize, op: SendOp, len: usize) -> Work {
    let (payload, from) = draw_gather(rng, pair, side, len);
    let shared = pair.shares_receives(1 - side);
    let recv = (!shared).then(|| draw_recv(rng, pair, 1 - side, len));
    let to = recv.as_ref().map(|recv| recv.areas.clone()).unwrap_or_default();
    (of_bytes(op, payload, len, from, to), recv)
}

fn list(sges: impl IntoIterator<Item = Sge>) -> Payload {
    Payload::Sges(SgeList::from_iter(sges))
}
