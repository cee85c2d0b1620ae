//! Tests receiver-not-ready (RNR) NAKs.

use std::time::Duration;

use crate::common::*;
use engine::{RnrRetry, RnrTimer, SendOp, Status};
use protocol::Psn;
use protocol::roce::{Imm, NakCode, Operation, Syndrome};

/// Wait requested by RNR NAK timer code 12.
const WAIT: Duration = Duration::from_micros(640);

#[test]
fn rnr_nakked_send_is_delivered_after_receive_is_posted() {
    let mut pair = Pair::new();
    pair.post(A, send(1, 300));
    assert_eq!(
        pair.flow(),
        ["A SendFirst 0x100 256B", "A SendLast 0x101 44B?", "B Acknowledge 0x100 RNR12 msn0"],
        "the packet after the refused one must be dropped silently"
    );
    assert_eq!(pair.a.engine.poll_timeout(), Some(pair.now + WAIT));
    pair.advance(WAIT - Duration::from_nanos(1));
    assert_eq!(pair.frames(A).len(), 0);
    pair.post_recv(B, 7, 0x8000, 300);
    pair.advance(Duration::from_nanos(1));
    assert_eq!(pair.flow(), ["A SendFirst 0x100 256B", "A SendLast 0x101 44B?", "B Acknowledge 0x101 msn1"]);
    assert_eq!(pair.a.sends(), ok([1]));
    assert_eq!(pair.b.recvs(), ok([7]));
}

/// If the responder refuses the retried packet again, it also drops the packets that follow. An RNR retry therefore
/// sends only a few packets.
#[test]
fn rnr_retry_sends_at_most_eight_packets() {
    let mut pair = Pair::new();
    for id in 0..100 {
        pair.post(A, send(id, 10));
    }
    pair.post(A, read(100, 0, 10));
    assert_eq!(pair.flow().len(), 101 + 1, "101 requests and one RNR NAK");
    for _ in 0..3 {
        pair.advance(WAIT);
        let trace = pair.flow();
        assert_eq!(trace.len(), 8 + 1);
        assert_eq!((&*trace[0], &*trace[7]), ("A SendOnly 0x100 10B?", "A SendOnly 0x107 10B?"));
        assert_eq!(trace[8], "B Acknowledge 0x100 RNR12 msn0");
    }
    // If these eight packets are lost, the ACK timeout also resends only eight.
    pair.advance(WAIT);
    assert_eq!(pair.frames(A).len(), 8);
    pair.advance(TIMEOUT);
    for id in 0..100 {
        pair.post_recv(B, id, 0x8000, 10);
    }
    let trace = pair.flow();
    assert_eq!(trace[7..9], ["A SendOnly 0x107 10B?", "B Acknowledge 0x107 msn8"]);
    assert_eq!(pair.a.sends(), ok(0..=100));
}

#[test]
fn rnr_retry_of_long_message_sends_eight_packets() {
    let mut pair = Pair::new();
    pair.post(A, send(1, 256 * 100));
    pair.flow();
    pair.advance(WAIT);
    assert_eq!(pair.frames(A).len(), 8);
    pair.post_recv(B, 7, 0x4000, 256 * 100);
    pair.advance(TIMEOUT);
    let trace = pair.flow();
    assert_eq!(trace[7..9], ["A SendMiddle 0x107 256B?", "B Acknowledge 0x107 msn0"]);
    assert_eq!(pair.a.sends(), ok([1]));
}

#[test]
fn write_imm_is_rnr_nakked_at_last_packet() {
    let mut pair = Pair::new();
    let op = SendOp::Write { remote: remote(0x8000), imm: Some(Imm([0; 4])) };
    pair.post(A, request(1, op, &[sge(0, 300)]));
    assert_eq!(
        pair.flow(),
        [
            "A WriteFirst 0x100 256B va+0x8000 300",
            "A WriteLastImm 0x101 44B?",
            "B Acknowledge 0x101 RNR12 msn0"
        ]
    );
    pair.post_recv(B, 7, 0, 0);
    pair.advance(WAIT);
    assert_eq!(pair.flow(), ["A WriteLastImm 0x101 44B?", "B Acknowledge 0x101 msn1"]);
    assert_eq!(pair.a.sends(), ok([1]));
}

#[test]
fn write_ahead_of_rnr_nakked_send_completes() {
    let mut pair = Pair::new();
    pair.post(A, write(1, 0x8000, 10));
    pair.post(A, send(2, 10));
    pair.flow();
    assert_eq!(pair.a.sends(), ok([1]));
}

#[test]
fn rnr_nak_retries_until_limit() {
    let mut pair = Pair::with(|_, attrs| attrs.rnr_retry = RnrRetry::Limited(2));
    pair.post(A, send(1, 10));
    pair.post(A, send(2, 10));
    for _ in 0..2 {
        pair.flow();
        assert_eq!(pair.a.sends(), []);
        pair.advance(WAIT);
    }
    pair.flow();
    assert_eq!(pair.a.sends(), [(1, Err(Status::RnrRetryExceeded)), (2, Err(Status::Flushed))]);
    assert_eq!(pair.a.engine.stats().naks_received.rnr, 3);
}

/// If the responder's software does not set a minimum RNR timer, the requested wait grows with each NAK. A few retries
/// then suffice even if the receive request is posted late.
#[test]
fn repeated_rnr_naks_increase_timer() {
    let mut pair = Pair::with(|_, attrs| attrs.max_rnr_timer = RnrTimer::new(25));
    pair.post(A, send(1, 10));
    pair.flow();
    for (code, next) in [(12, 16), (16, 20), (20, 24), (24, 25), (25, 25)] {
        pair.advance(RnrTimer::new(code).duration());
        assert_eq!(pair.flow()[1], format!("B Acknowledge 0x100 RNR{next} msn0"));
    }
    pair.post_recv(B, 7, 0x8000, 300);
    pair.advance(RnrTimer::new(25).duration());
    pair.flow();
    assert_eq!(pair.a.sends(), ok([1]));
    pair.post(A, send(2, 10));
    assert_eq!(
        pair.flow()[1],
        "B Acknowledge 0x101 RNR12 msn1",
        "the timer starts again for the next packet"
    );
}

/// While software is still posting a receive request, the host reports when the request can be fetched.
#[test]
fn rnr_timer_covers_time_until_pending_receive_is_posted() {
    for (due_in_ms, code) in [(0, 12), (1, 14), (250, 30), (700, 0)] {
        let mut pair = Pair::with(|_, attrs| attrs.max_rnr_timer = RnrTimer::new(12));
        pair.b.host.recv_due = Some(pair.now + Duration::from_millis(due_in_ms));
        pair.post(A, send(1, 10));
        assert_eq!(pair.flow()[1], format!("B Acknowledge 0x100 RNR{code} msn0"), "{due_in_ms} ms");
    }
}

#[test]
fn zero_rnr_retry_fails_at_first_rnr_nak() {
    let mut pair = Pair::with(|_, attrs| attrs.rnr_retry = RnrRetry::Limited(0));
    pair.post(A, send(1, 10));
    pair.flow();
    assert_eq!(pair.a.sends(), [(1, Err(Status::RnrRetryExceeded))]);
}

#[test]
fn infinite_rnr_retries_never_fail() {
    let mut pair = Pair::with(|_, attrs| attrs.rnr_retry = RnrRetry::Infinite);
    pair.post(A, send(1, 10));
    for _ in 0..100 {
        pair.flow();
        pair.advance(WAIT);
    }
    pair.post_recv(B, 7, 0x8000, 10);
    pair.flow();
    assert_eq!(pair.a.sends(), ok([1]));
}

/// Once an RNR NAK has started a wait, further RNR NAKs are ignored until a packet has been retransmitted. They are
/// duplicates, or replies to packets that were sent before the wait.
#[test]
fn duplicate_rnr_nak_does_not_consume_retry() {
    let mut pair = Pair::with(|_, attrs| attrs.rnr_retry = RnrRetry::Limited(1));
    let answer = |pair: &mut Pair| {
        pair.inject(A, Operation::Acknowledge, Psn::new(0x100), aeth(Syndrome::RnrNak { timer: 12 }), b"");
    };
    pair.post(A, send(1, 10));
    assert_eq!(pair.frames(A).len(), 1);
    answer(&mut pair);
    answer(&mut pair);
    pair.advance(WAIT);
    answer(&mut pair);
    assert_eq!(pair.a.sends(), []);
    assert_eq!(pair.frames(A).len(), 1, "the late RNR NAK must not start another wait");
    assert_eq!(pair.a.engine.stats().naks_received.rnr, 1);
    answer(&mut pair);
    assert_eq!(pair.a.sends(), [(1, Err(Status::RnrRetryExceeded))]);
}

/// The packet was retransmitted after the wait, so a second RNR NAK is not a duplicate, even if it arrives after the
/// ACK timeout.
#[test]
fn rnr_nak_after_timeout_consumes_rnr_retry() {
    let mut pair = Pair::with(|_, attrs| attrs.rnr_retry = RnrRetry::Limited(1));
    let answer = |pair: &mut Pair| {
        pair.inject(A, Operation::Acknowledge, Psn::new(0x100), aeth(Syndrome::RnrNak { timer: 12 }), b"");
    };
    pair.post(A, send(1, 10));
    pair.frames(A);
    answer(&mut pair);
    pair.advance(WAIT);
    pair.frames(A);
    pair.advance(TIMEOUT);
    answer(&mut pair);
    assert_eq!(pair.a.sends(), [(1, Err(Status::RnrRetryExceeded))]);
}

/// soft-RoCE sends a sequence NAK right after an RNR NAK, for the packets in flight after the refused one.
#[test]
fn sequence_nak_during_rnr_wait_is_ignored() {
    let mut pair = Pair::with(|_, attrs| attrs.retry_count = 0);
    pair.post(A, send(1, 10));
    pair.frames(A);
    let answer = |pair: &mut Pair, syndrome| {
        pair.inject(A, Operation::Acknowledge, Psn::new(0x100), aeth(syndrome), b"");
    };
    answer(&mut pair, Syndrome::RnrNak { timer: 12 });
    answer(&mut pair, Syndrome::Nak(NakCode::PsnSequence));
    assert_eq!(pair.frames(A).len(), 0);
    pair.advance(WAIT - Duration::from_nanos(1));
    assert_eq!(pair.frames(A).len(), 0);
    pair.advance(Duration::from_nanos(1));
    assert_eq!(pair.frames(A).len(), 1);
    assert_eq!(pair.a.sends(), []);
}

#[test]
fn rnr_nak_resets_timeout_retries() {
    let mut pair = Pair::with(|_, attrs| attrs.retry_count = 1);
    pair.post(A, send(1, 10));
    for _ in 0..3 {
        pair.frames(A);
        pair.advance(TIMEOUT);
        pair.frames(A);
        pair.inject(A, Operation::Acknowledge, Psn::new(0x100), aeth(Syndrome::RnrNak { timer: 12 }), b"");
        pair.advance(WAIT);
    }
    assert_eq!(pair.a.sends(), []);
    assert_eq!(pair.frames(A).len(), 1);
}

#[test]
fn rnr_nak_for_read_delays_its_retry() {
    let mut pair = Pair::new();
    pair.post(A, read(1, 0x8000, 10));
    let request = pair.frames(A).remove(0);
    pair.inject(A, Operation::Acknowledge, Psn::new(0x100), aeth(Syndrome::RnrNak { timer: 12 }), b"");
    pair.advance(WAIT);
    assert_eq!(pair.frames(A), [request]);
}

#[test]
fn ack_timer_stops_during_rnr_wait() {
    let mut pair = Pair::with(|_, attrs| attrs.min_rnr_timer = RnrTimer::new(0));
    pair.post(A, send(1, 10));
    pair.flow();
    assert!(RnrTimer::new(0).duration() > TIMEOUT);
    pair.advance(TIMEOUT);
    assert_eq!(pair.frames(A).len(), 0);
    pair.advance(RnrTimer::new(0).duration() - TIMEOUT);
    assert_eq!(pair.frames(A).len(), 1);
}

/// IBTA volume 1, table 45, in milliseconds.
#[test]
fn rnr_timer_codes_match_specification_table() {
    let table = [
        (0, 655.36),
        (1, 0.01),
        (2, 0.02),
        (3, 0.03),
        (4, 0.04),
        (5, 0.06),
        (6, 0.08),
        (7, 0.12),
        (8, 0.16),
        (9, 0.24),
        (10, 0.32),
        (11, 0.48),
        (12, 0.64),
        (13, 0.96),
        (14, 1.28),
        (15, 1.92),
        (16, 2.56),
        (17, 3.84),
        (18, 5.12),
        (19, 7.68),
        (20, 10.24),
        (21, 15.36),
        (22, 20.48),
        (23, 30.72),
        (24, 40.96),
        (25, 61.44),
        (26, 81.92),
        (27, 122.88),
        (28, 163.84),
        (29, 245.76),
        (30, 327.68),
        (31, 491.52),
    ];
    for (code, millis) in table {
        let expected = Duration::from_secs_f64(millis / 1000.0).as_micros();
        assert_eq!(RnrTimer::new(code).duration().as_micros(), expected, "code {code}");
    }
}
