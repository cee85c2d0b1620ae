//! Tests shared receive queues.
//!
//! # Spec
//! IBTA volume 1, sections 10.2.9 (shared receive queues), 9.7.7.2 (no credits), 11.6.3 (affiliated events).

use crate::common::*;
use engine::*;
use protocol::ids::Qpn;
use protocol::roce::{Operation, RoceFrame, Syndrome};

const SRQ: u32 = 5;

/// Returns the QPN of the second connection.
fn second(node: Node) -> Qpn {
    Qpn::new(node.qpn().get() + 0x10)
}

/// Returns a pair with two connections whose QPs at B share one SRQ.
fn shared(tune: impl Fn(&mut QpAttrs)) -> Pair {
    let tuned = |node: Node| {
        let mut attrs = QpAttrs { srq: node == B, ..attrs(node) };
        tune(&mut attrs);
        attrs
    };
    let mut pair = Pair::with(|node, attrs| *attrs = tuned(node));
    for node in [A, B] {
        pair.add(node, second(node), QpAttrs { remote_qpn: second(node.peer()), ..tuned(node) });
        pair.b.host.shares.insert(B.qpn().get(), SRQ);
        pair.b.host.shares.insert(second(B).get(), SRQ);
    }
    pair
}

fn post_recv(pair: &mut Pair, wr_id: u64, offset: u64, len: u32) {
    pair.b.host.post_shared(SRQ, wr_id, &[sge(offset, len)]);
}

/// Returns the QP, work request ID and result of each receive completed since the last call.
fn received(pair: &mut Pair) -> Vec<(Qpn, u64, Result<(), Status>)> {
    let done = pair.b.completions.drain(..).filter(|done| done.queue == Queue::Recv);
    done.map(|done| (done.qpn, done.wr_id, done.result.map(|_| ()))).collect()
}

#[test]
fn messages_to_all_qps_consume_srq_requests_in_order() {
    let mut pair = shared(|_| {});
    for id in 1..=3 {
        post_recv(&mut pair, id, 0x8000 + id * 0x100, 10);
    }
    pair.post_on(A, second(A), send(1, 10));
    pair.flow();
    pair.post(A, send(1, 10));
    pair.post(A, send(2, 10));
    pair.flow();
    assert_eq!(received(&mut pair), [(second(B), 1, Ok(())), (B.qpn(), 2, Ok(())), (B.qpn(), 3, Ok(()))]);
    assert_eq!(pair.b.host.shared[&SRQ].len(), 0);
}

#[test]
fn incomplete_message_keeps_its_srq_receive_request() {
    let mut pair = shared(|_| {});
    post_recv(&mut pair, 1, 0x8000, 300);
    post_recv(&mut pair, 2, 0x9000, 300);
    pair.post(A, send(1, 300));
    let frames = pair.frames(A);
    pair.deliver(B, &frames[0]);
    pair.post_on(A, second(A), send(2, 300));
    pair.flow();
    assert_eq!(received(&mut pair), [(second(B), 2, Ok(()))]);
    pair.deliver(B, &frames[1]);
    assert_eq!(received(&mut pair), [(B.qpn(), 1, Ok(()))]);
    assert_eq!(pair.bytes(B, 0x8000, 300), pair.bytes(A, 0, 300));
}

#[test]
fn empty_srq_triggers_rnr_nak() {
    let mut pair = shared(|_| {});
    post_recv(&mut pair, 1, 0x8000, 10);
    pair.post(A, send(1, 10));
    pair.post_on(A, second(A), send(2, 10));
    let trace = pair.flow();
    assert!(trace.iter().any(|line| line == "B Acknowledge 0x100 RNR12 msn0"), "{trace:?}");
    assert_eq!(received(&mut pair), [(B.qpn(), 1, Ok(()))]);
    post_recv(&mut pair, 2, 0x8000, 10);
    pair.advance(RnrTimer::new(12).duration());
    pair.flow();
    assert_eq!(received(&mut pair), [(second(B), 2, Ok(()))]);
    assert_eq!(pair.a.sends(), ok([1, 2]));
}

#[test]
fn responder_with_srq_does_not_send_credits() {
    let credits = |srq| {
        let mut pair = shared(|attrs| attrs.srq &= srq);
        pair.b.host.counts_receives = true;
        post_recv(&mut pair, 1, 0x8000, 10);
        pair.post(A, send(1, 10));
        let request = pair.frames(A);
        pair.deliver(B, &request[0]);
        let ack = pair.frames(B);
        match RoceFrame::parse(&ack[0]).unwrap().packet.ext {
            protocol::roce::Ext::Aeth(aeth) => aeth.syndrome,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(credits(true), Syndrome::Ack { credits: 31 });
    assert_eq!(credits(false), Syndrome::Ack { credits: 0 });
}

#[test]
fn move_to_err_flushes_fetched_receive_then_reports_last_wqe() {
    let mut pair = shared(|_| {});
    for id in 1..=3 {
        post_recv(&mut pair, id, 0x8000, 300);
    }
    pair.post(A, send(1, 300));
    let frames = pair.frames(A);
    pair.deliver(B, &frames[0]);
    pair.b.events.clear();
    pair.modify_with(B, State::Err, |modify| modify.attrs.srq = true);
    let flushed =
        Completion { qpn: B.qpn(), queue: Queue::Recv, srqn: None, wr_id: 1, result: Err(Status::Flushed) };
    let last = Event::Async { qpn: B.qpn(), event: AsyncEvent::LastWqeReached };
    assert_eq!(pair.b.events, [Event::Completion(flushed), last]);
    // Requests in the SRQ, including those posted later, are left for other QPs.
    for _ in 0..3 {
        pair.advance(std::time::Duration::from_millis(10));
    }
    pair.modify_with(B, State::Err, |modify| modify.attrs.srq = true);
    assert_eq!(pair.b.events.len(), 2);
    pair.post_on(A, second(A), send(2, 300));
    pair.flow();
    assert_eq!(pair.b.completions.last().map(|done| (done.qpn, done.wr_id)), Some((second(B), 2)));
}

#[test]
fn last_wqe_event_follows_failure_but_not_reset() {
    let mut pair = shared(|_| {});
    pair.inject(B, Operation::SendMiddle, psn_a(), protocol::roce::Ext::None, &[0; 256]);
    assert_eq!(pair.b.asyncs, [AsyncEvent::InvalidRequest, AsyncEvent::LastWqeReached]);
    let mut pair = shared(|_| {});
    post_recv(&mut pair, 1, 0x8000, 300);
    pair.modify_with(B, State::Reset, |modify| modify.attrs.srq = true);
    assert_eq!((pair.b.asyncs.len(), pair.b.host.shared[&SRQ].len()), (0, 1));
}

#[test]
fn invalid_srq_request_fails_the_qp_that_fetched_it() {
    let mut pair = shared(|_| {});
    let refused = Fetch::Refused { wr_id: 9, status: Status::LocalQpOperation };
    pair.b.host.shared.entry(SRQ).or_default().push_back(refused);
    pair.post(A, send(1, 10));
    pair.flow();
    assert_eq!(received(&mut pair), [(B.qpn(), 9, Err(Status::LocalQpOperation))]);
    assert_eq!(pair.a.sends(), [(1, Err(Status::RemoteOperational))]);
    assert_eq!(pair.b.asyncs, [AsyncEvent::LastWqeReached]);
}

#[test]
fn unreadable_srq_raises_one_event_per_qp() {
    let mut pair = shared(|_| {});
    pair.b.host.shared.entry(SRQ).or_default().extend([Fetch::Broken, Fetch::Broken]);
    pair.post(A, send(1, 10));
    pair.post_on(A, second(A), send(2, 10));
    pair.flow();
    let failed = [Err(Status::RemoteOperational), Err(Status::RemoteOperational)];
    assert_eq!(pair.a.sends().iter().map(|(_, result)| *result).collect::<Vec<_>>(), failed);
    let each = [AsyncEvent::SrqCatastrophic, AsyncEvent::LastWqeReached];
    assert_eq!(pair.b.asyncs, [each, each].concat());
    assert_eq!(pair.snapshot(B).state, State::Err);
}

#[test]
fn next_uc_message_reuses_receive_of_incomplete_message() {
    let mut pair = shared(|attrs| attrs.service = Service::Uc);
    post_recv(&mut pair, 1, 0x8000, 300);
    post_recv(&mut pair, 2, 0x9000, 300);
    pair.post(A, send(1, 300));
    pair.lose(A, 1);
    pair.post(A, send(2, 20));
    pair.flow();
    pair.post_on(A, second(A), send(3, 20));
    pair.flow();
    assert_eq!(received(&mut pair), [(B.qpn(), 1, Ok(())), (second(B), 2, Ok(()))]);
}
