//! Doorbells in mapped UAR pages, where stores do not trap (mlx5 interface, section 7.4).

use card::frontend::testing::{exchange, pattern, wait};
use card::hca::Hca;
use card::replay::testing::{assert_same, recorded};
use card::vfio::Bar;
use card::vfio::server::{Device as _, Region};
use protocol::hca::mlx5::PAGE;
use protocol::hca::mlx5::doorbell::ArmCq;
use protocol::hca::mlx5::qp::{CreateQp, QpContext, Service};
use protocol::hca::mlx5::resource::QpNumber;
use protocol::hca::mlx5::wqe::{AtomicSegment, Opcode, Operation, SendWqe};
use protocol::ids::Qpn;
use smallvec::smallvec;

use super::user::{BLOCKS, COMPLETION_EQ, QP_RECORD, User, request, syndromes};
use super::*;

/// Doorbell record and ring of a second CQ.
const OTHER_RECORD: Iova = Iova::new(RECORD.get() + 0xc0);
const OTHER_RING: u64 = 0x44_0000;

/// Creates two programs with mapped doorbells and connected QPs.
fn pair() -> (User, User) {
    let (mut a, mut b) = (User::mapped(1), User::mapped(2));
    a.connect(&a.context(Service::Rc), 2);
    b.connect(&b.context(Service::Rc), 1);
    (a, b)
}

fn store(user: &mut User, offset: u64, bytes: &[u8]) {
    let uar = user.uar;
    user.ring(uar, offset, bytes);
}

fn nop(user: &User) -> SendWqe<'static> {
    SendWqe { opcode: Opcode::Nop, operation: Operation::Nop, data: smallvec![], ..user.send(0, 0) }
}

fn ignored(user: &User) -> Vec<(&'static str, u64)> {
    user.hca.monitor().ignored_counts().collect()
}

fn violations(user: &User) -> Vec<(&'static str, u64)> {
    user.hca.monitor().violations().collect()
}

/// Creates a CQ with its own doorbell record.
fn create_other_cq(user: &mut User) -> Cqn {
    let context = CqContext { record: OTHER_RECORD, ..cq_context(user.uar, COMPLETION_EQ) };
    let list = pages(OTHER_RING, 1);
    let created =
        user.ok(&Command::CreateCq(CreateCq { context, ..CreateCq::default() }, Pages::parse(&list)));
    CqNumber::parse(&output(&created)).cqn
}

#[test]
fn messages_complete_with_untrapped_doorbells() {
    let (mut a, mut b) = pair();
    for round in 0..30 {
        let message = pattern(1000, round);
        a.put(0x10, &message);
        b.post_recv(0x20, 1000);
        a.post(&a.send(0x10, 1000));
        let write = Operation::Write(a.remote(0x800));
        a.post(&request(Opcode::Write, write, a.data(0x10, 1000)));
        exchange(&mut *a, &mut *b);
        assert_eq!((a.reap().len(), b.reap().len()), (2, 1));
        assert_eq!([b.get(0x20, 1000), b.get(0x800, 1000)], [message.clone(), message]);
    }
    assert_eq!((ignored(&a), ignored(&b)), (vec![], vec![]));
}

/// Any send register may contain the doorbell of a later WQE, half a doorbell from a 32-bit guest, or garbage.
#[test]
fn any_doorbell_word_starts_posted_requests() {
    let (mut a, mut b) = pair();
    let words =
        [[0, 0, 9, 0x0a, 0, 0, 0x77, 2], [1, 0, 0, 0x0a, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0x80, 2], [0xff; 8]];
    for (round, register) in (driver::SEND..PAGE as u64).step_by(0x100).enumerate() {
        b.post_recv(0x20, 64);
        let _ = a.post_without_doorbell(&a.send(0x10, 64));
        exchange(&mut *a, &mut *b);
        assert_eq!(a.reap().len(), 0, "no doorbell has been stored");
        store(&mut a, register, &words[round % words.len()]);
        exchange(&mut *a, &mut *b);
        assert_eq!((a.reap().len(), b.reap().len()), (1, 1), "{round}");
    }
}

/// Section 7.2: a program may copy the whole WQE to a BlueFlame register.
#[test]
fn blueflame_data_is_not_used() {
    let (mut a, mut b) = pair();
    let message = pattern(64, 1);
    a.put(0x10, &message);
    b.post_recv(0x20, 64);
    let doorbell = a.post_without_doorbell(&a.send(0x10, 64));
    store(&mut a, driver::SEND, &[&doorbell[..], &[0xee; 248]].concat());
    exchange(&mut *a, &mut *b);
    assert_eq!((a.reap().len(), b.reap().len(), b.get(0x20, 64)), (1, 1, message));
}

#[test]
fn one_doorbell_word_covers_all_requests() {
    let (mut a, mut b) = pair();
    (0..5).for_each(|_| b.post_recv(0x20, 64));
    let first = a.post_without_doorbell(&a.send(0x10, 64));
    for _ in 0..4 {
        let _ = a.post_without_doorbell(&a.send(0x10, 64));
    }
    a.ring_send(&first);
    exchange(&mut *a, &mut *b);
    assert_eq!((a.reap().len(), b.reap().len()), (5, 5));
    a.ring_send(&first);
    exchange(&mut *a, &mut *b);
    assert_eq!((a.reap().len(), b.reap().len()), (0, 0));
}

#[test]
fn doorbell_on_other_page_does_not_trigger_poll() {
    let (mut a, mut b) = pair();
    let other = a.alloc_uar();
    b.post_recv(0x20, 64);
    let doorbell = a.post_without_doorbell(&a.send(0x10, 64));
    a.ring(other, driver::SEND, &doorbell);
    exchange(&mut *a, &mut *b);
    assert_eq!(a.reap().len(), 0);
    a.ring_send(&doorbell);
    exchange(&mut *a, &mut *b);
    assert_eq!(a.reap().len(), 1);
}

/// Stores trap if the VMM has not mapped the pages.
#[test]
fn trapped_doorbell_store_still_works() {
    let (mut a, mut b) = pair();
    b.post_recv(0x20, 64);
    let doorbell = a.post_without_doorbell(&a.send(0x10, 64));
    let at = u64::from(a.uar.get()) * PAGE as u64 + driver::SEND;
    a.hca.region_write(Region::Bar(Bar::Bar0), at, &doorbell);
    exchange(&mut *a, &mut *b);
    assert_eq!((a.reap().len(), b.reap().len()), (1, 1));
}

/// Section 7.4: EQ doorbells must trap, so their page must not be mapped.
#[test]
fn mapped_page_cannot_hold_eq_doorbells() {
    let mut user = User::mapped(1);
    let uar = user.uar;
    let create = CreateEq { context: eq_context(uar, 0), events: [0; 4] };
    let list = pages(OTHER_RING, 4);
    assert_eq!(user.rejected(&Command::CreateEq(create, Pages::parse(&list))), Check::EqMappedUar);
    let mut trapped = User::new(1);
    let create = CreateEq { context: eq_context(trapped.uar, 0), ..create };
    trapped.ok(&Command::CreateEq(create, Pages::parse(&list)));
}

/// A hostile doorbell record has the same effect with mapped doorbells as with trapped ones.
#[test]
fn implausible_send_counter_is_reported_once() {
    let mut trapped = (User::new(1), User::new(2));
    trapped.0.connect(&trapped.0.context(Service::Rc), 2);
    trapped.1.connect(&trapped.1.context(Service::Rc), 1);
    for (mut a, mut b) in [trapped, pair()] {
        a.hca.set_strict(true);
        b.post_recv(0x20, 64);
        a.poke(QP_RECORD.get() + 6, &(BLOCKS + 1).to_be_bytes());
        a.ring_send(&[0, 0, 0, 0, 0, 0, 0x80, 1]);
        exchange(&mut *a, &mut *b);
        assert_eq!((ignored(&a), violations(&a)), (vec![("overflow", 1)], vec![("sq_overrun", 1)]));
        assert_eq!((a.reap().len(), b.reap().len()), (0, 0));
        a.poke(QP_RECORD.get() + 6, &[0, 0]);
        let doorbell = a.post_without_doorbell(&a.send(0x10, 64));
        a.ring_send(&doorbell);
        exchange(&mut *a, &mut *b);
        assert_eq!((a.reap().len(), b.reap().len()), (1, 1));
        assert_eq!(ignored(&a), [("overflow", 1)]);
    }
}

#[test]
fn send_counter_wraps_around() {
    let (mut a, _) = pair();
    let mut posted = 0_u32;
    while posted < 2 << 16 {
        let last = a.post_without_doorbell(&nop(&a));
        for _ in 1..31 {
            let mut quiet = nop(&a);
            quiet.control.completion = 0;
            let _ = a.post_without_doorbell(&quiet);
        }
        posted += 31;
        a.ring_send(&last);
        a.settle();
        assert_eq!(a.reap().len(), 1, "after {posted} blocks");
    }
    assert_eq!(ignored(&a), []);
}

/// Software clears a QP's doorbell record only after resetting the QP.
#[test]
fn stale_record_is_ignored_after_qp_reset() {
    let (mut a, mut b) = pair();
    for _ in 0..3 {
        b.post_recv(0x20, 64);
        a.post(&a.send(0x10, 64));
        exchange(&mut *a, &mut *b);
        assert_eq!((a.reap().len(), b.reap().len()), (1, 1));
    }
    for (user, peer) in [(&mut a, 2), (&mut b, 1)] {
        user.reset();
        store(user, driver::SEND, &[1; 8]);
        user.settle();
        let context = user.context(Service::Rc);
        user.start(&context, peer);
        user.settle();
    }
    assert_eq!((a.reap().len(), ignored(&a)), (0, vec![]));
    b.post_recv(0x20, 64);
    a.post(&a.send(0x10, 64));
    exchange(&mut *a, &mut *b);
    assert_eq!((a.reap().len(), b.reap().len()), (1, 1));
}

/// A doorbell for an unknown queue starts a round over all queues on the page. This page has more queues than the
/// device polls in one call.
#[test]
fn queues_destroyed_during_round_are_skipped() {
    let mut a = User::mapped(1);
    let context = |user: &User, number: u64| QpContext {
        record: Iova::new(QP_RECORD.get() + 0x1000 + 8 * number),
        ..user.context(Service::Rc)
    };
    let others: Vec<Qpn> = (0..40)
        .map(|number| {
            let create = CreateQp { context: context(&a, number), ..CreateQp::default() };
            let list = pages(0x45_0000, 1);
            let created = a.ok(&Command::CreateQp(create, Pages::parse(&list)));
            QpNumber::parse(&output(&created)).qpn
        })
        .collect();
    a.connect(&a.context(Service::Rc), 2);
    let _ = a.post_without_doorbell(&nop(&a));
    store(&mut a, driver::SEND, &[0xff; 8]);
    a.hca.poll_doorbells();
    assert_eq!(a.reap().len(), 0, "the round polls the QP last");
    for index in [5, 16, 20] {
        a.ok(&Command::DestroyQp(QpNumber { qpn: others[index] }));
    }
    a.settle();
    assert_eq!(a.reap().len(), 1);
    let qpn = a.qpn;
    let _ = a.post_without_doorbell(&nop(&a));
    store(&mut a, driver::SEND, &[0xff; 8]);
    a.hca.poll_doorbells();
    a.ok(&Command::DestroyQp(QpNumber { qpn }));
    a.settle();
    assert_eq!((a.reap().len(), ignored(&a)), (0, vec![]));
}

/// Software writes the arm record, then the doorbell. Another CQ's doorbell on the same page may overwrite that
/// doorbell. A completion can arrive, and the device can poll, before or after each of these steps.
#[test]
fn arm_request_survives_every_interleaving() {
    const STEPS: usize = 3;
    let (mut a, mut b) = pair();
    let other = create_other_cq(&mut b);
    let mut events = 0;
    for case in 0..(STEPS + 1) << (STEPS + 1) {
        // Each of the low bits of `polls` adds a poll before one step or at the end.
        let (arrival, polls) = (case >> (STEPS + 1), case);
        b.post_recv(0x20, 8);
        a.post(&a.send(0x10, 8));
        let frames = a.settle();
        let arm = b.next_arm();
        for step in 0..=STEPS {
            if polls >> step & 1 != 0 {
                b.hca.poll_doorbells();
            }
            if step == arrival {
                frames.iter().for_each(|frame| b.hca.handle_frame(frame));
            }
            match step {
                0 => b.record_arm(&arm),
                1 => b.ring_arm(&arm),
                2 => b.ring_arm(&ArmCq { cqn: other, ..arm }),
                _ => {}
            }
        }
        exchange(&mut *a, &mut *b);
        events += 1;
        assert_eq!(b.completion_events(), events, "arrival before step {arrival}, polls {polls:#010b}");
        b.receive_events();
        assert_eq!((a.reap().len(), b.reap().len()), (1, 1));
    }
    assert_eq!(ignored(&b), []);
}

#[test]
fn solicited_arm_request_ignores_other_completions() {
    let (mut a, mut b) = pair();
    (0..3).for_each(|_| b.post_recv(0x20, 64));
    b.arm(true);
    a.post(&a.send(0x10, 8));
    exchange(&mut *a, &mut *b);
    assert_eq!(b.completion_events(), 0);
    let mut solicited = a.send(0x10, 8);
    solicited.control.solicited = true;
    a.post(&solicited);
    exchange(&mut *a, &mut *b);
    a.post(&a.send(0x10, 8));
    exchange(&mut *a, &mut *b);
    assert_eq!(b.completion_events(), 1);
}

/// The first request to arm a CQ for all completions, solicited or not, writes an all-zero arm record, which looks like
/// cleared memory. To distinguish the two, the device marks the record of each new CQ. Another CQ's doorbell then does
/// not arm a CQ that was never armed.
#[test]
fn never_armed_cq_does_not_raise_event() {
    let (mut a, mut b) = pair();
    let other = create_other_cq(&mut b);
    (0..2).for_each(|_| b.post_recv(0x20, 64));
    let first = b.next_arm();
    b.ring_arm(&ArmCq { cqn: other, ..first });
    exchange(&mut *a, &mut *b);
    a.post(&a.send(0x10, 8));
    exchange(&mut *a, &mut *b);
    assert_eq!(b.completion_events(), 0);
    assert_eq!(first.emit()[..4], [0; 4]);
    b.record_arm(&first);
    b.ring_arm(&ArmCq { cqn: other, ..first });
    exchange(&mut *a, &mut *b);
    assert_eq!(b.completion_events(), 1, "the unread entry raises an event");
}

/// If software rearms the CQ before receiving the pending event, only that event is raised.
#[test]
fn rearming_before_event_is_read_raises_only_one_event() {
    let (mut a, mut b) = pair();
    (0..2).for_each(|_| b.post_recv(0x20, 64));
    b.arm(false);
    a.post(&a.send(0x10, 8));
    exchange(&mut *a, &mut *b);
    b.arm(false);
    b.settle();
    assert_eq!(b.completion_events(), 1);
    b.receive_events();
    b.arm(false);
    b.settle();
    assert_eq!(b.completion_events(), 2, "the unread entry raises an event");
}

#[test]
fn destroyed_cq_is_not_polled() {
    let mut b = User::mapped(2);
    let other = create_other_cq(&mut b);
    let arm = ArmCq { cqn: other, ..b.next_arm() };
    b.poke(OTHER_RECORD.get() + 4, &arm.emit()[..4]);
    b.ring_arm(&arm);
    b.ok(&Command::DestroyCq(CqNumber { cqn: other }));
    b.settle();
    assert_eq!((b.hca.monitor().doorbells().get("arm_cq"), ignored(&b)), (None, vec![]));
}

#[test]
fn overwritten_doorbells_are_not_violations() {
    let (mut a, mut b) = pair();
    for user in [&mut a, &mut b] {
        user.hca.set_strict(true);
    }
    for _ in 0..20 {
        b.arm(false);
        b.settle();
        (0..3).for_each(|_| b.post_recv(0x20, 64));
        (0..3).for_each(|_| a.post(&a.send(0x10, 8)));
        exchange(&mut *a, &mut *b);
        assert_eq!((syndromes(&a.reap()), b.reap().len()), (vec![0; 3], 3));
        b.receive_events();
    }
    assert_eq!((violations(&a), violations(&b)), (vec![], vec![]));
    // Sequence numbers 3 and 0 are valid, as the last event may still be unread.
    let wrong = ArmCq { sequence: 2, ..b.next_arm() };
    b.record_arm(&wrong);
    b.ring_arm(&wrong);
    b.settle();
    assert_eq!(violations(&b), [("arm_sequence", 1)]);
}

#[test]
fn mapped_session_replays_bit_for_bit() {
    let records = recorded(|| {
        let (mut a, mut b) = pair();
        for side in [&mut a, &mut b] {
            side.impair(r#"{"direction": "tx", "action": "drop", "probability": 0.05, "seed": 7}"#);
        }
        for round in 0..20 {
            let message = pattern(2000, round);
            a.put(0x10, &message);
            b.post_recv(0x1000, 2000);
            b.arm(false);
            let _ = a.post_without_doorbell(&a.send(0x10, 2000));
            let remote = a.remote(0x40);
            let add = Operation::Atomic(remote, AtomicSegment { swap_or_add: 7, compare: 0 });
            a.post(&request(Opcode::FetchAdd, add, a.data(0x1800, 8)));
            wait(&mut *a, &mut *b);
            assert_eq!((syndromes(&a.reap()), b.reap().len()), (vec![0; 2], 1));
            assert_eq!(b.get(0x1000, 2000), message);
        }
    });
    for (lid, record) in (1..).zip(&records) {
        let identity = Identity::from_lid(Lid::new(lid));
        let mut hca = Hca::new(Mlx5::new(setup(lid, infiniband())), identity, None);
        hca.map_doorbells();
        let counts = assert_same(&mut hca, record);
        assert!(counts.reads > 100 && counts.frames > 20, "{counts:?}");
    }
}
