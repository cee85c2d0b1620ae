//! Tests how the requester handles each kind of response to each kind of request (IBTA volume 1, sections 9.7.5 and
//! 9.9.2).

use std::time::Duration;

use crate::common::*;
use engine::*;
use protocol::Psn;
use protocol::roce::{Aeth, Ext, NakCode, Operation as O, Syndrome};

fn acknowledge(pair: &mut Pair, psn: Psn, syndrome: Syndrome) {
    pair.inject(A, O::Acknowledge, psn, aeth(syndrome), b"");
}

fn read_response(pair: &mut Pair, psn: Psn, operation: O, len: usize) {
    let ext = if operation == O::ReadResponseMiddle { Ext::None } else { aeth(ACK) };
    pair.inject(A, operation, psn, ext, &[0x5a; 300][..len]);
}

fn atomic_acknowledge(pair: &mut Pair, psn: Psn) {
    let ext = Ext::AtomicAck(Aeth { syndrome: ACK, msn: Default::default() }, 7);
    pair.inject(A, O::AtomicAcknowledge, psn, ext, b"");
}

fn fetch_add() -> SendRequest {
    request(1, SendOp::FetchAdd { remote: remote(0), add: 1 }, &[sge(0, 8)])
}

const RESPONSES: [O; 4] =
    [O::ReadResponseFirst, O::ReadResponseMiddle, O::ReadResponseLast, O::ReadResponseOnly];

/// State of a request after one response to its first packet.
#[derive(Debug, PartialEq)]
enum Outcome {
    Done,
    /// Neither completed nor failed. Contains the number of acknowledged PSNs.
    Open(u32),
    Bad,
}

fn outcome(wr: &SendRequest, answer: impl FnOnce(&mut Pair)) -> Outcome {
    let mut pair = Pair::new();
    pair.post(A, wr.clone());
    pair.frames(A);
    answer(&mut pair);
    match *pair.a.sends() {
        [(1, Ok(()))] => Outcome::Done,
        [(1, Err(Status::BadResponse))] => {
            assert_eq!(pair.snapshot(A).state, State::Err);
            Outcome::Bad
        }
        [] => {
            assert_eq!(pair.frames(A).len(), 0, "the response must not cause a retransmission");
            Outcome::Open(pair.snapshot(A).unacked_psn.since(psn_a()).cast_unsigned())
        }
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn mismatched_response_type_fails_request() {
    use Outcome::{Bad, Done, Open};
    let long_read = || read(1, 0x8000, 600);
    // Each request is listed with its outcomes for six kinds of response to its first PSN: an ACK, the READ responses
    // FIRST, MIDDLE, LAST and ONLY, and an ATOMIC acknowledge.
    for (name, wr, expected) in [
        ("send", send(1, 10), [Done, Bad, Bad, Bad, Bad, Bad]),
        ("long send", send(1, 600), [Open(1), Bad, Bad, Bad, Bad, Bad]),
        ("write", write(1, 0, 10), [Done, Bad, Bad, Bad, Bad, Bad]),
        ("read", read(1, 0x8000, 10), [Open(0), Bad, Bad, Bad, Done, Bad]),
        ("empty read", read(1, 0x8000, 0), [Open(0), Bad, Bad, Bad, Done, Bad]),
        ("long read", long_read(), [Open(0), Open(1), Bad, Bad, Bad, Bad]),
        ("atomic", fetch_add(), [Open(0), Bad, Bad, Bad, Bad, Done]),
    ] {
        let len = wr.payload.len().min(256) as usize;
        let [ack, responses @ .., atomic] = expected;
        assert_eq!(outcome(&wr, |pair| acknowledge(pair, psn_a(), ACK)), ack, "{name}, ACK");
        for (operation, expected) in RESPONSES.into_iter().zip::<[Outcome; 4]>(responses) {
            let outcome = outcome(&wr, |pair| read_response(pair, psn_a(), operation, len));
            assert_eq!(outcome, expected, "{name}, {operation:?}");
        }
        assert_eq!(
            outcome(&wr, |pair| atomic_acknowledge(pair, psn_a())),
            atomic,
            "{name}, ATOMIC acknowledge"
        );
    }
}

/// Returns a pair with an outstanding READ of three packets. The first `index` responses have arrived.
fn read_up_to(index: u32) -> Pair {
    let mut pair = Pair::new();
    pair.post(A, read(1, 0x8000, 600));
    pair.frames(A);
    for (n, operation) in (0..index).zip(RESPONSES) {
        read_response(&mut pair, psn_a().advance(n), operation, 256);
    }
    pair
}

#[test]
fn malformed_read_response_fails_read() {
    for index in 0..3 {
        let (right, right_len) = (RESPONSES[index as usize], if index == 2 { 88 } else { 256 });
        let cases = RESPONSES.map(|operation| (operation, right_len)).into_iter();
        for (operation, len) in cases
            .chain([0, right_len - 4, right_len - 1, right_len + 1, right_len + 4].map(|len| (right, len)))
        {
            let mut pair = read_up_to(index);
            read_response(&mut pair, psn_a().advance(index), operation, len);
            if (operation, len) == (right, right_len) {
                assert_eq!(pair.snapshot(A).unacked_psn, psn_a().advance(index + 1));
                assert_eq!(pair.a.sends(), ok((index == 2).then_some(1)));
            } else {
                let failed = [(1, Err(Status::BadResponse))];
                assert_eq!(pair.a.sends(), failed, "{operation:?} of {len} bytes as response {index}");
            }
            assert_eq!(
                pair.bytes(A, 0x8000 + 600, 8),
                Pair::new().bytes(A, 0x8000 + 600, 8),
                "memory past the end of the READ must be unchanged"
            );
        }
    }
}

/// After a retry, some responders resume the READ with MIDDLE, and responses to the first request can still arrive.
#[test]
fn retried_read_must_end_with_last_or_only_response() {
    use O::{
        ReadResponseFirst as F, ReadResponseLast as L, ReadResponseMiddle as M, ReadResponseOnly as Only,
    };
    for (second, third, accepted) in [
        (F, L, true),
        (M, L, true),
        (F, Only, true),
        (M, Only, true),
        (F, M, false),
        (M, F, false),
        (L, L, false),
        (Only, Only, false),
    ] {
        let mut pair = read_up_to(1);
        pair.advance(TIMEOUT);
        assert_eq!(describe(&pair.frames(A)[0]), "ReadRequest 0x101 va+0x100 344?");
        read_response(&mut pair, psn_a().advance(1), second, 256);
        read_response(&mut pair, psn_a().advance(2), third, 88);
        let expected = if accepted { Ok(()) } else { Err(Status::BadResponse) };
        assert_eq!(pair.a.sends(), [(1, expected)], "{second:?}, {third:?}");
    }
}

/// Section 9.3.5 defines the AETH syndrome, credits, RNR NAK timer and NAK codes.
#[test]
fn requester_handles_every_aeth_syndrome_as_specified() {
    for byte in 0..=u8::MAX {
        let mut pair = Pair::new();
        pair.post(A, write(1, 0x8000, 10));
        pair.frames(A);
        acknowledge(&mut pair, psn_a(), Syndrome::from_byte(byte));
        let failed = |status| vec![(1, Err(status))];
        let (expected, again) = match byte {
            0x00..=0x1f => (ok([1]), None),
            0x20..=0x3f => (vec![], Some(RnrTimer::new(byte).duration())),
            0x60 => (vec![], Some(Duration::ZERO)),
            0x61 => (failed(Status::RemoteInvalidRequest), None),
            0x62 => (failed(Status::RemoteAccess), None),
            0x63 => (failed(Status::RemoteOperational), None),
            0x64 => (failed(Status::RemoteInvalidRdRequest), None),
            _ => (failed(Status::BadResponse), None),
        };
        assert_eq!(pair.a.sends(), expected, "{byte:#x}");
        if let Some(wait) = again.filter(|wait| !wait.is_zero()) {
            pair.advance(wait - Duration::from_nanos(1));
            assert_eq!(pair.frames(A).len(), 0, "{byte:#x}: too early");
            pair.advance(Duration::from_nanos(1));
        }
        assert_eq!(pair.frames(A).len(), usize::from(again.is_some()), "{byte:#x}");
    }
}

/// Six WRITEs are outstanding, and their PSNs wrap. A response to the n-th WRITE also covers the earlier ones. A
/// response with any other PSN is a ghost.
#[test]
fn ghost_responses_are_ignored() {
    let first = Psn::new(0xff_fffd);
    let sent =
        |pair: &mut Pair| -> Vec<String> { pair.frames(A).iter().map(|frame| describe(frame)).collect() };
    for n in [-0x80_0000, -0x7f_ffff, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7, 128, 0x7f_ffff] {
        for syndrome in [
            ACK,
            Syndrome::Nak(NakCode::PsnSequence),
            Syndrome::RnrNak { timer: 1 },
            Syndrome::Nak(NakCode::RemoteAccess),
            Syndrome::Reserved(0x40),
        ] {
            let mut pair = Pair::with_psns(first, psn_b());
            for id in 0..6 {
                pair.post(A, write(id, 0x8000, 10));
            }
            let all = sent(&mut pair);
            acknowledge(&mut pair, Psn::new(first.get().wrapping_add_signed(n)), syndrome);
            pair.advance(RnrTimer::new(1).duration());
            let (completions, again) = (pair.a.sends(), sent(&mut pair));
            let Some(n) = u32::try_from(n).ok().filter(|n| *n < 6) else {
                assert_eq!((completions, again), (vec![], vec![]), "{syndrome:?} of {n}");
                assert_eq!(pair.snapshot(A).state, State::Rts);
                continue;
            };
            let done = n + u32::from(syndrome == ACK);
            assert_eq!(completions[..done as usize], ok(0..done.into()), "{syndrome:?} of {n}");
            let rest = &completions[done as usize..];
            match syndrome {
                Syndrome::Ack { .. } => assert_eq!((rest, again), (&[][..], vec![])),
                Syndrome::RnrNak { .. } | Syndrome::Nak(NakCode::PsnSequence) => {
                    assert_eq!((rest, &again[..]), (&[][..], &all[n as usize..]), "{syndrome:?} of {n}");
                }
                _ => {
                    let status = if syndrome == Syndrome::Reserved(0x40) {
                        Status::BadResponse
                    } else {
                        Status::RemoteAccess
                    };
                    assert_eq!(rest[0], (n.into(), Err(status)));
                    assert!(rest[1..].iter().all(|(_, result)| *result == Err(Status::Flushed)), "{rest:?}");
                    assert_eq!((rest.len(), again), (6 - n as usize, vec![]));
                }
            }
        }
    }
}

#[test]
fn ack_ends_rnr_wait() {
    let mut pair = Pair::new();
    pair.post(A, send(1, 10));
    pair.post(A, send(2, 10));
    pair.frames(A);
    acknowledge(&mut pair, psn_a(), Syndrome::RnrNak { timer: 0 });
    acknowledge(&mut pair, psn_a(), ACK);
    assert_eq!(pair.a.sends(), ok([1]));
    assert_eq!(pair.frames(A).len(), 1, "the second SEND must be sent immediately");
}

#[test]
fn ack_after_timeout_limits_retransmission() {
    let mut pair = Pair::new();
    for id in 0..3 {
        pair.post(A, write(id, 0x8000, 10));
    }
    pair.frames(A);
    pair.advance(TIMEOUT);
    acknowledge(&mut pair, psn_a().advance(1), ACK);
    assert_eq!(pair.a.sends(), ok([0, 1]));
    assert_eq!(pair.flow(), ["A WriteOnly 0x102 10B va+0x8000 10?", "B Acknowledge 0x100 PsnSequence msn0"]);
}

/// A request is transmitted `retry_count` + 1 times in total.
#[test]
fn timeouts_and_sequence_naks_share_retry_counter() {
    for retry_count in 0..=7 {
        let mut pair = Pair::with(|_, attrs| attrs.retry_count = retry_count);
        pair.post(A, write(1, 0x8000, 10));
        for attempt in 0..=retry_count {
            assert_eq!(pair.a.sends(), [], "attempt {attempt} of {retry_count}: the request must be pending");
            assert_eq!(pair.frames(A).len(), 1, "attempt {attempt} of {retry_count}");
            if attempt == 1 {
                acknowledge(&mut pair, psn_a(), Syndrome::Nak(NakCode::PsnSequence));
            } else {
                pair.advance(TIMEOUT);
            }
        }
        assert_eq!(pair.a.sends(), [(1, Err(Status::RetryExceeded))]);
        assert_eq!(pair.frames(A).len(), 0);
    }
}

/// Section 9.7.6 (local ACK timeout): the timer runs from the oldest unacknowledged packet.
#[test]
fn ack_timer_restarts_only_on_progress() {
    let third = TIMEOUT / 3;
    let mut pair = Pair::new();
    for id in 0..3 {
        pair.post(A, write(id, 0x8000, 10));
        assert_eq!(pair.frames(A).len(), 1);
        pair.advance(third);
    }
    pair.advance(Duration::from_nanos(2));
    assert_eq!(pair.frames(A).len(), 3, "the timer must run from the first packet");
    pair.advance(2 * third);
    acknowledge(&mut pair, psn_a(), ACK);
    pair.advance(2 * third);
    assert_eq!(pair.frames(A).len(), 0);
    pair.advance(third + Duration::from_nanos(2));
    assert_eq!(pair.frames(A).len(), 2, "the ACK must restart the timer");
}

/// If no response to a READ has arrived, the READ is repeated unchanged, because nothing suggests that its response is
/// too long for the path.
#[test]
fn timed_out_read_is_retransmitted_with_full_length() {
    let mut pair = Pair::new();
    pair.post(A, read(1, 0, 256 * 100));
    for _ in 0..=7 {
        assert_eq!(
            pair.frames(A).iter().map(|frame| describe(frame)).collect::<Vec<_>>(),
            ["ReadRequest 0x100 va+0x0 25600?"]
        );
        pair.advance(TIMEOUT);
    }
    assert_eq!(pair.a.sends(), [(1, Err(Status::RetryExceeded))]);
}

/// The response to a READ is lost. Each NAK for a later packet implies that loss, but only the first one triggers a
/// retransmission.
#[test]
fn naks_after_lost_read_trigger_one_retransmission() {
    let mut pair = Pair::new();
    pair.post(A, read(1, 0x8000, 10));
    for id in 2..10 {
        pair.post(A, write(id, 0x8000, 10));
    }
    assert_eq!(pair.frames(A).len(), 9);
    for n in 2..9 {
        acknowledge(&mut pair, psn_a().advance(n), Syndrome::Nak(NakCode::PsnSequence));
        assert_eq!(pair.frames(A).len(), if n == 2 { 9 } else { 0 }, "NAK for packet {n}");
    }
    pair.advance(TIMEOUT);
    assert_eq!(
        pair.flow().len(),
        9 + 2,
        "9 retransmitted packets, a READ response, and one ACK for all WRITEs"
    );
    assert_eq!(pair.a.sends(), ok(1..10));
}
