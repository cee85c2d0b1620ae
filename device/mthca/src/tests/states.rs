//! Tests of QP state transitions, their attributes, and their effect on requests (sections 6.5 and 7.5).

use card::frontend::testing::exchange;
use protocol::hca::mthca::modify::QpAttributes;
use protocol::hca::mthca::qpc::Qpc;
use protocol::hca::mthca::wqe::Operation;
use protocol::ids::Qkey;

use super::user::{CQN, QPN, RC, UD, User, cq_context, qpc, remote, request, send, syndromes};
use super::*;

const RST2INIT: u32 = 0x019;
const INIT2RTR: u32 = 0x01a;
const RTR2RTS: u32 = 0x01b;
const RTS2RTS: u32 = 0x01c;
const TO_ERR: u32 = 0x01e;
const RTS2SQD: u32 = 0x01f;
const SQD2RTS: u32 = 0x020;
const TO_RST: u32 = 0x021;

#[test]
fn query_qp_returns_configured_and_current_values() {
    let (mut a, mut b) = User::pair(RC);
    let set = qpc(RC, 2);
    let asked = a.query();
    assert_eq!(asked.state, 3);
    assert_eq!((asked.primary, asked.qkey, asked.min_rnr_timer), (set.primary, set.qkey, 1));
    assert_eq!((asked.requester.retry_count(), asked.requester_depth(), asked.responder_depth()), (7, 4, 4));
    assert_eq!((asked.next_send_psn, asked.recv_psn), (set.next_send_psn, set.recv_psn));
    b.post_recv(0, 64);
    a.post(&send(0, 8));
    exchange(&mut a, &mut b);
    assert_eq!(a.query().next_send_psn.get(), 0xff_ffff);
    assert_eq!((b.query().recv_psn.get(), b.query().rmsn), (0xff_ffff, 1));
}

#[test]
fn modify_qp_changes_only_attributes_in_mask() {
    let mut user = User::new(1);
    user.connect(&qpc(UD, 2));
    let only = Qpc { qkey: Qkey::new(0x77), ..Qpc::default() };
    user.ok(RTS2RTS, &modify(QpAttributes::QKEY, &only), QPN);
    let asked = user.query();
    assert_eq!((asked.qkey, asked.primary, asked.mtu), (Qkey::new(0x77), qpc(UD, 2).primary, 4));
}

#[test]
fn command_in_wrong_state_is_rejected() {
    let bad = CmdStatus::BadQpState.code();
    let mut user = User::new(1);
    let inbox = modify(QpAttributes::all(), &qpc(RC, 2));
    for op in [INIT2RTR, RTR2RTS, RTS2RTS, 0x01d, TO_ERR, RTS2SQD, SQD2RTS, 0x02d, 0x038] {
        assert_eq!(user.with_inbox(op, &inbox, QPN), bad, "{op:03x} on a QP in RESET");
    }
    user.ok(RST2INIT, &inbox, QPN);
    assert_eq!(user.with_inbox(RST2INIT, &inbox, QPN), bad);
    assert_eq!(user.with_inbox(RTR2RTS, &inbox, QPN), bad);
    // This QP number differs from the first one but has the same index.
    assert_eq!(user.with_inbox(RST2INIT, &inbox, QPN + 0x1_0000), CmdStatus::BadResState.code());
    user.ok(TO_RST, &[], QPN);
    user.ok(TO_RST, &[], QPN);
    user.ok(RST2INIT, &inbox, QPN + 0x1_0000);
    assert_eq!(user.query().emit(), Qpc::default().emit(), "the previous QP number is in RESET");
}

#[test]
fn error_state_flushes_old_and_new_requests() {
    let (mut a, mut b) = User::pair(RC);
    a.post_recv(0, 64);
    a.ok(TO_ERR, &[], QPN);
    exchange(&mut a, &mut b);
    assert_eq!(syndromes(&a.reap()), [0x05]);
    a.post(&send(0, 8));
    exchange(&mut a, &mut b);
    let sends = a.reap();
    assert_eq!((syndromes(&sends), sends[0][0x1c]), (vec![0x05], 0xff));
    // The device polls the doorbell record, as receives have no doorbell.
    a.post_recv(0, 64);
    let later = a.hca.next_deadline().expect("the device polls the doorbell record of a QP in ERR");
    a.advance(later);
    exchange(&mut a, &mut b);
    let receives = a.reap();
    assert_eq!((syndromes(&receives), receives[0][0x1c]), (vec![0x05], 0xfe));
}

/// Section 12, T41: the kernel frees a QP's memory as soon as TO_RST completes.
#[test]
fn qp_memory_is_not_accessed_after_reset() {
    let (mut a, mut b) = User::pair(RC);
    a.post_recv(0, 64);
    a.post(&send(0, 8));
    // The request has been sent, and the peer has not responded yet.
    a.settle();
    a.ok(TO_RST | 3 << 12, &[], QPN);
    exchange(&mut a, &mut b);
    assert!(a.reap().is_empty());
    assert_eq!(a.query().emit(), Qpc::default().emit());
    // For comparison, the request completes if the QP is not reset.
    let (mut a, mut b) = User::pair(RC);
    b.post_recv(0, 64);
    a.post(&send(0, 8));
    exchange(&mut a, &mut b);
    assert_eq!(a.reap().len(), 1);
}

#[test]
fn reset_returns_context_if_requested() {
    let (mut a, _) = User::pair(RC);
    a.poke(OUTBOX, &[0x5a; 8]);
    a.ok(TO_RST | 3 << 12, &[], QPN);
    assert_eq!(a.peek(OUTBOX, 8), [0x5a; 8]);
    a.connect(&qpc(RC, 2));
    a.ok(TO_RST | 2 << 12, &[], QPN);
    assert_eq!(a.peek(OUTBOX + 8, 1)[0] >> 4, 3);
}

#[test]
fn qp_drained_in_sqd_resumes_on_sqd2rts() {
    let (mut a, mut b) = User::pair(RC);
    (0..2).for_each(|_| b.post_recv(0, 64));
    a.post(&send(0, 8));
    a.settle();
    a.ok(RTS2SQD, &[], QPN | 1 << 31);
    assert_eq!(a.query().state, 7, "draining");
    assert!(a.events().is_empty());
    // The packet was lost and is retransmitted at the deadline.
    let deadline = a.hca.next_deadline().unwrap();
    a.advance(deadline);
    exchange(&mut a, &mut b);
    assert_eq!((a.query().state, a.events()), (5, vec![(0x03, QPN)]));
    a.post(&send(0, 8));
    exchange(&mut a, &mut b);
    assert_eq!(a.reap().len(), 1, "a request posted in SQD waits");
    a.ok(SQD2RTS, &modify(QpAttributes::empty(), &Qpc::default()), QPN);
    exchange(&mut a, &mut b);
    assert_eq!(a.reap().len(), 1);
}

#[test]
fn completions_for_missing_cq_are_lost() {
    let (mut a, mut b) = User::pair(RC);
    b.post_recv(0, 64);
    a.ok(0x017, &[], CQN);
    assert_eq!(a.with_inbox(0x017, &[], CQN), CmdStatus::BadResState.code());
    a.post(&send(0, 8));
    exchange(&mut a, &mut b);
    assert!(a.unread().is_empty());
    assert_eq!((a.query().state, b.reap().len()), (3, 1));
    a.ok(0x016, &cq_context(), CQN);
    assert_eq!(a.with_inbox(0x016, &cq_context(), CQN), CmdStatus::BadResState.code());
}

/// The READ depth is 0 if the requester enables neither READs nor atomics. Any READ or atomic posted then fails.
#[test]
fn read_depth_zero_forbids_reads_and_atomics() {
    for (operation, refused) in [
        (Operation::Read { remote: remote(0) }, true),
        (Operation::FetchAdd { remote: remote(0), add: 1 }, true),
        (Operation::Write { remote: remote(0), imm: None }, false),
    ] {
        let (mut a, mut b) = (User::new(1), User::new(2));
        let mut context = qpc(RC, 2);
        context.requester = context.requester.with_reads(false).with_atomics(false);
        a.connect(&context);
        b.connect(&qpc(RC, 1));
        a.post(&request(operation, 0, 8));
        exchange(&mut a, &mut b);
        assert_eq!(syndromes(&a.reap()), [if refused { 0x02 } else { 0 }]);
    }
}

/// Remote access requires permission from both the QP and the key.
#[test]
fn disabled_remote_operation_fails_as_invalid_request() {
    let (mut a, mut b) = (User::new(1), User::new(2));
    a.connect(&qpc(RC, 2));
    let mut context = qpc(RC, 1);
    context.responder.set_writes(false);
    b.connect(&context);
    a.post(&request(Operation::Write { remote: remote(0), imm: None }, 0, 8));
    exchange(&mut a, &mut b);
    assert_eq!((syndromes(&a.reap()), b.events()), (vec![0x12], vec![(0x10, QPN)]));
}
