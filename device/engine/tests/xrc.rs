//! Tests extended reliable connections (XRC): initiators, targets, and the SRQ that each request names. A is the
//! initiator and B the target.
//!
//! # Spec
//! IBTA volume 1, annex A14, with the responder checks of section 9.7.4 and the events of section 11.6.3.

use crate::common::*;
use engine::*;
use protocol::Psn;
use protocol::ids::{Lkey, Pdn, Pkey, Qpn, Rkey, Srqn, Va};
use protocol::roce::{
    AtomicEth, Bth, Ext, Imm, NakCode, Opcode, Operation as O, Packet, Reth, RoceFrame, Syndrome, Transport,
};
use sim::host::{Key, KeyKind, Mapping, XrcSrq};

/// XRC SRQs in the target's XRC domain and in the memory region's protection domain.
const SRQ: Srqn = Srqn::new(5);
const SECOND_SRQ: Srqn = Srqn::new(6);
/// XRC SRQ in the target's XRC domain, but in another protection domain.
const OTHER_PD: Srqn = Srqn::new(7);
/// XRC SRQ in another XRC domain.
const OTHER_DOMAIN: Srqn = Srqn::new(8);
const PLAIN_SRQ: Srqn = Srqn::new(9);
const UNKNOWN: Srqn = Srqn::new(0xff_ffff);

const DOMAIN: u32 = 1;
/// Protection domain of the target. No memory region belongs to it.
const KERNEL_PD: u32 = 99;

/// Returns the attributes of an initiator at A or a target at B.
fn xrc_attrs(node: Node) -> QpAttrs {
    match node {
        A => QpAttrs { service: Service::XrcIni, ..attrs(A) },
        B => QpAttrs { service: Service::XrcTgt, pd: Pdn::new(KERNEL_PD), ..attrs(B) },
    }
}

fn xrc() -> Pair {
    xrc_with(|_, _| {})
}

fn xrc_with(tune: impl Fn(Node, &mut QpAttrs)) -> Pair {
    let mut pair = Pair::with(|node, attrs| {
        *attrs = xrc_attrs(node);
        tune(node, attrs);
    });
    let srqs = [(SRQ, DOMAIN, PD), (SECOND_SRQ, DOMAIN, PD), (OTHER_PD, DOMAIN, 4), (OTHER_DOMAIN, 2, PD)];
    for (srqn, domain, pd) in srqs {
        pair.b.host.xrc_srqs.insert(srqn.get(), XrcSrq { domain, pd: Pdn::new(pd) });
    }
    pair.b.host.shared.entry(PLAIN_SRQ.get()).or_default();
    pair.b.host.xrc_domains.insert(B.qpn().get(), DOMAIN);
    pair
}

/// Returns `request` with the SRQ number `srqn`.
fn to(srqn: Srqn, request: SendRequest) -> SendRequest {
    SendRequest { remote_srq: Some(srqn), ..request }
}

fn post_recv(pair: &mut Pair, srqn: Srqn, wr_id: u64, offset: u64, len: u32) {
    pair.b.host.post_shared(srqn.get(), wr_id, &[sge(offset, len)]);
}

fn write_imm(wr_id: u64, offset: u64, len: u32) -> SendRequest {
    let op = SendOp::Write { remote: remote(offset), imm: Some(Imm([1, 2, 3, 4])) };
    request(wr_id, op, &[sge(0, len)])
}

fn fetch_add(wr_id: u64, offset: u64, add: u64) -> SendRequest {
    request(wr_id, SendOp::FetchAdd { remote: remote(offset), add }, &[sge(0x100, 8)])
}

fn each_operation() -> [SendRequest; 5] {
    [
        send(1, 10),
        write(1, 0x8000, 10),
        write_imm(1, 0x8000, 10),
        read(1, 0x8000, 10),
        fetch_add(1, 0x8000, 1),
    ]
}

/// QP, SRQ, work request ID and result of a completed receive.
type Received = (Qpn, Option<Srqn>, u64, Result<(), Status>);

/// Returns the receives completed since the last call.
fn received(pair: &mut Pair) -> Vec<Received> {
    let done = pair.b.completions.drain(..).filter(|done| done.queue == Queue::Recv);
    done.map(|done| (done.qpn, done.srqn, done.wr_id, done.result.map(|_| ()))).collect()
}

/// Delivers a forged packet that appears to come from the peer.
fn inject(pair: &mut Pair, node: Node, operation: O, psn: Psn, srqn: Option<Srqn>, ext: Ext, payload: &[u8]) {
    let bth = Bth {
        opcode: Opcode::xrc(operation),
        solicited: false,
        mig_req: true,
        pkey: Pkey::DEFAULT,
        fecn: false,
        becn: false,
        dest_qp: node.qpn(),
        ack_req: true,
        psn,
    };
    pair.deliver_packet(node, &node.peer().path(), &Packet { bth, srqn, ext, payload });
}

fn at(n: u32) -> Psn {
    psn_a().advance(n)
}

fn reth(dma_len: u32) -> Ext {
    Ext::Reth(Reth { va: Va::new(VA + 0x8000), rkey: Rkey::new(KEY), dma_len })
}

/// The NAK for A's first request.
const NAK: &str = "B Acknowledge 0x100 InvalidRequest msn0";

#[test]
fn message_consumes_receive_from_named_srq() {
    let mut pair = xrc();
    post_recv(&mut pair, SRQ, 1, 0x8000, 10);
    post_recv(&mut pair, SECOND_SRQ, 2, 0x9000, 600);
    post_recv(&mut pair, SRQ, 3, 0xa000, 10);
    pair.post(A, to(SECOND_SRQ, send(1, 600)));
    pair.post(A, to(SRQ, send(2, 10)));
    pair.post(A, to(SRQ, send(3, 5)));
    pair.flow();
    let expected = [(Some(SECOND_SRQ), 2), (Some(SRQ), 1), (Some(SRQ), 3)];
    assert_eq!(received(&mut pair), expected.map(|(srqn, wr_id)| (B.qpn(), srqn, wr_id, Ok(()))));
    assert_eq!(pair.bytes(B, 0x9000, 600), pair.bytes(A, 0, 600));
    assert_eq!(pair.bytes(B, 0xa000, 5), pair.bytes(A, 0, 5));
    assert_eq!(pair.a.sends(), ok([1, 2, 3]));
}

#[test]
fn only_request_packets_carry_xrceth() {
    let mut pair = xrc();
    post_recv(&mut pair, SRQ, 1, 0x8000, 600);
    for request in [send(1, 600), write(2, 0x9000, 600), read(3, 0xa000, 600), fetch_add(4, 0xb000, 1)] {
        pair.post(A, to(SRQ, request));
    }
    let mut requests = 0;
    loop {
        let frames = [A, B].map(|node| pair.frames(node));
        for (node, frame) in
            [A, B].into_iter().zip(&frames).flat_map(|(node, all)| all.iter().map(move |f| (node, f)))
        {
            let packet = RoceFrame::parse(frame).unwrap().packet;
            assert_eq!(packet.bth.opcode.transport, Transport::Xrc);
            assert_eq!(packet.bth.opcode.is_response(), node == B);
            assert_eq!(packet.srqn, (node == A).then_some(SRQ), "{}", packet.bth.opcode);
            requests += u32::from(node == A);
            pair.deliver(node.peer(), frame);
        }
        if frames.iter().all(Vec::is_empty) {
            break;
        }
    }
    assert_eq!(requests, 3 + 3 + 1 + 1);
    assert_eq!(pair.a.sends(), ok(1..=4));
}

#[test]
fn srq_is_shared_by_targets() {
    let mut pair = xrc();
    let second = |node: Node| Qpn::new(node.qpn().get() + 0x10);
    for node in [A, B] {
        pair.add(node, second(node), QpAttrs { remote_qpn: second(node.peer()), ..xrc_attrs(node) });
    }
    pair.b.host.xrc_domains.insert(second(B).get(), DOMAIN);
    for id in 1..=3 {
        post_recv(&mut pair, SRQ, id, 0x8000 + id * 0x100, 10);
    }
    pair.post_on(A, second(A), to(SRQ, send(1, 10)));
    pair.flow();
    pair.post(A, to(SRQ, send(2, 10)));
    pair.flow();
    pair.post_on(A, second(A), to(SRQ, send(3, 10)));
    pair.flow();
    let expected = [(second(B), 1), (B.qpn(), 2), (second(B), 3)];
    assert_eq!(received(&mut pair), expected.map(|(qpn, wr_id)| (qpn, Some(SRQ), wr_id, Ok(()))));
}

#[test]
fn write_with_immediate_consumes_receive_from_named_srq() {
    let mut pair = xrc();
    post_recv(&mut pair, SRQ, 1, 0, 0);
    post_recv(&mut pair, SECOND_SRQ, 2, 0, 0);
    pair.post(A, to(SECOND_SRQ, write(1, 0x8000, 600)));
    pair.post(A, to(SECOND_SRQ, write_imm(2, 0x9000, 600)));
    pair.flow();
    assert_eq!(pair.a.sends(), ok([1, 2]));
    let [done] = pair.b.completions[..] else { panic!("{:?}", pair.b.completions) };
    let Ok(Success::Recv(recv)) = done.result else { panic!("{done:?}") };
    assert_eq!((done.srqn, done.wr_id), (Some(SECOND_SRQ), 2));
    assert_eq!((recv.byte_len, recv.imm, recv.remote_qpn), (600, Some(Imm([1, 2, 3, 4])), A.qpn()));
    assert_eq!(recv.opcode, Opcode::xrc(O::WriteLastImm));
    assert_eq!(pair.bytes(B, 0x9000, 600), pair.bytes(A, 0, 600));
    assert_eq!(pair.b.host.shared[&SRQ.get()].len(), 1);
}

#[test]
fn xrc_read_uses_srq_protection_domain() {
    let mut pair = xrc();
    pair.post(A, to(SRQ, read(1, 0x8000, 1000)));
    pair.flow();
    assert_eq!(pair.a.sends(), ok([1]));
    assert_eq!(pair.bytes(A, 0x8000, 1000), pair.bytes(B, 0, 1000));
}

#[test]
fn retransmitted_xrc_atomic_executes_once() {
    let mut pair = xrc();
    pair.b.host.bytes(KEY)[0x8000..0x8008].copy_from_slice(&5u64.to_le_bytes());
    pair.post(A, to(SRQ, fetch_add(1, 0x8000, 2)));
    // The response is lost, so the request is retransmitted.
    pair.lose(B, 0);
    pair.advance(TIMEOUT);
    pair.flow();
    let swap = SendOp::CompareSwap { remote: remote(0x8000), compare: 7, swap: 9 };
    pair.post(A, to(SECOND_SRQ, request(2, swap, &[sge(0x108, 8)])));
    pair.flow();
    assert_eq!(pair.a.sends(), ok([1, 2]));
    assert_eq!(pair.bytes(A, 0x100, 16), [5u64.to_le_bytes(), 7u64.to_le_bytes()].concat());
    assert_eq!(pair.bytes(B, 0x8000, 8), 9u64.to_le_bytes());
}

#[test]
fn send_invalidate_uses_srq_protection_domain() {
    const FAST: u32 = 0x5500;
    let mut pair = xrc();
    let mapping = Mapping {
        region: KEY,
        first: VA,
        start: 0,
        len: 100,
        rights: Rights::all(),
        qpn: None,
        parent: None,
    };
    let key = Key { key: FAST, pd: Pdn::new(PD), kind: KeyKind::Fast, mapping: Some(mapping) };
    pair.b.host.keys.insert(FAST >> 8, key);
    post_recv(&mut pair, SRQ, 1, 0x8000, 300);
    pair.post(A, to(SRQ, request(1, SendOp::SendInvalidate { rkey: Rkey::new(FAST) }, &[sge(0, 300)])));
    pair.flow();
    assert_eq!(pair.a.sends(), ok([1]));
    assert!(pair.b.host.keys[&(FAST >> 8)].mapping.is_none());
}

/// All accesses use the SRQ's protection domain, not the target's.
#[test]
fn keys_are_checked_against_srq_protection_domain() {
    for request in
        [write(1, 0x8000, 10), write_imm(1, 0x8000, 10), read(1, 0x8000, 10), fetch_add(1, 0x8000, 1)]
    {
        let mut pair = xrc();
        let before = pair.b.host.bytes(KEY).clone();
        pair.post(A, to(OTHER_PD, request));
        assert!(pair.flow().contains(&"B Acknowledge 0x100 RemoteAccess msn0".to_owned()));
        assert_eq!(pair.a.sends(), [(1, Err(Status::RemoteAccess))]);
        assert_eq!(pair.b.asyncs, [AsyncEvent::AccessError(AccessError::Pd), AsyncEvent::LastWqeReached]);
        assert_eq!(*pair.b.host.bytes(KEY), before);
    }
}

#[test]
fn receive_buffers_are_checked_against_srq_protection_domain() {
    let mut pair = xrc();
    post_recv(&mut pair, OTHER_PD, 1, 0x8000, 10);
    pair.post(A, to(OTHER_PD, send(1, 10)));
    pair.flow();
    let failed = Err(Status::LocalProtection(AccessError::Pd));
    assert_eq!(received(&mut pair), [(B.qpn(), Some(OTHER_PD), 1, failed)]);
    assert_eq!(pair.a.sends(), [(1, Err(Status::RemoteOperational))]);
}

/// Checks that each operation fails at the target because of the SRQ that it names.
#[track_caller]
fn refused_everywhere(srqn: Srqn, event: AsyncEvent) {
    for request in each_operation() {
        let op = request.op;
        let mut pair = xrc();
        post_recv(&mut pair, srqn, 1, 0x8000, 10);
        let before = pair.b.host.bytes(KEY).clone();
        pair.post(A, to(srqn, request));
        let trace = pair.flow();
        assert!(trace.contains(&NAK.to_owned()), "{op:?}: {trace:?}");
        assert_eq!(pair.a.sends(), [(1, Err(Status::RemoteInvalidRequest))], "{op:?}");
        assert_eq!(pair.b.asyncs, [event, AsyncEvent::LastWqeReached], "{op:?}");
        assert_eq!(pair.snapshot(B).state, State::Err, "{op:?}");
        assert_eq!(*pair.b.host.bytes(KEY), before, "{op:?}");
        assert_eq!((received(&mut pair), pair.b.host.shared[&srqn.get()].len()), (vec![], 1), "{op:?}");
        assert_eq!(pair.b.engine.stats().drops.invalid_request, 1, "{op:?}");
    }
}

#[test]
fn xrceth_naming_unknown_srq_is_invalid() {
    refused_everywhere(UNKNOWN, AsyncEvent::InvalidXrceth(UNKNOWN));
}

#[test]
fn xrceth_naming_ordinary_srq_is_invalid() {
    refused_everywhere(PLAIN_SRQ, AsyncEvent::InvalidXrceth(PLAIN_SRQ));
}

#[test]
fn srq_in_other_xrc_domain_causes_domain_violation() {
    refused_everywhere(OTHER_DOMAIN, AsyncEvent::XrcDomainViolation(OTHER_DOMAIN));
}

#[test]
fn srq_change_within_send_is_rejected() {
    for (operation, len) in [(O::SendMiddle, 256), (O::SendLast, 10)] {
        let mut pair = xrc();
        post_recv(&mut pair, SRQ, 1, 0x8000, 600);
        post_recv(&mut pair, SECOND_SRQ, 2, 0x9000, 600);
        inject(&mut pair, B, O::SendFirst, at(0), Some(SRQ), Ext::None, &[1; 256]);
        inject(&mut pair, B, operation, at(1), Some(SECOND_SRQ), Ext::None, &vec![2; len]);
        // The receive request that the message had consumed is flushed, and its completion names the first SRQ.
        assert_eq!(received(&mut pair), [(B.qpn(), Some(SRQ), 1, Err(Status::Flushed))]);
        assert_eq!(pair.b.asyncs, [AsyncEvent::InvalidRequest, AsyncEvent::LastWqeReached]);
        assert_eq!(pair.flow(), ["B Acknowledge 0x100 msn0", "B Acknowledge 0x101 InvalidRequest msn0"]);
        assert_eq!(pair.b.host.shared[&SECOND_SRQ.get()].len(), 1);
    }
}

#[test]
fn srq_change_within_write_is_rejected() {
    let mut pair = xrc();
    inject(&mut pair, B, O::WriteFirst, at(0), Some(SRQ), reth(300), &[1; 256]);
    inject(&mut pair, B, O::WriteLast, at(1), Some(SECOND_SRQ), Ext::None, &[2; 44]);
    assert_eq!(pair.flow(), ["B Acknowledge 0x100 msn0", "B Acknowledge 0x101 InvalidRequest msn0"]);
    assert_eq!(pair.bytes(B, 0x8000 + 255, 2)[0], 1);
    assert_ne!(pair.bytes(B, 0x8000 + 256, 44), [2; 44]);
}

#[test]
fn next_message_can_name_another_srq() {
    let mut pair = xrc();
    inject(&mut pair, B, O::WriteFirst, at(0), Some(SRQ), reth(300), &[1; 256]);
    inject(&mut pair, B, O::WriteLast, at(1), Some(SRQ), Ext::None, &[2; 44]);
    inject(&mut pair, B, O::WriteFirst, at(2), Some(SECOND_SRQ), reth(300), &[3; 256]);
    inject(&mut pair, B, O::WriteLast, at(3), Some(SECOND_SRQ), Ext::None, &[4; 44]);
    assert_eq!(pair.flow(), ["B Acknowledge 0x103 msn2"]);
}

#[test]
fn srq_destroyed_during_message_fails_both_qps() {
    let mut pair = xrc();
    post_recv(&mut pair, SRQ, 1, 0x8000, 300);
    pair.post(A, to(SRQ, send(1, 300)));
    let frames = pair.frames(A);
    pair.deliver(B, &frames[0]);
    pair.b.host.xrc_srqs.remove(&SRQ.get());
    pair.deliver(B, &frames[1]);
    pair.flow();
    assert_eq!(received(&mut pair), [(B.qpn(), Some(SRQ), 1, Err(Status::Flushed))]);
    assert_eq!(pair.b.asyncs, [AsyncEvent::InvalidXrceth(SRQ), AsyncEvent::LastWqeReached]);
    assert_eq!(pair.a.sends(), [(1, Err(Status::RemoteInvalidRequest))]);
}

/// Only a packet with the expected PSN can trigger a NAK for the SRQ that it names.
#[test]
fn invalid_srq_nak_requires_expected_psn() {
    let mut pair = xrc();
    post_recv(&mut pair, SRQ, 1, 0x8000, 10);
    inject(&mut pair, B, O::SendOnly, at(0), Some(SRQ), Ext::None, &[1; 10]);
    inject(&mut pair, B, O::ReadRequest, at(1), Some(SRQ), reth(10), b"");
    pair.flow();
    for srqn in [UNKNOWN, OTHER_DOMAIN] {
        inject(&mut pair, B, O::SendOnly, at(0), Some(srqn), Ext::None, &[1; 10]);
        assert_eq!(pair.flow(), ["B Acknowledge 0x101 msn2"]);
        // A duplicate READ that names one of these SRQs is dropped instead of executed again.
        inject(&mut pair, B, O::ReadRequest, at(1), Some(srqn), reth(10), b"");
        assert_eq!(pair.flow(), [""; 0]);
    }
    assert_eq!(pair.b.engine.stats().drops.stale_duplicate, 2);
    inject(&mut pair, B, O::ReadRequest, at(1), Some(SECOND_SRQ), reth(10), b"");
    assert_eq!(pair.flow(), ["B ReadResponseOnly 0x101 10B msn2"]);
    inject(&mut pair, B, O::SendOnly, at(9), Some(UNKNOWN), Ext::None, &[1; 10]);
    assert_eq!(pair.flow(), ["B Acknowledge 0x102 PsnSequence msn2"]);
    assert_eq!((pair.snapshot(B).state, received(&mut pair).len()), (State::Rts, 1));
}

#[test]
fn empty_srq_triggers_rnr_nak() {
    let mut pair = xrc();
    post_recv(&mut pair, SECOND_SRQ, 2, 0x9000, 10);
    pair.post(A, to(SRQ, send(1, 10)));
    assert!(pair.flow().contains(&"B Acknowledge 0x100 RNR12 msn0".to_owned()));
    assert_eq!(received(&mut pair), []);
    post_recv(&mut pair, SRQ, 1, 0x8000, 10);
    pair.advance(RnrTimer::new(12).duration());
    pair.flow();
    assert_eq!(received(&mut pair), [(B.qpn(), Some(SRQ), 1, Ok(()))]);
    assert_eq!(pair.a.sends(), ok([1]));
    assert_eq!(pair.b.host.shared[&SECOND_SRQ.get()].len(), 1);
}

#[test]
fn rnr_retries_are_limited() {
    let mut pair = xrc_with(|_, attrs| attrs.rnr_retry = RnrRetry::Limited(2));
    pair.post(A, to(SRQ, send(1, 10)));
    for _ in 0..3 {
        pair.flow();
        pair.advance(RnrTimer::new(12).duration());
    }
    assert_eq!(pair.a.sends(), [(1, Err(Status::RnrRetryExceeded))]);
}

#[test]
fn lost_packets_are_retransmitted_with_xrceth() {
    for lost in 0..3 {
        let mut pair = xrc();
        post_recv(&mut pair, SRQ, 1, 0x8000, 600);
        post_recv(&mut pair, SECOND_SRQ, 2, 0x9000, 600);
        pair.post(A, to(SRQ, send(1, 600)));
        let trace = pair.lose(A, lost);
        assert!(trace.iter().filter(|line| line.starts_with('A')).all(|line| line.contains(" srq0x5 ")));
        pair.advance(TIMEOUT);
        pair.flow();
        assert_eq!(received(&mut pair), [(B.qpn(), Some(SRQ), 1, Ok(()))], "packet {lost}");
        assert_eq!(pair.bytes(B, 0x8000, 600), pair.bytes(A, 0, 600));
        assert_eq!(pair.a.sends(), ok([1]));
    }
}

#[test]
fn xrc_acks_carry_invalid_credit_count() {
    let mut pair = xrc();
    pair.b.host.counts_receives = true;
    post_recv(&mut pair, SRQ, 1, 0x8000, 10);
    pair.post(A, to(SRQ, send(1, 10)));
    let request = pair.frames(A);
    pair.deliver(B, &request[0]);
    let ack = pair.frames(B);
    let Ext::Aeth(aeth) = RoceFrame::parse(&ack[0]).unwrap().packet.ext else { panic!("no AETH") };
    assert_eq!(aeth.syndrome, Syndrome::Ack { credits: 31 });
}

#[test]
fn initiator_drops_requests() {
    let mut pair = xrc();
    pair.post_recv(A, 1, 0x8000, 100);
    for (operation, ext) in [
        (O::SendOnly, Ext::None),
        (O::WriteOnly, reth(0)),
        (O::ReadRequest, reth(0)),
        (
            O::FetchAdd,
            Ext::Atomic(AtomicEth { va: Va::new(VA), rkey: Rkey::new(KEY), swap_add: 1, compare: 0 }),
        ),
    ] {
        inject(&mut pair, A, operation, psn_b(), Some(SRQ), ext, b"");
    }
    assert_eq!(pair.flow(), [""; 0]);
    assert_eq!(pair.a.engine.stats().drops.wrong_service, 4);
    assert_eq!((pair.a.events.len(), pair.snapshot(A).recv_psn), (0, psn_b()));
}

#[test]
fn target_drops_responses() {
    let mut pair = xrc();
    let before = pair.snapshot(B);
    for (operation, ext) in [
        (O::Acknowledge, aeth(ACK)),
        (O::Acknowledge, aeth(Syndrome::Nak(NakCode::InvalidRequest))),
        (O::ReadResponseOnly, aeth(ACK)),
    ] {
        inject(&mut pair, B, operation, psn_b(), None, ext, b"");
    }
    assert_eq!(pair.flow(), [""; 0]);
    assert_eq!(pair.b.engine.stats().drops.wrong_service, 3);
    assert_eq!((pair.b.events.len(), pair.snapshot(B)), (0, before));
}

#[test]
fn rc_and_xrc_packets_are_not_interchangeable() {
    let mut pair = xrc();
    pair.inject(B, O::SendOnly, at(0), Ext::None, b"");
    assert_eq!(pair.b.engine.stats().drops.wrong_service, 1);
    let mut pair = Pair::new();
    inject(&mut pair, B, O::SendOnly, at(0), Some(SRQ), Ext::None, b"");
    assert_eq!(pair.b.engine.stats().drops.wrong_service, 1);
    assert_eq!(pair.flow(), [""; 0]);
}

#[test]
fn target_ignores_doorbells() {
    let mut pair = xrc();
    pair.post(B, to(SRQ, send(1, 10)));
    assert_eq!(pair.flow(), [""; 0]);
    for state in [State::Sqd, State::Rts, State::Err] {
        pair.modify(B, state);
        pair.post(B, to(SRQ, send(2, 10)));
        assert_eq!(pair.flow(), [""; 0]);
    }
    assert_eq!((pair.b.sends(), pair.b.host.queues[&B.qpn().get()].send.len()), (vec![], 4));
}

#[test]
fn initiator_flushes_only_its_send_queue() {
    let mut pair = xrc_with(|node, attrs| attrs.srq = node == A);
    pair.post_recv(A, 7, 0x8000, 10);
    pair.post(A, to(SRQ, send(1, 10)));
    pair.post(A, to(SRQ, send(2, 10)));
    pair.modify(A, State::Err);
    pair.post(A, to(SRQ, send(3, 10)));
    pair.advance(std::time::Duration::from_millis(50));
    let flushed = Err(Status::Flushed);
    assert_eq!(pair.a.sends(), [(1, flushed), (2, flushed), (3, flushed)]);
    assert_eq!((pair.a.recvs(), pair.a.asyncs.len()), (vec![], 0));
    assert_eq!(pair.a.host.queues[&A.qpn().get()].recv.len(), 1);
}

#[test]
fn target_flushes_fetched_receive_then_reports_last_wqe() {
    let mut pair = xrc();
    post_recv(&mut pair, SRQ, 1, 0x8000, 300);
    post_recv(&mut pair, SRQ, 2, 0x9000, 300);
    pair.post(A, to(SRQ, send(1, 300)));
    let frames = pair.frames(A);
    pair.deliver(B, &frames[0]);
    pair.modify(B, State::Err);
    pair.advance(std::time::Duration::from_millis(50));
    let flushed = Completion {
        qpn: B.qpn(),
        queue: Queue::Recv,
        srqn: Some(SRQ),
        wr_id: 1,
        result: Err(Status::Flushed),
    };
    let last = Event::Async { qpn: B.qpn(), event: AsyncEvent::LastWqeReached };
    assert_eq!(pair.b.events, [Event::Completion(flushed), last]);
    assert_eq!(pair.b.host.shared[&SRQ.get()].len(), 1);
}

#[test]
fn overlong_message_fails_receive_from_named_srq() {
    let mut pair = xrc();
    post_recv(&mut pair, SECOND_SRQ, 1, 0x8000, 299);
    pair.post(A, to(SECOND_SRQ, send(1, 300)));
    pair.flow();
    assert_eq!(received(&mut pair), [(B.qpn(), Some(SECOND_SRQ), 1, Err(Status::LocalLength))]);
    assert_eq!(pair.a.sends(), [(1, Err(Status::RemoteInvalidRequest))]);
}

#[test]
fn invalid_receive_wqe_in_srq_fails_target_and_initiator() {
    let mut pair = xrc();
    let refused = Fetch::Refused { wr_id: 9, status: Status::LocalQpOperation };
    pair.b.host.shared.entry(SRQ.get()).or_default().push_back(refused);
    pair.post(A, to(SRQ, send(1, 10)));
    pair.flow();
    assert_eq!(received(&mut pair), [(B.qpn(), Some(SRQ), 9, Err(Status::LocalQpOperation))]);
    assert_eq!(pair.a.sends(), [(1, Err(Status::RemoteOperational))]);
}

#[test]
fn unreadable_xrc_srq_raises_srq_catastrophic_event() {
    let mut pair = xrc();
    pair.b.host.shared.entry(SRQ.get()).or_default().push_back(Fetch::Broken);
    pair.post(A, to(SRQ, send(1, 10)));
    pair.flow();
    assert_eq!(pair.b.asyncs, [AsyncEvent::XrcSrqCatastrophic(SRQ), AsyncEvent::LastWqeReached]);
    let ended = pair.b.engine.explain(pair.now, B.qpn()).unwrap().ended.unwrap();
    assert_eq!(ended.by, EndedBy::Queue(Queue::Recv));
    assert_eq!(pair.a.sends(), [(1, Err(Status::RemoteOperational))]);
}

/// IBTA volume 1, section 9.7.4.1: a reserved opcode is an invalid request. Its packet has no XRCETH.
#[test]
fn reserved_opcode_is_invalid_request() {
    let mut pair = xrc();
    inject(&mut pair, B, O::Reserved(0x15), at(0), None, Ext::None, &[0; 8]);
    assert_eq!(pair.flow(), [NAK]);
    assert_eq!(pair.b.asyncs, [AsyncEvent::InvalidRequest, AsyncEvent::LastWqeReached]);
}

#[test]
fn disabled_operation_is_rejected_before_srq_is_checked() {
    let mut pair = xrc_with(|_, attrs| attrs.remote.read = false);
    inject(&mut pair, B, O::ReadRequest, at(0), Some(UNKNOWN), reth(10), b"");
    assert_eq!(pair.b.asyncs, [AsyncEvent::InvalidRequest, AsyncEvent::LastWqeReached]);
    assert_eq!(pair.flow(), [NAK]);
}

#[test]
fn xrc_work_request_without_srq_number_fails_locally() {
    for request in each_operation() {
        let mut pair = xrc();
        let op = request.op;
        pair.post(A, SendRequest { wr_id: 1, ..self::request(0, SendOp::Nop, &[]) });
        pair.post(A, SendRequest { wr_id: 2, ..request });
        assert_eq!(pair.flow(), [""; 0], "{op:?}");
        assert_eq!(pair.a.sends(), [(1, Ok(())), (2, Err(Status::LocalQpOperation))], "{op:?}");
        assert_eq!(pair.snapshot(A).state, State::Err);
    }
}

#[test]
fn rc_qp_ignores_srq_number_in_work_request() {
    let mut pair = Pair::new();
    pair.post_recv(B, 1, 0x8000, 10);
    pair.post(A, to(SRQ, send(1, 10)));
    assert_eq!(pair.flow(), ["A SendOnly 0x100 10B?", "B Acknowledge 0x100 msn1"]);
    assert_eq!(received(&mut pair), [(B.qpn(), None, 1, Ok(()))]);
}

#[test]
fn target_receives_in_rtr() {
    let mut pair = xrc();
    let target = xrc_attrs(B);
    for (to, recv_psn) in [(State::Reset, None), (State::Init, None), (State::Rtr, Some(psn_a()))] {
        pair.modify_with(B, to, |modify| (modify.attrs, modify.recv_psn) = (target, recv_psn));
    }
    pair.b.events.clear();
    post_recv(&mut pair, SRQ, 1, 0x8000, 10);
    pair.post(A, to(SRQ, send(1, 10)));
    pair.post(A, to(SRQ, read(2, 0x8000, 10)));
    pair.flow();
    assert_eq!(pair.a.sends(), ok([1, 2]));
    assert_eq!(pair.b.asyncs, [AsyncEvent::CommunicationEstablished]);
    assert_eq!(received(&mut pair).len(), 1);
}

#[test]
fn xrc_target_drains_immediately_in_sqd() {
    let mut pair = xrc();
    post_recv(&mut pair, SRQ, 1, 0x8000, 600);
    pair.post(A, to(SRQ, send(1, 600)));
    let frames = pair.frames(A);
    pair.modify_with(A, State::Sqd, |modify| modify.notify_drained = true);
    pair.modify_with(B, State::Sqd, |modify| modify.notify_drained = true);
    assert_eq!((&pair.a.asyncs[..], &pair.b.asyncs[..]), (&[][..], &[AsyncEvent::SqDrained][..]));
    pair.post(A, to(SRQ, send(2, 10)));
    frames.iter().for_each(|frame| pair.deliver(B, frame));
    pair.flow();
    assert_eq!((pair.a.sends(), &pair.a.asyncs[..]), (ok([1]), &[AsyncEvent::SqDrained][..]));
    // The target still receives messages in SQD.
    assert_eq!(received(&mut pair).len(), 1);
    post_recv(&mut pair, SRQ, 2, 0x8000, 10);
    pair.modify(A, State::Rts);
    pair.flow();
    assert_eq!(pair.a.sends(), ok([2]));
}

#[test]
fn status_reports_missing_queue_of_xrc_qp() {
    let mut pair = xrc();
    let now = pair.now;
    for state in [State::Rts, State::Sqd, State::Err] {
        for node in [A, B] {
            pair.modify(node, state);
            let status = pair.side(node).engine.explain(now, node.qpn()).unwrap();
            assert_eq!(status.receive == Expecting::NoReceive, node == A, "{status:?}");
            assert_eq!(status.send == WaitReason::NoSendQueue, node == B, "{status:?}");
        }
    }
}

#[test]
fn xrc_packets_are_counted_under_xrc_opcodes() {
    let mut pair = xrc();
    pair.post(A, to(SRQ, write(1, 0x8000, 600)));
    pair.flow();
    let sent: Vec<_> = pair.a.engine.stats().sent_opcodes.iter().collect();
    let name = |name: &str| (name.to_owned(), 1);
    assert_eq!(sent, ["XRC RDMA WRITE First", "XRC RDMA WRITE Middle", "XRC RDMA WRITE Last"].map(name));
    let received: Vec<_> = pair.a.engine.stats().received_opcodes.iter().collect();
    assert_eq!(received, [("XRC Acknowledge".to_owned(), 1)]);
    // IPv4, UDP, BTH, XRCETH and ICRC of three packets, plus the RETH of the first packet and the payload.
    let bytes = 3 * (20 + 8 + 12 + 4 + 4) + 16 + 600;
    assert_eq!(pair.b.engine.stats().received_ip.v4.octets, bytes);
}

/// Initiators and targets respond to congestion marks as RC QPs do (IBTA annex A17).
#[test]
fn both_xrc_roles_send_congestion_notifications() {
    let mut pair = xrc();
    pair.post(A, to(SRQ, write(1, 0x8000, 100)));
    let frame = pair.frames(A).remove(0);
    let RoceFrame { mut encap, packet } = RoceFrame::parse(&frame).unwrap();
    encap.traffic_class |= 3;
    pair.deliver_packet(B, &encap, &packet);
    assert!(pair.flow().contains(&"B Cnp".to_owned()));
    assert_eq!(pair.a.engine.stats().congestion.received_cnps, 1);
    assert_eq!(pair.a.sends(), ok([1]));
}

#[test]
fn wrong_lkey_causes_local_protection_error_at_initiator() {
    let mut pair = xrc();
    let bad = Sge { lkey: Lkey::new(0xdead), ..sge(0, 10) };
    pair.post(A, to(SRQ, request(1, SendOp::Send { imm: None }, &[bad])));
    assert_eq!(pair.flow(), [""; 0]);
    assert_eq!(pair.a.sends(), [(1, Err(Status::LocalProtection(AccessError::Key)))]);
}
