//! Tests the behaviour of each QP state and the transitions between states.

use std::time::Duration;

use crate::common::*;
use engine::{
    AccessError, AsyncEvent, Config, Engine, Fetch, Instant, Modify, Queue, SendOp, Service, Sge, State,
    Status,
};
use protocol::Psn;
use protocol::ids::{Lkey, Msn, Qkey, Qpn};
use protocol::roce::{Deth, Ext, Opcode, Operation};

#[test]
fn move_to_err_flushes_sends_then_receives() {
    let mut pair = Pair::new();
    pair.post_recv(A, 11, 0, 100);
    pair.post_recv(A, 12, 0, 100);
    pair.post(A, write(1, 0x8000, 5000));
    pair.post(A, write(2, 0x8000, 10));
    let side = &mut pair.a;
    let mut frame = Vec::new();
    side.engine.poll_transmit(pair.now, &mut side.host, &mut frame).unwrap();
    pair.modify(A, State::Err);
    let order: Vec<_> = pair.a.completions.iter().map(|done| (done.queue, done.wr_id)).collect();
    assert_eq!(order, [(Queue::Send, 1), (Queue::Send, 2), (Queue::Recv, 11), (Queue::Recv, 12)]);
    assert!(pair.a.completions.drain(..).all(|done| done.result == Err(Status::Flushed)));
    assert_eq!(pair.frames(A).len(), 0);
    pair.advance(TIMEOUT);
    assert_eq!(pair.frames(A).len(), 0);
}

#[test]
fn requests_posted_in_err_are_flushed() {
    let mut pair = Pair::new();
    pair.modify(A, State::Err);
    pair.post(A, write(1, 0x8000, 10));
    assert_eq!(pair.a.sends(), [(1, Err(Status::Flushed))]);
    // Receive requests are posted without a doorbell; polling finds them within 10 ms.
    pair.post_recv(A, 11, 0, 100);
    let due = pair.a.engine.poll_timeout().unwrap();
    assert!(due.saturating_since(pair.now) <= Duration::from_millis(10));
    pair.advance(due.saturating_since(pair.now));
    assert_eq!(pair.a.recvs(), [(11, Err(Status::Flushed))]);
    pair.post_recv(A, 12, 0, 100);
    pair.advance(Duration::from_millis(10));
    assert_eq!(pair.a.recvs(), [(12, Err(Status::Flushed))]);
}

#[test]
fn qp_in_err_drops_packets_without_reply() {
    let mut pair = Pair::new();
    pair.modify(B, State::Err);
    pair.inject(B, Operation::SendOnly, psn_a(), Ext::None, b"x");
    pair.inject(B, Operation::SendOnly, Psn::new(0x500), Ext::None, b"x");
    assert_eq!(pair.flow(), Vec::<String>::new());
    assert_eq!(pair.b.engine.stats().drops.wrong_state, 2);
}

#[test]
fn reset_discards_requests_without_completing_them() {
    let mut pair = Pair::new();
    pair.post_recv(A, 11, 0, 100);
    pair.post(A, write(1, 0x8000, 300));
    pair.frames(A);
    pair.modify(A, State::Reset);
    assert_eq!((pair.a.sends(), pair.a.recvs()), (vec![], vec![]));
    pair.advance(TIMEOUT);
    assert_eq!(pair.frames(A).len(), 0);
    let snapshot = pair.snapshot(A);
    assert_eq!((snapshot.state, snapshot.msn), (State::Reset, Msn::new(0)));
}

#[test]
fn doorbells_before_rts_and_packets_before_rtr_are_ignored() {
    let mut pair = Pair::new();
    pair.modify(A, State::Reset);
    for state in [State::Init, State::Rtr] {
        pair.modify_with(A, state, |modify| modify.recv_psn = Some(psn_b()));
        pair.a.engine.notify_send(pair.now, A.qpn(), &mut pair.a.host);
        if state == State::Init {
            pair.inject(A, Operation::SendOnly, psn_b(), Ext::None, b"x");
            assert_eq!(pair.a.engine.stats().drops.wrong_state, 1);
        }
        assert_eq!(pair.frames(A).len(), 0);
    }
}

#[test]
fn first_packet_in_rtr_establishes_communication() {
    let mut pair = Pair::new();
    pair.modify(B, State::Reset);
    pair.modify(B, State::Init);
    pair.modify_with(B, State::Rtr, |modify| modify.recv_psn = Some(psn_a()));
    pair.post(A, write(1, 0x8000, 10));
    pair.post(A, write(2, 0x8000, 10));
    pair.flow();
    assert_eq!(pair.b.asyncs, [AsyncEvent::CommunicationEstablished]);
    assert_eq!(pair.a.sends(), ok([1, 2]));
    assert_eq!(pair.snapshot(B).state, State::Rtr);
}

#[test]
fn rejected_packets_do_not_establish_communication() {
    let in_rtr = |service| {
        let mut pair = Pair::with(|_, attrs| attrs.service = service);
        let with = |modify: &mut Modify| modify.attrs.service = service;
        pair.modify_with(B, State::Reset, with);
        pair.modify_with(B, State::Init, with);
        pair.modify_with(B, State::Rtr, |modify| {
            (modify.attrs.service, modify.recv_psn) = (service, Some(psn_a()));
        });
        pair
    };
    let mut pair = in_rtr(Service::Rc);
    pair.inject(B, Operation::SendOnly, psn_a().advance(1), Ext::None, b"");
    pair.inject(B, Operation::SendOnly, psn_a().retreat(1), Ext::None, b"");
    // A packet rejected with an RNR NAK does not establish communication either.
    pair.inject(B, Operation::SendOnly, psn_a(), Ext::None, b"");
    assert_eq!(pair.b.asyncs, []);
    pair.post_recv(B, 1, 0, 10);
    pair.inject(B, Operation::SendOnly, psn_a(), Ext::None, b"");
    assert_eq!(pair.b.asyncs, [AsyncEvent::CommunicationEstablished]);

    let mut pair = in_rtr(Service::Ud);
    let datagram = |pair: &mut Pair, qkey| {
        let deth = Ext::Deth(Deth { qkey: Qkey::new(qkey), src_qp: A.qpn() });
        pair.inject_with(B, Operation::SendOnly, psn_a(), deth, b"", |bth| {
            bth.opcode = Opcode::ud(Operation::SendOnly);
        });
    };
    datagram(&mut pair, 0x2222_2222);
    assert_eq!(pair.b.asyncs, []);
    pair.post_recv(B, 1, 0, 100);
    datagram(&mut pair, 0x1111_1111);
    assert_eq!(pair.b.asyncs, [AsyncEvent::CommunicationEstablished]);
}

#[test]
fn sqd_completes_started_messages_then_raises_drained_event() {
    let mut pair = Pair::with_window(4);
    pair.post(A, write(1, 0x8000, 256 * 6));
    pair.post(A, write(2, 0x9000, 10));
    assert_eq!(pair.frames(A).len(), 4);
    pair.modify_with(A, State::Sqd, |modify| modify.notify_drained = true);
    assert!(pair.snapshot(A).draining);
    pair.post(A, write(3, 0x9000, 10));
    // All packets in the window were lost, so the started message is retried.
    pair.advance(TIMEOUT);
    let trace = pair.flow();
    assert!(trace.iter().all(|line| !line.contains("va+0x9000")), "{trace:?}");
    assert_eq!(pair.a.sends(), ok([1]));
    assert_eq!(pair.a.asyncs, [AsyncEvent::SqDrained]);
    assert!(!pair.snapshot(A).draining);
    // Back in RTS, the QP resumes with the oldest request that has not started.
    pair.modify(A, State::Rts);
    pair.flow();
    assert_eq!(pair.a.sends(), ok([2, 3]));
}

#[test]
fn idle_qp_is_drained_immediately_on_move_to_sqd() {
    let mut pair = Pair::new();
    pair.modify_with(A, State::Sqd, |modify| modify.notify_drained = true);
    assert_eq!(pair.a.asyncs, [AsyncEvent::SqDrained]);
    pair.modify(A, State::Rts);
    pair.modify(A, State::Sqd);
    assert_eq!(pair.a.asyncs.len(), 1, "the second move to SQD did not request an event");
}

#[test]
fn responder_executes_requests_in_sqd() {
    let mut pair = Pair::new();
    pair.modify(B, State::Sqd);
    pair.post(A, write(1, 0x8000, 10));
    pair.flow();
    assert_eq!(pair.a.sends(), ok([1]));
}

#[test]
fn failed_uc_send_leaves_receive_queue_working() {
    let mut pair = Pair::with(|_, attrs| attrs.service = Service::Uc);
    pair.post_recv(A, 11, 0x8000, 100);
    let bad = Sge { lkey: Lkey::new(0x999), ..sge(0, 10) };
    pair.post(A, request(1, SendOp::Send { imm: None }, &[bad]));
    pair.post(A, send(2, 10));
    pair.frames(A);
    assert_eq!(
        pair.a.sends(),
        [(1, Err(Status::LocalProtection(AccessError::Key))), (2, Err(Status::Flushed))]
    );
    assert_eq!(pair.snapshot(A).state, State::Sqe);
    pair.post(A, send(3, 10));
    assert_eq!(pair.a.sends(), [(3, Err(Status::Flushed))]);
    pair.post(B, send(4, 10));
    pair.flow();
    assert_eq!(pair.a.recvs(), ok([11]));
    pair.modify_with(A, State::Rts, |modify| modify.attrs.service = Service::Uc);
    pair.post_recv(B, 12, 0x8000, 100);
    pair.post(A, send(5, 10));
    pair.flow();
    assert_eq!((pair.a.sends(), pair.b.recvs()), (ok([5]), ok([12])));
}

/// JingZhao interface, section 10.5: after SQERR2RTS, the send queue resumes at the next doorbell.
#[test]
fn sqerr2rts_flushes_requests_of_earlier_doorbells() {
    let mut pair = Pair::with(|_, attrs| attrs.service = Service::Uc);
    let bad = Sge { lkey: Lkey::new(0x999), ..sge(0, 10) };
    pair.a.host.post_send(A.qpn(), request(0, SendOp::Send { imm: None }, &[bad]));
    for id in 1..1000 {
        pair.a.host.post_send(A.qpn(), send(id, 10));
    }
    let now = pair.now;
    let side = pair.side(A);
    side.engine.notify_send(now, A.qpn(), &mut side.host);
    // This step reports the failure and flushes as many requests as a single step can flush.
    assert_eq!(side.engine.poll_transmit(now, &mut side.host, &mut Vec::new()), None);
    pair.modify_with(A, State::Rts, |modify| modify.attrs.service = Service::Uc);
    pair.post(A, send(1000, 10));
    assert_eq!(pair.frames(A).len(), 1);
    let mut results = vec![(0, Err(Status::LocalProtection(AccessError::Key)))];
    results.extend((1..1000).map(|id| (id, Err(Status::Flushed))));
    results.push((1000, Ok(())));
    assert_eq!(pair.a.sends(), results);
}

#[test]
fn uc_send_failing_in_sqd_does_not_raise_drained_event() {
    let mut pair = Pair::with(|_, attrs| attrs.service = Service::Uc);
    let bad = Sge { lkey: Lkey::new(0x999), ..sge(0, 10) };
    // The third of the message's three packets cannot be gathered. Two packets are sent before SQD.
    pair.post(A, request(1, SendOp::Send { imm: None }, &[sge(0, 512), bad]));
    let now = pair.now;
    let side = pair.side(A);
    for _ in 0..2 {
        assert!(side.engine.poll_transmit(now, &mut side.host, &mut Vec::new()).is_some());
    }
    pair.modify_with(A, State::Sqd, |modify| {
        (modify.attrs.service, modify.notify_drained) = (Service::Uc, true);
    });
    assert_eq!(pair.frames(A).len(), 0);
    assert_eq!(pair.a.sends(), [(1, Err(Status::LocalProtection(AccessError::Key)))]);
    assert_eq!(pair.a.asyncs, []);
    assert_eq!((pair.snapshot(A).state, pair.snapshot(A).draining), (State::Sqe, false));
}

/// Each step must be bounded, because a guest can link a request to itself.
#[test]
fn endless_wqe_chains_run_in_bounded_steps() {
    struct Endless(sim::host::SimHost);
    impl engine::Host for Endless {
        type Range = std::convert::Infallible;

        fn next_send(&mut self, _: Qpn) -> Fetch<engine::SendRequest> {
            Fetch::Ready(request(9, SendOp::Nop, &[]))
        }
        fn next_recv(&mut self, source: engine::RecvSource) -> Fetch<engine::RecvRequest> {
            self.0.next_recv(source)
        }
        fn check(
            &self,
            _: engine::Initiator,
            _: Lkey,
            _: protocol::ids::Va,
            _: u64,
            _: engine::Access,
        ) -> Result<(), engine::AccessError> {
            Ok(())
        }
        fn read(
            &self,
            _: engine::Initiator,
            _: Lkey,
            _: protocol::ids::Va,
            _: usize,
            _: &mut Vec<u8>,
            _: engine::Access,
        ) -> Result<(), engine::AccessError> {
            Ok(())
        }
        fn write(
            &mut self,
            _: engine::Initiator,
            _: Lkey,
            _: protocol::ids::Va,
            _: engine::PayloadRef<'_>,
            _: engine::Access,
        ) -> Result<(), engine::AccessError> {
            Ok(())
        }
        fn atomic(
            &mut self,
            _: engine::Initiator,
            _: Lkey,
            _: protocol::ids::Va,
            _: engine::AtomicOp,
        ) -> Result<u64, engine::AccessError> {
            Ok(0)
        }
    }
    let mut host = Endless(Default::default());
    let mut engine = Engine::new(Config::default());
    let qpn = Qpn::new(1);
    engine.create_qp(qpn, attrs(A)).unwrap();
    let to = |engine: &mut Engine, to, host: &mut Endless| {
        let modify = Modify { to, attrs: attrs(A), send_psn: None, recv_psn: None, notify_drained: false };
        engine.modify_qp(Instant::ZERO, qpn, &modify, host).unwrap();
    };
    for state in [State::Init, State::Rtr, State::Rts] {
        to(&mut engine, state, &mut host);
    }
    engine.notify_send(Instant::ZERO, qpn, &mut host);
    assert_eq!(engine.poll_transmit(Instant::ZERO, &mut host, &mut Vec::new()), None);
    let done = std::iter::from_fn(|| engine.poll_event()).count();
    assert!((64..=1024).contains(&done), "one call executed {done} NOPs");
    // The engine requests another call immediately.
    assert_eq!(engine.poll_timeout(), Some(Instant::ZERO));
    // Flushing is bounded too.
    to(&mut engine, State::Err, &mut host);
    let flushed = std::iter::from_fn(|| engine.poll_event()).count();
    assert!((1..1000).contains(&flushed), "one call flushed {flushed} requests");
}

#[test]
fn destroyed_qp_leaves_no_state() {
    let mut pair = Pair::new();
    pair.post(A, write(1, 0x8000, 300));
    pair.a.engine.destroy_qp(A.qpn());
    assert_eq!(pair.frames(A).len(), 0);
    assert_eq!(pair.a.engine.poll_timeout(), None);
    assert_eq!(pair.a.engine.poll_dirty(), None);
    assert_eq!(pair.a.engine.query_qp(A.qpn()), None);
    pair.a.engine.create_qp(A.qpn(), attrs(A)).unwrap();
    assert!(pair.a.engine.create_qp(A.qpn(), attrs(A)).is_err());
}

#[test]
fn qps_send_in_turns_of_32_packets() {
    let mut pair = Pair::new();
    let second = Qpn::new(0x30);
    pair.a.engine.create_qp(second, attrs(A)).unwrap();
    for to in [State::Init, State::Rtr, State::Rts] {
        let modify = Modify { to, attrs: attrs(A), send_psn: None, recv_psn: None, notify_drained: false };
        pair.a.engine.modify_qp(pair.now, second, &modify, &mut pair.a.host).unwrap();
    }
    pair.post(A, write(1, 0, 0x1_0000));
    pair.a.host.post_send(second, write(2, 0, 0x1_0000));
    pair.a.engine.notify_send(pair.now, second, &mut pair.a.host);
    let mut turns: Vec<(Qpn, u32)> = Vec::new();
    let side = &mut pair.a;
    while let Some(sent) = side.engine.poll_transmit(pair.now, &mut side.host, &mut Vec::new()) {
        match turns.last_mut() {
            Some((qpn, count)) if *qpn == sent.qpn => *count += 1,
            _ => turns.push((sent.qpn, 1)),
        }
    }
    let expected: Vec<_> = (0..8).flat_map(|_| [(A.qpn(), 32), (second, 32)]).collect();
    assert_eq!(turns, expected, "both QPs must send their 256 packets in turns of 32");
}

#[test]
fn dirty_qp_is_reported_once_per_change() {
    let mut pair = Pair::new();
    while pair.a.engine.poll_dirty().is_some() {}
    pair.post(A, write(1, 0x8000, 300));
    pair.frames(A);
    assert_eq!(pair.a.engine.poll_dirty(), Some(A.qpn()));
    assert_eq!(pair.a.engine.poll_dirty(), None);
    assert_eq!(pair.snapshot(A).send_psn, Psn::new(0x102));
}
