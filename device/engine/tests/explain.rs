//! Tests the reported status of a queue pair, in particular the reason it is waiting.

#![allow(clippy::unwrap_used, reason = "test code")]

use std::time::Duration;

use crate::common::*;
use engine::*;
use protocol::ids::{Lkey, Pkey, Qpn};
use protocol::roce::{Bth, Ext, Opcode, Operation, Packet};
use sim::key_op::KeyOp;

const MS: Duration = Duration::from_millis(1);
/// Wait requested by RNR NAK timer code 12.
const RNR_WAIT: Duration = Duration::from_micros(640);

fn explain(pair: &mut Pair, node: Node) -> QpStatus {
    let now = pair.now;
    pair.side(node).engine.explain(now, node.qpn()).unwrap()
}

fn wait_reason(pair: &mut Pair) -> WaitReason {
    explain(pair, A).send
}

/// Runs until both nodes are idle, and drops every packet that A sends.
fn lose_all(pair: &mut Pair) {
    pair.run(|node, _| node != A);
}

#[test]
fn unknown_qp_has_no_status() {
    let mut pair = Pair::new();
    assert_eq!(pair.a.engine.explain(pair.now, Qpn::new(0x99)), None);
    pair.a.engine.destroy_qp(A.qpn());
    assert_eq!(pair.a.engine.explain(pair.now, A.qpn()), None);
}

#[test]
fn idle_qp_reports_empty_send_queue_and_expected_psn() {
    let mut pair = Pair::new();
    let idle = QpStatus {
        state: State::Rts,
        service: Service::Rc,
        last_packet: None,
        ended: None,
        send: WaitReason::NothingPosted,
        unanswered: None,
        retransmitted: 0,
        receive: Expecting::Message { psn: psn_b().get() },
        answers: 0,
    };
    assert_eq!(explain(&mut pair, A), idle);
    pair.post(B, write(1, 0x8000, 10));
    pair.flow();
    pair.advance(3 * MS);
    let receive = Expecting::Message { psn: psn_b().get() + 1 };
    assert_eq!(explain(&mut pair, A), QpStatus { last_packet: Some(3 * MS), receive, ..idle });
}

#[test]
fn unconnected_qp_reports_its_state() {
    for service in [Service::Rc, Service::Uc, Service::Ud] {
        let mut pair = Pair::with(|_, attrs| attrs.service = service);
        pair.modify(A, State::Reset);
        let idle = explain(&mut pair, A);
        assert_eq!((idle.send, idle.receive), (WaitReason::State, Expecting::State));
        for (to, receives) in [(State::Init, false), (State::Rtr, true)] {
            pair.modify_with(A, to, |modify| modify.attrs.service = service);
            let idle = explain(&mut pair, A);
            assert_eq!((idle.state, idle.send), (to, WaitReason::State));
            assert_eq!(idle.receive != Expecting::State, receives);
        }
    }
}

#[test]
fn sendable_request_is_waiting_for_turn() {
    for service in [Service::Rc, Service::Uc] {
        let mut pair = Pair::with(|_, attrs| attrs.service = service);
        pair.post(A, write(1, 0x8000, 10));
        assert_eq!(wait_reason(&mut pair), WaitReason::Turn);
    }
}

#[test]
fn status_reports_retries_until_retry_exceeded() {
    let mut pair = Pair::with(|_, attrs| attrs.retry_count = 2);
    pair.post(A, write(1, 0x8000, 300));
    lose_all(&mut pair);
    pair.advance(3 * MS);
    let unanswered = Unanswered {
        oldest: psn_a().get(),
        packets: 2,
        requests: 1,
        waiting: 3 * MS,
        retries: 0,
        most_retries: 2,
        timeout: Some(TIMEOUT - 3 * MS),
    };
    let idle = explain(&mut pair, A);
    assert_eq!((idle.send, idle.unanswered), (WaitReason::NothingPosted, Some(unanswered)));
    pair.advance(TIMEOUT - 3 * MS);
    lose_all(&mut pair);
    let again = Unanswered { waiting: TIMEOUT, retries: 1, timeout: Some(TIMEOUT), ..unanswered };
    assert_eq!(explain(&mut pair, A).unanswered, Some(again));
    for _ in 0..2 {
        pair.advance(TIMEOUT);
        lose_all(&mut pair);
    }
    pair.advance(5 * MS);
    let idle = explain(&mut pair, A);
    let ended = Ended { ago: 5 * MS, by: EndedBy::Send(Status::RetryExceeded) };
    assert_eq!((idle.state, idle.ended, idle.unanswered), (State::Err, Some(ended), None));
    assert_eq!((idle.send, idle.receive), (WaitReason::Ended, Expecting::Ended));
}

#[test]
fn missing_receive_request_is_reported_on_both_sides() {
    let mut pair = Pair::new();
    pair.post(A, send(1, 10));
    pair.flow();
    pair.advance(Duration::from_micros(40));
    let left = RNR_WAIT - Duration::from_micros(40);
    assert_eq!(wait_reason(&mut pair), WaitReason::ReceiverNotReady { left, refusals: 1, most: Some(6) });
    let waiting = Duration::from_micros(40);
    let receive = Expecting::ReceiveRequest { psn: psn_a().get(), refusals: 1, waiting };
    assert_eq!(explain(&mut pair, B).receive, receive);
    pair.advance(left);
    assert_eq!(wait_reason(&mut pair), WaitReason::Turn);
    lose_all(&mut pair);
    assert_eq!(wait_reason(&mut pair), WaitReason::AskedAgain { refusals: 1, most: Some(6) });
    pair.post_recv(B, 7, 0x8000, 10);
    pair.advance(TIMEOUT);
    pair.flow();
    assert_eq!(wait_reason(&mut pair), WaitReason::NothingPosted);
    assert_eq!(explain(&mut pair, B).receive, Expecting::Message { psn: psn_a().get() + 1 });
}

#[test]
fn unlimited_rnr_retries_report_no_limit() {
    let mut pair = Pair::with(|_, attrs| attrs.rnr_retry = RnrRetry::Infinite);
    pair.post(A, send(1, 10));
    pair.flow();
    let reason = wait_reason(&mut pair);
    assert_eq!(reason, WaitReason::ReceiverNotReady { left: RNR_WAIT, refusals: 1, most: None });
}

#[test]
fn rnr_nak_counts_can_exceed_255() {
    let mut pair = Pair::with(|_, attrs| attrs.rnr_retry = RnrRetry::Infinite);
    pair.post(A, send(1, 10));
    pair.flow();
    for _ in 1..300 {
        pair.advance(RNR_WAIT);
        pair.flow();
    }
    let reason = wait_reason(&mut pair);
    assert_eq!(reason, WaitReason::ReceiverNotReady { left: RNR_WAIT, refusals: 300, most: None });
    let receive = Expecting::ReceiveRequest { psn: psn_a().get(), refusals: 300, waiting: 299 * RNR_WAIT };
    assert_eq!(explain(&mut pair, B).receive, receive);
}

/// ACKs and RNR NAKs reset the retry count, but not the count of retransmitted packets.
#[test]
fn status_counts_retransmitted_packets_since_reset() {
    let mut pair = Pair::new();
    pair.post(A, write(1, 0x8000, 300));
    lose_all(&mut pair);
    pair.advance(TIMEOUT);
    lose_all(&mut pair);
    let status = explain(&mut pair, A);
    assert_eq!((status.unanswered.unwrap().retries, status.retransmitted), (1, 2));
    pair.advance(TIMEOUT);
    pair.flow();
    let status = explain(&mut pair, A);
    assert_eq!((status.unanswered, status.retransmitted), (None, 4));

    pair.post(A, send(2, 10));
    pair.flow();
    pair.advance(RNR_WAIT);
    lose_all(&mut pair);
    let status = explain(&mut pair, A);
    assert_eq!((status.unanswered.unwrap().retries, status.retransmitted), (0, 5));
    assert_eq!(pair.a.engine.stats().recovery.retransmitted_packets, 5);

    pair.modify(A, State::Reset);
    assert_eq!(explain(&mut pair, A).retransmitted, 0);
}

#[test]
fn send_beyond_credits_is_waiting_for_credits() {
    let mut pair = Pair::new();
    pair.b.host.counts_receives = true;
    pair.post(A, write(1, 0x8000, 10));
    pair.flow();
    for id in 2..6 {
        pair.post(A, send(id, 10));
    }
    lose_all(&mut pair);
    assert_eq!(
        wait_reason(&mut pair),
        WaitReason::Credits { beyond: 2 },
        "the first SEND is sent as a probe, and the second waits"
    );
}

#[test]
fn fenced_request_reports_number_of_older_requests() {
    for (older, fence) in [(read(1, 0x8000, 10), Fence::Reads), (write(1, 0x8000, 10), Fence::All)] {
        let mut pair = Pair::new();
        pair.post(A, older);
        pair.post(A, SendRequest { fence, ..send(2, 10) });
        lose_all(&mut pair);
        assert_eq!(wait_reason(&mut pair), WaitReason::Fence { older: 1 });
    }
    let mut pair = Pair::new();
    pair.post(A, write(1, 0x8000, 10));
    pair.post(A, request(2, SendOp::Local(KeyOp::Invalidate(Lkey::new(KEY)).into()), &[]));
    lose_all(&mut pair);
    assert_eq!(wait_reason(&mut pair), WaitReason::Invalidation { older: 1 });
}

#[test]
fn status_reports_which_read_limit_is_reached() {
    let mut pair = Pair::new();
    for id in 0..6 {
        pair.post(A, read(id, 0x8000, 10));
    }
    lose_all(&mut pair);
    assert_eq!(wait_reason(&mut pair), WaitReason::Reads { most: 4 });

    // Two chunks of four packets are outstanding, and the window has room for a third.
    let mut pair = Pair::with_window(12);
    pair.post(A, read(1, 0x8000, 16 * 256));
    lose_all(&mut pair);
    assert_eq!(wait_reason(&mut pair), WaitReason::ReadPieces);
}

#[test]
fn window_and_psn_limits_are_reported() {
    let mut pair = Pair::with_window(8);
    pair.post(A, write(1, 0x8000, 10 * 256));
    lose_all(&mut pair);
    assert_eq!(wait_reason(&mut pair), WaitReason::Window { in_flight: 8, most: 8 });

    let mut pair = Pair::new();
    pair.post(A, write(1, 0x8000, 10));
    pair.post(A, read(2, 0, 1 << 31));
    lose_all(&mut pair);
    assert_eq!(
        wait_reason(&mut pair),
        WaitReason::PacketNumbers,
        "the READ and the WRITE together need 2^23 + 1 PSNs"
    );
}

#[test]
fn request_limit_is_reported() {
    let mut pair = Pair::new();
    for id in 0..129 {
        pair.post(A, write(id, 0x8000, 0));
    }
    lose_all(&mut pair);
    assert_eq!(wait_reason(&mut pair), WaitReason::Requests { most: 128 });
}

#[test]
fn failed_request_reports_number_of_older_requests() {
    let mut pair = Pair::new();
    pair.post(A, write(1, 0x8000, 10));
    let wrong = Sge { lkey: Lkey::new(0xbad), ..sge(0, 10) };
    pair.post(A, request(2, SendOp::Send { imm: None }, &[wrong]));
    lose_all(&mut pair);
    let status = Status::LocalProtection(AccessError::Key);
    assert_eq!(wait_reason(&mut pair), WaitReason::Failed { status, older: 1 });
    pair.advance(TIMEOUT);
    pair.flow();
    assert_eq!(explain(&mut pair, A).ended.unwrap().by, EndedBy::Send(status));
}

#[test]
fn status_changes_from_draining_to_drained() {
    let mut pair = Pair::new();
    pair.post(A, write(1, 0x8000, 10));
    lose_all(&mut pair);
    pair.modify(A, State::Sqd);
    pair.post(A, write(2, 0x8000, 10));
    assert_eq!(wait_reason(&mut pair), WaitReason::Draining);
    pair.advance(TIMEOUT);
    pair.flow();
    assert_eq!(wait_reason(&mut pair), WaitReason::Drained);
}

#[test]
fn congestion_pause_is_reported() {
    let mut pair = Pair::new();
    for _ in 0..20 {
        let bth = Bth {
            opcode: Opcode::CNP,
            solicited: false,
            mig_req: false,
            pkey: Pkey::DEFAULT,
            fecn: false,
            becn: true,
            dest_qp: A.qpn(),
            ack_req: false,
            psn: psn_b(),
        };
        pair.deliver_packet(A, &B.path(), &Packet { bth, srqn: None, ext: Ext::None, payload: &[0; 16] });
        pair.advance(MS / 10);
    }
    for id in 0..4 {
        pair.post(A, write(id, 0x8000, 0x4000));
    }
    lose_all(&mut pair);
    let reason = wait_reason(&mut pair);
    assert!(matches!(reason, WaitReason::Congestion { left } if left > Duration::ZERO), "{reason:?}");
}

#[test]
fn status_during_incomplete_message_reports_expected_packet() {
    for service in [Service::Rc, Service::Uc] {
        let psn = psn_a().get() + 1;
        let mut pair = Pair::with(|_, attrs| attrs.service = service);
        pair.post(A, write(1, 0x8000, 600));
        let frames = pair.frames(A);
        pair.deliver(B, &frames[0]);
        assert_eq!(explain(&mut pair, B).receive, Expecting::Rest { psn, received: 256 });
        // Packet 1 is missing when packet 2 arrives.
        pair.deliver(B, &frames[2]);
        let reason = explain(&mut pair, B);
        if service == Service::Rc {
            assert_eq!(
                (reason.receive, reason.answers),
                (Expecting::Missing { psn }, 1),
                "a sequence NAK is pending"
            );
        }
    }
}

#[test]
fn status_reports_cause_of_error_state() {
    let by = |pair: &mut Pair, node| explain(pair, node).ended.unwrap().by;

    let mut pair = Pair::new();
    pair.modify(A, State::Err);
    assert_eq!(by(&mut pair, A), EndedBy::Software);

    // Both ends report why a WRITE was rejected.
    let mut pair = Pair::new();
    let to = Remote { rkey: protocol::ids::Rkey::new(LOCKED), ..remote(0) };
    pair.post(A, request(1, SendOp::Write { remote: to, imm: None }, &[sge(0, 10)]));
    pair.flow();
    assert_eq!(by(&mut pair, A), EndedBy::Send(Status::RemoteAccess));
    let refused = EndedBy::Peer { reason: DropReason::NoAccess, cause: Some(AccessError::Right) };
    assert_eq!(by(&mut pair, B), refused);
    assert_eq!(pair.b.engine.stats().drops.no_access, 1);
    // If software then moves the QP to ERR, the original cause is kept.
    pair.modify(B, State::Err);
    assert_eq!(by(&mut pair, B), refused);

    let mut pair = Pair::new();
    pair.b.host.queues.entry(B.qpn().get()).or_default().recv.push_back(Fetch::Broken);
    pair.post(A, send(1, 10));
    pair.flow();
    assert_eq!(by(&mut pair, B), EndedBy::Queue(Queue::Recv));

    // The QP enters SQE and leaves it again.
    let mut pair = Pair::with(|_, attrs| attrs.service = Service::Uc);
    let wrong = Sge { lkey: Lkey::new(0xbad), ..sge(0, 10) };
    pair.post(A, request(1, SendOp::Send { imm: None }, &[wrong]));
    pair.flow();
    let idle = explain(&mut pair, A);
    assert_eq!((idle.state, idle.send), (State::Sqe, WaitReason::Ended));
    assert_eq!(idle.ended.unwrap().by, EndedBy::Send(Status::LocalProtection(AccessError::Key)));
    pair.modify_with(A, State::Rts, |modify| modify.attrs.service = Service::Uc);
    assert_eq!(explain(&mut pair, A).ended, None);
}

#[test]
fn fatal_nak_increments_drop_reason_counter() {
    let mut pair = Pair::new();
    pair.inject(B, Operation::SendLast, psn_a(), Ext::None, &[0; 10]);
    assert_eq!(pair.b.engine.stats().drops.invalid_request, 1);
    assert_eq!(
        explain(&mut pair, B).ended.unwrap().by,
        EndedBy::Peer { reason: DropReason::InvalidRequest, cause: None }
    );
}

/// Each reason has the same name as its counter, and all names are unique.
#[test]
fn each_drop_reason_has_its_own_counter() {
    let mut names: Vec<_> = DropReason::ALL.iter().map(|reason| reason.name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), DropReason::ALL.len());
    let drops = Drops::default();
    assert!(DropReason::ALL.iter().all(|reason| drops.of(*reason) == 0));
}
