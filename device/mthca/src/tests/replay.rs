//! Records sessions and replays the recordings without a driver.

use card::frontend::testing::{pattern, wait};
use card::hca::Hca;
use card::record::testing::{flip_bit_of_write, steps_with_writes};
use card::replay::Outcome;
use card::replay::testing::{assert_same, recorded, replayed};
use card::telemetry::testing::Written;
use card::telemetry::trace::TraceFormat;
use protocol::hca::mthca::wqe::Operation;

use super::user::{RC, User, remote, request, send};
use super::*;

fn device(lid: u16) -> Hca<Mthca> {
    Hca::new(Mthca::new(setup(lid, Options::default())), Identity::from_lid(Lid::new(lid)), None)
}

/// Exchanges all kinds of messages over a link with loss, duplication and delay.
fn session(prepare: impl FnOnce(&mut User)) {
    let (mut a, mut b) = User::pair(RC);
    prepare(&mut a);
    for (side, seed) in [(&mut a, 1), (&mut b, 2)] {
        side.impair(&format!(
            r#"{{"direction": "tx", "action": "drop", "probability": 0.2, "seed": {seed}}}"#
        ));
        side.impair(&format!(
            r#"{{"direction": "rx", "action": {{"delay": {{"us": 5, "jitter_us": 100}}}}, "probability": 0.2, "seed": {seed}}}"#
        ));
        side.impair(r#"{"direction": "rx", "action": {"duplicate": {"after_us": 3}}, "probability": 0.2}"#);
    }
    for round in 0..20 {
        let message = pattern(2000, round);
        a.put(0x10, &message);
        b.put(0x2000, &message);
        b.post_recv(0x1000, 2000);
        a.post(&send(0x10, 2000));
        a.post(&request(Operation::Write { remote: remote(0x88), imm: None }, 0x10, 1500));
        a.post(&request(Operation::Read { remote: remote(0x2000) }, 0x1800, 2000));
        a.post(&request(Operation::FetchAdd { remote: remote(0x40), add: 7 }, 0, 8));
        wait(&mut a, &mut b);
        assert_eq!((a.reap().len(), b.reap().len()), (4, 1));
        assert_eq!((b.get(0x1000, 2000), a.get(0x1800, 2000)), (message.clone(), message));
    }
    assert!(a.hca.engine_stats().recovery.retransmitted_packets > 0, "the link loses packets");
}

#[test]
fn lossy_session_replays_bit_for_bit() {
    let records = recorded(|| session(|_| {}));
    for (lid, record) in (1..).zip(&records) {
        let counts = assert_same(&mut device(lid), record);
        assert!(counts.reads > 500 && counts.writes > 200 && counts.frames > 100, "{counts:?}");
    }
}

/// Tracing does not change the session, and a replay produces the same trace.
#[test]
fn replay_reproduces_session_trace() {
    let traced = Written::default();
    let to = traced.clone();
    let records = recorded(|| {
        session(move |user| drop(user.hca.set_trace(Some(to.trace(TraceFormat::Text)))));
    });
    let again = Written::default();
    let mut hca = device(1);
    hca.set_trace(Some(again.trace(TraceFormat::Text)));
    assert_same(&mut hca, &records[0]);
    hca.flush();
    // The recorded trace starts after bring-up. Compare only the end of the replay's trace.
    let (first, whole) = (traced.text(), again.text());
    assert!(first.lines().count() > 100);
    for (line, expected) in whole.lines().rev().zip(first.lines().rev()) {
        assert_eq!(line, expected);
    }
    assert_same(&mut device(1), &records[0]);
}

#[test]
fn replay_on_other_device_diverges() {
    let records = recorded(|| drop(with_port()));
    let report = replayed(&mut device(7), &records[0]);
    let Outcome::Differs(difference) = report.outcome else { panic!("{report}") };
    let whole = assert_same(&mut device(1), &records[0]).steps;
    assert!(difference.step <= whole, "{difference}");
    assert!(difference.recorded.starts_with("send a frame: "), "{difference}");
    assert_ne!(difference.recorded, difference.found);
}

#[test]
fn replay_reports_step_of_changed_bit() {
    let records = recorded(|| session(|_| {}));
    let record = &records[0];
    let steps = steps_with_writes(record);
    for nth in [0, 10, 100, steps.len() - 1] {
        let report = replayed(&mut device(1), &flip_bit_of_write(record, nth));
        let Outcome::Differs(difference) = report.outcome else { panic!("{report}") };
        assert_eq!(difference.step, steps[nth], "{difference}");
    }
}
