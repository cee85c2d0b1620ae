//! Tests lost, duplicated and forged packets on a reliable connection.

use std::time::Duration;

use crate::common::*;
use engine::{AckTimeout, SendOp, Status};
use protocol::Psn;
use protocol::ids::Msn;
use protocol::roce::{Aeth, Ext, NakCode, Operation, Syndrome};

#[test]
fn lost_first_packet_triggers_message_retransmission() {
    let mut pair = Pair::new();
    pair.post(A, write(1, 0x8000, 700));
    assert_eq!(
        pair.lose(A, 0),
        [
            "A WriteFirst 0x100 256B va+0x8000 700 LOST",
            "A WriteMiddle 0x101 256B",
            "A WriteLast 0x102 188B?",
            "B Acknowledge 0x100 PsnSequence msn0",
            "A WriteFirst 0x100 256B va+0x8000 700",
            "A WriteMiddle 0x101 256B",
            "A WriteLast 0x102 188B?",
            "B Acknowledge 0x102 msn1",
        ]
    );
    assert_eq!(pair.a.sends(), ok([1]));
    assert_eq!(pair.bytes(B, 0x8000, 700), pair.bytes(A, 0, 700));
}

#[test]
fn retransmission_starts_at_lost_middle_packet() {
    let mut pair = Pair::new();
    pair.post(A, write(1, 0x8000, 700));
    assert_eq!(
        pair.lose(A, 1),
        [
            "A WriteFirst 0x100 256B va+0x8000 700",
            "A WriteMiddle 0x101 256B LOST",
            "A WriteLast 0x102 188B?",
            "B Acknowledge 0x101 PsnSequence msn0",
            "A WriteMiddle 0x101 256B",
            "A WriteLast 0x102 188B?",
            "B Acknowledge 0x102 msn1",
        ]
    );
    assert_eq!(pair.a.sends(), ok([1]));
}

#[test]
fn lost_last_packet_is_retransmitted_after_timeout() {
    let mut pair = Pair::new();
    pair.post(A, write(1, 0x8000, 700));
    pair.lose(A, 2);
    assert_eq!(pair.a.engine.poll_timeout(), Some(pair.now + TIMEOUT));
    pair.advance(TIMEOUT);
    // The responder acknowledges duplicates with its newest PSN.
    assert_eq!(
        pair.flow(),
        [
            "A WriteFirst 0x100 256B va+0x8000 700",
            "A WriteMiddle 0x101 256B",
            "A WriteLast 0x102 188B?",
            "B Acknowledge 0x102 msn1",
        ]
    );
    assert_eq!(pair.a.sends(), ok([1]));
}

#[test]
fn sequence_nak_is_sent_once_per_gap() {
    let mut pair = Pair::new();
    for psn in [0x103, 0x102, 0x104] {
        pair.inject(B, Operation::SendOnly, Psn::new(psn), Ext::None, b"x");
    }
    assert_eq!(pair.flow(), ["B Acknowledge 0x100 PsnSequence msn0"]);
    // The expected packet closes the gap, so the next gap is NAKed again.
    pair.post_recv(B, 1, 0, 16);
    pair.inject(B, Operation::SendOnly, Psn::new(0x100), Ext::None, b"x");
    pair.inject(B, Operation::SendOnly, Psn::new(0x105), Ext::None, b"x");
    assert_eq!(pair.flow(), ["B Acknowledge 0x100 msn1", "B Acknowledge 0x101 PsnSequence msn1"]);
    assert_eq!(pair.b.engine.stats().drops.out_of_sequence, 4);
    assert_eq!(pair.b.engine.stats().naks_sent.sequence, 2);
}

#[test]
fn later_ack_covers_lost_ack() {
    let mut pair = Pair::new();
    pair.post(A, write(1, 0x8000, 10));
    pair.lose(B, 0);
    assert_eq!(pair.a.sends(), []);
    pair.post(A, write(2, 0x8000, 10));
    pair.flow();
    assert_eq!(pair.a.sends(), ok([1, 2]));
}

#[test]
fn lost_ack_triggers_retransmission_without_second_delivery() {
    let mut pair = Pair::new();
    pair.post_recv(B, 7, 0x8000, 100);
    pair.post_recv(B, 8, 0x9000, 100);
    pair.post(A, send(1, 10));
    pair.lose(B, 0);
    pair.advance(TIMEOUT);
    assert_eq!(pair.flow(), ["A SendOnly 0x100 10B?", "B Acknowledge 0x100 msn1"]);
    assert_eq!(pair.a.sends(), ok([1]));
    assert_eq!(pair.b.recvs(), ok([7]), "the message is delivered once");
    assert_eq!(pair.b.engine.stats().recovery.duplicates, 1);
}

#[test]
fn duplicate_send_is_acked_with_newest_psn() {
    let mut pair = Pair::new();
    for id in 0..3 {
        pair.post_recv(B, id, 0x8000, 100);
    }
    for psn in 0x100..0x103 {
        pair.inject(B, Operation::SendOnly, Psn::new(psn), Ext::None, b"x");
    }
    pair.flow();
    assert_eq!(pair.b.recvs(), ok([0, 1, 2]));
    pair.inject_with(B, Operation::SendOnly, Psn::new(0x100), Ext::None, b"x", |bth| bth.ack_req = false);
    assert_eq!(pair.flow(), ["B Acknowledge 0x102 msn3"]);
    assert_eq!(pair.b.recvs(), []);
}

#[test]
fn acks_coalesce_into_newest() {
    let mut pair = Pair::new();
    for id in 1..=5 {
        pair.post(A, write(id, 0x8000, 10));
    }
    let trace = pair.flow();
    assert_eq!(trace[5..], ["B Acknowledge 0x104 msn5"]);
    assert_eq!(pair.a.sends(), ok(1..=5));
}

#[test]
fn ghost_and_duplicate_acks_are_ignored() {
    let mut pair = Pair::new();
    pair.post(A, write(1, 0x8000, 10));
    let request = pair.frames(A).remove(0);
    // The first two PSNs lie ahead of the last packet sent, by one and by about half the PSN space. The other two are
    // behind the oldest outstanding packet by the same distances.
    for psn in [0x101, 0x100 + 0x7f_fffe, 0xff, 0x80_0100] {
        for syndrome in [ACK, Syndrome::Nak(NakCode::RemoteAccess), Syndrome::RnrNak { timer: 1 }] {
            pair.inject(A, Operation::Acknowledge, Psn::new(psn), aeth(syndrome), b"");
        }
    }
    assert_eq!(pair.a.sends(), []);
    assert_eq!(pair.a.engine.stats().drops.ghost_response, 12);
    pair.deliver(B, &request);
    assert_eq!(pair.flow(), ["B Acknowledge 0x100 msn1"]);
    assert_eq!(pair.a.sends(), ok([1]));
    pair.inject(A, Operation::Acknowledge, Psn::new(0x100), aeth(ACK), b"");
    assert_eq!(pair.a.sends(), []);
}

/// IBTA 9.4.2: an acknowledge packet has no payload.
#[test]
fn ack_with_payload_is_dropped() {
    let mut pair = Pair::new();
    pair.post(A, write(1, 0x8000, 10));
    pair.post(A, request(2, SendOp::FetchAdd { remote: remote(0x100), add: 5 }, &[sge(0x8000, 8)]));
    pair.frames(A);
    let original = Ext::AtomicAck(Aeth { syndrome: ACK, msn: Msn::new(2) }, 7);
    for (operation, psn, ext, completed) in
        [(Operation::Acknowledge, 0x100, aeth(ACK), 1), (Operation::AtomicAcknowledge, 0x101, original, 2)]
    {
        pair.inject(A, operation, Psn::new(psn), ext, &[0; 4]);
        pair.inject(A, operation, Psn::new(psn), ext, &[0; 256]);
        assert_eq!(pair.a.sends(), []);
        pair.inject(A, operation, Psn::new(psn), ext, b"");
        assert_eq!(pair.a.sends(), ok([completed]));
    }
    assert_eq!(pair.a.engine.stats().drops.malformed, 4);
}

#[test]
fn timeout_resends_message_from_first_unacked_packet() {
    let mut pair = Pair::new();
    pair.post(A, write(1, 0x8000, 1000));
    pair.frames(A);
    pair.inject(A, Operation::Acknowledge, Psn::new(0x101), aeth(ACK), b"");
    assert_eq!(pair.snapshot(A).unacked_psn, Psn::new(0x102));
    pair.advance(TIMEOUT);
    let again: Vec<_> = pair.frames(A).iter().map(|frame| describe(frame)).collect();
    assert_eq!(again, ["WriteMiddle 0x102 256B", "WriteLast 0x103 232B?"]);
}

#[test]
fn retransmission_reads_payload_from_memory_again() {
    let mut pair = Pair::new();
    pair.post(A, write(1, 0x8000, 4));
    pair.lose(A, 0);
    pair.a.host.bytes(KEY)[..4].copy_from_slice(b"new!");
    pair.advance(TIMEOUT);
    pair.flow();
    assert_eq!(pair.bytes(B, 0x8000, 4), b"new!");
}

#[test]
fn read_resumes_at_first_missing_response() {
    let mut pair = Pair::new();
    pair.post(A, read(1, 0x8000, 1000));
    assert_eq!(
        pair.lose(B, 1),
        [
            "A ReadRequest 0x100 va+0x0 1000?",
            "B ReadResponseFirst 0x100 256B msn1",
            "B ReadResponseMiddle 0x101 256B LOST",
            "B ReadResponseMiddle 0x102 256B",
            "B ReadResponseLast 0x103 232B msn1",
            "A ReadRequest 0x101 va+0x100 744?",
            "B ReadResponseFirst 0x101 256B msn1",
            "B ReadResponseMiddle 0x102 256B",
            "B ReadResponseLast 0x103 232B msn1",
        ]
    );
    assert_eq!(pair.a.sends(), ok([1]));
    assert_eq!(pair.bytes(A, 0x8000, 1000), pair.bytes(B, 0, 1000));
}

#[test]
fn lost_last_read_response_is_requested_again() {
    let mut pair = Pair::new();
    pair.post(A, read(1, 0x8000, 600));
    pair.lose(B, 2);
    pair.advance(TIMEOUT);
    assert_eq!(pair.flow(), ["A ReadRequest 0x102 va+0x200 88?", "B ReadResponseOnly 0x102 88B msn1"]);
    assert_eq!(pair.a.sends(), ok([1]));
}

/// soft-RoCE resumes a retried READ with a MIDDLE response.
#[test]
fn retried_read_may_resume_with_middle_response() {
    let mut pair = Pair::new();
    pair.post(A, read(1, 0x8000, 600));
    pair.frames(A);
    let data = pair.bytes(B, 0, 600);
    pair.inject(A, Operation::ReadResponseFirst, Psn::new(0x100), aeth(ACK), &data[..256]);
    pair.advance(TIMEOUT);
    pair.frames(A);
    pair.inject(A, Operation::ReadResponseMiddle, Psn::new(0x101), Ext::None, &data[256..512]);
    pair.inject(A, Operation::ReadResponseLast, Psn::new(0x102), aeth(ACK), &data[512..]);
    assert_eq!(pair.a.sends(), ok([1]));
    assert_eq!(pair.bytes(A, 0x8000, 600), data);
}

#[test]
fn duplicate_read_responses_are_ignored() {
    let mut pair = Pair::new();
    pair.post(A, read(1, 0x8000, 300));
    pair.post(A, read(2, 0x9000, 300));
    let requests = pair.frames(A);
    requests.iter().for_each(|frame| pair.deliver(B, frame));
    for frame in pair.frames(B) {
        pair.deliver(A, &frame);
        pair.deliver(A, &frame);
    }
    assert_eq!(pair.a.sends(), ok([1, 2]));
    assert_eq!(pair.a.engine.stats().drops.ghost_response, 4);
    assert_eq!(pair.frames(A).len(), 0, "duplicate responses must not cause a retry");
}

#[test]
fn ack_of_later_request_is_implied_nak_of_read() {
    let mut pair = Pair::new();
    pair.post(A, read(1, 0x9000, 10));
    pair.post(A, write(2, 0x8000, 10));
    assert_eq!(
        pair.lose(B, 0),
        [
            "A ReadRequest 0x100 va+0x0 10?",
            "A WriteOnly 0x101 10B va+0x8000 10?",
            "B ReadResponseOnly 0x100 10B msn1 LOST",
            "B Acknowledge 0x101 msn2",
            "A ReadRequest 0x100 va+0x0 10?",
            "A WriteOnly 0x101 10B va+0x8000 10?",
            "B ReadResponseOnly 0x100 10B msn2",
            "B Acknowledge 0x101 msn2",
        ]
    );
    // The WRITE has been acknowledged, but completes after the READ.
    assert_eq!(pair.a.sends(), ok([1, 2]));
    assert_eq!(pair.a.engine.stats().recovery.implied_naks, 1);
}

#[test]
fn plain_ack_does_not_complete_read() {
    let mut pair = Pair::new();
    pair.post(A, read(1, 0x9000, 10));
    let request = pair.frames(A).remove(0);
    pair.inject(A, Operation::Acknowledge, Psn::new(0x100), aeth(ACK), b"");
    assert_eq!(pair.a.sends(), []);
    pair.deliver(B, &request);
    pair.flow();
    assert_eq!(pair.a.sends(), ok([1]));
}

/// When a chunk of a READ is requested again, the request must not extend beyond the executed chunk, even if the window
/// has grown in the meantime.
#[test]
fn retried_read_does_not_extend_past_its_chunk() {
    let mut pair = Pair::with_window(4);
    pair.post(A, read(1, 0x8000, 256 * 8));
    // The request for the second chunk and the last response to the first request are lost.
    pair.run(|node, text| !(text.contains("ReadRequest 0x102") || (node == B && text.contains(" 0x101 "))));
    pair.advance(TIMEOUT);
    let trace = pair.flow();
    assert_eq!(trace[0], "A ReadRequest 0x101 va+0x100 256?");
    assert_eq!(pair.a.sends(), ok([1]));
    assert_eq!(pair.bytes(A, 0x8000, 2048), pair.bytes(B, 0, 2048));
}

/// A retry moves the send cursor back past an executed NOP. A response to the READ after the NOP must still match that
/// READ.
#[test]
fn late_response_matches_read_after_nop() {
    let mut pair = Pair::new();
    pair.post(A, write(1, 0x8000, 10));
    pair.post(A, request(2, SendOp::Nop, &[]));
    pair.post(A, read(3, 0x9000, 10));
    pair.frames(A).iter().for_each(|frame| pair.deliver(B, frame));
    let answers = pair.frames(B);
    pair.advance(TIMEOUT);
    answers.iter().for_each(|frame| pair.deliver(A, frame));
    assert_eq!(pair.a.sends(), ok([1, 2, 3]));
}

#[test]
fn duplicate_read_is_executed_again() {
    let mut pair = Pair::new();
    pair.post(A, read(1, 0x8000, 10));
    let request = pair.frames(A).remove(0);
    pair.deliver(B, &request);
    assert_eq!(pair.frames(B).len(), 1);
    pair.b.host.bytes(KEY)[0] ^= 0xff;
    pair.deliver(B, &request);
    let reply = pair.frames(B).remove(0);
    pair.deliver(A, &reply);
    assert_eq!(pair.bytes(A, 0x8000, 10), pair.bytes(B, 0, 10));
}

#[test]
fn replies_keep_request_order() {
    let mut pair = Pair::new();
    pair.post(A, write(1, 0x8000, 10));
    pair.post(A, read(2, 0x9000, 600));
    pair.post(A, write(3, 0x8000, 10));
    let trace = pair.flow();
    assert_eq!(
        trace[3..],
        [
            "B Acknowledge 0x100 msn1",
            "B ReadResponseFirst 0x101 256B msn2",
            "B ReadResponseMiddle 0x102 256B",
            "B ReadResponseLast 0x103 88B msn2",
            "B Acknowledge 0x104 msn3",
        ]
    );
}

#[test]
fn duplicate_atomic_returns_saved_result() {
    let mut pair = Pair::new();
    let add = SendOp::FetchAdd { remote: remote(0x100), add: 5 };
    pair.b.host.bytes(KEY)[0x100..0x108].fill(0);
    pair.post(A, request(1, add, &[sge(0x8000, 8)]));
    pair.lose(B, 0);
    pair.advance(TIMEOUT);
    assert_eq!(pair.flow(), ["A FetchAdd 0x100?", "B AtomicAcknowledge 0x100 msn1"]);
    assert_eq!(pair.a.sends(), ok([1]));
    assert_eq!(pair.bytes(A, 0x8000, 8), [0; 8]);
    assert_eq!(pair.bytes(B, 0x100, 8), 5u64.to_le_bytes(), "the duplicate must not add again");
}

#[test]
fn duplicate_atomic_without_saved_result_is_dropped() {
    let mut pair = Pair::with(|_, attrs| (attrs.max_dest_rd_atomic, attrs.max_rd_atomic) = (2, 2));
    let mut frames = Vec::new();
    for id in 0..3 {
        pair.post(A, request(id, SendOp::FetchAdd { remote: remote(0x100), add: 1 }, &[sge(0x8000, 8)]));
        let frame = pair.frames(A).remove(0);
        pair.deliver(B, &frame);
        frames.push(frame);
        pair.flow();
    }
    pair.deliver(B, &frames[0]);
    assert_eq!(pair.frames(B).len(), 0);
    pair.deliver(B, &frames[1]);
    assert_eq!(pair.frames(B).len(), 1);
}

#[test]
fn unacked_requests_fail_after_retry_count_plus_one_timeouts() {
    let mut pair = Pair::with(|_, attrs| attrs.retry_count = 2);
    let start = pair.now;
    pair.post(A, write(1, 0x8000, 300));
    pair.post(A, write(2, 0x8000, 300));
    for _ in 0..3 {
        assert_eq!(pair.frames(A).len(), 4);
        let just_before = TIMEOUT - Duration::from_nanos(1);
        pair.advance(just_before);
        assert_eq!(pair.frames(A).len(), 0);
        pair.advance(Duration::from_nanos(1));
    }
    assert_eq!(pair.now, start + 3 * TIMEOUT);
    assert_eq!(pair.a.sends(), [(1, Err(Status::RetryExceeded)), (2, Err(Status::Flushed))]);
    assert_eq!(pair.frames(A).len(), 0, "no packet may be sent after the failure");
}

#[test]
fn doubling_timeout_resets_on_progress() {
    let mut pair = Pair::with(|_, attrs| {
        (attrs.retry_count, attrs.ack_timeout) = (3, Some(AckTimeout::doubling(TIMEOUT)));
    });
    let silent_for = |pair: &mut Pair, timeout: Duration| {
        assert_ne!(pair.frames(A).len(), 0, "a packet must be sent before the timeout of {timeout:?}");
        pair.advance(timeout - Duration::from_nanos(1));
        assert_eq!(pair.frames(A).len(), 0, "no packet may be sent until {timeout:?} has passed");
        pair.advance(Duration::from_nanos(1));
    };
    pair.post(A, write(1, 0x8000, 10));
    pair.post(A, write(2, 0x8000, 10));
    for times in [1, 2, 4] {
        silent_for(&mut pair, times * TIMEOUT);
    }
    pair.frames(A);
    pair.inject(A, Operation::Acknowledge, Psn::new(0x100), aeth(ACK), b"");
    pair.advance(TIMEOUT);
    for times in [2, 4, 8] {
        silent_for(&mut pair, times * TIMEOUT);
    }
    assert_eq!(pair.a.sends(), [(1, Ok(())), (2, Err(Status::RetryExceeded))]);
}

#[test]
fn progress_resets_retry_counter() {
    let mut pair = Pair::with(|_, attrs| attrs.retry_count = 1);
    pair.post(A, write(1, 0x8000, 600));
    for psn in 0x100..0x103 {
        pair.frames(A);
        pair.advance(TIMEOUT);
        pair.frames(A);
        pair.inject(A, Operation::Acknowledge, Psn::new(psn), aeth(ACK), b"");
    }
    assert_eq!(pair.a.sends(), ok([1]));
}

/// A responder sends one NAK per gap (IBTA volume 1, section 9.7.5.2). Any other NAK for the same PSN is a duplicate
/// created by the network.
#[test]
fn duplicate_sequence_naks_do_not_consume_retries() {
    let mut pair = Pair::with(|_, attrs| attrs.retry_count = 1);
    pair.post(A, write(1, 0x8000, 10));
    pair.post(A, write(2, 0x8000, 10));
    assert_eq!(pair.frames(A).len(), 2);
    let nak = aeth(Syndrome::Nak(NakCode::PsnSequence));
    for copy in 0..3 {
        pair.inject(A, Operation::Acknowledge, Psn::new(0x100), nak, b"");
        assert_eq!(pair.frames(A).len(), if copy == 0 { 2 } else { 0 }, "copy {copy}");
    }
    // The next gap triggers another retry.
    pair.inject(A, Operation::Acknowledge, Psn::new(0x101), nak, b"");
    assert_eq!(pair.a.sends(), ok([1]));
    assert_eq!(pair.frames(A).len(), 1);
    pair.inject(A, Operation::Acknowledge, Psn::new(0x101), nak, b"");
    pair.inject(A, Operation::Acknowledge, Psn::new(0x101), aeth(ACK), b"");
    assert_eq!(pair.a.sends(), ok([2]));
}

/// The first NAK arrives while a retry is pending, and its duplicate arrives after the retry.
#[test]
fn duplicate_sequence_nak_after_timeout_is_ignored() {
    let mut pair = Pair::with(|_, attrs| attrs.retry_count = 1);
    pair.post(A, write(1, 0x8000, 10));
    pair.frames(A);
    pair.advance(TIMEOUT);
    let nak = aeth(Syndrome::Nak(NakCode::PsnSequence));
    pair.inject(A, Operation::Acknowledge, Psn::new(0x100), nak, b"");
    assert_eq!(pair.frames(A).len(), 1);
    pair.inject(A, Operation::Acknowledge, Psn::new(0x100), nak, b"");
    assert_eq!((pair.frames(A).len(), pair.a.sends()), (0, vec![]));
}

#[test]
fn sequence_nak_consumes_a_retry() {
    let mut pair = Pair::with(|_, attrs| attrs.retry_count = 0);
    pair.post(A, write(1, 0x8000, 10));
    pair.frames(A);
    let nak = aeth(Syndrome::Nak(NakCode::PsnSequence));
    pair.inject(A, Operation::Acknowledge, Psn::new(0x100), nak, b"");
    assert_eq!(pair.a.sends(), [(1, Err(Status::RetryExceeded))]);
}

#[test]
fn qp_without_ack_timeout_waits_indefinitely() {
    let mut pair = Pair::with(|_, attrs| attrs.ack_timeout = None);
    pair.post(A, write(1, 0x8000, 10));
    pair.lose(A, 0);
    assert_eq!(pair.a.engine.poll_timeout(), None);
}

#[test]
fn loss_halves_window_and_acks_widen_it() {
    let mut pair = Pair::with_window(32);
    pair.post(A, write(1, 0x8000, 256 * 64));
    assert_eq!(pair.frames(A).len(), 32);
    pair.advance(TIMEOUT);
    assert_eq!(pair.frames(A).len(), 16);
    assert_eq!(pair.a.engine.stats().recovery.window_cuts, 1);
    pair.inject(A, Operation::Acknowledge, Psn::new(0x10f), aeth(ACK), b"");
    assert_eq!(pair.frames(A).len(), 17);
}
