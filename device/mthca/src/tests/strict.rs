//! Strict mode: each violation is reported under one rule only, and nothing is reported for correct software.

use card::frontend::testing::exchange;
use card::telemetry::monitor::Rule;
use protocol::Psn;
use protocol::hca::mthca::doorbell::SendDoorbell;
use protocol::hca::mthca::init::InitHca;
use protocol::hca::mthca::modify::QpAttributes;
use protocol::hca::mthca::path::{Address, AddressVector, Path};
use protocol::hca::mthca::qpc::Qpc;
use protocol::hca::mthca::wqe::{DataSegment, Operation, SendWqe, UdSegment, WqeData};
use protocol::ids::{Cqn, IcmAddr, Lid, Lkey, Pdn, Qkey, Qpn, Srqn, Va};
use smallvec::smallvec;

use super::user::{
    CQ_BUFFER, CQN, QKEY, QP_BUFFER, QPN, RC, SEND, SRQ_BUFFER, SRQN, UD, User, cq, qpc, remote, request,
    send,
};
use super::*;
use crate::strict::rules::{self, *};

/// Number of another QP, whose doorbell records are unused.
const OTHER: u32 = 0x15;
/// Index of a doorbell record that lies in an unmapped page.
const NOWHERE: u32 = 600;
/// Opcodes of QP transitions. TO_RST does not request an outbox.
const RST2INIT: u32 = 0x019;
const INIT2RTR: u32 = 0x01a;
const RTR2RTS: u32 = 0x01b;
const TO_RST: u32 = 0x3021;

/// Returns the commands that `ib_mthca` uses to move a QP from RESET to RTS, each with its attribute mask and context.
fn steps(qpc: &Qpc) -> [(u32, QpAttributes, Qpc); 3] {
    let Qpc { primary, requester, responder, .. } = *qpc;
    let image = Qpc {
        primary: Path { port: 1, ..Path::default() },
        requester: requester.with_retry_count(0).with_log_depth(0),
        responder: responder.with_log_depth(0),
        min_rnr_timer: 0,
        qkey: Qkey::default(),
        next_send_psn: Psn::default(),
        recv_psn: Psn::default(),
        ..*qpc
    };
    let rights = QpAttributes::REMOTE_READ | QpAttributes::REMOTE_WRITE | QpAttributes::REMOTE_ATOMIC;
    let init = QpAttributes::PORT | QpAttributes::PKEY_INDEX;
    let address = Path { address: primary.address, ..image.primary };
    let times = Path { ack_timeout: primary.ack_timeout, rnr_retry: primary.rnr_retry, ..image.primary };
    if qpc.kind == UD {
        return [
            (RST2INIT, init | QpAttributes::QKEY, Qpc { qkey: qpc.qkey, ..image }),
            (INIT2RTR, QpAttributes::empty(), image),
            (RTR2RTS, QpAttributes::empty(), Qpc { next_send_psn: qpc.next_send_psn, ..image }),
        ];
    }
    let rtr = Qpc {
        primary: address,
        min_rnr_timer: qpc.min_rnr_timer,
        recv_psn: qpc.recv_psn,
        responder,
        ..image
    };
    let rts = Qpc { primary: times, requester, next_send_psn: qpc.next_send_psn, ..image };
    let ready = QpAttributes::PRIMARY_PATH | QpAttributes::RESPONDER_DEPTH | QpAttributes::RNR_TIMER;
    let sending = QpAttributes::ACK_TIMEOUT
        | QpAttributes::RETRY_COUNT
        | QpAttributes::RNR_RETRY
        | QpAttributes::REQUESTER_DEPTH;
    [(RST2INIT, init | rights, image), (INIT2RTR, ready, rtr), (RTR2RTS, sending, rts)]
}

fn connect(user: &mut User, qpc: &Qpc) {
    user.ok(TO_RST, &[], QPN);
    user.clear_records();
    for (op, named, qpc) in steps(qpc) {
        user.ok(op, &modify(named, &qpc), QPN);
    }
}

/// Creates an HCA in strict mode, with a QP that correct software has brought to RTS.
fn user(lid: u16, peer: u16) -> User {
    let mut driver = powered_on_with(lid, Options::default());
    driver.interface.exact = true;
    driver.hca.set_strict(true);
    for (buffer, len) in [(EQ_BUFFERS[1], 4 << 20), (EQ_BUFFERS[2], 8 << 10), (EQ_BUFFERS[3], 8 << 10)] {
        driver.poke(buffer, &vec![0x80; len]);
    }
    let mut user = User::of(driver);
    user.tag_records();
    connect(&mut user, &qpc(RC, peer));
    user
}

fn pair() -> (User, User) {
    (user(1, 2), user(2, 1))
}

fn violations(user: &User) -> Vec<(&'static str, u64)> {
    user.hca.monitor().violations().collect()
}

fn post(user: &mut User, opcode: u8, bytes: &[u8]) {
    let doorbell = user.post_bytes(opcode, bytes);
    user.ring_doorbell(&doorbell);
}

/// Returns the bytes of a WQE after applying `change` to the byte at offset `at`.
fn altered(wqe: &SendWqe, at: usize, change: impl FnOnce(u8) -> u8) -> Vec<u8> {
    let mut bytes = wqe.emit();
    bytes[at] = change(bytes[at]);
    bytes
}

fn datagram(vector: AddressVector) -> SendWqe {
    let to = UdSegment { vector, dqpn: Qpn::new(QPN), qkey: Qkey::new(QKEY) };
    request(Operation::Datagram { imm: None, to }, 0, 8)
}

fn vector() -> AddressVector {
    let address = Address { dlid: Lid::new(2), ..Address::default() };
    AddressVector { port: 1, pd: Pdn::new(1), address }
}

fn with(mut context: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    context[at..at + bytes.len()].copy_from_slice(bytes);
    context
}

/// Returns the context of a second CQ, which has its own doorbell records.
fn second_cq() -> Vec<u8> {
    Cq { record: 32764, arm_record: 5, ..cq(0x12) }.bytes()
}

/// Returns the context of a second QP, which has its own doorbell records.
fn second_qp() -> Qpc {
    Qpc { local_qpn: Qpn::new(OTHER), sq_record: 6, rq_record: 32763, ..qpc(RC, 2) }
}

fn begin(user: &mut User, qpc: &Qpc) {
    let [(op, named, image), ..] = steps(qpc);
    user.ok(op, &modify(named, &image), OTHER);
}

/// Resets the device and issues the firmware commands that must precede INIT_HCA.
fn firmware(user: &mut User) {
    user.write(RESET, 1);
    replay(user, "fff 0 01 0 0\nff6 0 00");
}

/// A rule and a function that violates it. The function's second argument is the peer of its first.
type Case = (&'static Rule, fn(&mut User, &mut User));

/// Test cases, at least one for each rule.
const CASES: &[Case] = &[
    (&NARROW_WRITE, |a, _| a.store(Bar::Bar0, HCR, &[0, 0])),
    (&NARROW_WRITE, |a, _| a.store(Bar::Bar2, 0x2010, &[0; 2])),
    (&NO_REGISTER, |a, _| a.write(0x8_0004, 0)),
    (&NO_REGISTER, |a, _| a.store(Bar::Bar2, 0x2018, &[0; 8])),
    (&READ_ONLY_WRITE, |a, _| a.write(0x8_3000, 0)),
    (&NO_EFFECT, |a, _| a.write(RESET, 2)),
    (&NO_EFFECT, |a, _| a.write(HCR + 0x18, 0x031)),
    (&HCR_RESERVED, |a, _| a.write(HCR + 0x14, 0xffff_0001)),
    (&HCR_RESERVED, |a, _| {
        a.raw(0, 0x1f, 0, 0xffff, 1 << 23 | 1 << 20 | 0x031);
    }),
    (&HCR_NOT_POLLED, |a, _| {
        a.issue(0, 0x1f, 0, 0xffff, 1 << 23 | 0x031);
        a.write(HCR, 0);
        a.read(HCR + 0x18);
    }),
    (&EQ_NOTHING, |a, _| a.write(EQ_ARM, 1 << 9)),
    (&EQ_NOTHING, |a, _| a.write(EQ_SET_CI + 8 * 9, 0)),
    (&EQ_CONSUMER, |a, _| a.write(EQ_SET_CI + 8, 1)),
    (&EQ_CONSUMER, |a, _| {
        a.write(EQ_SET_CI + 16, 0);
        a.hca.set_link(false);
        a.write(EQ_SET_CI + 16, 1);
        a.write(EQ_SET_CI + 16, 0);
    }),
    (&DOORBELL_READ, |a, _| {
        a.load::<4>(Bar::Bar2, 0x2010);
    }),
    (&DOORBELL_HALF, |a, _| {
        a.arm(2);
        let doorbell = [[0x12, 0x01, 0x00, 0x11], [0; 4]];
        a.store(Bar::Bar2, 0x2020, &doorbell[0]);
        a.store(Bar::Bar2, 0x2024, &doorbell[1]);
        a.store(Bar::Bar2, 0x2024, &doorbell[1]);
    }),
    (&DOORBELL_RESERVED, |a, _| {
        let mut doorbell = a.post_without_doorbell(&send(0, 8)).emit();
        doorbell[7] |= 0x40;
        a.store(Bar::Bar2, 0x2010, &doorbell);
    }),
    (&DOORBELL_RESERVED, |a, _| {
        a.arm(2);
        a.store(Bar::Bar2, 0x2020, &[0x92, 0x01, 0x00, 0x11, 0, 0, 0, 0]);
    }),
    (&DOORBELL_EMPTY, |a, _| {
        let doorbell =
            SendDoorbell { count: 0, first: 0, fence: false, opcode: SEND, qpn: Qpn::new(QPN), size: 2 };
        a.ring_doorbell(&doorbell);
    }),
    (&DOORBELL_NO_QP, |a, _| {
        let doorbell = a.post_without_doorbell(&send(0, 8));
        a.ring_doorbell(&SendDoorbell { qpn: Qpn::new(0x14), ..doorbell });
    }),
    (&DOORBELL_STATE, |a, _| {
        a.ok(TO_RST, &[], QPN);
        let [(op, named, qpc), ..] = steps(&qpc(RC, 2));
        a.ok(op, &modify(named, &qpc), QPN);
        a.post(&send(0, 8));
    }),
    (&DOORBELL_PAGE, |a, _| {
        let doorbell = a.post_without_doorbell(&send(0, 8));
        a.store(Bar::Bar2, 0x3010, &doorbell.emit());
    }),
    (&DOORBELL_PAGE, |a, _| a.store(Bar::Bar2, 0x3020, &[0x12, 0x01, 0x00, 0x11, 0, 0, 0, 0])),
    (&DOORBELL_RECORD, |a, _| {
        let doorbell = a.post_without_doorbell(&send(0, 8));
        a.set_posted(0);
        a.ring_doorbell(&doorbell);
    }),
    (&DOORBELL_ORDER, |a, _| {
        let doorbell = a.post_without_doorbell(&send(0, 8));
        a.ring_doorbell(&doorbell);
        a.ring_doorbell(&doorbell);
    }),
    (&DOORBELL_LINK, |a, _| {
        let doorbell = a.post_without_doorbell(&send(0, 8));
        a.ring_doorbell(&SendDoorbell { fence: true, ..doorbell });
    }),
    (&SQ_OVERRUN, |a, _| (0..9).for_each(|_| a.post(&send(0, 8)))),
    (&RQ_OVERRUN, |a, b| {
        (0..9).for_each(|_| a.post_recv(0, 64));
        b.post(&send(0, 8));
    }),
    (&RQ_OVERRUN, |a, b| {
        share(a);
        (0..8).for_each(|_| a.post_shared(0, 64));
        b.post(&send(0, 8));
    }),
    (&RECORD_TAG, |a, _| {
        a.untag();
        a.post(&send(0, 8));
    }),
    (&RECORD_UNMAPPED, |a, _| a.ok(0x016, &Cq { record: NOWHERE, arm_record: 5, ..cq(0x12) }.bytes(), 0x12)),
    (&RECORD_UNMAPPED, |a, _| begin(a, &Qpc { rq_record: NOWHERE, ..second_qp() })),
    (&RECORD_SHARED, |a, _| a.ok(0x016, &Cq { record: 32764, ..cq(0x12) }.bytes(), 0x12)),
    (&RECORD_SHARED, |a, _| begin(a, &Qpc { rq_record: 6, ..second_qp() })),
    (&UAR_RESERVED, |a, _| a.ok(0x016, &with(second_cq(), 0x0f, &[1]), 0x12)),
    (&UAR_RESERVED, |a, _| begin(a, &Qpc { page: 2048, ..second_qp() })),
    (&ARM_NO_CQ, |a, _| a.store(Bar::Bar2, 0x2020, &[0x12, 0x00, 0x00, 0x11, 0, 0, 0, 0])),
    (&ARM_COMMAND, |a, _| a.arm(3)),
    (&ARM_RECORD, |a, _| a.ring_arm(2, 1, 0)),
    (&ARM_SEQUENCE, |a, _| a.arm_with(2, 2, 0)),
    (&CQ_CONSUMER, |a, _| a.arm_with(2, 1, 5)),
    (&CQE_OWNER, |a, b| {
        a.poke(CQ_BUFFER + 31, &[0]);
        b.post_recv(0, 64);
        a.post(&send(0, 8));
    }),
    (&EQE_OWNER, |a, _| {
        a.poke(EQ_BUFFERS[2] + 31, &[0]);
        a.hca.set_link(false);
    }),
    (&WQE_SIZE, |a, _| post(a, SEND, &[])),
    (&WQE_SIZE, |a, _| post(a, SEND, &[0; 144])),
    (&WQE_MALFORMED, |a, _| post(a, 0x1f, &send(0, 8).emit())),
    (&WQE_MALFORMED, |a, b| {
        a.post_recv(0, 8);
        a.poke(QP_BUFFER + 16, &[0x80]);
        b.post(&send(0, 8));
    }),
    (&WQE_RESERVED, |a, _| {
        let write = request(Operation::Write { remote: remote(0), imm: None }, 0, 8);
        post(a, 0x08, &altered(&write, 31, |_| 1));
    }),
    (&WQE_CONSTANT, |a, _| post(a, SEND, &altered(&send(0, 8), 11, |flags| flags & !1))),
    (&WQE_KEY, |a, _| {
        let data = DataSegment { len: 8, lkey: Lkey::new(0x7700), va: Va::new(0) };
        a.post(&SendWqe { data: WqeData::Segments(smallvec![data]), ..send(0, 8) });
    }),
    (&WQE_KEY, |a, b| {
        a.post_recv(0x3000, 8);
        b.post(&send(0, 8));
    }),
    (&WQE_VECTOR, |a, _| {
        connect(a, &qpc(UD, 2));
        a.post(&datagram(AddressVector { pd: Pdn::new(9), ..vector() }));
    }),
    (&WQE_VECTOR, |a, _| {
        connect(a, &qpc(UD, 2));
        a.post(&datagram(AddressVector { port: 2, ..vector() }));
    }),
    (&SRQ_LINK, |a, b| {
        share(a);
        a.post_shared(0, 64);
        a.poke(SRQ_BUFFER, &[0, 0, 0x80, 0x01]);
        b.post(&send(0, 8));
    }),
    (&UNUSED_PARAMETER, |a, _| {
        a.raw(0, 0x1f, OUTBOX, 0xffff, 1 << 23 | 0x031);
    }),
    (&UNUSED_PARAMETER, |a, _| {
        a.raw(0, 1, OUTBOX, 0xffff, 1 << 23 | 0x003);
    }),
    (&UNDOCUMENTED_MODIFIER, |a, _| a.ok(0x1031, &[], 0x1f)),
    (&MAILBOX_ALIGNMENT, |a, _| {
        a.raw(0, 0, OUTBOX + 8, 0xffff, 1 << 23 | 0x003);
    }),
    (&EVENT_DROPPED, |a, _| {
        assert_eq!(a.command(0x012, 0x400, 1 << 31 | 3).0, 0);
        a.raw(0, 0x1f, 0, 0x20, 1 << 23 | 1 << 22 | 0x031);
    }),
    (&FIRMWARE_ORDER, |a, _| {
        a.write(RESET, 1);
        a.ok(0xff6, &[], 0);
    }),
    (&FIRMWARE_ORDER, |a, _| {
        firmware(a);
        a.ok(0xffa, &block(MTT, MTT_BUS, 0), 1);
    }),
    (&FIRMWARE_ORDER, |a, _| {
        a.write(RESET, 1);
        a.ok(0x007, &InitHca::DRIVER_DEFAULT.emit(), 0);
    }),
    (&FIRMWARE_IN_USE, |a, _| a.ok(0xffe, &[], 0)),
    (&INIT_TWICE, |a, _| a.ok(0x007, &InitHca::DRIVER_DEFAULT.emit(), 0)),
    (&INIT_OVERLAP, |a, _| {
        firmware(a);
        let mut layout = InitHca::DRIVER_DEFAULT;
        layout.cqc.base = IcmAddr::new(layout.qpc.base.get() + 0x1000);
        a.ok(0x007, &layout.emit(), 0);
    }),
    (&CLOSE_IN_USE, |a, _| a.ok(0x008, &[], 0)),
    (&CLOSE_TWICE, |a, _| {
        a.write(RESET, 1);
        a.ok(0x008, &[], 0);
    }),
    (&MAP_OVER_MAPPED, |a, _| a.ok(0xffa, &block(MTT, 0x3000_0000, 0), 1)),
    (&MAP_SAME_PAGE, |a, _| a.ok(0xffa, &block(0xa_0000, ICM + 0x8_0000, 0), 1)),
    (&UNMAP_IN_USE, |a, _| unmap(a, 0x8_0000, 1)),
    (&UNMAP_IN_USE, |a, _| unmap(a, 0x2000_0000, 64)),
    (&UNMAP_IN_USE, |a, _| unmap(a, 0x2400_0000, 64)),
    (&UNMAP_NOTHING, |a, _| unmap(a, 0xa_0000, 1)),
    (&CONTEXT_UNMAPPED, |a, _| {
        a.ok(0x016, &Cq { record: 32764, arm_record: 5, ..cq(0x2000) }.bytes(), 0x2000);
    }),
    (&MPT_IN_USE, |a, _| a.ok(0x100f, &[], 0x20)),
    (&MPT_IN_USE, |a, _| a.ok(0x100f, &[], 0x23)),
    (&MPT_PAGES, |a, _| a.ok(0x00d, &Mpt::buffer(0x24, 0x1000, MTT + 0x5000).bytes(), 0x24)),
    (&CQ_BUFFER_RULE, |a, _| a.ok(0x016, &with(second_cq(), 0x1c, &[0, 0, 0x77, 0]), 0x12)),
    (&CQ_BUFFER_RULE, |a, _| {
        let resize = with(with(vec![0; 0x40], 0x0c, &[5]), 0x1c, &[0, 0, 0x77, 0]);
        a.ok(0x102c, &resize, CQN);
    }),
    (&CQ_OWNER, |a, _| {
        a.poke(CQ_BUFFER + 3 * 32 + 31, &[0]);
        a.ok(0x016, &second_cq(), 0x12);
    }),
    (&CQ_NUMBER, |a, _| a.ok(0x016, &with(second_cq(), 0x30, &[0, 0, 0, 0x13]), 0x12)),
    (&CQ_EQ, |a, _| a.ok(0x016, &with(second_cq(), 0x14, &[0, 0, 0, 9]), 0x12)),
    (&CQ_IN_USE, |a, _| a.ok(0x017, &[], CQN)),
    (&EQ_BUFFER, |a, _| a.ok(0x013, &eq_context(8, 1, 0x7700), 4)),
    (&EQ_OWNER, |a, _| {
        a.poke(EQ_BUFFERS[2] + 5 * 32 + 31, &[0]);
        a.ok(0x013, &eq_context(8, 1, 0x1200), 4);
    }),
    (&EQ_VECTOR, |a, _| a.ok(0x013, &eq_context(8, 32, 0x1200), 4)),
    (&EQ_VECTOR, |a, _| a.ok(0x013, &with(eq_context(8, 0, 0x1200), 0x17, &[0]), 4)),
    (&EQ_EVENTS, |a, _| assert_eq!(a.command(0x012, 1, 1).0, 0)),
    (&EQ_IN_USE, |a, _| a.ok(0x014, &[], 1)),
    (&EQ_MAPPED, |a, _| a.ok(0x014, &[], 2)),
    (&SRQ_BUFFER_RULE, |a, _| a.ok(0x035, &second_srq(0x7700, 0x12), 0x12)),
    (&SRQ_NUMBER, |a, _| a.ok(0x035, &second_srq(0x2300, 0x13), 0x12)),
    (&SRQ_IN_USE, |a, _| {
        share(a);
        a.ok(0x036, &[], SRQN);
    }),
    (&QP_NUMBER, |a, _| begin(a, &Qpc { local_qpn: Qpn::new(OTHER + 1), ..second_qp() })),
    (&QP_CQ, |a, _| begin(a, &Qpc { recv_cqn: Cqn::new(0x11), ..second_qp() })),
    (&QP_SRQ, |a, _| {
        let responder = second_qp().responder.with_srq(true);
        begin(a, &Qpc { responder, srqn: Srqn::new(0x99), ..second_qp() });
    }),
    (&QP_BUFFER_RULE, |a, _| begin(a, &Qpc { sq_base: 0xf00, ..second_qp() })),
    (&QP_ATTRIBUTES, |a, _| {
        begin(a, &second_qp());
        let [_, (op, named, image), _] = steps(&second_qp());
        a.ok(op, &modify(named | QpAttributes::ACK_TIMEOUT, &image), OTHER);
    }),
    (&QP_UNNAMED, |a, _| {
        let [(op, named, image), ..] = steps(&second_qp());
        let requester = image.requester.with_retry_count(7);
        a.ok(op, &modify(named, &Qpc { requester, ..image }), OTHER);
    }),
];

use drivers::mthca::Cq;
use rules::{CQ_BUFFER as CQ_BUFFER_RULE, QP_BUFFER as QP_BUFFER_RULE, SRQ_BUFFER as SRQ_BUFFER_RULE};

fn unmap(user: &mut User, start: u64, pages: u32) {
    assert_eq!(user.command(0xff9, start, pages).0, 0);
}

/// Re-creates the QP as one that receives from the SRQ.
fn share(user: &mut User) {
    let base = qpc(RC, 2);
    connect(user, &Qpc { responder: base.responder.with_srq(true), ..base });
}

/// Returns the context of an SRQ with its own doorbell record.
fn second_srq(lkey: u32, number: u32) -> Vec<u8> {
    with(with(driver::srq_context(number, [3, 2], 1, lkey, 32762), 0, &[3]), 1, &number.to_be_bytes()[1..])
}

#[test]
fn conforming_driver_has_no_violations() {
    let (mut a, mut b) = pair();
    for round in 0..40 {
        b.post_recv(0x100, 64);
        b.arm(2);
        a.post(&send(0, 64));
        exchange(&mut a, &mut b);
        assert_eq!((a.reap().len(), b.reap().len()), (1, 1));
        b.receive_event(round + 1);
        b.write(EQ_ARM, 1 << 1);
    }
    // The record may run ahead of the doorbells. Here, software posts three requests before it rings any doorbell.
    (0..3).for_each(|_| b.post_recv(0, 64));
    let rings: Vec<_> = (0..3).map(|_| a.post_without_doorbell(&send(0, 8))).collect();
    rings.iter().for_each(|doorbell| a.ring_doorbell(doorbell));
    exchange(&mut a, &mut b);
    assert_eq!((a.reap().len(), b.reap().len()), (3, 3));
    a.post(&request(Operation::Read { remote: remote(0) }, 0, 64));
    a.post(&request(Operation::Write { remote: remote(0), imm: None }, 0, 64));
    exchange(&mut a, &mut b);
    assert_eq!(a.reap().len(), 2);
    share(&mut a);
    connect(&mut b, &qpc(RC, 1));
    a.post_shared(0, 64);
    b.post(&send(0, 8));
    exchange(&mut a, &mut b);
    assert_eq!((a.reap().len(), b.reap().len()), (1, 1));
    for side in [&mut a, &mut b] {
        connect(side, &qpc(UD, 2));
    }
    b.post_recv(0, 64);
    a.post(&datagram(vector()));
    exchange(&mut a, &mut b);
    assert_eq!((a.reap().len(), b.reap().len()), (1, 1));
    teardown(&mut a);
    replay(&mut a, probe::BRING_UP);
    assert_eq!((violations(&a), violations(&b)), (vec![], vec![]));
}

/// Releases all objects, including those of user programs, as happens when `ib_mthca` is unloaded (section 3.6).
fn teardown(user: &mut User) {
    user.ok(TO_RST, &[], QPN);
    user.ok(0x017, &[], CQN);
    user.ok(0x036, &[], SRQN);
    (0x20..0x24).for_each(|index| user.ok(0x100f, &[], index));
    for icm in [0x8_0000, 0xb_f000] {
        unmap(user, icm, 1);
    }
    user.ok(0x00a, &[], 1);
    replay(user, probe::TEAR_DOWN);
    for (buffer, len) in [(EQ_BUFFERS[1], 4 << 20), (EQ_BUFFERS[2], 8 << 10)] {
        user.poke(buffer, &vec![0x80; len]);
    }
}

#[test]
fn each_violation_is_reported_under_one_rule() {
    let reported = |(rule, software): &Case| {
        let (mut a, mut b) = pair();
        software(&mut a, &mut b);
        exchange(&mut a, &mut b);
        (rule.name, violations(&a))
    };
    let alone = |(rule, found): &(&'static str, Vec<(&'static str, u64)>)| matches!(&found[..], [(name, _)] if name == rule);
    let wrong: Vec<_> = CASES.iter().map(reported).filter(|found| !alone(found)).collect();
    assert!(wrong.is_empty(), "expected rules, each with the reported violations: {wrong:#?}");
}

#[test]
fn every_rule_has_a_test_case() {
    for rule in rules::ALL {
        assert!(CASES.iter().any(|(broken, _)| broken == rule), "{}", rule.name);
    }
}

#[test]
fn nothing_is_reported_outside_strict_mode() {
    for (rule, software) in CASES {
        let (mut a, mut b) = pair();
        a.hca.set_strict(false);
        software(&mut a, &mut b);
        exchange(&mut a, &mut b);
        assert_eq!(violations(&a), [], "{}", rule.name);
    }
}

#[test]
fn arm_sequence_stays_valid_until_event_is_read() {
    let (mut a, mut b) = pair();
    b.arm(2);
    b.post_recv(0, 64);
    a.post(&send(0, 8));
    exchange(&mut a, &mut b);
    b.reap();
    // The event is in the EQ, but software has not read it.
    b.arm_with(2, 1, 1);
    assert_eq!(violations(&b), []);
    b.receive_event(1);
    b.arm_with(2, 1, 1);
    assert_eq!(violations(&b), [("arm_sequence", 1)]);
    b.arm_with(2, 2, 1);
    b.arm_with(2, 3, 1);
    assert_eq!(violations(&b), [("arm_sequence", 2)]);
}

#[test]
fn rejected_command_is_not_reported() {
    let (mut a, _) = pair();
    // The command is rejected because the CQ is already valid.
    let context = with(super::user::cq_context(), 0x14, &[0, 0, 0, 9]);
    assert_eq!(a.with_inbox(0x016, &context, CQN), CmdStatus::BadResState.code());
    assert_eq!(violations(&a), []);
}

#[test]
fn report_contains_violation_and_object() {
    use card::telemetry::testing::Written;
    use card::telemetry::trace::TraceFormat;

    let (mut a, _) = pair();
    let written = Written::default();
    a.hca.set_trace(Some(written.trace(TraceFormat::Text)));
    let doorbell = a.post_without_doorbell(&send(0, 8));
    a.set_posted(0);
    a.ring_doorbell(&doorbell);
    a.arm_with(2, 3, 0);
    a.hca.flush();
    let text = written.text();
    let reports: Vec<_> = text.lines().filter(|line| line.contains(" violation ")).collect();
    assert_eq!(
        reports,
        [
            "1.500000 hca1 violation doorbell_record section=\"5.2, 5.4\" what=\"QP 0x10014: doorbell announces WQE count 0x1, doorbell record 1 has 0x0\"",
            "1.500000 hca1 violation arm_sequence section=\"5.3, 7.6\" what=\"CQ 0x10011 armed with sequence number 3, expected 1\"",
        ]
    );
}
