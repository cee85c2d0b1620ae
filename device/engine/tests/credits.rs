//! Tests end-to-end (message-level) flow control (IBTA volume 1, section 9.7.7.2).

use crate::common::*;
use engine::SendOp;
use protocol::Psn;
use protocol::ids::Msn;
use protocol::roce::{Aeth, Ext, Imm, Operation, RoceFrame, Syndrome};

const PSN: u32 = 0x100;

/// Acknowledges A's PSNs up to `psn` with a credit code.
fn ack(pair: &mut Pair, psn: u32, credits: u8) {
    let aeth = Aeth { syndrome: Syndrome::Ack { credits }, msn: Msn::new(0) };
    pair.inject(A, Operation::Acknowledge, Psn::new(psn), Ext::Aeth(aeth), b"");
}

fn sent(pair: &mut Pair) -> Vec<String> {
    pair.frames(A).iter().map(|frame| describe(frame)).collect()
}

/// Returns a pair in which A has received `credits` in the ACK for an empty WRITE with PSN 0x100.
fn pair_with_credits(credits: u8) -> Pair {
    let mut pair = Pair::new();
    pair.post(A, write(0, 0x8000, 0));
    pair.frames(A);
    ack(&mut pair, PSN, credits);
    pair.a.sends();
    pair
}

fn write_imm(wr_id: u64, len: u32) -> engine::SendRequest {
    let op = SendOp::Write { remote: remote(0x8000), imm: Some(Imm([0; 4])) };
    request(wr_id, op, &[sge(0, len)])
}

#[test]
fn acks_advertise_posted_receive_requests() {
    let mut pair = Pair::new();
    pair.b.host.counts_receives = true;
    for n in 0..7 {
        pair.post_recv(B, n, 0x8000, 300);
    }
    let codes = |frames: &[Vec<u8>]| -> Vec<Syndrome> {
        let aeths = frames.iter().filter_map(|frame| match RoceFrame::parse(frame).unwrap().packet.ext {
            Ext::Aeth(aeth) | Ext::AtomicAck(aeth, _) => Some(aeth.syndrome),
            _ => None,
        });
        aeths.collect()
    };
    for op in [
        SendOp::Send { imm: None },
        SendOp::Read { remote: remote(0), invalidate: None },
        SendOp::FetchAdd { remote: remote(0), add: 1 },
    ] {
        pair.post(A, request(1, op, &[sge(0x9000, 8)]));
        for frame in pair.frames(A) {
            pair.deliver(B, &frame);
        }
        // After the first message, six receive requests remain. The credit code for six is 5.
        assert_eq!(codes(&pair.frames(B)), [Syndrome::Ack { credits: 5 }], "{op:?}");
    }
    // A host that does not count receive requests does not advertise credits (code 31).
    pair.b.host.counts_receives = false;
    pair.post(A, write(1, 0x8000, 10));
    for frame in pair.frames(A) {
        pair.deliver(B, &frame);
    }
    assert_eq!(codes(&pair.frames(B)), [Syndrome::Ack { credits: 31 }]);
}

#[test]
fn message_beyond_credits_sends_one_probe() {
    let mut pair = pair_with_credits(1);
    pair.post(A, send(1, 300));
    pair.post(A, send(2, 300));
    assert_eq!(sent(&mut pair), ["SendFirst 0x101 256B", "SendLast 0x102 44B?", "SendFirst 0x103 256B?"]);
    // The ACK completes the first message and grants a credit for the second, even though the first packet of the
    // second message has not been acknowledged yet.
    ack(&mut pair, 0x102, 1);
    assert_eq!(sent(&mut pair), ["SendLast 0x104 44B?"]);
}

#[test]
fn ack_of_credit_probe_resumes_send() {
    let mut pair = pair_with_credits(0);
    pair.post(A, send(1, 600));
    pair.post(A, send(2, 10));
    assert_eq!(sent(&mut pair), ["SendFirst 0x101 256B?"]);
    ack(&mut pair, 0x101, 0);
    assert_eq!(sent(&mut pair), ["SendMiddle 0x102 256B", "SendLast 0x103 88B?"]);
    // While the first message is incomplete, the second is two messages beyond the credit limit and must wait. Once the
    // first is complete, the second is only one message beyond the limit and is sent as a probe.
    ack(&mut pair, 0x103, 0);
    assert_eq!(sent(&mut pair), ["SendOnly 0x104 10B?"]);
    assert_eq!(pair.a.sends(), ok([1]));
}

/// The ACK of the first message carries the first credit count. The count no longer includes the receive request that
/// the second message has consumed with its first packet.
#[test]
fn send_started_before_first_credits_continues() {
    let mut pair = Pair::with(|_, attrs| attrs.ack_timeout = None);
    pair.b.host.counts_receives = true;
    pair.post_recv(B, 1, 0x8000, 600);
    pair.post_recv(B, 2, 0x9000, 600);
    pair.post(A, send(1, 10));
    pair.post(A, send(2, 600));
    for expected in ["SendOnly 0x100 10B?", "SendFirst 0x101 256B"] {
        let mut frame = Vec::new();
        pair.a.engine.poll_transmit(pair.now, &mut pair.a.host, &mut frame).unwrap();
        assert_eq!(describe(&frame), expected);
        pair.deliver(B, &frame);
    }
    let acks = pair.frames(B);
    assert_eq!(acks.iter().map(|frame| describe(frame)).collect::<Vec<_>>(), ["Acknowledge 0x100 msn1"]);
    acks.iter().for_each(|ack| pair.deliver(A, ack));
    assert_eq!(sent(&mut pair), ["SendMiddle 0x102 256B", "SendLast 0x103 88B?"]);
}

#[test]
fn write_imm_beyond_credits_probes_with_last_packet() {
    let mut pair = pair_with_credits(0);
    pair.post(A, write_imm(1, 600));
    pair.post(A, write_imm(2, 300));
    assert_eq!(
        sent(&mut pair),
        [
            "WriteFirst 0x101 256B va+0x8000 600",
            "WriteMiddle 0x102 256B",
            "WriteLastImm 0x103 88B?",
            "WriteFirst 0x104 256B va+0x8000 300?"
        ],
        "the packet before the second probe requests an ACK, for which the probe waits"
    );
    ack(&mut pair, 0x103, 0);
    assert_eq!(sent(&mut pair), ["WriteLastImm 0x105 44B?"]);
}

#[test]
fn writes_reads_and_atomics_ignore_credits() {
    let mut pair = pair_with_credits(0);
    pair.post(A, write(1, 0x8000, 300));
    pair.post(A, read(2, 0x9000, 10));
    pair.post(A, request(3, SendOp::FetchAdd { remote: remote(0), add: 1 }, &[sge(0, 8)]));
    pair.post(A, send(4, 10));
    assert_eq!(sent(&mut pair).len(), 5, "all requests are sent, the SEND as a probe");
}

#[test]
fn rnr_nak_for_probe_delays_retry() {
    let mut pair = pair_with_credits(0);
    pair.post(A, send(1, 300));
    assert_eq!(sent(&mut pair), ["SendFirst 0x101 256B?"]);
    pair.inject(A, Operation::Acknowledge, Psn::new(0x101), aeth(Syndrome::RnrNak { timer: 1 }), b"");
    pair.advance(std::time::Duration::from_micros(10));
    assert_eq!(sent(&mut pair), ["SendFirst 0x101 256B?"]);
}

#[test]
fn lost_probe_is_retransmitted_alone() {
    let mut pair = pair_with_credits(0);
    pair.post(A, send(1, 300));
    pair.post(A, send(2, 300));
    sent(&mut pair);
    pair.advance(TIMEOUT);
    assert_eq!(sent(&mut pair), ["SendFirst 0x101 256B?"]);
}

#[test]
fn duplicate_ack_raises_credit_limit() {
    let mut pair = pair_with_credits(0);
    pair.post(A, send(1, 300));
    sent(&mut pair);
    ack(&mut pair, PSN, 2);
    assert_eq!(sent(&mut pair), ["SendLast 0x102 44B?"]);
    assert_eq!(pair.a.engine.stats().drops.ghost_response, 1);
}

#[test]
fn ack_with_credit_code_31_lifts_limit() {
    let mut pair = pair_with_credits(0);
    for n in 1..=4 {
        pair.post(A, send(n, 10));
    }
    assert_eq!(sent(&mut pair).len(), 1);
    ack(&mut pair, 0x101, 31);
    assert_eq!(sent(&mut pair).len(), 3);
}
