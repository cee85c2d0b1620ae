//! Tests how the responder handles valid, invalid, duplicate and out-of-sequence requests (IBTA volume 1, sections
//! 9.7.1, 9.7.4 and 9.7.5).

use crate::common::*;
use engine::*;
use protocol::Psn;
use protocol::ids::{Rkey, Va};
use protocol::roce::{AtomicEth, Ext, ExtKind, Imm, Kind, Opcode, Operation as O, Position, Reth};

fn reth(dma_len: u32) -> Reth {
    Reth { va: Va::new(VA + 0x8000), rkey: Rkey::new(KEY), dma_len }
}

/// Returns the extension headers for an operation on `dma_len` bytes.
fn ext(operation: O, dma_len: u32) -> Ext {
    match Opcode::rc(operation).ext_kind() {
        ExtKind::Imm => Ext::Imm(Imm([1, 2, 3, 4])),
        ExtKind::Reth => Ext::Reth(reth(dma_len)),
        ExtKind::RethImm => Ext::RethImm(reth(dma_len), Imm([1, 2, 3, 4])),
        ExtKind::Atomic => {
            let Reth { va, rkey, .. } = reth(8);
            Ext::Atomic(AtomicEth { va, rkey, swap_add: 1, compare: 0 })
        }
        ExtKind::Invalidate => Ext::Invalidate(Rkey::new(KEY)),
        _ => Ext::None,
    }
}

/// Delivers the peer's `n`-th packet.
fn inject(pair: &mut Pair, n: u32, operation: O, dma_len: u32, len: usize) {
    pair.inject(B, operation, psn_a().advance(n), ext(operation, dma_len), &[0x5a; 512][..len]);
}

/// Returns the payload length that these tests use for an opcode.
fn full_len(operation: O) -> usize {
    match (operation.kind(), operation.position()) {
        (Kind::Send | Kind::Write, Position::First | Position::Middle) => 256,
        (Kind::Send | Kind::Write, _) => 44,
        _ => 0,
    }
}

fn ready(receives: u64) -> Pair {
    let mut pair = Pair::new();
    for id in 0..receives {
        pair.post_recv(B, id, 0x4000, 4096);
    }
    pair
}

/// Section 9.7.4.1 (opcode sequence, opcode validation), including reserved opcodes, SENDs with invalidate, and READs
/// or atomics inside a message.
#[test]
fn opcode_sequence_is_enforced() {
    // Each case consists of the last packet of the incomplete message, if any, and the opcodes that are valid next.
    let cases: [(Option<O>, &[u8]); 5] = [
        (None, &[0x00, 0x04, 0x05, 0x06, 0x0a, 0x0b, 0x0c, 0x13, 0x14]),
        (Some(O::SendFirst), &[0x01, 0x02, 0x03]),
        (Some(O::SendMiddle), &[0x01, 0x02, 0x03]),
        (Some(O::WriteFirst), &[0x07, 0x08, 0x09]),
        (Some(O::WriteMiddle), &[0x07, 0x08, 0x09]),
    ];
    for (open, legal) in cases {
        for code in 0..0x20u8 {
            let operation = Opcode::from_byte(code).operation;
            if operation.is_response() {
                continue;
            }
            let before = match open {
                None => vec![],
                Some(O::SendMiddle) => vec![O::SendFirst, O::SendMiddle],
                Some(O::WriteMiddle) => vec![O::WriteFirst, O::WriteMiddle],
                Some(first) => vec![first],
            };
            let (n, begun) = (u32::try_from(before.len()).unwrap(), before.len() * 256);
            let len = full_len(operation);
            // The DMA length matches the message, so the payload length is valid.
            let whole = match operation.position() {
                Position::First | Position::Middle => begun + len + 44,
                Position::Last | Position::Only => begun + len,
            };
            let whole = u32::try_from(whole).unwrap();
            let mut pair = ready(1);
            for (n, operation) in (0..).zip(before) {
                inject(&mut pair, n, operation, whole, 256);
            }
            pair.frames(B);
            inject(
                &mut pair,
                n,
                operation,
                if n == 0 { u32::try_from(len).unwrap().max(whole) } else { whole },
                len,
            );
            let answers = pair.flow();
            if legal.contains(&code) {
                assert_eq!(pair.snapshot(B).state, State::Rts, "{operation:?} after {open:?}: {answers:?}");
            } else {
                // The opcodes of these packets are valid here, but peers are not permitted to invalidate the key.
                let invalidates =
                    matches!((open, code), (None, 0x17) | (Some(O::SendFirst | O::SendMiddle), 0x16));
                let code = if invalidates { "RemoteAccess" } else { "InvalidRequest" };
                let nak = format!("B Acknowledge {:#x} {code} msn0", psn_a().advance(n).get());
                assert_eq!(answers, [nak], "{operation:?} after {open:?}");
                assert_eq!(pair.snapshot(B).state, State::Err);
            }
        }
    }
}

/// Section 9.7.4.1 (length validation) with a path MTU of 256.
#[test]
fn payload_length_must_match_opcode() {
    for (first, last, only) in
        [(O::SendFirst, O::SendLast, O::SendOnly), (O::WriteFirst, O::WriteLast, O::WriteOnly)]
    {
        let middle = if first == O::SendFirst { O::SendMiddle } else { O::WriteMiddle };
        for (len, as_first, as_middle, as_last, as_only) in [
            (0, false, false, false, true),
            (1, false, false, true, true),
            (252, false, false, true, true),
            (255, false, false, true, true),
            (256, true, true, true, true),
            (257, false, false, false, false),
            (260, false, false, false, false),
        ] {
            let whole = u32::try_from(len).unwrap();
            for (before, operation, dma_len, accepted) in [
                (None, first, whole + 100, as_first),
                (Some(first), middle, 256 + whole + 100, as_middle),
                (Some(first), last, 256 + whole, as_last),
                (None, only, whole, as_only),
            ] {
                let mut pair = ready(1);
                if let Some(first) = before {
                    inject(&mut pair, 0, first, dma_len, 256);
                }
                inject(&mut pair, u32::from(before.is_some()), operation, dma_len, len);
                let answers = pair.flow();
                let refused = answers.iter().any(|answer| answer.contains("InvalidRequest"));
                assert_eq!(refused, !accepted, "{operation:?} of {len} bytes: {answers:?}");
            }
        }
    }
}

/// Section 9.7.1: a PSN up to 2^23 behind is a duplicate, and a PSN up to 2^23 - 1 ahead reveals a gap. Nothing was
/// sent before the first PSN of the connection, so packets with earlier PSNs are not duplicates.
#[test]
fn psn_distance_distinguishes_duplicate_from_gap() {
    for (n, answer) in [
        (-0x80_0000, None),
        (-0x7f_ffff, None),
        (-3, None),
        (-2, Some("B Acknowledge 0x101 msn2")),
        (-1, Some("B Acknowledge 0x101 msn2")),
        (0, Some("B Acknowledge 0x102 msn3")),
        (1, Some("B Acknowledge 0x102 PsnSequence msn2")),
        (2, Some("B Acknowledge 0x102 PsnSequence msn2")),
        (0x7f_ffff, Some("B Acknowledge 0x102 PsnSequence msn2")),
    ] {
        for operation in [O::SendOnly, O::WriteOnly, O::SendOnlyImm, O::WriteOnlyImm] {
            let mut pair = ready(3);
            for n in 0..2 {
                inject(&mut pair, n, operation, 44, 44);
            }
            pair.flow();
            let psn = Psn::new(0x102u32.wrapping_add_signed(n));
            pair.inject(B, operation, psn, ext(operation, 44), &[1; 44]);
            assert_eq!(pair.flow(), Vec::from_iter(answer), "{operation:?} at {n}");
        }
    }
}

#[test]
fn duplicates_without_ack_req_are_acknowledged() {
    let mut pair = ready(1);
    inject(&mut pair, 0, O::SendOnly, 0, 44);
    pair.flow();
    pair.inject_with(B, O::SendOnly, psn_a(), Ext::None, &[1; 44], |bth| bth.ack_req = false);
    assert_eq!(pair.flow(), ["B Acknowledge 0x100 msn1"]);
}

/// Two packets arrive out of order. The NAK for the gap is sent even though the gap has since closed.
#[test]
fn sequence_nak_is_sent_even_if_gap_has_closed() {
    let mut pair = ready(2);
    for n in [1, 0, 1] {
        inject(&mut pair, n, O::SendOnly, 0, 44);
    }
    assert_eq!(pair.flow(), ["B Acknowledge 0x100 PsnSequence msn0", "B Acknowledge 0x101 msn2"]);
}

/// After one NAK, later packets are ignored until the expected packet arrives. Duplicates are still answered.
#[test]
fn only_duplicates_are_answered_while_nak_is_outstanding() {
    let mut pair = ready(3);
    inject(&mut pair, 0, O::ReadRequest, 300, 0);
    inject(&mut pair, 2, O::SendOnly, 0, 44);
    inject(&mut pair, 3, O::FetchAdd, 0, 0);
    pair.flow();
    // All packets before PSN 0x104 have been executed.
    for (n, operation, answers) in [
        (5, O::SendOnly, &["B Acknowledge 0x104 PsnSequence msn3"][..]),
        (5, O::SendOnly, &[]),
        (6, O::ReadRequest, &[]),
        (9, O::FetchAdd, &[]),
        (2, O::SendOnly, &["B Acknowledge 0x103 msn3"]),
        (3, O::FetchAdd, &["B AtomicAcknowledge 0x103 msn3"]),
        (0, O::ReadRequest, &["B ReadResponseFirst 0x100 256B msn3", "B ReadResponseLast 0x101 44B msn3"]),
        (5, O::WriteOnly, &[]),
        (4, O::SendOnly, &["B Acknowledge 0x104 msn4"]),
        (6, O::SendOnly, &["B Acknowledge 0x105 PsnSequence msn4"]),
    ] {
        inject(&mut pair, n, operation, 300, full_len(operation));
        assert_eq!(pair.flow(), answers, "{operation:?} at {n}");
    }
}

/// The first packet of a SEND and the last packet of a WRITE with immediate require a posted receive (section 9.7.5.2,
/// RNR NAK).
#[test]
fn missing_receive_triggers_rnr_nak() {
    for (before, operation, needs_receive) in [
        (None, O::SendFirst, true),
        (None, O::SendOnly, true),
        (None, O::SendOnlyImm, true),
        (None, O::WriteFirst, false),
        (None, O::WriteOnly, false),
        (None, O::WriteOnlyImm, true),
        (Some(O::WriteFirst), O::WriteMiddle, false),
        (Some(O::WriteFirst), O::WriteLast, false),
        (Some(O::WriteFirst), O::WriteLastImm, true),
        (None, O::ReadRequest, false),
        (None, O::FetchAdd, false),
        (None, O::CompareSwap, false),
    ] {
        let mut pair = Pair::new();
        let (n, len) = (u32::from(before.is_some()), full_len(operation));
        let whole = match operation.position() {
            Position::First | Position::Middle => 600,
            Position::Last => 256 + 44,
            Position::Only => 44,
        };
        if let Some(first) = before {
            inject(&mut pair, 0, first, whole, 256);
            pair.flow();
        }
        let untouched = pair.bytes(B, 0x8000 + 256, 44);
        for _ in 0..2 {
            inject(&mut pair, n, operation, whole, len);
            let answers = pair.flow();
            let nak = format!("B Acknowledge {:#x} RNR12 msn0", psn_a().advance(n).get());
            assert_eq!(answers == [nak], needs_receive, "{operation:?}: {answers:?}");
            if !needs_receive {
                break;
            }
            assert_eq!(pair.bytes(B, 0x8000 + 256, 44), untouched);
        }
        assert_eq!(pair.snapshot(B).state, State::Rts);
    }
}

/// Each message counts once, when it is complete (section 9.7.7).
#[test]
fn msn_counts_completed_messages() {
    let mut pair = ready(5);
    for (n, operation, dma_len, answers) in [
        (0, O::SendFirst, 0, &["B Acknowledge 0x100 msn0"][..]),
        (1, O::SendMiddle, 0, &["B Acknowledge 0x101 msn0"]),
        (2, O::SendLast, 0, &["B Acknowledge 0x102 msn1"]),
        (3, O::WriteFirst, 300, &["B Acknowledge 0x103 msn1"]),
        (4, O::WriteLastImm, 0, &["B Acknowledge 0x104 msn2"]),
        (5, O::ReadRequest, 0, &["B ReadResponseOnly 0x105 msn3"]),
        (6, O::FetchAdd, 0, &["B AtomicAcknowledge 0x106 msn4"]),
        (7, O::SendOnlyImm, 0, &["B Acknowledge 0x107 msn5"]),
    ] {
        inject(&mut pair, n, operation, dma_len, full_len(operation));
        assert_eq!(pair.flow(), answers, "{operation:?}");
    }
}

/// Returns the responses to a request for `count` packets of a READ, starting with packet `start`. The READ has four
/// packets, the last of which contains 44 bytes.
fn responses(start: u32, count: u32) -> Vec<String> {
    (start..start + count)
        .map(|index| {
            let position = Position::of(index == start, index + 1 == start + count);
            let aeth = if position == Position::Middle { "" } else { " msn1" };
            let len = if index == 3 { 44 } else { 256 };
            format!("B {:?} {:#x} {len}B{aeth}", O::read_response(position), 0x100 + index)
        })
        .collect()
}

fn request_read(pair: &mut Pair, start: u32, count: u32) {
    let dma_len = if start + count == 4 { 256 * (count - 1) + 44 } else { 256 * count };
    let va = Va::new(VA + 0x8000 + 256 * u64::from(start));
    let reth = Reth { va, dma_len, ..reth(0) };
    pair.inject(B, O::ReadRequest, psn_a().advance(start), Ext::Reth(reth), b"");
}

/// A duplicate READ can request any part of the original. Its responses start with FIRST or ONLY and end with LAST or
/// ONLY.
#[test]
fn duplicate_read_can_request_any_part() {
    for start in 0..4 {
        for count in 1..=4 - start {
            let mut pair = Pair::new();
            request_read(&mut pair, 0, 4);
            assert_eq!(pair.flow(), responses(0, 4));
            for _ in 0..2 {
                request_read(&mut pair, start, count);
                assert_eq!(pair.flow(), responses(start, count));
            }
        }
    }
}

/// The QP has executed a SEND, a READ of 4 packets and a WRITE. Only a request for part of the READ is a duplicate.
#[test]
fn read_behind_expected_psn_must_match_an_executed_read() {
    let read_at = 1;
    let executed = || {
        let mut pair = ready(1);
        inject(&mut pair, 0, O::SendOnly, 0, 44);
        request_read(&mut pair, read_at, 4);
        inject(&mut pair, read_at + 4, O::WriteOnly, 44, 44);
        pair.flow();
        pair
    };
    let reth = Reth { va: Va::new(VA + 0x8000 + 256), rkey: Rkey::new(KEY), dma_len: 4 * 256 };
    let later = |packets: u32| Reth {
        va: Va::new(reth.va.get() + u64::from(packets) * 256),
        dma_len: (4 - packets) * 256,
        ..reth
    };
    for (n, reth, answers) in [
        (read_at, reth, 4),
        (read_at + 2, later(2), 2),
        (read_at + 3, Reth { dma_len: 100, ..later(3) }, 1),
        // These READs address other memory or another region, or are longer than the original.
        (read_at + 2, later(1), 0),
        (read_at, later(1), 0),
        (read_at, Reth { rkey: Rkey::new(LOCKED), ..reth }, 0),
        (read_at, Reth { dma_len: 4 * 256 + 1, ..reth }, 0),
        (read_at + 3, Reth { dma_len: 257, ..later(3) }, 0),
        // These READs have the PSNs of the SEND and the WRITE.
        (0, Reth { dma_len: 8, ..reth }, 0),
        (read_at + 4, Reth { dma_len: 8, ..reth }, 0),
        // These READs have PSNs from before the connection: two are close, and one is half the PSN space away.
        (0xff_ffff, Reth { dma_len: 8, ..reth }, 0),
        (0xff_ff00, reth, 0),
        (0x80_0006, reth, 0),
    ] {
        let mut pair = executed();
        pair.inject(B, O::ReadRequest, psn_a().advance(n), Ext::Reth(reth), b"");
        assert_eq!(pair.frames(B).len(), answers, "{reth:?} at {n:#x}");
        let dropped = pair.b.engine.stats().drops.stale_duplicate;
        assert_eq!(dropped, u64::from(answers == 0), "{reth:?} at {n:#x}");
        assert_eq!(pair.snapshot(B).state, State::Rts);
    }
}

#[test]
fn duplicate_must_repeat_a_recent_read_or_atomic() {
    let mut pair = Pair::with(|_, attrs| attrs.max_dest_rd_atomic = 2);
    for n in 0..3 {
        inject(&mut pair, n, if n == 1 { O::FetchAdd } else { O::ReadRequest }, 8, 0);
        assert_eq!(pair.frames(B).len(), 1);
    }
    for (n, operation, answers) in [
        (0, O::ReadRequest, 0),
        (1, O::FetchAdd, 1),
        (1, O::ReadRequest, 0),
        (2, O::ReadRequest, 1),
        (2, O::FetchAdd, 0),
    ] {
        inject(&mut pair, n, operation, 8, 0);
        assert_eq!(pair.frames(B).len(), answers, "{operation:?} at {n}");
    }
}

/// READs from an earlier connection have PSNs behind the expected PSN of the next connection, but are not duplicates.
#[test]
fn read_from_earlier_connection_is_dropped() {
    let mut pair = Pair::new();
    request_read(&mut pair, 0, 4);
    assert_eq!(pair.flow(), responses(0, 4));
    for to in [State::Reset, State::Init, State::Rtr, State::Rts] {
        pair.modify_with(B, to, |modify| {
            modify.recv_psn = (to == State::Rtr).then_some(psn_a().advance(0x1000));
            modify.send_psn = (to == State::Rts).then_some(psn_b());
        });
    }
    for start in 0..4 {
        request_read(&mut pair, start, 4 - start);
    }
    inject(&mut pair, 0xfff, O::SendOnly, 0, 44);
    assert_eq!(pair.frames(B), Vec::<Vec<u8>>::new());
    assert_eq!(pair.b.engine.stats().drops.stale_duplicate, 5);
}

#[test]
fn duplicate_read_restarts_response_in_progress() {
    for sent in 0..4 {
        for start in 0..=sent {
            let mut pair = Pair::new();
            request_read(&mut pair, 0, 4);
            for _ in 0..sent {
                let side = &mut pair.b;
                assert!(side.engine.poll_transmit(pair.now, &mut side.host, &mut Vec::new()).is_some());
            }
            request_read(&mut pair, start, 4 - start);
            assert_eq!(pair.flow(), responses(start, 4 - start), "{sent} sent, requested from {start}");
        }
    }
}

#[test]
fn fatal_nak_is_last_packet() {
    let mut pair = ready(9);
    inject(&mut pair, 0, O::SendMiddle, 0, 256);
    assert_eq!(pair.flow().len(), 1);
    for code in 0..0x20 {
        let operation = Opcode::from_byte(code).operation;
        for n in [0, 1, 0xff_ffff] {
            inject(&mut pair, n, operation, 8, full_len(operation));
        }
    }
    assert_eq!(pair.flow(), Vec::<String>::new());
}

/// The maximum length is 2^31. The length is checked before the key.
#[test]
fn dma_length_above_two_gib_is_invalid_request() {
    for (operation, dma_len, answer) in [
        (O::WriteFirst, 1 << 31, "B Acknowledge 0x100 RemoteAccess msn0"),
        (O::WriteFirst, (1 << 31) + 1, "B Acknowledge 0x100 InvalidRequest msn0"),
        (O::WriteFirst, u32::MAX, "B Acknowledge 0x100 InvalidRequest msn0"),
        (O::ReadRequest, 1 << 31, "B Acknowledge 0x100 RemoteAccess msn0"),
        (O::ReadRequest, (1 << 31) + 1, "B Acknowledge 0x100 InvalidRequest msn0"),
        (O::ReadRequest, u32::MAX, "B Acknowledge 0x100 InvalidRequest msn0"),
    ] {
        let mut pair = Pair::new();
        inject(&mut pair, 0, operation, dma_len, full_len(operation));
        assert_eq!(pair.flow(), [answer], "{operation:?} of {dma_len}");
    }
}

/// Section 9.9.3: a READ or atomic that exceeds the limit on outstanding ones is an invalid request.
#[test]
fn rejects_excess_reads_and_atomics() {
    let add = Ext::Atomic(AtomicEth { va: Va::new(VA), rkey: Rkey::new(KEY), swap_add: 1, compare: 0 });
    let one = Ext::Reth(Reth { va: Va::new(VA), rkey: Rkey::new(KEY), dma_len: 8 });
    for (operation, ext) in [(O::ReadRequest, one), (O::FetchAdd, add)] {
        let mut pair = Pair::with(|_, attrs| attrs.max_dest_rd_atomic = 2);
        let send_request = |pair: &mut Pair, n, operation, ext| {
            pair.inject(B, operation, psn_a().advance(n), ext, b"");
        };
        // Requests that have been answered do not count.
        for n in [0, 2] {
            send_request(&mut pair, n, O::ReadRequest, one);
            send_request(&mut pair, n + 1, operation, ext);
            assert_eq!(pair.frames(B).len(), 2);
        }
        // Duplicates of answered requests do not count either.
        send_request(&mut pair, 2, O::ReadRequest, one);
        send_request(&mut pair, 3, operation, ext);
        send_request(&mut pair, 4, O::ReadRequest, one);
        send_request(&mut pair, 5, operation, ext);
        assert_eq!(pair.snapshot(B).state, State::Rts);
        send_request(&mut pair, 6, operation, ext);
        let answers: Vec<_> = pair.frames(B).iter().map(|frame| describe(frame)).collect();
        assert_eq!(answers.len(), 5);
        assert_eq!(answers[4], "Acknowledge 0x106 InvalidRequest msn6");
        assert_eq!(
            (pair.snapshot(B).state, &pair.b.asyncs[..]),
            (State::Err, &[AsyncEvent::InvalidRequest][..])
        );
    }
}

/// Section 9.7.5: a duplicate must not trigger a NAK, because the request was already accepted.
#[test]
fn duplicate_read_with_invalid_key_is_dropped() {
    let one = |rkey| Ext::Reth(Reth { va: Va::new(VA), rkey: Rkey::new(rkey), dma_len: 8 });
    let mut pair = Pair::new();
    let send_request = |pair: &mut Pair, rkey| pair.inject(B, O::ReadRequest, psn_a(), one(rkey), b"");
    send_request(&mut pair, KEY);
    assert_eq!(pair.frames(B).len(), 1);
    for wrong in [0x999, LOCKED] {
        send_request(&mut pair, wrong);
        assert_eq!(pair.frames(B).len(), 0);
    }
    // Here, the key is valid when the request arrives, but becomes invalid before the response is built.
    send_request(&mut pair, KEY);
    pair.b.host.regions.remove(&KEY);
    assert_eq!(pair.frames(B).len(), 0);
    assert_eq!((pair.snapshot(B).state, &pair.b.asyncs[..]), (State::Rts, &[][..]));
    assert_eq!(pair.b.engine.stats().drops.stale_duplicate, 3);
    pair.inject(B, O::WriteOnly, psn_a().advance(1), one(LOCKED), &[0; 8]);
    assert_eq!(
        pair.flow(),
        ["B Acknowledge 0x101 RemoteAccess msn1"],
        "the expected packet must cause a NAK"
    );
}
