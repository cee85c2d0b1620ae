//! Tests that the engine reports received NAKs, retransmissions and executed requests to its host.

use std::time::Duration;

use crate::common::*;
use engine::*;
use protocol::Psn;
use protocol::roce::{NakCode, Operation, Syndrome};

/// Wait requested by RNR NAK timer code 12.
const WAIT: Duration = Duration::from_micros(640);

fn naks(pair: &mut Pair) -> Vec<(u32, NakKind)> {
    pair.a.host.naks.drain(..).map(|nak| (nak.psn.get(), nak.kind)).collect()
}

fn retry(cause: RetryCause, psn: u32, packets: u32, count: u32) -> Retry {
    let limit = Some(if cause == RetryCause::RnrNak { 6 } else { 7 });
    Retry { qpn: A.qpn(), cause, psn: Psn::new(psn), packets, count, limit }
}

fn retries(pair: &mut Pair) -> Vec<Retry> {
    std::mem::take(&mut pair.a.host.retries)
}

#[test]
fn each_ack_timeout_is_reported_as_retry() {
    let mut pair = Pair::new();
    pair.post(A, write(1, 0x8000, 300));
    pair.run(|node, _| node != A);
    assert_eq!(retries(&mut pair), []);
    for count in 1..3 {
        pair.advance(TIMEOUT);
        assert_eq!(retries(&mut pair), [retry(RetryCause::AckTimeout, 0x100, 2, count)]);
        pair.run(|node, _| node != A);
    }
    assert_eq!(naks(&mut pair), []);
}

#[test]
fn failed_request_is_not_reported_as_retry() {
    let mut pair = Pair::with(|_, attrs| attrs.retry_count = 0);
    pair.post(A, write(1, 0x8000, 10));
    pair.run(|node, _| node != A);
    pair.advance(TIMEOUT);
    assert_eq!(pair.a.sends(), [(1, Err(Status::RetryExceeded))]);
    assert_eq!(retries(&mut pair), []);
}

#[test]
fn sequence_nak_and_its_retry_are_reported_once() {
    let mut pair = Pair::new();
    pair.post(A, write(1, 0x8000, 10));
    pair.post(A, write(2, 0x8000, 10));
    pair.frames(A);
    let nak = aeth(Syndrome::Nak(NakCode::PsnSequence));
    for _ in 0..3 {
        pair.inject(A, Operation::Acknowledge, Psn::new(0x101), nak, b"");
        pair.frames(A);
    }
    assert_eq!(naks(&mut pair), [(0x101, NakKind::Sequence)]);
    assert_eq!(retries(&mut pair), [retry(RetryCause::SequenceNak, 0x101, 1, 1)]);
}

#[test]
fn rnr_retry_is_reported_after_wait() {
    let mut pair = Pair::new();
    pair.post(A, send(1, 10));
    for count in 1..3 {
        pair.flow();
        assert_eq!(naks(&mut pair), [(0x100, NakKind::Rnr { wait: WAIT })]);
        assert_eq!(retries(&mut pair), []);
        pair.advance(WAIT);
        assert_eq!(retries(&mut pair), [retry(RetryCause::RnrNak, 0x100, 1, count)]);
    }
}

#[test]
fn lost_read_response_is_reported_as_implied_nak() {
    let mut pair = Pair::new();
    pair.post(A, read(1, 0x9000, 10));
    pair.post(A, write(2, 0x8000, 10));
    pair.lose(B, 0);
    assert_eq!(retries(&mut pair), [retry(RetryCause::ImpliedNak, 0x100, 2, 1)]);
    assert_eq!(naks(&mut pair), []);
}

#[test]
fn executed_requests_are_reported_once() {
    let mut pair = Pair::new();
    let add = request(3, SendOp::FetchAdd { remote: remote(0x9000), add: 1 }, &[sge(0, 8)]);
    pair.post_recv(B, 9, 0, 64);
    for wr in [write(1, 0x8000, 3000), read(2, 0x9000, 3000), add, send(4, 10)] {
        pair.post(A, wr);
    }
    pair.flow();
    let executed = [PeerRequest::Write, PeerRequest::Read, PeerRequest::Atomic];
    assert_eq!((pair.a.sends(), &pair.b.host.executed[..]), (ok(1..5), &executed[..]));
    assert_eq!(pair.a.host.executed, []);
}

#[test]
fn duplicate_request_is_reported() {
    for (wr, request) in
        [(write(1, 0x8000, 10), PeerRequest::Write), (read(1, 0x9000, 10), PeerRequest::Read)]
    {
        let mut pair = Pair::new();
        pair.post(A, wr);
        // The response is lost, and the requester sends the request again.
        pair.lose(B, 0);
        pair.advance(TIMEOUT);
        pair.flow();
        assert_eq!(pair.b.host.executed, [request, PeerRequest::Duplicate]);
        assert_eq!(pair.a.sends(), ok([1]));
    }
}

#[test]
fn fatal_nak_is_reported() {
    for (code, kind) in [
        (NakCode::InvalidRequest, NakKind::InvalidRequest),
        (NakCode::RemoteAccess, NakKind::RemoteAccess),
        (NakCode::RemoteOperational, NakKind::RemoteOperational),
        (NakCode::InvalidRdRequest, NakKind::InvalidRdRequest),
        (NakCode::Reserved(9), NakKind::Reserved),
    ] {
        let mut pair = Pair::new();
        pair.post(A, write(1, 0x8000, 10));
        pair.frames(A);
        pair.inject(A, Operation::Acknowledge, Psn::new(0x100), aeth(Syndrome::Nak(code)), b"");
        assert_eq!(naks(&mut pair), [(0x100, kind)]);
        assert_eq!(retries(&mut pair), []);
    }
}
