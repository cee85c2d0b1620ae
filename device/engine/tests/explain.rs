//! What a queue pair says that it waits for, in each of the states it can be brought to.

#![allow(clippy::unwrap_used, reason = "test code")]

mod common;

use std::time::Duration;

use common::*;
use engine::*;
use protocol::ids::{Lkey, Pkey, Qpn};
use protocol::roce::{Bth, Ext, Opcode, Operation, Packet};

const MS: Duration = Duration::from_millis(1);
/// RNR NAK timer code 12.
const RNR_WAIT: Duration = Duration::from_micros(640);

fn ask(pair: &mut Pair, who: Who) -> QpStatus {
    let now = pair.now;
    pair.side(who).engine.explain(now, who.qpn()).unwrap()
}

fn blocked(pair: &mut Pair) -> WaitReason {
    ask(pair, A).send
}

/// Lets A send, and nothing arrive.
fn lost(pair: &mut Pair) {
    pair.run(|who, _| who != A);
}

#[test]
fn nobody_asks_in_vain_and_nobody_is_told_of_another() {
    let mut pair = Pair::new();
    assert_eq!(pair.a.engine.explain(pair.now, Qpn::new(0x99)), None);
    pair.a.engine.destroy_qp(A.qpn());
    assert_eq!(pair.a.engine.explain(pair.now, A.qpn()), None);
}

#[test]
fn a_connection_without_work_waits_for_a_doorbell_and_for_the_peer() {
    let mut pair = Pair::new();
    let situation = QpStatus {
        state: State::Rts,
        service: Service::Rc,
        last_packet: None,
        ended: None,
        send: WaitReason::NothingPosted,
        unanswered: None,
        receive: Expecting::Message { psn: psn_b().get() },
        answers: 0,
    };
    assert_eq!(ask(&mut pair, A), situation);
    pair.post(B, write(1, 0x8000, 10));
    pair.flow();
    pair.advance(3 * MS);
    let receive = Expecting::Message { psn: psn_b().get() + 1 };
    assert_eq!(ask(&mut pair, A), QpStatus { last_packet: Some(3 * MS), receive, ..situation });
}

#[test]
fn before_it_is_connected_its_state_is_in_the_way() {
    for service in [Service::Rc, Service::Uc, Service::Ud] {
        let mut pair = Pair::with(|_, attrs| attrs.service = service);
        pair.modify(A, State::Reset);
        let situation = ask(&mut pair, A);
        assert_eq!((situation.send, situation.receive), (WaitReason::State, Expecting::State));
        for (to, receives) in [(State::Init, false), (State::Rtr, true)] {
            pair.modify_with(A, to, |modify| modify.attrs.service = service);
            let situation = ask(&mut pair, A);
            assert_eq!((situation.state, situation.send), (to, WaitReason::State));
            assert_eq!(situation.receive != Expecting::State, receives);
        }
    }
}

#[test]
fn what_can_leave_waits_for_its_turn() {
    for service in [Service::Rc, Service::Uc] {
        let mut pair = Pair::with(|_, attrs| attrs.service = service);
        pair.post(A, write(1, 0x8000, 10));
        assert_eq!(blocked(&mut pair), WaitReason::Turn);
    }
}

#[test]
fn a_silent_peer_is_waited_for_until_the_retries_are_used_up() {
    let mut pair = Pair::with(|_, attrs| attrs.retry_count = 2);
    pair.post(A, write(1, 0x8000, 300));
    lost(&mut pair);
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
    let situation = ask(&mut pair, A);
    assert_eq!((situation.send, situation.unanswered), (WaitReason::NothingPosted, Some(unanswered)));
    pair.advance(TIMEOUT - 3 * MS);
    lost(&mut pair);
    let again = Unanswered { waiting: TIMEOUT, retries: 1, timeout: Some(TIMEOUT), ..unanswered };
    assert_eq!(ask(&mut pair, A).unanswered, Some(again));
    for _ in 0..2 {
        pair.advance(TIMEOUT);
        lost(&mut pair);
    }
    pair.advance(5 * MS);
    let situation = ask(&mut pair, A);
    let ended = Ended { ago: 5 * MS, by: EndedBy::Send(Status::RetryExceeded) };
    assert_eq!((situation.state, situation.ended, situation.unanswered), (State::Err, Some(ended), None));
    assert_eq!((situation.send, situation.receive), (WaitReason::Ended, Expecting::Ended));
}

#[test]
fn a_send_without_receive_request_waits_for_the_receiver_and_that_for_its_software() {
    let mut pair = Pair::new();
    pair.post(A, send(1, 10));
    pair.flow();
    pair.advance(Duration::from_micros(40));
    let left = RNR_WAIT - Duration::from_micros(40);
    assert_eq!(blocked(&mut pair), WaitReason::ReceiverNotReady { left, refusals: 1, most: Some(6) });
    let receive = Expecting::ReceiveRequest { psn: psn_a().get(), refusals: 1 };
    assert_eq!(ask(&mut pair, B).receive, receive);
    pair.advance(left);
    assert_eq!(blocked(&mut pair), WaitReason::Turn);
    lost(&mut pair);
    assert_eq!(blocked(&mut pair), WaitReason::AskedAgain { refusals: 1, most: Some(6) });
    pair.post_recv(B, 7, 0x8000, 10);
    pair.advance(TIMEOUT);
    pair.flow();
    assert_eq!(blocked(&mut pair), WaitReason::NothingPosted);
    assert_eq!(ask(&mut pair, B).receive, Expecting::Message { psn: psn_a().get() + 1 });
}

#[test]
fn any_number_of_refusals_may_be_borne() {
    let mut pair = Pair::with(|_, attrs| attrs.rnr_retry = RnrRetry::Infinite);
    pair.post(A, send(1, 10));
    pair.flow();
    let said = blocked(&mut pair);
    assert_eq!(said, WaitReason::ReceiverNotReady { left: RNR_WAIT, refusals: 1, most: None });
}

#[test]
fn messages_beyond_the_credits_wait_for_credits() {
    let mut pair = Pair::new();
    pair.b.host.counts_receives = true;
    pair.post(A, write(1, 0x8000, 10));
    pair.flow();
    for id in 2..6 {
        pair.post(A, send(id, 10));
    }
    lost(&mut pair);
    assert_eq!(blocked(&mut pair), WaitReason::Credits { beyond: 2 }, "one asks, the next waits");
}

#[test]
fn fences_wait_for_older_requests() {
    for (older, fence) in [(read(1, 0x8000, 10), Fence::Reads), (write(1, 0x8000, 10), Fence::All)] {
        let mut pair = Pair::new();
        pair.post(A, older);
        pair.post(A, SendRequest { fence, ..send(2, 10) });
        lost(&mut pair);
        assert_eq!(blocked(&mut pair), WaitReason::Fence { older: 1 });
    }
    let mut pair = Pair::new();
    pair.post(A, write(1, 0x8000, 10));
    pair.post(A, request(2, SendOp::Local(LocalOp::Invalidate(Lkey::new(KEY))), &[]));
    lost(&mut pair);
    assert_eq!(blocked(&mut pair), WaitReason::Invalidation { older: 1 });
}

#[test]
fn reads_are_limited_by_number_and_long_ones_by_pieces() {
    let mut pair = Pair::new();
    for id in 0..6 {
        pair.post(A, read(id, 0x8000, 10));
    }
    lost(&mut pair);
    assert_eq!(blocked(&mut pair), WaitReason::Reads { most: 4 });

    // Two pieces of four packets are under way, and the window has room for a third.
    let mut pair = Pair::with_window(12);
    pair.post(A, read(1, 0x8000, 16 * 256));
    lost(&mut pair);
    assert_eq!(blocked(&mut pair), WaitReason::ReadPieces);
}

#[test]
fn packets_are_limited_by_the_window_and_by_their_numbers() {
    let mut pair = Pair::with_window(8);
    pair.post(A, write(1, 0x8000, 10 * 256));
    lost(&mut pair);
    assert_eq!(blocked(&mut pair), WaitReason::Window { in_flight: 8, most: 8 });

    let mut pair = Pair::new();
    pair.post(A, write(1, 0x8000, 10));
    pair.post(A, read(2, 0, 1 << 31));
    lost(&mut pair);
    assert_eq!(blocked(&mut pair), WaitReason::PacketNumbers, "2^23 packets of 256 bytes, and one");
}

#[test]
fn requests_are_limited_by_number() {
    let mut pair = Pair::new();
    for id in 0..129 {
        pair.post(A, write(id, 0x8000, 0));
    }
    lost(&mut pair);
    assert_eq!(blocked(&mut pair), WaitReason::Requests { most: 128 });
}

#[test]
fn a_request_that_failed_waits_for_its_turn_to_say_so() {
    let mut pair = Pair::new();
    pair.post(A, write(1, 0x8000, 10));
    let wrong = Sge { lkey: Lkey::new(0xbad), ..sge(0, 10) };
    pair.post(A, request(2, SendOp::Send { imm: None }, &[wrong]));
    lost(&mut pair);
    let status = Status::LocalProtection(AccessError::Key);
    assert_eq!(blocked(&mut pair), WaitReason::Failed { status, older: 1 });
    pair.advance(TIMEOUT);
    pair.flow();
    assert_eq!(ask(&mut pair, A).ended.unwrap().by, EndedBy::Send(status));
}

#[test]
fn a_queue_is_drained_and_then_rests() {
    let mut pair = Pair::new();
    pair.post(A, write(1, 0x8000, 10));
    lost(&mut pair);
    pair.modify(A, State::Sqd);
    pair.post(A, write(2, 0x8000, 10));
    assert_eq!(blocked(&mut pair), WaitReason::Draining);
    pair.advance(TIMEOUT);
    pair.flow();
    assert_eq!(blocked(&mut pair), WaitReason::Drained);
}

#[test]
fn congestion_is_waited_out() {
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
        pair.deliver_packet(A, &B.path(), &Packet { bth, ext: Ext::None, payload: &[0; 16] });
        pair.advance(MS / 10);
    }
    for id in 0..4 {
        pair.post(A, write(id, 0x8000, 0x4000));
    }
    lost(&mut pair);
    let said = blocked(&mut pair);
    assert!(matches!(said, WaitReason::Congestion { left } if left > Duration::ZERO), "{said:?}");
}

#[test]
fn a_message_that_is_begun_waits_for_its_rest() {
    for service in [Service::Rc, Service::Uc] {
        let psn = psn_a().get() + 1;
        let mut pair = Pair::with(|_, attrs| attrs.service = service);
        pair.post(A, write(1, 0x8000, 600));
        let frames = pair.frames(A);
        pair.deliver(B, &frames[0]);
        assert_eq!(ask(&mut pair, B).receive, Expecting::Rest { psn, received: 256 });
        // A packet behind a missing one.
        pair.deliver(B, &frames[2]);
        let said = ask(&mut pair, B);
        if service == Service::Rc {
            assert_eq!(
                (said.receive, said.answers),
                (Expecting::Missing { psn }, 1),
                "the peer is to be told"
            );
        }
    }
}

#[test]
fn what_ended_it_is_said() {
    let by = |pair: &mut Pair, who| ask(pair, who).ended.unwrap().by;

    let mut pair = Pair::new();
    pair.modify(A, State::Err);
    assert_eq!(by(&mut pair, A), EndedBy::Software);

    // Both ends of a refused WRITE.
    let mut pair = Pair::new();
    let to = Remote { rkey: protocol::ids::Rkey::new(LOCKED), ..remote(0) };
    pair.post(A, request(1, SendOp::Write { remote: to, imm: None }, &[sge(0, 10)]));
    pair.flow();
    assert_eq!(by(&mut pair, A), EndedBy::Send(Status::RemoteAccess));
    let refused = EndedBy::Peer { reason: DropReason::NoAccess, cause: Some(AccessError::Right) };
    assert_eq!(by(&mut pair, B), refused);
    assert_eq!(pair.b.engine.stats().drops.no_access, 1);
    // Software that cleans up does not hide it.
    pair.modify(B, State::Err);
    assert_eq!(by(&mut pair, B), refused);

    let mut pair = Pair::new();
    pair.b.host.queues.entry(B.qpn().get()).or_default().recv.push_back(Fetch::Broken);
    pair.post(A, send(1, 10));
    pair.flow();
    assert_eq!(by(&mut pair, B), EndedBy::Queue(Queue::Recv));

    // SQE, and out of it.
    let mut pair = Pair::with(|_, attrs| attrs.service = Service::Uc);
    let wrong = Sge { lkey: Lkey::new(0xbad), ..sge(0, 10) };
    pair.post(A, request(1, SendOp::Send { imm: None }, &[wrong]));
    pair.flow();
    let situation = ask(&mut pair, A);
    assert_eq!((situation.state, situation.send), (State::Sqe, WaitReason::Ended));
    assert_eq!(situation.ended.unwrap().by, EndedBy::Send(Status::LocalProtection(AccessError::Key)));
    pair.modify_with(A, State::Rts, |modify| modify.attrs.service = Service::Uc);
    assert_eq!(ask(&mut pair, A).ended, None);
}

#[test]
fn a_packet_that_draws_a_fatal_refusal_is_counted_by_its_reason() {
    let mut pair = Pair::new();
    pair.inject(B, Operation::SendLast, psn_a(), Ext::None, &[0; 10]);
    assert_eq!(pair.b.engine.stats().drops.invalid_request, 1);
    assert_eq!(
        ask(&mut pair, B).ended.unwrap().by,
        EndedBy::Peer { reason: DropReason::InvalidRequest, cause: None }
    );
}

/// Names are those of counters, and no two are the same.
#[test]
fn each_reason_has_a_counter_of_its_name() {
    let mut names: Vec<_> = DropReason::ALL.iter().map(|reason| reason.name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), DropReason::ALL.len());
    let drops = Drops::default();
    assert!(DropReason::ALL.iter().all(|reason| drops.of(*reason) == 0));
}
