//! Tests messages on a loss-free wire.

use crate::common::*;
use engine::{Fence, Mtu, Payload, Piece, Queue, SendOp, Success};
use protocol::Psn;
use protocol::roce::Imm;

#[test]
fn send_is_segmented_at_mtu_and_acked_once() {
    let mut pair = Pair::new();
    pair.post_recv(B, 7, 0x8000, 4096);
    pair.post(A, send(1, 600));
    assert_eq!(
        pair.flow(),
        [
            "A SendFirst 0x100 256B",
            "A SendMiddle 0x101 256B",
            "A SendLast 0x102 88B?",
            "B Acknowledge 0x102 msn1"
        ]
    );
    assert_eq!(pair.a.sends(), ok([1]));
    assert_eq!(pair.b.recvs(), ok([7]));
    assert_eq!(pair.bytes(B, 0x8000, 600), pair.bytes(A, 0, 600));
}

#[test]
fn zero_length_message_is_one_packet() {
    let mut pair = Pair::new();
    pair.post_recv(B, 7, 0x8000, 0);
    pair.post(A, send(1, 0));
    // The key of an empty WRITE is not checked.
    pair.post(A, request(2, SendOp::Write { remote: bad_remote(), imm: None }, &[]));
    pair.post(A, request(3, SendOp::Read { remote: bad_remote(), invalidate: None }, &[]));
    assert_eq!(
        pair.flow(),
        [
            "A SendOnly 0x100?",
            "A WriteOnly 0x101 va+0x0 0?",
            "A ReadRequest 0x102 va+0x0 0?",
            "B Acknowledge 0x101 msn2",
            "B ReadResponseOnly 0x102 msn3"
        ]
    );
    assert_eq!(pair.a.sends(), ok([1, 2, 3]));
    assert_eq!(pair.b.recvs(), ok([7]));
}

fn bad_remote() -> engine::Remote {
    engine::Remote { rkey: protocol::ids::Rkey::new(0xdead), ..remote(0) }
}

#[test]
fn only_first_packet_of_write_carries_reth() {
    let mut pair = Pair::new();
    pair.post(A, write(1, 0x8000, 512));
    assert_eq!(
        pair.flow(),
        ["A WriteFirst 0x100 256B va+0x8000 512", "A WriteLast 0x101 256B?", "B Acknowledge 0x101 msn1"]
    );
    assert_eq!(pair.bytes(B, 0x8000, 512), pair.bytes(A, 0, 512));
}

#[test]
fn write_imm_consumes_receive_request_at_end_of_message() {
    let mut pair = Pair::new();
    let imm = Some(Imm([1, 2, 3, 4]));
    pair.post_recv(B, 7, 0, 0);
    let mut wr = request(1, SendOp::Write { remote: remote(0x8000), imm }, &[sge(0, 300)]);
    wr.solicited = true;
    pair.post(A, wr);
    assert_eq!(
        pair.flow(),
        ["A WriteFirst 0x100 256B va+0x8000 300", "A WriteLastImm 0x101 44B SE?", "B Acknowledge 0x101 msn1"]
    );
    let completion = pair.b.completions.pop().unwrap();
    assert_eq!((completion.queue, completion.wr_id), (Queue::Recv, 7));
    let Ok(Success::Recv(done)) = completion.result else { panic!("{completion:?}") };
    assert_eq!((done.byte_len, done.imm, done.solicited), (300, imm, true));
    assert_eq!(done.remote_qpn, A.qpn());
}

#[test]
fn read_uses_one_psn_per_response() {
    let mut pair = Pair::new();
    pair.post(A, read(1, 0x8000, 600));
    pair.post(A, write(2, 0x9000, 1));
    assert_eq!(
        pair.flow(),
        [
            "A ReadRequest 0x100 va+0x0 600?",
            "A WriteOnly 0x103 1B va+0x9000 1?",
            "B ReadResponseFirst 0x100 256B msn1",
            "B ReadResponseMiddle 0x101 256B",
            "B ReadResponseLast 0x102 88B msn1",
            "B Acknowledge 0x103 msn2",
        ]
    );
    assert_eq!(pair.a.sends(), ok([1, 2]));
    assert_eq!(pair.bytes(A, 0x8000, 600), pair.bytes(B, 0, 600));
}

#[test]
fn send_gathers_from_list_or_inline_data() {
    let mut pair = Pair::new();
    let recv = [sge(0x8000, 10), sge(0x9000, 0), sge(0xa000, 1000)];
    pair.b.host.post_recv(B.qpn(), 7, &recv);
    pair.b.host.post_recv(B.qpn(), 8, &recv);
    pair.post(A, request(1, SendOp::Send { imm: None }, &[sge(0, 300), sge(0x1000, 1), sge(0x2000, 99)]));
    let mut inline = request(2, SendOp::Send { imm: None }, &[]);
    inline.payload = Payload::Inline(b"fifteen bytes!!".as_slice().into());
    pair.post(A, inline);
    pair.flow();
    let mut sent = pair.bytes(A, 0, 300);
    sent.extend(pair.bytes(A, 0x1000, 1));
    sent.extend(pair.bytes(A, 0x2000, 99));
    assert_eq!(pair.bytes(B, 0xa000 + 5, 385), sent[15..]);
    assert_eq!(pair.bytes(B, 0x8000, 10), b"fifteen by");
    assert_eq!(pair.bytes(B, 0xa000, 5), b"tes!!");
}

#[test]
fn send_gathers_inline_data_and_sges_in_order() {
    let mut pair = Pair::new();
    pair.post_recv(B, 7, 0x8000, 4096);
    let mut mixed = request(1, SendOp::Send { imm: None }, &[]);
    mixed.payload = Payload::Mixed(Box::new([
        Piece::Inline(b"header".as_slice().into()),
        Piece::Sge(sge(0x1000, 600)),
        Piece::Sge(sge(0, 0)),
        Piece::Inline(b"".as_slice().into()),
        Piece::Inline(b"middle".as_slice().into()),
        Piece::Sge(sge(0x2000, 1)),
    ]));
    pair.post(A, mixed);
    pair.flow();
    let sent = [b"header".to_vec(), pair.bytes(A, 0x1000, 600), b"middle".to_vec(), pair.bytes(A, 0x2000, 1)];
    assert_eq!(pair.bytes(B, 0x8000, 613), sent.concat());
    assert_eq!(pair.a.sends(), ok([1]));
}

#[test]
fn psn_wraps_inside_message() {
    let mut pair = Pair::with_psns(Psn::new(0xff_ffff), Psn::new(0xff_fffe));
    pair.post_recv(B, 7, 0x8000, 4096);
    pair.post(A, send(1, 512));
    pair.post(A, read(2, 0x4000, 700));
    pair.post_recv(A, 8, 0x6000, 4096);
    pair.post(B, send(3, 1000));
    let trace = pair.flow();
    assert_eq!(
        trace[0..3],
        ["A SendFirst 0xffffff 256B", "A SendLast 0x0 256B?", "A ReadRequest 0x1 va+0x0 700?"]
    );
    assert_eq!(pair.a.sends(), ok([1, 2]));
    assert_eq!(pair.b.sends(), ok([3]));
    assert_eq!(pair.a.recvs(), ok([8]));
    assert_eq!(pair.snapshot(A).send_psn, Psn::new(4));
    assert_eq!(pair.snapshot(B).recv_psn, Psn::new(4));
    assert_eq!(pair.snapshot(B).send_psn, Psn::new(2));
}

#[test]
fn message_longer_than_window_is_sent_in_full() {
    let mut pair = Pair::with_window(4);
    pair.post(A, write(1, 0x8000, 256 * 10));
    let trace = pair.flow();
    assert_eq!(trace.iter().filter(|line| line.starts_with("A Write")).count(), 10);
    assert_eq!(pair.a.sends(), ok([1]));
    assert_eq!(pair.bytes(B, 0x8000, 2560), pair.bytes(A, 0, 2560));
}

#[test]
fn long_read_is_split_into_half_window_requests() {
    let mut pair = Pair::with_window(4);
    pair.post(A, read(1, 0x8000, 256 * 7 + 1));
    let trace = pair.flow();
    let asked: Vec<_> = trace.iter().filter(|line| line.contains("ReadRequest")).collect();
    assert_eq!(
        asked,
        [
            "A ReadRequest 0x100 va+0x0 512?",
            "A ReadRequest 0x102 va+0x200 512?",
            "A ReadRequest 0x104 va+0x400 512?",
            "A ReadRequest 0x106 va+0x600 257?",
        ]
    );
    assert_eq!(pair.a.sends(), ok([1]));
    assert_eq!(pair.bytes(A, 0x8000, 1793), pair.bytes(B, 0, 1793));
}

#[test]
fn fenced_request_waits_for_earlier_reads() {
    let mut pair = Pair::new();
    pair.post(A, read(1, 0x8000, 10));
    let mut fenced = write(2, 0x9000, 10);
    fenced.fence = Fence::Reads;
    pair.post(A, fenced);
    pair.post(A, write(3, 0x9000, 10));
    assert_eq!(
        pair.flow(),
        [
            "A ReadRequest 0x100 va+0x0 10?",
            "B ReadResponseOnly 0x100 10B msn1",
            "A WriteOnly 0x101 10B va+0x9000 10?",
            "A WriteOnly 0x102 10B va+0x9000 10?",
            "B Acknowledge 0x102 msn3",
        ]
    );
    assert_eq!(pair.a.sends(), ok([1, 2, 3]));
}

#[test]
fn outstanding_reads_stay_within_limit() {
    let mut pair = Pair::with(|_, attrs| attrs.max_rd_atomic = 2);
    for id in 1..=4 {
        pair.post(A, read(id, 0x8000, 10));
    }
    let trace = pair.flow();
    assert!(trace[..2].iter().all(|line| line.starts_with("A ReadRequest")));
    assert!(trace[2].starts_with("B ReadResponse"), "{trace:?}");
    assert_eq!(pair.a.sends(), ok(1..=4));
}

#[test]
fn nop_completes_in_queue_order() {
    let mut pair = Pair::new();
    pair.post(A, write(1, 0x8000, 10));
    pair.post(A, request(2, SendOp::Nop, &[]));
    pair.post(A, write(3, 0x8000, 10));
    let sent = pair.frames(A);
    assert_eq!(pair.a.sends(), []);
    for frame in sent {
        pair.deliver(B, &frame);
    }
    pair.flow();
    assert_eq!(pair.a.sends(), ok([1, 2, 3]));
}

#[test]
fn atomics_return_original_value() {
    let mut pair = Pair::new();
    pair.b.host.bytes(KEY)[0x100..0x108].copy_from_slice(&41u64.to_le_bytes());
    let sges = [sge(0x8000, 8)];
    pair.post(A, request(1, SendOp::FetchAdd { remote: remote(0x100), add: 1 }, &sges));
    let sges = [sge(0x8008, 8)];
    pair.post(A, request(2, SendOp::CompareSwap { remote: remote(0x100), compare: 42, swap: 7 }, &sges));
    assert_eq!(
        pair.flow(),
        [
            "A FetchAdd 0x100?",
            "A CompareSwap 0x101?",
            "B AtomicAcknowledge 0x100 msn1",
            "B AtomicAcknowledge 0x101 msn2"
        ]
    );
    assert_eq!(pair.a.sends(), ok([1, 2]));
    assert_eq!(pair.bytes(A, 0x8000, 8), 41u64.to_le_bytes());
    assert_eq!(pair.bytes(A, 0x8008, 8), 42u64.to_le_bytes());
    assert_eq!(pair.bytes(B, 0x100, 8), 7u64.to_le_bytes());
}

#[test]
fn messages_are_segmented_at_every_path_mtu() {
    for (mtu, bytes) in [
        (Mtu::Mtu256, 256),
        (Mtu::Mtu512, 512),
        (Mtu::Mtu1024, 1024),
        (Mtu::Mtu2048, 2048),
        (Mtu::Mtu4096, 4096),
    ] {
        let mut pair = Pair::with(|_, attrs| attrs.mtu = mtu);
        pair.post(A, write(1, 0x8000, bytes + 1));
        let trace = pair.flow();
        assert!(trace[0].contains(&format!(" {bytes}B ")), "{trace:?}");
        assert!(trace[1].starts_with("A WriteLast 0x101 1B"), "{trace:?}");
        assert_eq!(pair.a.sends(), ok([1]));
    }
}
