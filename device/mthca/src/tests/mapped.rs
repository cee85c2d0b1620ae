//! Doorbells in mapped UAR pages, where stores do not trap (sections 5.1 to 5.4).

use card::frontend::testing::{exchange, pattern, wait};
use card::hca::Hca;
use card::replay::testing::{assert_same, recorded};
use protocol::hca::mthca::doorbell::SendDoorbell;
use protocol::hca::mthca::wqe::Operation;
use protocol::ids::Qpn;

use super::user::{CQN, QPN, RC, User, qpc, remote, request, send};
use super::*;

/// Offset of the program's UAR page in BAR2. The program does not use the page at [`OTHER_UAR`].
const UAR: u64 = 2 << 12;
const OTHER_UAR: u64 = 3 << 12;
const SEND_WORD: u64 = UAR + 0x10;

/// Creates two programs with connected QPs in RTS. Their doorbell pages are mapped.
fn pair() -> (User, User) {
    let [mut a, mut b] = [1, 2].map(|lid| {
        let mut driver = powered_on_with(lid, Options::default());
        driver.map_doorbells();
        User::of(driver)
    });
    a.connect(&qpc(RC, 2));
    b.connect(&qpc(RC, 1));
    (a, b)
}

/// Returns the number of leading EQ entries that are events of the CQ.
fn events(user: &mut User) -> usize {
    (0..).take_while(|number| user.eqe(1, *number)[4..8] == CQN.to_be_bytes()).count()
}

#[test]
fn messages_complete_with_untrapped_doorbells() {
    let (mut a, mut b) = pair();
    for round in 0..30 {
        let message = pattern(1000, round);
        a.put(0x10, &message);
        b.post_recv(0x20, 1000);
        a.post(&send(0x10, 1000));
        a.post(&request(Operation::Write { remote: remote(0x800), imm: None }, 0x10, 1000));
        exchange(&mut a, &mut b);
        assert_eq!((a.reap().len(), b.reap().len()), (2, 1));
        assert_eq!([b.get(0x20, 1000), b.get(0x800, 1000)], [message.clone(), message]);
    }
}

/// The device may read another QP's later doorbell, half a doorbell from a 32-bit guest, or garbage.
#[test]
fn any_doorbell_word_starts_posted_requests() {
    let (mut a, mut b) = pair();
    for (round, word) in [
        SendDoorbell { count: 1, first: 9, fence: false, opcode: 0x0a, qpn: Qpn::new(0x77), size: 2 }.emit(),
        [1, 0, 0, 0x0a, 0, 0, 0, 0],
        [0, 0, 0, 0, 1, 0, 0x14, 2],
        [0, 0, 0, 0, 0, 0, 0, 1],
        [0xff; 8],
    ]
    .into_iter()
    .enumerate()
    {
        b.post_recv(0x20, 64);
        let _ = a.post_without_doorbell(&send(0x10, 64));
        exchange(&mut a, &mut b);
        assert_eq!(a.reap().len(), 0, "no doorbell has been stored");
        a.store(Bar::Bar2, SEND_WORD, &word);
        exchange(&mut a, &mut b);
        assert_eq!((a.reap().len(), b.reap().len()), (1, 1), "{round}");
    }
}

#[test]
fn one_doorbell_word_covers_all_posted_requests() {
    let (mut a, mut b) = pair();
    (0..5).for_each(|_| b.post_recv(0x20, 64));
    let first = a.post_without_doorbell(&send(0x10, 64));
    for _ in 0..4 {
        let _ = a.post_without_doorbell(&send(0x10, 64));
    }
    a.ring_doorbell(&first);
    exchange(&mut a, &mut b);
    assert_eq!((a.reap().len(), b.reap().len()), (5, 5));
    a.ring_doorbell(&first);
    exchange(&mut a, &mut b);
    assert_eq!((a.reap().len(), b.reap().len()), (0, 0));
}

#[test]
fn doorbell_word_in_wrong_uar_page_is_ignored() {
    let (mut a, mut b) = pair();
    b.post_recv(0x20, 64);
    let doorbell = a.post_without_doorbell(&send(0x10, 64));
    a.store(Bar::Bar2, OTHER_UAR + 0x10, &doorbell.emit());
    exchange(&mut a, &mut b);
    assert_eq!(a.reap().len(), 0);
    a.ring_doorbell(&doorbell);
    exchange(&mut a, &mut b);
    assert_eq!(a.reap().len(), 1);
}

/// Stores trap if the VMM has not mapped the pages or has unmapped them.
#[test]
fn trapped_doorbell_store_still_works() {
    let (mut a, mut b) = pair();
    b.post_recv(0x20, 64);
    let doorbell = a.post_without_doorbell(&send(0x10, 64));
    a.hca.region_write(Region::Bar(Bar::Bar2), SEND_WORD, &doorbell.emit());
    exchange(&mut a, &mut b);
    assert_eq!((a.reap().len(), b.reap().len()), (1, 1));
}

#[test]
fn doorbell_record_exceeding_queue_size_is_ignored() {
    let (mut a, mut b) = pair();
    b.post_recv(0x20, 64);
    a.set_posted(9);
    a.store(Bar::Bar2, SEND_WORD, &[1; 8]);
    exchange(&mut a, &mut b);
    assert_eq!((a.reap().len(), b.reap().len()), (0, 0));
    a.set_posted(0);
    let doorbell = a.post_without_doorbell(&send(0x10, 64));
    a.ring_doorbell(&doorbell);
    exchange(&mut a, &mut b);
    assert_eq!((a.reap().len(), b.reap().len()), (1, 1));
}

/// Software clears a QP's doorbell record after resetting the QP and before moving it to INIT again.
#[test]
fn stale_record_is_ignored_after_qp_reset() {
    let (mut a, mut b) = pair();
    for _ in 0..3 {
        b.post_recv(0x20, 64);
        a.post(&send(0x10, 64));
        exchange(&mut a, &mut b);
        assert_eq!((a.reap().len(), b.reap().len()), (1, 1));
    }
    for user in [&mut a, &mut b] {
        user.ok(0x021, &[], QPN);
        user.store(Bar::Bar2, SEND_WORD, &[1; 8]);
        user.settle();
        user.clear_records();
    }
    a.connect(&qpc(RC, 2));
    b.connect(&qpc(RC, 1));
    b.post_recv(0x20, 64);
    a.post(&send(0x10, 64));
    exchange(&mut a, &mut b);
    assert_eq!((a.reap().len(), b.reap().len()), (1, 1));
}

#[test]
fn cq_armed_by_record_raises_one_event() {
    let (mut a, mut b) = pair();
    (0..4).for_each(|_| b.post_recv(0x20, 64));
    b.arm(2);
    a.post(&send(0x10, 8));
    exchange(&mut a, &mut b);
    assert_eq!((events(&mut b), b.interrupts(0)), (1, 1));
    a.post(&send(0x10, 8));
    exchange(&mut a, &mut b);
    assert_eq!(events(&mut b), 1, "the CQ has not been rearmed");

    // Arm the CQ while it holds an unread entry.
    b.receive_event(1);
    b.arm(2);
    b.settle();
    assert_eq!(b.eqe(1, 1)[31], 0);
    b.receive_event(2);
    b.reap();
    b.arm(2);
    b.settle();
    assert_ne!(b.eqe(1, 2)[4..8], CQN.to_be_bytes());
    a.post(&send(0x10, 8));
    exchange(&mut a, &mut b);
    assert_eq!(b.eqe(1, 2)[4..8], CQN.to_be_bytes());
}

/// If software rearms the CQ before receiving the pending event, the device does not raise a second event.
#[test]
fn rearming_before_event_is_read_does_not_raise_second_event() {
    let (mut a, mut b) = pair();
    (0..2).for_each(|_| b.post_recv(0x20, 64));
    b.arm(2);
    a.post(&send(0x10, 8));
    exchange(&mut a, &mut b);
    b.arm(2);
    b.settle();
    assert_eq!(events(&mut b), 1);
    // Another CQ's doorbell overwrites this CQ's.
    b.receive_event(1);
    b.reap();
    b.arm(2);
    b.store(Bar::Bar2, UAR + 0x20, &[0x12, 0, 0, 0x77, 0, 0, 0, 0]);
    a.post(&send(0x10, 8));
    exchange(&mut a, &mut b);
    assert_eq!(b.eqe(1, 1)[4..8], CQN.to_be_bytes());
}

#[test]
fn overwritten_doorbells_are_not_violations() {
    let (mut a, mut b) = pair();
    for user in [&mut a, &mut b] {
        user.hca.set_strict(true);
        user.tag_records();
        user.poke(EQ_BUFFERS[1], &[0x80; 32 * 32]);
    }
    for round in 0..20_u32 {
        b.arm(2);
        b.settle();
        (0..3).for_each(|_| b.post_recv(0x20, 64));
        (0..3).for_each(|_| a.post(&send(0x10, 8)));
        exchange(&mut a, &mut b);
        assert_eq!((a.reap().len(), b.reap().len()), (3, 3));
        b.receive_event(round + 1);
    }
    for user in [&a, &b] {
        assert_eq!(user.hca.monitor().violations().collect::<Vec<_>>(), []);
    }
    a.untag();
    b.post_recv(0x20, 64);
    a.post(&send(0x10, 8));
    exchange(&mut a, &mut b);
    let found: Vec<_> = a.hca.monitor().violations().map(|(rule, _)| rule).collect();
    assert_eq!(found, ["record_tag"]);
}

#[test]
fn session_with_mapped_doorbells_can_be_replayed() {
    let records = recorded(|| {
        let (mut a, mut b) = pair();
        for side in [&mut a, &mut b] {
            side.impair(r#"{"direction": "tx", "action": "drop", "probability": 0.2, "seed": 7}"#);
        }
        for round in 0..20 {
            let message = pattern(2000, round);
            a.put(0x10, &message);
            b.post_recv(0x1000, 2000);
            b.arm(2);
            let _ = a.post_without_doorbell(&send(0x10, 2000));
            a.post(&request(Operation::FetchAdd { remote: remote(0x40), add: 7 }, 0x1800, 8));
            wait(&mut a, &mut b);
            assert_eq!((a.reap().len(), b.reap().len()), (2, 1));
            assert_eq!(b.get(0x1000, 2000), message);
        }
    });
    for (lid, record) in (1..).zip(&records) {
        let frontend = Mthca::new(setup(lid, Options::default()));
        let mut hca = Hca::new(frontend, Identity::from_lid(Lid::new(lid)), None);
        hca.map_doorbells();
        let counts = assert_same(&mut hca, record);
        assert!(counts.reads > 100 && counts.frames > 20, "{counts:?}");
    }
}
