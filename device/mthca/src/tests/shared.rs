//! Shared receive queues (sections 3.5, 6.6, 7.4 and 7.5).

use card::frontend::testing::{exchange, pattern};

use super::user::{QPN, RC, SRQN, User, qpc, send, syndromes};
use super::*;

/// Creates two devices with connected QPs. The second device's QP receives from an SRQ.
fn pair() -> (User, User) {
    let (mut a, mut b) = (User::new(1), User::new(2));
    a.connect(&qpc(RC, 2));
    let mut shared = qpc(RC, 1);
    shared.responder.set_srq(true);
    b.connect(&shared);
    (a, b)
}

fn limit(user: &mut User) -> Vec<u8> {
    user.ok(0x037, &[], SRQN);
    user.peek(OUTBOX + 0x1c, 2)
}

#[test]
fn requests_are_fetched_in_chain_order() {
    let (mut a, mut b) = pair();
    for n in 0..3 {
        b.post_shared(0x100 * n, 64);
        a.put(0x40 * n, &pattern(64, u8::try_from(n).unwrap()));
        a.post(&send(0x40 * n, 64));
    }
    exchange(&mut a, &mut b);
    let entries = b.reap();
    let offsets: Vec<_> = entries.iter().map(|entry| entry[0x18..0x1c].to_vec()).collect();
    assert_eq!(offsets, [[0, 0, 0, 0], [0, 0, 0x01, 0xc0], [0, 0, 0x01, 0x80]]);
    for n in 0..3 {
        assert_eq!(b.get(0x100 * n, 64), pattern(64, u8::try_from(n).unwrap()));
    }
}

#[test]
fn srq_limit_event_is_raised_once() {
    let (mut a, mut b) = pair();
    (0..4).for_each(|_| b.post_shared(0, 64));
    let arm = |user: &mut User, limit| assert_eq!(user.command(0x040, limit, SRQN).0, 0);
    arm(&mut b, 3);
    assert_eq!(limit(&mut b), [0, 3]);
    let low = (0x14, SRQN);
    let count = |b: &mut User| b.events().iter().filter(|event| **event == low).count();
    a.post(&send(0, 8));
    exchange(&mut a, &mut b);
    assert_eq!(count(&mut b), 0, "three requests are pending");
    a.post(&send(0, 8));
    exchange(&mut a, &mut b);
    assert_eq!((count(&mut b), limit(&mut b)), (1, vec![0, 0]));
    a.post(&send(0, 8));
    exchange(&mut a, &mut b);
    assert_eq!(count(&mut b), 1, "the event is raised only once");
    arm(&mut b, 5);
    assert_eq!(count(&mut b), 2, "one pending request is below the limit");
    assert_eq!(b.command(0x040, 1 << 16, SRQN).0, CmdStatus::BadParam.code());
    assert_eq!(b.command(0x040, 1, SRQN + 1).0, CmdStatus::BadResState.code());
}

#[test]
fn err_transition_raises_last_wqe_reached() {
    let (mut a, mut b) = pair();
    (0..2).for_each(|_| b.post_shared(0, 64));
    b.ok(0x01e, &[], QPN);
    exchange(&mut a, &mut b);
    assert!(b.reap().is_empty());
    assert_eq!(b.events(), [(0x13, QPN)]);
    // Another QP consumes the remaining requests in the SRQ.
    b.ok(0x021, &[], QPN);
    let mut shared = qpc(RC, 1);
    shared.responder.set_srq(true);
    b.connect(&shared);
    a.post(&send(0, 8));
    exchange(&mut a, &mut b);
    assert_eq!(syndromes(&b.reap()), [0]);
}

#[test]
fn unreadable_srq_raises_one_catastrophic_event() {
    let (mut a, mut b) = pair();
    b.post_shared(0, 64);
    b.ok(0x00f, &[], 0x23);
    a.post(&send(0, 8));
    exchange(&mut a, &mut b);
    let events = b.events();
    assert_eq!(events.iter().filter(|event| **event == (0x12, SRQN)).count(), 1, "{events:02x?}");
    assert_eq!(b.query().state, 6);
    assert_eq!(syndromes(&a.reap()), [0x14]);
}

#[test]
fn rejects_duplicate_and_unknown_srq_numbers() {
    let mut user = User::new(1);
    let context = [3 << 24 | SRQN, 0x2300, 32765, 2 << 29 | 2, 0, 0, 1, 0, 0, 0, 0, 0].map(u32::to_be_bytes);
    assert_eq!(user.with_inbox(0x035, &context.concat(), SRQN), CmdStatus::BadResState.code());
    user.ok(0x036, &[], SRQN);
    assert_eq!(user.command(0x037, 0, SRQN).0, CmdStatus::BadResState.code());
    user.ok(0x035, &context.concat(), SRQN);
    // SRQ numbers have no generation bits (section 6.6). Numbers of 2^12 and above are outside the table.
    for op in [0x036, 0x037, 0x040] {
        assert_eq!(user.command(op, 0, 1 << 12 | SRQN).0, CmdStatus::BadIndex.code(), "{op:03x}");
    }
    assert_eq!(user.with_inbox(0x035, &context.concat(), 1 << 12), CmdStatus::BadIndex.code());
    user.ok(0x037, &[], SRQN);
}
