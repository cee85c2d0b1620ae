//! Messages between connected QPs of two devices, from doorbells to completions (sections 5 and 7.3 to 7.6).

use card::frontend::testing::{exchange, pattern, wait};
use card::telemetry::testing::Written;
use card::telemetry::trace::TraceFormat;
use protocol::hca::mthca::qpc::Qpc;
use protocol::hca::mthca::wqe::{Operation, WqeData};
use protocol::ids::{Qpn, Rkey};
use protocol::roce::Imm;
use smallvec::SmallVec;

use super::user::{RC, SEND, UC, User, qpc, remote, request, send, syndromes};
use super::*;

#[test]
fn send_completes_peer_receive() {
    for kind in [RC, UC] {
        let (mut a, mut b) = User::pair(kind);
        let message = pattern(1000, 3);
        a.put(0x10, &message);
        b.post_recv(0x20, 1000);
        a.post(&send(0x10, 1000));
        exchange(&mut a, &mut b);
        assert_eq!(b.get(0x20, 1000), message);
        let sent = [
            0x00, 0x01, 0x00, 0x14, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, //
            0, 0, 0, 0, 0, 0, 0, 0, 0x00, 0x00, 0x02, 0x00, SEND, 0x80, 0, 0,
        ];
        assert_eq!(a.reap(), [sent]);
        // 1000 bytes take four packets. The last one is a SEND Last.
        let opcode = if kind == RC { 0x02 } else { 0x22 };
        let received = [
            0x00, 0x01, 0x00, 0x14, 0, 0, 0, 0, 0x00, 0x01, 0x00, 0x14, 0, 0, 0x00, 0x01, //
            0, 0, 0, 0, 0x00, 0x00, 0x03, 0xe8, 0, 0, 0, 0, opcode, 0, 0, 0,
        ];
        assert_eq!(b.reap(), [received]);
    }
}

/// In both commands and packets, a QPN contains a table index in its low bits and a generation in its high bits
/// (section 6.5).
#[test]
fn new_qp_ignores_message_for_destroyed_qp() {
    let successor = user::QPN + 0x1_0000;
    for kind in [RC, UC] {
        let (mut a, mut b) = User::pair(kind);
        b.ok(0x021, &[], user::QPN);
        let context = Qpc { local_qpn: Qpn::new(successor), ..qpc(kind, 1) };
        b.connect(&context);
        b.post_recv(0x20, 64);
        a.put(0, b"not for you");
        a.post(&send(0, 11));
        exchange(&mut a, &mut b);
        assert_eq!((b.reap().len(), b.get(0x20, 11)), (0, vec![0; 11]));

        let mut a = User::new(1);
        a.connect(&Qpc { remote_qpn: Qpn::new(successor), ..qpc(kind, 2) });
        a.put(0, b"but this is");
        a.post(&send(0, 11));
        exchange(&mut a, &mut b);
        assert_eq!((b.reap().len(), b.get(0x20, 11)), (1, b"but this is".to_vec()));
    }
}

#[test]
fn receive_cqe_holds_immediate_data() {
    let (mut a, mut b) = User::pair(RC);
    b.post_recv(0, 64);
    b.post_recv(0, 64);
    let imm = Imm([0x11, 0x22, 0x33, 0x44]);
    let mut wqe = request(Operation::Send { imm: Some(imm) }, 0, 8);
    wqe.next.imm = imm;
    a.post(&wqe);
    wqe.operation = Operation::Write { remote: remote(0x100), imm: Some(imm) };
    a.post(&wqe);
    exchange(&mut a, &mut b);
    let entries = b.reap();
    assert_eq!(entries.iter().map(|entry| entry[0x1c]).collect::<Vec<_>>(), [0x05, 0x0b]);
    assert!(entries.iter().all(|entry| entry[0x10..0x18] == [0x11, 0x22, 0x33, 0x44, 0, 0, 0, 8]));
    assert_eq!(a.reap().iter().map(|entry| entry[0x1c]).collect::<Vec<_>>(), [0x0b, 0x09]);
}

#[test]
fn inline_data_is_sent_from_wqe() {
    let (mut a, mut b) = User::pair(RC);
    b.post_recv(0, 64);
    let mut wqe = send(0, 0);
    wqe.data = WqeData::Inline(SmallVec::from_slice(b"thirteen here"));
    a.post(&wqe);
    exchange(&mut a, &mut b);
    assert_eq!(b.get(0, 13), b"thirteen here");
    assert_eq!(b.reap()[0][0x14..0x18], [0, 0, 0, 13]);
}

#[test]
fn zero_length_message_is_delivered() {
    let (mut a, mut b) = User::pair(RC);
    b.post_recv(0, 0);
    let mut wqe = send(0, 0);
    wqe.data = WqeData::Segments(SmallVec::new());
    a.post(&wqe);
    exchange(&mut a, &mut b);
    assert_eq!((a.reap().len(), syndromes(&b.reap())), (1, vec![0]));
}

#[test]
fn rdma_write_read_and_atomics_access_peer_memory() {
    let (mut a, mut b) = User::pair(RC);
    let (to, from) = (pattern(5000, 1), pattern(3000, 2));
    a.put(0x100, &to);
    b.put(0x2000, &from);
    a.post(&request(Operation::Write { remote: remote(0x88), imm: None }, 0x100, 5000));
    a.post(&request(Operation::Read { remote: remote(0x2000) }, 0x1800, 3000));
    exchange(&mut a, &mut b);
    assert_eq!(b.get(0x88, 5000), to);
    assert_eq!(a.get(0x1800, 3000), from);
    let entries = a.reap();
    assert_eq!(entries.iter().map(|entry| entry[0x1c]).collect::<Vec<_>>(), [0x08, 0x10]);
    assert_eq!(entries[1][0x14..0x18], 3000u32.to_be_bytes());
    assert!(b.reap().is_empty());

    // The word in memory is in host byte order; operands in the WQE are big-endian (section 12, T48).
    b.put(0x40, &1000u64.to_le_bytes());
    a.post(&request(Operation::FetchAdd { remote: remote(0x40), add: 7 }, 0, 8));
    a.post(&request(Operation::CompareSwap { remote: remote(0x40), compare: 1007, swap: 5 }, 8, 8));
    a.post(&request(Operation::CompareSwap { remote: remote(0x40), compare: 1007, swap: 6 }, 16, 8));
    exchange(&mut a, &mut b);
    let originals = [1000u64, 1007, 5].map(u64::to_le_bytes).concat();
    assert_eq!((a.get(0, 24), b.get(0x40, 8)), (originals, 5u64.to_le_bytes().to_vec()));
    for (entry, opcode) in a.reap().iter().zip([0x12, 0x11, 0x11]) {
        assert_eq!((entry[0x1c], &entry[0x14..0x18]), (opcode, &[0, 0, 0, 8][..]));
    }
}

#[test]
fn unsignalled_requests_complete_without_cqe() {
    let (mut a, mut b) = User::pair(RC);
    (0..3).for_each(|_| b.post_recv(0, 64));
    let mut silent = send(0, 8);
    silent.next.signalled = false;
    a.post(&silent);
    a.post(&send(0, 8));
    exchange(&mut a, &mut b);
    assert_eq!(
        a.reap().iter().map(|entry| entry[0x1a]).collect::<Vec<_>>(),
        [0x02],
        "only the second request, at offset 280h"
    );
    a.ok(0x021, &[], user::QPN);
    let mut context = qpc(RC, 2);
    context.requester.set_signal_all(true);
    let (mut a, mut b) = (User::new(1), User::new(2));
    a.connect(&context);
    b.connect(&qpc(RC, 1));
    b.post_recv(0, 64);
    a.post(&silent);
    exchange(&mut a, &mut b);
    assert_eq!(a.reap().len(), 1);
}

/// Section 12, T51: the doorbell record may cover requests whose doorbells have not arrived yet.
#[test]
fn doorbells_for_executed_wqes_have_no_effect() {
    let (mut a, mut b) = User::pair(RC);
    (0..3).for_each(|_| b.post_recv(0, 64));
    let rings: Vec<_> = (0..3).map(|_| a.post_without_doorbell(&send(0, 8))).collect();
    a.ring_doorbell(&rings[0]);
    exchange(&mut a, &mut b);
    assert_eq!((a.reap().len(), b.reap().len()), (3, 3));
    a.ring_doorbell(&rings[1]);
    a.ring_doorbell(&rings[2]);
    exchange(&mut a, &mut b);
    assert_eq!((a.reap().len(), b.reap().len()), (0, 0));
    b.post_recv(0, 64);
    a.post(&send(0, 8));
    exchange(&mut a, &mut b);
    assert_eq!((a.reap().len(), b.reap().len()), (1, 1));
}

#[test]
fn doorbell_in_wrong_uar_page_is_ignored() {
    let (mut a, mut b) = User::pair(RC);
    b.post_recv(0, 64);
    let doorbell = a.post_without_doorbell(&send(0, 8));
    a.store(Bar::Bar2, 0x3010, &doorbell.emit());
    exchange(&mut a, &mut b);
    assert!(a.reap().is_empty());
}

#[test]
fn requests_keep_order_when_rings_wrap() {
    let (mut a, mut b) = User::pair(RC);
    for round in 0..100u32 {
        for n in 0..5 {
            b.post_recv(0x100 * n, 64);
            a.put(0x40 * n, &pattern(64, u8::try_from(round).unwrap() ^ u8::try_from(n).unwrap()));
            a.post(&send(0x40 * n, 64));
        }
        exchange(&mut a, &mut b);
        let offsets = |entries: Vec<Vec<u8>>| {
            entries
                .iter()
                .map(|entry| u32::from_be_bytes(entry[0x18..0x1c].try_into().unwrap()))
                .collect::<Vec<_>>()
        };
        let slots =
            |base: u32, len: u32| (0..5).map(|n| base + (round * 5 + n) % 8 * len).collect::<Vec<_>>();
        assert_eq!(offsets(a.reap()), slots(0x200, 128));
        assert_eq!(offsets(b.reap()), slots(0, 64));
        for n in 0..5u64 {
            let sent = pattern(64, u8::try_from(round).unwrap() ^ u8::try_from(n).unwrap());
            assert_eq!(b.get(0x100 * n, 64), sent);
        }
    }
}

#[test]
fn wrong_key_fails_request_and_flushes_rest() {
    let (mut a, mut b) = User::pair(RC);
    b.post_recv(0, 64);
    let mut wrong = remote(0);
    wrong.rkey = Rkey::new(0x100);
    let mut silent = send(0, 8);
    silent.next.signalled = false;
    a.post_recv(0, 64);
    a.post_without_doorbell(&request(Operation::Write { remote: wrong, imm: None }, 0, 8));
    a.post_without_doorbell(&silent);
    let last = a.post_without_doorbell(&send(0, 8));
    a.ring_doorbell(&last);
    exchange(&mut a, &mut b);
    let entries = a.reap();
    // After the remote access error, the send queue is flushed, then the receive queue. Even unsignalled requests
    // complete.
    assert_eq!(syndromes(&entries), [0x13, 0x05, 0x05, 0x05]);
    assert_eq!(entries.iter().map(|entry| entry[0x1c]).collect::<Vec<_>>(), [0xff, 0xff, 0xff, 0xfe]);
    let failed = [
        0x00, 0x01, 0x00, 0x14, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, //
        0x13, 0, 0, 0, 0, 0, 0, 0, 0x00, 0x00, 0x02, 0x00, 0xff, 0, 0, 0,
    ];
    assert_eq!(entries[0], failed);
    assert_eq!((a.query().state, b.query().state), (6, 6));
    assert_eq!(b.events(), [(0x11, user::QPN)]);
    assert_eq!(syndromes(&b.reap()), [0x05]);
}

#[test]
fn error_cqe_has_syndrome_and_vendor_code() {
    let failing = |wqe: &protocol::hca::mthca::wqe::SendWqe| {
        let (mut a, mut b) = User::pair(RC);
        b.post_recv(0, 16);
        a.post(wqe);
        exchange(&mut a, &mut b);
        let [sender, receiver] = [&mut a, &mut b].map(User::reap);
        // The vendor error code follows the syndrome.
        let causes = sender.iter().map(|entry| entry[0x11]).collect::<Vec<_>>();
        (syndromes(&sender), causes, syndromes(&receiver))
    };
    let mut foreign = send(0, 8);
    foreign.data = WqeData::Segments(SmallVec::from_elem(
        protocol::hca::mthca::wqe::DataSegment {
            len: 8,
            lkey: protocol::ids::Lkey::new(0x7700),
            va: protocol::ids::Va::new(0),
        },
        1,
    ));
    assert_eq!(failing(&foreign), (vec![0x04], vec![1], vec![]), "an unknown L_Key");
    assert_eq!(failing(&send(0x3000, 8)), (vec![0x04], vec![7], vec![]), "an address outside the region");
    // The receive buffer is too short. The receive completes with a local length error, and the send completes with a
    // remote invalid request error.
    assert_eq!(failing(&send(0, 17)), (vec![0x12], vec![0], vec![0x01]));
}

#[test]
fn unreachable_peer_exhausts_retries() {
    let (mut a, mut b) = (User::new(1), User::new(2));
    a.connect(&qpc(RC, 2));
    a.post(&send(0, 8));
    wait(&mut a, &mut b);
    assert_eq!(syndromes(&a.reap()), [0x15]);
}

#[test]
fn missing_receives_exhaust_rnr_retries() {
    let (mut a, mut b) = (User::new(1), User::new(2));
    let mut context = qpc(RC, 2);
    context.primary.rnr_retry = 2;
    a.connect(&context);
    b.connect(&qpc(RC, 1));
    a.post(&send(0, 8));
    wait(&mut a, &mut b);
    assert_eq!(syndromes(&a.reap()), [0x16]);
    // A receive posted late still succeeds, since the device reads the doorbell record on each attempt.
    let (mut a, mut b) = User::pair(RC);
    a.post(&send(0, 8));
    exchange(&mut a, &mut b);
    b.post_recv(0, 8);
    wait(&mut a, &mut b);
    assert_eq!((syndromes(&a.reap()), syndromes(&b.reap())), (vec![0], vec![0]));
}

#[test]
fn armed_cq_raises_completion_event() {
    let (mut a, mut b) = User::pair(RC);
    b.post_recv(0, 64);
    b.post_recv(0, 64);
    b.arm(2);
    a.post(&send(0, 8));
    exchange(&mut a, &mut b);
    let event = |driver: &mut User, number| driver.eqe(1, number)[..8].to_vec();
    assert_eq!(event(&mut b, 0), [0, 0, 0, 0, 0x00, 0x01, 0x00, 0x11]);
    assert_eq!(b.eqe(1, 0)[31], 0);
    assert_eq!(b.interrupts(0), 1);
    // Arming the CQ again has no effect until software has received the event.
    b.poke(EQ_BUFFERS[1] + 32, &[0x5a; 32]);
    (0..3).for_each(|_| b.arm(2));
    assert_eq!(b.eqe(1, 1), [0x5a; 32]);
    // The CQ has an unread entry when it is armed.
    b.receive_event(1);
    b.arm(2);
    assert_eq!(event(&mut b, 1), [0, 0, 0, 0, 0x00, 0x01, 0x00, 0x11]);
    b.receive_event(2);
    b.reap();
    // The CQ is armed for solicited entries. The first entry is not solicited, but the second is.
    b.arm(1);
    let mut wqe = send(0, 8);
    b.poke(EQ_BUFFERS[1] + 64, &[0x5a; 32]);
    a.post(&wqe);
    exchange(&mut a, &mut b);
    assert_eq!(b.eqe(1, 2), [0x5a; 32]);
    b.post_recv(0, 64);
    wqe.next.solicited = true;
    a.post(&wqe);
    exchange(&mut a, &mut b);
    assert_eq!(b.eqe(1, 2)[31], 0);
}

#[test]
fn cq_overrun_raises_event_and_fails_qp() {
    let (mut a, mut b) = User::pair(RC);
    for _ in 0..=user::CQ_ENTRIES {
        b.post_recv(0, 64);
        a.post(&send(0, 8));
        exchange(&mut a, &mut b);
        a.reap();
    }
    assert_eq!(b.unread().len(), user::CQ_ENTRIES as usize);
    let events = b.events();
    assert!(events.contains(&(0x04, user::CQN)), "{events:02x?}");
    let place = u64::try_from(events.iter().position(|(kind, _)| *kind == 0x04).unwrap()).unwrap();
    assert_eq!(b.eqe(2, place)[0x0f], 1);
    assert_eq!(b.query().state, 6);
}

#[test]
fn resized_cq_continues_in_new_buffer() {
    let (mut a, mut b) = User::pair(RC);
    for _ in 0..3 {
        b.post_recv(0, 64);
        a.post(&send(0, 8));
    }
    exchange(&mut a, &mut b);
    assert_eq!(b.unread().len(), 3);
    // The new buffer has 32 entries and key 24h.
    const NEW: u64 = 0x403_0000;
    b.write_mtt(MTT_BUS + 0x4100, [NEW]);
    b.ok(0x00d, &Mpt { flags: 0xf002_0d00, ..Mpt::buffer(0x24, 0x1000, MTT + 0x4100) }.bytes(), 0x24);
    b.poke(NEW, &[0x80; 1024]);
    let mut resize = vec![0; 0x40];
    resize[0x0c] = 1;
    resize[0x1e] = 0x24;
    let op = 0x02c | 1 << 12;
    assert_eq!(b.with_inbox(op, &resize, user::CQN), 0x40, "three unread entries do not fit");
    resize[0x0c] = 5;
    b.ok(op, &resize, user::CQN);
    b.post_recv(0, 64);
    a.post(&send(0, 8));
    exchange(&mut a, &mut b);
    assert_eq!(b.unread().len(), 3, "the old buffer is unchanged");
    assert_eq!(b.peek(NEW + 3 * 32, 4), [0x00, 0x01, 0x00, 0x14]);
    assert_eq!(b.peek(NEW, 32), [0x80; 32]);
}

#[test]
fn unreadable_send_queue_moves_qp_to_err() {
    let (mut a, mut b) = User::pair(RC);
    let doorbell = a.post_without_doorbell(&send(0, 8));
    // Invalidate the key of the queue's region.
    a.ok(0x00f, &[], 0x21);
    a.ring_doorbell(&doorbell);
    exchange(&mut a, &mut b);
    assert_eq!(a.events(), [(0x05, user::QPN)]);
    assert_eq!(a.query().state, 6);
}

#[test]
fn message_trace_shows_wqes_and_cqes() {
    let (mut a, mut b) = User::pair(RC);
    let written = Written::default();
    b.hca.set_trace(Some(written.trace(TraceFormat::Json)));
    a.post_recv(0, 64);
    b.post_recv(0x20, 64);
    a.post(&send(0, 8));
    exchange(&mut a, &mut b);
    b.post(&send(0, 9));
    exchange(&mut a, &mut b);
    b.hca.flush();
    let text = written.text();
    let records = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let records: Vec<_> =
        records.filter(|record| record["kind"] == "wqe" || record["kind"] == "cqe").collect();
    let shown: Vec<_> = records.iter().map(|record| (&record["kind"], &record["name"])).collect();
    let expected = [("wqe", "recv"), ("cqe", "recv"), ("wqe", "send"), ("cqe", "send")];
    assert!(
        shown.iter().zip(expected).all(|(shown, (kind, name))| shown == &(&kind.into(), &name.into())),
        "{text}"
    );
    let [taken, received, request, sent] = &records[..] else { panic!("{text}") };
    assert_eq!((&taken["wqe"], &taken["sge"][0]["len"]), (&0.into(), &64.into()));
    assert_eq!(
        (&received["byte_len"], &received["remote_lid"], &received["slot"]),
        (&8.into(), &1.into(), &0.into())
    );
    assert_eq!(
        (&request["opcode"], &request["len"], &request["wqe"]),
        (&"SEND".into(), &9.into(), &0x200.into())
    );
    assert_eq!((&sent["opcode"], &sent["cqn"]), (&"SEND".into(), &user::CQN.into()));
}
