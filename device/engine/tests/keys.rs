//! Tests local key operations, SENDs with invalidate, and QPs whose requests are flushed by the owner instead of the
//! engine (`Flush::Owner`).

use crate::common::*;
use engine::{
    AccessError, AsyncEvent, Completion, Fence, Flush, RecvDone, Rights, SendOp, SendRequest, Service, Sge,
    State, Status, Success,
};
use protocol::ids::{Iova, Lkey, Pdn, Rkey, Va};
use sim::host::{HostEvent, Key, KeyKind, Mapping};
use sim::key_op::{Bind, FastRegister, KeyOp, WindowKind};

/// Keys of a fast-registration region and of a window, including the low 8 bits that software chooses.
const FAST: u32 = 0x2000_0000;
const WINDOW: u32 = 0x2000_0100;

fn key(number: u32, kind: KeyKind, mapping: Option<Mapping>) -> (u32, Key) {
    (number >> 8, Key { key: number, pd: Pdn::new(PD), kind, mapping })
}

/// Returns a mapping of the first 4096 bytes of the region, with all permissions.
fn mapping() -> Mapping {
    Mapping { region: KEY, first: VA, start: VA, len: 4096, rights: Rights::all(), qpn: None, parent: None }
}

fn pair() -> Pair {
    with(|_, _| {})
}

/// Returns a pair in which both sides have a fast-registration key and a type 2B window, neither of which is valid.
fn with(tune: impl Fn(Node, &mut engine::QpAttrs)) -> Pair {
    let mut pair = Pair::with(tune);
    for side in [&mut pair.a, &mut pair.b] {
        side.host
            .keys
            .extend([key(FAST, KeyKind::Fast, None), key(WINDOW, KeyKind::Window(WindowKind::Type2B), None)]);
        side.host.host_events = Some(Vec::new());
    }
    pair
}

/// Returns a pair in which B's fast-registration key is valid, as if registered earlier.
fn registered() -> Pair {
    let mut pair = pair();
    pair.b.host.keys.extend([key(FAST, KeyKind::Fast, Some(mapping()))]);
    pair
}

fn local(wr_id: u64, op: KeyOp) -> SendRequest {
    request(wr_id, SendOp::Local(op.into()), &[])
}

fn invalidate(wr_id: u64, key: u32) -> SendRequest {
    local(wr_id, KeyOp::Invalidate(Lkey::new(key)))
}

/// Returns a fast-registration request for the whole region.
fn fast_register(wr_id: u64, key: u32) -> SendRequest {
    let op = FastRegister {
        key: Lkey::new(key),
        start: Va::new(VA),
        len: REGION as u64,
        rights: Rights::all(),
        zero_based: false,
        base: Iova::new(u64::from(KEY) << 32),
    };
    local(wr_id, KeyOp::FastRegister(op))
}

fn bind(wr_id: u64, key: u32) -> SendRequest {
    let op = Bind {
        window: Rkey::new(key),
        parent: Lkey::new(KEY),
        va: Va::new(VA),
        len: 100,
        rights: Rights::REMOTE_READ,
        zero_based: false,
        kind: WindowKind::Type2B,
    };
    local(wr_id, KeyOp::Bind(op))
}

fn send_invalidate(wr_id: u64, key: u32, len: u32) -> SendRequest {
    request(wr_id, SendOp::SendInvalidate { rkey: Rkey::new(key) }, &[sge(0, len)])
}

/// Returns a SEND that gathers its payload through `key`.
fn send_through(wr_id: u64, key: u32, len: u32) -> SendRequest {
    request(wr_id, SendOp::Send { imm: None }, &[Sge { lkey: Lkey::new(key), ..sge(0, len) }])
}

/// Returns the key operations that `side` has executed since the last call.
fn executed(side: &mut Side) -> Vec<KeyOp> {
    let host_events = side.host.host_events.replace(Vec::new()).unwrap_or_default();
    let op = |event| match event {
        HostEvent::Local { op, .. } => Some(op),
        _ => None,
    };
    host_events.into_iter().filter_map(op).collect()
}

fn received(completion: &Completion) -> RecvDone {
    match completion.result {
        Ok(Success::Recv(done)) => done,
        other => panic!("{other:?}"),
    }
}

/// IBTA volume 1, section 9.4.1.1: only the last packet carries the key. The key is already invalid when the receive
/// completes.
#[test]
fn send_invalidate_takes_effect_at_last_packet() {
    let mut pair = registered();
    pair.post_recv(B, 7, 0x8000, 600);
    pair.post(A, send_invalidate(1, FAST, 600));
    let frames = pair.frames(A);
    let texts: Vec<_> = frames.iter().map(|frame| describe(frame)).collect();
    assert!(texts[0].starts_with("SendFirst 0x100") && texts[1].starts_with("SendMiddle 0x101"), "{texts:?}");
    assert!(texts[2].starts_with("SendLastInvalidate 0x102"), "{texts:?}");
    pair.deliver(B, &frames[0]);
    pair.deliver(B, &frames[1]);
    assert!(
        pair.b.host.keys[&(FAST >> 8)].mapping.is_some(),
        "the key stays valid until the message is complete"
    );
    pair.deliver(B, &frames[2]);
    assert!(pair.b.host.keys[&(FAST >> 8)].mapping.is_none());
    let done = received(&pair.b.completions[0]);
    assert_eq!((done.invalidated, done.byte_len), (Some(Rkey::new(FAST)), 600));
    assert_eq!(pair.bytes(B, 0x8000, 600), pair.bytes(A, 0, 600));
    pair.flow();
    assert_eq!(pair.a.sends(), ok([1]));
}

#[test]
fn plain_send_does_not_report_invalidated_key() {
    let mut pair = pair();
    pair.post_recv(B, 7, 0x8000, 10);
    pair.post(A, send(1, 10));
    pair.flow();
    assert_eq!(received(&pair.b.completions[0]).invalidated, None);
}

#[test]
fn duplicate_send_invalidate_is_not_executed() {
    let mut pair = registered();
    pair.post_recv(B, 7, 0x8000, 10);
    pair.post(A, send_invalidate(1, FAST, 10));
    // The ACK is lost. Meanwhile, the key has been registered again for another use.
    pair.lose(B, 0);
    pair.b.host.keys.extend([key(FAST, KeyKind::Fast, Some(mapping()))]);
    pair.advance(TIMEOUT);
    pair.flow();
    assert_eq!((pair.a.sends(), pair.b.recvs()), (ok([1]), ok([7])));
    assert!(pair.b.host.keys[&(FAST >> 8)].mapping.is_some(), "the duplicate must not invalidate the key");
}

/// The responder rejects the key only after it has written the SEND's data, so the receive fails too.
#[test]
fn send_with_invalidate_of_forbidden_key_fails_on_both_sides() {
    for (bad, reason) in
        [(KEY, AccessError::Kind), (FAST, AccessError::Invalid), (FAST | 1, AccessError::Key)]
    {
        let mut pair = pair();
        pair.post_recv(B, 7, 0x8000, 10);
        pair.post(A, send_invalidate(1, bad, 10));
        let trace = pair.flow();
        assert_eq!(trace[1..], ["B Acknowledge 0x100 RemoteAccess msn0"]);
        assert_eq!(pair.a.sends(), [(1, Err(Status::RemoteAccess))]);
        assert_eq!(pair.b.recvs(), [(7, Err(Status::RemoteInvalidRequest))]);
        assert_eq!(pair.b.asyncs, [AsyncEvent::AccessError(reason)]);
        assert_eq!((pair.snapshot(A).state, pair.snapshot(B).state), (State::Err, State::Err));
    }
}

#[test]
fn rejects_window_bound_to_another_qp() {
    let mut pair = pair();
    let foreign = Mapping { qpn: Some(protocol::ids::Qpn::new(0x99)), ..mapping() };
    pair.b.host.keys.extend([key(WINDOW, KeyKind::Window(WindowKind::Type2B), Some(foreign))]);
    let remote = engine::Remote { rkey: Rkey::new(WINDOW), ..remote(0) };
    pair.post(A, request(1, SendOp::Write { remote, imm: None }, &[sge(0, 10)]));
    pair.flow();
    assert_eq!(pair.a.sends(), [(1, Err(Status::RemoteAccess))]);
    assert_eq!(pair.b.asyncs, [AsyncEvent::AccessError(AccessError::Qp)]);
}

/// IBTA volume 1, section 10.8.3.3: requests that follow a fast registration start only after it, even without a fence.
/// The SEND that uses the new key therefore needs none.
#[test]
fn retransmission_does_not_repeat_fast_registration() {
    let mut pair = pair();
    pair.post_recv(B, 7, 0x8000, 300);
    pair.post_recv(B, 8, 0x9000, 300);
    pair.a.host.post_send(A.qpn(), send(1, 300));
    pair.a.host.post_send(A.qpn(), fast_register(2, FAST | 1));
    pair.post(A, send_through(3, FAST | 1, 300));
    // The first packet is lost. The retry must skip the registration, which has already been executed.
    pair.lose(A, 0);
    pair.advance(TIMEOUT);
    pair.flow();
    assert_eq!((pair.a.sends(), pair.b.recvs()), (ok([1, 2, 3]), ok([7, 8])));
    assert_eq!(executed(&mut pair.a).len(), 1);
    assert_eq!(pair.bytes(B, 0x9000, 300), pair.bytes(A, 0, 300));
}

#[test]
fn key_operations_complete_in_queue_order() {
    let mut pair = pair();
    pair.post_recv(B, 7, 0x8000, 10);
    pair.a.host.post_send(A.qpn(), send(1, 10));
    pair.a.host.post_send(A.qpn(), fast_register(2, FAST | 1));
    pair.post(A, bind(3, WINDOW | 1));
    assert_eq!(pair.frames(A).len(), 1);
    assert_eq!(
        (executed(&mut pair.a).len(), pair.a.sends()),
        (2, vec![]),
        "the key operations wait for the SEND to complete"
    );
    pair.advance(TIMEOUT);
    pair.flow();
    assert_eq!(pair.a.sends(), ok([1, 2, 3]));
}

/// A retransmission gathers data through the key again, so the key must stay valid until older requests complete.
#[test]
fn invalidation_waits_for_older_requests() {
    let mut pair = pair();
    pair.post_recv(B, 7, 0x8000, 300);
    pair.a.host.post_send(A.qpn(), fast_register(1, FAST | 1));
    pair.a.host.post_send(A.qpn(), send_through(2, FAST | 1, 300));
    pair.a.host.post_send(A.qpn(), invalidate(3, FAST | 1));
    pair.post(A, send_through(4, FAST | 1, 10));
    pair.lose(A, 1);
    assert_eq!(executed(&mut pair.a).len(), 1, "only the registration has been executed");
    pair.advance(TIMEOUT);
    pair.flow();
    assert_eq!(executed(&mut pair.a), [KeyOp::Invalidate(Lkey::new(FAST | 1))]);
    let late = Err(Status::LocalProtection(AccessError::Invalid));
    assert_eq!(pair.a.sends(), [(1, Ok(())), (2, Ok(())), (3, Ok(())), (4, late)]);
    assert_eq!(pair.bytes(B, 0x8000, 300), pair.bytes(A, 0, 300));
}

#[test]
fn read_with_invalidate_invalidates_after_last_response() {
    let mut pair = pair();
    pair.a.host.keys.extend([key(FAST, KeyKind::Fast, Some(mapping()))]);
    let sink = Sge { lkey: Lkey::new(FAST), ..sge(0x100, 600) };
    let op = SendOp::Read { remote: remote(0x8000), invalidate: Some(Lkey::new(FAST)) };
    pair.post(A, request(1, op, &[sink]));
    pair.lose(B, 2);
    assert_eq!(executed(&mut pair.a), [], "the key stays valid until the last response arrives");
    pair.advance(TIMEOUT);
    pair.flow();
    assert_eq!(executed(&mut pair.a), [KeyOp::Invalidate(Lkey::new(FAST))]);
    assert_eq!(pair.a.sends(), ok([1]));
    assert_eq!(pair.bytes(A, 0x100, 600), pair.bytes(B, 0x8000, 600));
}

#[test]
fn read_fails_if_its_key_cannot_be_invalidated() {
    let mut pair = pair();
    let op = SendOp::Read { remote: remote(0x8000), invalidate: Some(Lkey::new(KEY)) };
    pair.post(A, request(1, op, &[sge(0, 10)]));
    pair.flow();
    assert_eq!(pair.a.sends(), [(1, Err(Status::MemoryManagement(AccessError::Key)))]);
    assert_eq!(pair.snapshot(A).state, State::Err);
}

/// IBTA volume 1, section 10.6.5: once invalidated, a key permits no access, not even for the rest of an incomplete
/// message.
#[test]
fn invalidated_key_blocks_message_in_progress() {
    const LEN: usize = 700;
    for before in 0..=3 {
        let mut pair = registered();
        let old = pair.bytes(B, 0x200, LEN).to_vec();
        let remote = engine::Remote { rkey: Rkey::new(FAST), ..remote(0x200) };
        pair.post(A, request(1, SendOp::Write { remote, imm: None }, &[sge(0, 700)]));
        let frames = pair.frames(A);
        let (first, last) = frames.split_at(before);
        first.iter().for_each(|frame| pair.deliver(B, frame));
        pair.post(B, invalidate(9, FAST));
        pair.frames(B);
        assert_eq!(executed(&mut pair.b), [KeyOp::Invalidate(Lkey::new(FAST))]);
        last.iter().for_each(|frame| pair.deliver(B, frame));
        pair.advance(TIMEOUT);
        pair.flow();
        let there = LEN.min(before * 256);
        let new = [&pair.bytes(A, 0, there)[..], &old[there..]].concat();
        assert_eq!(pair.bytes(B, 0x200, LEN), new, "invalidated after {before} packets");
        let status = if before == frames.len() { Ok(()) } else { Err(Status::RemoteAccess) };
        assert_eq!(
            (pair.a.sends(), pair.b.sends()),
            (vec![(1, status)], ok([9])),
            "invalidated after {before} packets"
        );
    }
}

/// The key is checked again for a duplicate READ, because it may have been invalidated in the meantime.
#[test]
fn duplicate_read_is_dropped_after_key_invalidation() {
    let mut pair = registered();
    let old = pair.bytes(A, 0x100, 600).to_vec();
    let remote = engine::Remote { rkey: Rkey::new(FAST), ..remote(0x200) };
    pair.post(A, request(1, SendOp::Read { remote, invalidate: None }, &[sge(0x100, 600)]));
    let requests = pair.frames(A);
    requests.iter().for_each(|frame| pair.deliver(B, frame));
    assert_eq!(pair.frames(B).len(), 3, "three responses are sent, and all are lost");
    pair.post(B, invalidate(9, FAST));
    assert_eq!((pair.frames(B).len(), pair.b.sends()), (0, ok([9])));
    for _ in 0..=attrs(A).retry_count {
        pair.advance(TIMEOUT);
        pair.flow();
    }
    assert_eq!(pair.bytes(A, 0x100, 600), old);
    assert_eq!(pair.a.sends(), [(1, Err(Status::RetryExceeded))]);
}

#[test]
fn bound_window_blocks_region_invalidation() {
    let mut pair = pair();
    pair.a.host.post_send(A.qpn(), fast_register(1, FAST | 1));
    let over = |wr_id, len| {
        let SendOp::Local(op) = bind(wr_id, WINDOW | 1).op else { panic!() };
        let Some(KeyOp::Bind(of)) = KeyOp::of(&op.token) else { panic!() };
        local(wr_id, KeyOp::Bind(Bind { parent: Lkey::new(FAST | 1), len, ..of }))
    };
    pair.a.host.post_send(A.qpn(), over(2, 100));
    pair.post(A, invalidate(3, FAST | 1));
    pair.flow();
    let bound = Err(Status::MemoryManagement(AccessError::Bound));
    assert_eq!(pair.a.sends(), [(1, Ok(())), (2, Ok(())), (3, bound)]);
}

#[test]
fn failed_bind_completes_in_queue_order() {
    let mut pair = pair();
    pair.post_recv(B, 7, 0x8000, 10);
    pair.a.host.post_send(A.qpn(), send(1, 10));
    pair.a.host.post_send(A.qpn(), bind(2, FAST));
    pair.post(A, send(3, 10));
    assert_eq!(pair.flow(), ["A SendOnly 0x100 10B?", "B Acknowledge 0x100 msn1"]);
    let failed = Err(Status::MemoryManagement(AccessError::Kind));
    assert_eq!(pair.a.sends(), [(1, Ok(())), (2, failed), (3, Err(Status::Flushed))]);
    assert_eq!(pair.snapshot(A).state, State::Err);
}

#[test]
fn fenced_request_waits_for_acks_of_earlier_writes() {
    let mut pair = pair();
    pair.post(A, write(1, 0x8000, 10));
    pair.post(A, SendRequest { fence: Fence::All, ..write(2, 0x9000, 10) });
    pair.post(A, write(3, 0xa000, 10));
    let before = pair.frames(A);
    assert_eq!(before.len(), 1, "the fenced request and the one after it must wait");
    pair.deliver(B, &before[0]);
    let trace = pair.flow();
    assert_eq!(trace[0], "B Acknowledge 0x100 msn1");
    assert!(trace[1].starts_with("A WriteOnly 0x101"), "{trace:?}");
    assert_eq!(pair.a.sends(), ok([1, 2, 3]));
}

#[test]
fn fast_registration_posted_in_sqd_waits_for_rts() {
    let mut pair = pair();
    pair.modify_with(A, State::Sqd, |_| {});
    pair.post(A, fast_register(1, FAST | 1));
    assert_eq!((pair.frames(A).len(), executed(&mut pair.a).len()), (0, 0));
    pair.modify(A, State::Rts);
    pair.flow();
    assert_eq!((pair.a.sends(), executed(&mut pair.a).len()), (ok([1]), 1));
}

#[test]
fn uc_supports_key_operations_and_ud_rejects_them() {
    let mut pair = with(|_, attrs| attrs.service = Service::Uc);
    pair.post_recv(B, 7, 0x8000, 100);
    pair.a.host.post_send(A.qpn(), fast_register(1, FAST | 1));
    pair.a.host.post_send(A.qpn(), send_through(2, FAST | 1, 100));
    pair.post(A, invalidate(3, FAST | 1));
    pair.flow();
    assert_eq!((pair.a.sends(), pair.b.recvs()), (ok([1, 2, 3]), ok([7])));
    assert_eq!(executed(&mut pair.a).len(), 2);
    pair.post(A, send_invalidate(4, FAST, 10));
    pair.flow();
    assert_eq!(pair.a.sends(), [(4, Err(Status::LocalQpOperation))]);

    let mut pair = with(|_, attrs| attrs.service = Service::Ud);
    pair.post(A, fast_register(1, FAST | 1));
    pair.flow();
    assert_eq!(pair.a.sends(), [(1, Err(Status::LocalQpOperation))]);
}

fn owner() -> Pair {
    with(|_, attrs| attrs.flush = Flush::Owner)
}

/// E810 interface, section 14.2: the owner reports all flushed requests of a queue with one completion.
#[test]
fn owner_flush_completes_only_the_failed_send() {
    let mut pair = owner();
    pair.post_recv(A, 11, 0x8000, 10);
    pair.a.host.post_send(A.qpn(), send_through(1, 0x999, 10));
    pair.a.host.post_send(A.qpn(), send(2, 10));
    pair.post(A, send(3, 10));
    pair.flow();
    assert_eq!(pair.a.sends(), [(1, Err(Status::LocalProtection(AccessError::Key)))]);
    assert_eq!((pair.a.recvs(), pair.a.asyncs.len()), (vec![], 0));
    assert_eq!(pair.snapshot(A).state, State::Err);
    let queues = &pair.a.host.queues[&A.qpn().get()];
    assert_eq!((queues.send.len(), queues.recv.len()), (2, 1), "the other requests stay in their queues");
    pair.post(A, send(4, 10));
    pair.advance(TIMEOUT);
    assert_eq!((pair.a.sends(), pair.a.recvs()), (vec![], vec![]));
}

#[test]
fn owner_flush_completes_only_the_failed_receive() {
    let mut pair = owner();
    let bad = Sge { lkey: Lkey::new(LOCKED), ..sge(0, 100) };
    pair.b.host.post_recv(B.qpn(), 7, &[bad]);
    pair.post_recv(B, 8, 0x9000, 100);
    pair.post(A, send(1, 10));
    pair.flow();
    assert_eq!(pair.b.recvs(), [(7, Err(Status::LocalProtection(AccessError::Right)))]);
    assert_eq!(pair.b.host.queues[&B.qpn().get()].recv.len(), 1);
}

/// The rejected WRITE has not consumed a receive request, so only an event reports the error.
#[test]
fn responder_error_with_owner_flush_raises_event_without_cqe() {
    let mut pair = owner();
    pair.post_recv(B, 7, 0x8000, 100);
    let bad = engine::Remote { rkey: Rkey::new(0x999), ..remote(0) };
    let imm = Some(protocol::roce::Imm([0; 4]));
    pair.post(A, request(1, SendOp::Write { remote: bad, imm }, &[sge(0, 10)]));
    pair.flow();
    assert_eq!((pair.b.recvs(), pair.b.sends()), (vec![], vec![]));
    assert_eq!(pair.b.asyncs, [AsyncEvent::AccessError(AccessError::Key)]);
    assert_eq!(pair.a.sends(), [(1, Err(Status::RemoteAccess))]);
}

#[test]
fn move_to_err_with_owner_flush_completes_nothing() {
    let mut pair = owner();
    pair.post_recv(A, 11, 0x8000, 10);
    pair.post(A, write(1, 0x8000, 10));
    pair.frames(A);
    pair.modify_with(A, State::Err, |modify| modify.attrs.flush = Flush::Owner);
    assert_eq!((pair.a.sends(), pair.a.recvs(), pair.a.asyncs.len()), (vec![], vec![], 0));
    // The engine also ignores receive requests that are posted later.
    pair.post_recv(A, 12, 0x8000, 10);
    pair.advance(TIMEOUT);
    assert_eq!((pair.a.sends(), pair.a.recvs()), (vec![], vec![]));
    assert_eq!(pair.a.host.queues[&A.qpn().get()].recv.len(), 2);
}
