//! Tests of ignored doorbells, stores, packets, frames and accesses. The trace, counters and QP snapshot must show the
//! reason.

use card::frontend::snapshot::QpRow;
use card::frontend::testing::{exchange, wait};
use card::telemetry::monitor::IgnoredRow;
use card::telemetry::testing::Written;
use card::telemetry::trace::TraceFormat;
use engine::{AccessError, Ended, EndedBy, Expecting, Status, WaitReason};
use protocol::hca::mthca::wqe::{DataSegment, WqeData};
use protocol::ids::{Lkey, Qpn};
use smallvec::smallvec;

use super::user::{CQN, QPN, RC, UC, User, qpc, send};
use super::*;

/// Returns the trace records of ignored and refused actions, without the time and the device name.
fn records(user: &mut User, run: impl FnOnce(&mut User)) -> Vec<String> {
    traced(user, &["ignored", "refused"], run)
}

/// Returns the trace records of the given kinds, without the time and the device name.
fn traced(user: &mut User, kinds: &[&str], run: impl FnOnce(&mut User)) -> Vec<String> {
    let written = Written::default();
    user.hca.set_trace(Some(written.trace(TraceFormat::Text)));
    run(user);
    user.hca.flush();
    user.hca.set_trace(None);
    let text = written.text();
    let of = |line: &str| line.split_once(" hca1 ").map(|(_, record)| record.to_owned());
    let is_selected = |record: &String| record.split(' ').next().is_some_and(|kind| kinds.contains(&kind));
    text.lines().filter_map(of).filter(is_selected).collect()
}

fn row(user: &User) -> Option<IgnoredRow> {
    user.hca.rows::<QpRow>(0).into_iter().find(|row| row.qpn == QPN).unwrap().ignored
}

fn ignored(count: u64, last: &str) -> Option<IgnoredRow> {
    Some(IgnoredRow { count, last: last.to_owned() })
}

fn counted(user: &User) -> Vec<(&'static str, u64)> {
    user.hca.monitor().ignored_counts().collect()
}

#[test]
fn ignored_doorbell_is_reported_with_qp_state() {
    let mut user = User::new(1);
    let doorbell = user.post_without_doorbell(&send(0, 8));
    let ring = |user: &mut User| user.ring_doorbell(&doorbell);
    assert_eq!(records(&mut user, ring), ["ignored UAR[2].send qpn=0x10014 reason=qp_reset"]);
    let explanation = user.hca.explain(Qpn::new(QPN));
    assert_eq!((explanation.situation, explanation.ignored), (None, ignored(1, "qp_reset")));
    for (op, reason) in [(0x019, "qp_init"), (0x01a, "qp_rtr")] {
        user.ok(op, &modify(protocol::hca::mthca::modify::QpAttributes::all(), &qpc(RC, 2)), QPN);
        assert_eq!(
            records(&mut user, ring),
            [format!("ignored UAR[2].send qpn=0x10014 reason={reason}")],
            "{op:#x}"
        );
    }
    assert_eq!(row(&user), ignored(3, "qp_rtr"));
    assert_eq!(counted(&user), [("qp_init", 1), ("qp_reset", 1), ("qp_rtr", 1)]);
    assert_eq!(user.hca.monitor().doorbells().get("send"), None);

    // Moving the QP to RESET clears its record of ignored doorbells.
    user.ok(0x3021, &[], QPN);
    assert_eq!(user.hca.explain(Qpn::new(QPN)).ignored, None);
}

#[test]
fn ignored_store_is_reported_with_reason() {
    let mut user = User::new(1);
    user.connect(&qpc(RC, 2));
    let doorbell = user.post_without_doorbell(&send(0, 8)).emit();
    let arm = |cqn: u32| [&[0x12], &cqn.to_be_bytes()[1..], &[0; 4]].concat();
    for (bar, offset, bytes, record) in [
        (Bar::Bar2, 0x3010, doorbell.to_vec(), "ignored UAR[3].send qpn=0x10014 reason=foreign_page"),
        (Bar::Bar2, 0x2020, arm(0x77), "ignored UAR[2].arm_cq cqn=0x77 reason=no_cq"),
        (Bar::Bar2, 0x3020, arm(CQN), "ignored UAR[3].arm_cq cqn=0x10011 reason=foreign_page"),
        (Bar::Bar2, 0x2010, vec![0; 2], "ignored bar2+0x2010 reason=width"),
        (Bar::Bar2, 0x2018, vec![0; 8], "ignored bar2+0x2018 reason=no_register"),
        (Bar::Bar0, HCR, vec![0; 2], "ignored bar0+0x80680 reason=width"),
    ] {
        assert_eq!(records(&mut user, |user| user.store(bar, offset, &bytes)), [record]);
    }
    // After a device reset, there are no objects until INIT_HCA.
    user.store(Bar::Bar0, RESET, &[0, 0, 0, 1]);
    let late = records(&mut user, |user| user.store(Bar::Bar2, 0x2010, &doorbell));
    assert_eq!(late, ["ignored UAR[2].send qpn=0x10014 reason=not_initialised"]);
}

#[test]
fn missing_receive_is_reported_on_both_sides() {
    let (mut a, mut b) = User::pair(RC);
    let lines = records(&mut b, |b| {
        a.post(&send(0, 8));
        exchange(&mut a, b);
    });
    assert_eq!(row(&b), ignored(1, "no_receive"));
    assert_eq!(lines.len(), 1);
    assert!(
        lines[0].starts_with("ignored packet qpn=0x10014 opcode=\"RC SEND Only\" psn=")
            && lines[0].ends_with(" reason=no_receive"),
        "{lines:?}"
    );
    let situation = |user: &User| user.hca.explain(Qpn::new(QPN)).situation.unwrap();
    let waits = situation(&a).send;
    assert!(matches!(waits, WaitReason::ReceiverNotReady { refusals: 1, .. }), "{waits:?}");
    let waits = situation(&b).receive;
    assert!(matches!(waits, Expecting::ReceiveRequest { refusals: 1, .. }), "{waits:?}");

    // On UC, only the receiver reports the missing receive.
    let (mut a, mut b) = User::pair(UC);
    a.post(&send(0, 8));
    exchange(&mut a, &mut b);
    assert_eq!(row(&b), ignored(1, "no_receive"));
}

/// In a retry record, `packets` is the number of unacknowledged packets and `count` the number of retries. Both are 1
/// here.
#[test]
fn sender_trace_shows_naks_and_retries() {
    let (mut a, mut b) = User::pair(RC);
    let lines = traced(&mut a, &["nak", "retry"], |a| {
        a.post(&send(0, 8));
        exchange(a, &mut b);
        b.post_recv(0, 8);
        wait(a, &mut b);
    });
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(
        lines[0].starts_with("nak rnr qpn=0x10014 psn=0x") && lines[0].contains(" wait_us="),
        "{lines:?}"
    );
    // This QP has no limit on RNR retries.
    assert!(
        lines[1].starts_with("retry rnr_nak qpn=0x10014 psn=0x") && lines[1].ends_with(" packets=1 count=1"),
        "{lines:?}"
    );

    b.impair(r#"{"direction": "tx", "action": "drop", "opcode": "RC Acknowledge", "nth": 1}"#);
    let lines = traced(&mut a, &["nak", "retry"], |a| {
        b.post_recv(0, 8);
        a.post(&send(0, 8));
        wait(a, &mut b);
    });
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(
        lines[0].starts_with("retry ack_timeout qpn=0x10014 psn=0x")
            && lines[0].contains(" packets=1 count=1 limit="),
        "{lines:?}"
    );
}

/// A peer that sends to a QP without receive requests must not flood the trace.
#[test]
fn flood_of_ignored_packets_is_summarised() {
    let (mut a, mut b) = User::pair(UC);
    let lines = records(&mut b, |b| {
        for _ in 0..40 {
            a.post(&send(0, 8));
            exchange(&mut a, b);
            a.reap();
        }
        wait(&mut a, b);
    });
    assert_eq!(lines.len(), 17, "{lines:?}");
    assert_eq!(
        lines[16],
        "ignored packet qpn=0x10014 opcode=\"UC SEND Only\" reason=no_receive suppressed=24"
    );
    assert_eq!(row(&b), ignored(40, "no_receive"));
}

#[test]
fn trace_shows_cause_of_denied_access() {
    let (mut a, mut b) = User::pair(RC);
    let mut wrong = send(0, 8);
    wrong.data =
        WqeData::Segments(smallvec![DataSegment { lkey: Lkey::new(0xabcd00), ..super::user::data(0, 8) }]);
    let lines = records(&mut a, |a| {
        a.post(&wrong);
        exchange(a, &mut b);
    });
    assert_eq!(lines, ["refused send qpn=0x10014 status=local_protection cause=key"]);
    assert_eq!(a.reap()[0][0x10], 0x04);
    assert_eq!(a.hca.monitor().refused().get("key"), Some(&1));
    let Ended { by, .. } = a.hca.explain(Qpn::new(QPN)).situation.unwrap().ended.unwrap();
    assert_eq!(by, EndedBy::Send(Status::LocalProtection(AccessError::Key)));
}

#[test]
fn dropped_frame_is_reported_with_reason() {
    let (mut a, mut b) = User::pair(RC);
    b.post_recv(0, 8);
    a.post(&send(0, 8));
    let mut frame = a.settle().remove(0);
    *frame.last_mut().unwrap() ^= 1;
    let lines = records(&mut b, |b| b.hca.handle_frame(&frame));
    assert_eq!(
        lines,
        [format!(
            "ignored frame len={} smac=02:00:00:00:00:01 dmac=02:00:00:00:00:02 reason=icrc",
            frame.len()
        )]
    );
}
