//! Messages between two devices, from doorbells to completions (mlx5 interface, sections 7, 9, 11 and 12).

use card::frontend::testing::{exchange, pattern, wait};
use protocol::hca::mlx5::cqe::{Content, Cqe, Receipt, Sent, Source};
use protocol::hca::mlx5::eqe::{CqFault, Eqe, QueueEvent, QueueKind};
use protocol::hca::mlx5::qp::Service;
use protocol::hca::mlx5::resource::QpNumber;
use protocol::hca::mlx5::syndrome::Syndrome;
use protocol::hca::mlx5::wqe::{AtomicSegment, DataItem, DatagramSegment, Opcode, Operation, SendWqe};
use protocol::ids::{Lkey, Qpn, Rkey};
use smallvec::smallvec;

use super::user::{QKEY, USER_INDEX, User, request, syndromes};
use super::*;

const QPN: Qpn = Qpn::new(0x80);
/// Send doorbell for QP [`QPN`].
const OURS: [u8; 8] = (0x80_u64 << 8).to_be_bytes();

fn timeless(entry: Cqe) -> Cqe {
    match entry {
        Cqe::Sent(sent) => Cqe::Sent(Sent { timestamp: 0, ..sent }),
        Cqe::Received(receipt) => Cqe::Received(Receipt { timestamp: 0, ..receipt }),
        other => other,
    }
}

/// Returns the content, byte count and entry number of each received message.
fn receipts(entries: &[Cqe]) -> Vec<(Content, u32, u16)> {
    let of = |entry: &Cqe| match entry {
        Cqe::Received(receipt) => (receipt.content, receipt.byte_count, receipt.wqe_counter),
        other => panic!("{other:?}"),
    };
    entries.iter().map(of).collect()
}

fn counters(entries: &[Cqe]) -> Vec<u16> {
    let of = |entry: &Cqe| match entry {
        Cqe::Sent(sent) => sent.wqe_counter,
        Cqe::Failed(failure) => failure.wqe_counter,
        other => panic!("{other:?}"),
    };
    entries.iter().map(of).collect()
}

#[test]
fn send_writes_cqes_on_both_sides() {
    for service in [Service::Rc, Service::Uc] {
        let (mut a, mut b) = User::pair(service);
        let message = pattern(1000, 3);
        a.put(0x10, &message);
        b.post_recv(0x20, 1000);
        a.post(&a.send(0x10, 1000));
        exchange(&mut *a, &mut *b);
        assert_eq!(b.get(0x20, 1000), message);
        let sent = Sent {
            wqe_opcode: 0x0a,
            qpn: QPN,
            user_index: USER_INDEX,
            wqe_counter: 0,
            byte_count: 0,
            timestamp: 0,
        };
        assert_eq!(a.reap().into_iter().map(timeless).collect::<Vec<_>>(), [Cqe::Sent(sent)]);
        let received = Receipt {
            content: Content::Send { pkey: 0 },
            qpn: QPN,
            user_index: USER_INDEX,
            wqe_counter: 0,
            byte_count: 1000,
            solicited: false,
            source: Source { qpn: QPN, ..Source::default() },
            timestamp: 0,
        };
        assert_eq!(b.reap().into_iter().map(timeless).collect::<Vec<_>>(), [Cqe::Received(received)]);
    }
}

#[test]
fn rdma_write_read_and_atomics_access_peer_memory() {
    let (mut a, mut b) = User::pair(Service::Rc);
    let (to, from) = (pattern(5000, 1), pattern(3000, 2));
    a.put(0x100, &to);
    b.put(0x2000, &from);
    a.post(&request(Opcode::Write, Operation::Write(a.remote(0x88)), a.data(0x100, 5000)));
    a.post(&request(Opcode::Read, Operation::Read(a.remote(0x2000)), a.data(0x1800, 3000)));
    exchange(&mut *a, &mut *b);
    assert_eq!((b.get(0x88, 5000), a.get(0x1800, 3000)), (to, from));
    let entries = a.reap();
    assert!(matches!(
        entries[..],
        [
            Cqe::Sent(Sent { wqe_opcode: 0x08, byte_count: 0, .. }),
            Cqe::Sent(Sent { wqe_opcode: 0x10, byte_count: 3000, wqe_counter: 1, .. })
        ]
    ));
    assert!(b.reap().is_empty());

    // Section 20, M-18: the operand in memory and the returned value are in host byte order.
    b.put(0x40, &1000_u64.to_le_bytes());
    let atomic = |opcode, swap_or_add, compare, to: &User, place| {
        let operands = AtomicSegment { swap_or_add, compare };
        request(opcode, Operation::Atomic(to.remote(0x40), operands), to.data(place, 8))
    };
    a.post(&atomic(Opcode::FetchAdd, 7, 0, &a, 0));
    a.post(&atomic(Opcode::CompareSwap, 5, 1007, &a, 8));
    a.post(&atomic(Opcode::CompareSwap, 6, 1007, &a, 16));
    exchange(&mut *a, &mut *b);
    let originals = [1000_u64, 1007, 5].map(u64::to_le_bytes).concat();
    assert_eq!((a.get(0, 24), b.get(0x40, 8)), (originals, 5_u64.to_le_bytes().to_vec()));
    assert!(a.reap().iter().all(|entry| matches!(entry, Cqe::Sent(Sent { byte_count: 8, .. }))));
}

#[test]
fn receive_cqe_contains_immediate_data() {
    let (mut a, mut b) = User::pair(Service::Rc);
    b.post_recv(0, 64);
    b.post_recv(0, 64);
    let imm = [0x11, 0x22, 0x33, 0x44];
    let mut wqe = request(Opcode::SendImm, Operation::Send, a.data(0, 8));
    wqe.control.immediate = imm;
    a.post(&wqe);
    (wqe.opcode, wqe.operation) = (Opcode::WriteImm, Operation::Write(a.remote(0x100)));
    a.post(&wqe);
    exchange(&mut *a, &mut *b);
    let expected = [(Content::SendImm(imm), 8, 0), (Content::WriteImm(imm), 8, 1)];
    assert_eq!(receipts(&b.reap()), expected);
    assert_eq!(counters(&a.reap()), [0, 1]);
}

#[test]
fn inline_data_is_sent_from_wqe() {
    let (mut a, mut b) = User::pair(Service::Rc);
    for round in 0..40_u8 {
        b.post_recv(0, 256);
        let message = pattern(200, round);
        let mut wqe = a.send(0, 0);
        wqe.data = smallvec![DataItem::Inline(&message)];
        a.post(&wqe);
        exchange(&mut *a, &mut *b);
        assert_eq!(b.get(0, 200), message);
        // Each WQE occupies four blocks, and the queue has 32 blocks.
        assert_eq!(counters(&a.reap()), [u16::from(round) * 4]);
        assert_eq!(receipts(&b.reap())[0].1, 200);
    }
}

#[test]
fn interleaved_inline_and_pointer_data_is_sent_in_order() {
    let (mut a, mut b) = User::pair(Service::Rc);
    b.post_recv(0, 4096);
    a.put(0, &pattern(3000, 5));
    let mut wqe = a.send(0, 0);
    wqe.data = smallvec![
        DataItem::Inline(b"header"),
        DataItem::Pointer(a.data(0, 2000)),
        DataItem::Inline(b"and"),
        DataItem::Pointer(a.data(2000, 1000)),
    ];
    a.post(&wqe);
    exchange(&mut *a, &mut *b);
    let content = pattern(3000, 5);
    assert_eq!(b.get(0, 3009), [b"header", &content[..2000], b"and", &content[2000..]].concat());
    assert_eq!(syndromes(&a.reap()), [0]);
}

#[test]
fn datagram_receive_has_grh_area_and_source() {
    let (mut a, mut b) = User::pair(Service::Ud);
    b.post_recv(0x20, 140);
    let to =
        DatagramSegment { qkey: QKEY, long: true, qpn: QPN, lid: Lid::new(2), ..DatagramSegment::default() };
    a.put(0, &pattern(100, 9));
    a.post(&request(Opcode::Send, Operation::Datagram(to), a.data(0, 100)));
    exchange(&mut *a, &mut *b);
    assert_eq!(b.get(0x20 + 40, 100), pattern(100, 9));
    let entries = b.reap();
    let [Cqe::Received(receipt)] = entries[..] else { panic!("{entries:?}") };
    assert_eq!((receipt.byte_count, receipt.source.qpn, receipt.source.lid), (140, QPN, Lid::new(1)));
    assert_eq!(syndromes(&a.reap()), [0]);
    // A datagram with a different Q_Key is dropped.
    b.post_recv(0, 140);
    let wrong = DatagramSegment { qkey: protocol::ids::Qkey::new(1), ..to };
    a.post(&request(Opcode::Send, Operation::Datagram(wrong), a.data(0, 100)));
    exchange(&mut *a, &mut *b);
    assert!(b.reap().is_empty());
}

#[test]
fn unsignalled_requests_complete_without_cqe() {
    let (mut a, mut b) = User::pair(Service::Rc);
    let mut silent = a.send(0, 8);
    silent.control.completion = 0;
    (0..2).for_each(|_| b.post_recv(0, 64));
    a.post(&silent);
    a.post(&a.send(0, 8));
    exchange(&mut *a, &mut *b);
    assert_eq!(counters(&a.reap()), [1]);
    assert_eq!(b.reap().len(), 2);
    let nop = SendWqe { opcode: Opcode::Nop, operation: Operation::Nop, data: smallvec![], ..a.send(0, 0) };
    a.post(&nop);
    exchange(&mut *a, &mut *b);
    assert_eq!(counters(&a.reap()), [2]);
}

/// Section 7: the doorbell record may cover more requests than the doorbells received so far.
#[test]
fn doorbells_for_executed_wqes_have_no_effect() {
    let (mut a, mut b) = User::pair(Service::Rc);
    (0..3).for_each(|_| b.post_recv(0, 64));
    let doorbells: Vec<_> = (0..3).map(|_| a.post_without_doorbell(&a.send(0, 8))).collect();
    for doorbell in &doorbells {
        a.ring_send(doorbell);
        exchange(&mut *a, &mut *b);
    }
    assert_eq!((a.reap().len(), b.reap().len()), (3, 3));
}

/// Section 20, M-16: the driver copies the WQE to the register in 8-byte stores.
#[test]
fn wqe_copied_to_blueflame_register_executes_once() {
    let (mut a, mut b) = User::pair(Service::Rc);
    b.post_recv(0, 64);
    b.post_recv(0, 64);
    let mut wqe = a.send(0, 0);
    wqe.data = smallvec![DataItem::Inline(&[7; 36])];
    let doorbell = a.post_without_doorbell(&wqe);
    let uar = a.uar;
    a.ring(uar, driver::SEND + 0x100, &doorbell);
    (1..8).for_each(|piece| a.ring(uar, driver::SEND + 0x100 + 8 * piece, &doorbell));
    exchange(&mut *a, &mut *b);
    assert_eq!((a.reap().len(), b.reap().len(), b.get(0, 36)), (1, 1, vec![7; 36]));
}

/// Section 20, M-12: receives have no doorbell. The device must find a receive that is posted after the message has
/// arrived.
#[test]
fn late_receive_is_found_without_doorbell() {
    let (mut a, mut b) = User::pair(Service::Rc);
    a.put(0, b"patience");
    a.post(&a.send(0, 8));
    exchange(&mut *a, &mut *b);
    assert!(a.reap().is_empty() && b.reap().is_empty());
    b.post_recv(0x40, 64);
    wait(&mut *a, &mut *b);
    assert_eq!((syndromes(&a.reap()), b.get(0x40, 8)), (vec![0], b"patience".to_vec()));
    assert_eq!(receipts(&b.reap()), [(Content::Send { pkey: 0 }, 8, 0)]);
}

#[test]
fn wrong_rkey_causes_remote_access_error() {
    let (mut a, mut b) = User::pair(Service::Rc);
    a.post_recv(0, 8);
    b.post_recv(0, 8);
    let mut remote = a.remote(0);
    remote.rkey = Rkey::new(a.key + 1);
    let bad = a.post_without_doorbell(&request(Opcode::Write, Operation::Write(remote), a.data(0, 8)));
    a.post_without_doorbell(&a.send(0, 8));
    a.ring_send(&bad);
    exchange(&mut *a, &mut *b);
    let entries = a.reap();
    let (access, flushed) = (Syndrome::RemoteAccess.code(), Syndrome::Flushed.code());
    assert_eq!((syndromes(&entries), counters(&entries)), (vec![access, flushed, flushed], vec![0, 1, 0]));
    assert!(matches!(entries[..], [
        Cqe::Failed(f), Cqe::Failed(g), Cqe::Failed(h)
    ] if f.send && f.wqe_opcode == 8 && f.vendor == 0x88 && g.send && !h.send));
    let event = |event| Eqe::Queue { event, kind: QueueKind::Qp, number: 0x80 };
    assert!(b.events().contains(&event(QueueEvent::AccessViolation)), "{:?}", b.events());
    assert_eq!(syndromes(&b.reap()), [flushed]);
    // Requests posted in the error state are flushed as well (section 20, M-12).
    a.post(&a.send(0, 8));
    a.post_recv(0, 8);
    wait(&mut *a, &mut *b);
    assert_eq!(syndromes(&a.reap()), [flushed, flushed]);
    // After a transition to RESET, the queues are empty.
    a.reset();
    b.reset();
    a.start(&a.context(Service::Rc), 2);
    b.start(&b.context(Service::Rc), 1);
    b.post_recv(0, 8);
    a.post(&a.send(0, 8));
    exchange(&mut *a, &mut *b);
    assert_eq!((counters(&a.reap()), syndromes(&b.reap())), (vec![0], vec![0]));
}

#[test]
fn wrong_lkey_causes_local_protection_error() {
    let (mut a, mut b) = User::pair(Service::Rc);
    let mut data = a.data(0, 8);
    data.lkey = Lkey::new(0x900);
    a.post(&request(Opcode::Send, Operation::Send, data));
    exchange(&mut *a, &mut *b);
    assert_eq!(syndromes(&a.reap()), [Syndrome::LocalProtection.code()]);

    let (mut a, mut b) = User::pair(Service::Rc);
    b.key += 1;
    b.post_recv(0, 8);
    a.post(&a.send(0, 8));
    exchange(&mut *a, &mut *b);
    assert_eq!(syndromes(&a.reap()), [Syndrome::RemoteOperation.code()]);
    assert_eq!(syndromes(&b.reap()), [Syndrome::LocalProtection.code()]);
}

#[test]
fn oversized_message_fails_on_both_sides() {
    let (mut a, mut b) = User::pair(Service::Rc);
    b.post_recv(0, 8);
    a.post(&a.send(0, 9));
    exchange(&mut *a, &mut *b);
    assert_eq!(syndromes(&a.reap()), [Syndrome::RemoteInvalidRequest.code()]);
    assert_eq!(syndromes(&b.reap()), [Syndrome::LocalLength.code()]);
}

#[test]
fn malformed_wqe_causes_local_qp_operation_error() {
    let (a, _) = User::pair(Service::Rc);
    let mut other_queue = a.send(0, 8).emit();
    other_queue[6] = 0x7f;
    let mut unknown = a.send(0, 8).emit();
    (unknown[3], unknown[6]) = (0x2c, 0x80);
    let mut beyond = a.send(0, 8).emit();
    (beyond[6], beyond[7]) = (0x80, 0x3f);
    for bytes in [vec![0; 64], other_queue, unknown, beyond] {
        let (mut a, mut b) = User::pair(Service::Rc);
        a.post_bytes(&bytes);
        a.post_without_doorbell(&a.send(0, 8));
        a.ring_send(&OURS);
        exchange(&mut *a, &mut *b);
        let found = syndromes(&a.reap());
        assert_eq!(found.first(), Some(&Syndrome::LocalQpOperation.code()), "{bytes:x?}");
        assert!(found[1..].iter().all(|syndrome| *syndrome == Syndrome::Flushed.code()), "{found:?}");
    }
}

#[test]
fn full_cq_fails_its_qps() {
    let (mut a, mut b) = User::pair(Service::Rc);
    for _ in 0..65 {
        let nop =
            SendWqe { opcode: Opcode::Nop, operation: Operation::Nop, data: smallvec![], ..a.send(0, 0) };
        a.post(&nop);
        exchange(&mut *a, &mut *b);
    }
    let cqn = a.cqn;
    assert_eq!(a.events(), [Eqe::CqError(cqn, CqFault::Overrun)]);
    assert_eq!(a.reap().len(), 64);
    let rows = a.hca.rows::<card::frontend::snapshot::QpRow>(0);
    assert_eq!(rows[0].state, card::frontend::snapshot::QpState::Err);
}

#[test]
fn doorbell_exceeding_queue_size_is_ignored() {
    let (mut a, mut b) = User::pair(Service::Rc);
    for _ in 0..33 {
        a.post_without_doorbell(&a.send(0, 8));
    }
    a.ring_send(&OURS);
    exchange(&mut *a, &mut *b);
    assert_eq!(a.hca.monitor().ignored_counts().collect::<Vec<_>>(), [("overflow", 1)]);
    assert!(a.reap().is_empty());
}

#[test]
fn completions_raise_events_when_armed() {
    let (mut a, mut b) = User::pair(Service::Rc);
    (0..4).for_each(|_| b.post_recv(0, 64));
    let mut solicited = a.send(0, 8);
    solicited.control.solicited = true;
    b.arm(false);
    for (wqe, arm_solicited, events) in
        [(a.send(0, 8), true, 1), (a.send(0, 8), true, 1), (solicited, true, 2), (a.send(0, 8), false, 2)]
    {
        a.post(&wqe);
        exchange(&mut *a, &mut *b);
        assert_eq!(b.completion_events(), events);
        b.reap();
        b.receive_events();
        b.arm(arm_solicited);
    }
}

#[test]
fn to_err_command_flushes_requests_in_order() {
    let (mut a, mut b) = User::pair(Service::Rc);
    (0..2).for_each(|_| a.post_recv(0, 8));
    for _ in 0..3 {
        let _ = a.post_without_doorbell(&a.send(0, 8));
    }
    let qpn = a.qpn;
    a.ok(&Command::ToErrQp(QpNumber { qpn }));
    exchange(&mut *a, &mut *b);
    let entries = a.reap();
    assert_eq!(syndromes(&entries), [Syndrome::Flushed.code(); 5]);
    assert_eq!(counters(&entries), [0, 1, 2, 0, 1]);
}
