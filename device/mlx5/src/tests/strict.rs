//! Strict mode: each violation produces exactly one report, and correct software produces none.

use card::frontend::testing::exchange;
use card::telemetry::monitor::Rule;
use card::vfio::Bar;
use protocol::hca::mlx5::cqe::INITIAL_OWNER_BYTE;
use protocol::hca::mlx5::device::{Teardown, TeardownProfile};
use protocol::hca::mlx5::doorbell::{ArmCq, EqDoorbell};
use protocol::hca::mlx5::mkey::{AccessMode, MkeyContext};
use protocol::hca::mlx5::pages::{ManagePages, PageOperation};
use protocol::hca::mlx5::qp::{QpContext, Service};
use protocol::hca::mlx5::resource::{MkeyNumber, QpNumber};
use protocol::hca::mlx5::srq::WorkQueueKind;
use protocol::hca::mlx5::strided::{REPEAT_KEY, RepeatBlock, StridedEntry};
use protocol::hca::mlx5::umr::{MkeyMask, UmrControl};
use protocol::hca::mlx5::wqe::{DataItem, Opcode, Operation, SendWqe, Translation};
use protocol::ids::{Lkey, MkeyIndex, Va};
use smallvec::smallvec;

use super::umr::{execute, free_key, mtts, registered, registration, umr};
use super::user::{BLOCKS, COMPLETION_EQ, DATA_VA, QP_RECORD, RECEIVES, SRQ, User};
use super::*;
use crate::strict::rules::{self, *};

/// Address of unused memory, for example for the ring of a new queue.
const RING: u64 = 0x60_0000;
/// Doorbell records that no queue uses yet.
const UNUSED_RECORD: Iova = Iova::new(RECORD.get() + 0x100);

/// Creates a [`User`] without a QP, on an HCA in strict mode.
fn program(lid: u16) -> User {
    let mut user = User::new(lid);
    user.hca.set_strict(true);
    user
}

fn pair() -> (User, User) {
    let (mut a, mut b) = (program(1), program(2));
    a.connect(&a.context(Service::Rc), 2);
    b.connect(&b.context(Service::Rc), 1);
    (a, b)
}

/// Creates a pair whose first program receives from an SRQ.
fn sharing_pair() -> (User, User) {
    let (mut a, mut b) = (program(1), program(2));
    let srqn = a.create_rmp(WorkQueueKind::Linked);
    a.connect(&QpContext { receive_kind: 1, srqn, ..a.context(Service::Rc) }, 2);
    b.connect(&b.context(Service::Rc), 1);
    (a, b)
}

fn violations(user: &User) -> Vec<(&'static str, u64)> {
    user.hca.monitor().violations().collect()
}

fn nop(user: &User) -> SendWqe<'static> {
    SendWqe { opcode: Opcode::Nop, operation: Operation::Nop, data: smallvec![], ..user.send(0, 0) }
}

/// Returns the bytes of a SEND WQE after applying `change` to them. The WQE is not posted.
fn altered(user: &User, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut wqe = user.send(0, 8);
    wqe.control.qpn = user.qpn;
    let mut bytes = wqe.emit();
    change(&mut bytes);
    bytes
}

fn ring(user: &mut User, offset: u64, bytes: &[u8]) {
    let uar = user.uar;
    user.ring(uar, offset, bytes);
}

fn update_eq(user: &mut User, eqn: Eqn, consumer: u32) {
    ring(user, driver::UPDATE_EQ, &EqDoorbell { eqn, consumer }.emit());
}

fn post(user: &mut User, bytes: &[u8]) {
    let doorbell = user.post_bytes(bytes);
    user.ring_send(&doorbell);
}

/// Writes an arm request, modified by `change`, to the CQ's doorbell record, and then rings the arm doorbell.
fn arm(user: &mut User, change: impl FnOnce(&mut ArmCq)) {
    let mut arm = user.next_arm();
    change(&mut arm);
    user.record_arm(&arm);
    user.ring_arm(&arm);
}

/// Creates a 64-entry CQ whose entries have the owner byte `owner`.
fn create_cq(user: &mut User, record: Iova, owner: u8) {
    for entry in 0..64 {
        user.poke(RING + entry * 64 + 63, &[owner]);
    }
    let list = pages(RING, 1);
    let context = CqContext { record, ..cq_context(user.uar, COMPLETION_EQ) };
    user.ok(&Command::CreateCq(CreateCq { context, ..CreateCq::default() }, Pages::parse(&list)));
}

fn give_pages(user: &mut User, list: &[u64]) {
    let count = u32::try_from(list.len()).unwrap();
    let list: Vec<u8> = list.iter().flat_map(|page| page.to_be_bytes()).collect();
    let give = ManagePages { operation: PageOperation::Give.code(), function: 0, count };
    user.ok(&Command::ManagePages(give, Pages::parse(&list)));
}

/// Registers the free key `key`, replacing its low byte with `low`. Returns the new key.
fn register(a: &mut User, b: &mut User, key: u32, context: MkeyContext, low: u8) -> u32 {
    let list = mtts();
    let control =
        UmrControl { inline: true, check_free: true, units: 4, mask: registration(), ..Default::default() };
    let mkey = MkeyContext { key: low, ..registered(context) };
    let key = MkeyIndex::of(key).key(low);
    assert_eq!(execute(a, b, &umr(key, control, mkey, Translation::Inline(&list))), 0);
    key
}

fn invalidate(a: &mut User, b: &mut User, key: u32) {
    let control = UmrControl { inline: true, mask: MkeyMask::FREE, ..UmrControl::default() };
    let free = MkeyContext { free: true, ..MkeyContext::default() };
    assert_eq!(execute(a, b, &umr(key, control, free, Translation::None)), 0);
}

/// A rule and a function that violates it. The function's arguments are a program and that program's peer.
type Case = (&'static Rule, fn(&mut User, &mut User));

/// Test cases, at least one for each rule.
const CASES: &[Case] = &[
    (&NARROW_WRITE, |a, _| a.store(Bar::Bar0, 0x18, &[0; 2])),
    (&NARROW_WRITE, |a, _| ring(a, driver::ARM_EQ, &[0; 8])),
    (&NO_REGISTER, |a, _| a.write(0x240, 0)),
    (&NO_REGISTER, |a, _| a.write(driver::HEALTH, 0)),
    (&NO_REGISTER, |a, _| ring(a, 0x28, &[0; 8])),
    (&TOKEN_REUSED, |a, _| {
        a.interface.token = a.interface.token.wrapping_sub(1);
        a.ok(&Command::Nop(BARE));
    }),
    (&PAGE_GIVEN_TWICE, |a, _| give_pages(a, &[RING, RING + 0x1000, RING])),
    (&PAGE_GIVEN_TWICE, |a, _| {
        give_pages(a, &[RING]);
        give_pages(a, &[RING]);
    }),
    (&TEARDOWN_IN_USE, |a, _| {
        a.ok(&Command::TeardownHca(Teardown { profile: TeardownProfile::Graceful.code() }));
    }),
    (&TEARDOWN_IN_USE, |a, _| {
        a.ok(&Command::DisableHca(Function { function: 0 }));
    }),
    (&ENTRY_OWNER, |a, _| {
        let uar = a.uar;
        a.create_eq(uar, 2, EventMask::empty(), RING);
    }),
    (&ENTRY_OWNER, |a, _| create_cq(a, UNUSED_RECORD, 0)),
    (&RECORD_SHARED, |a, _| create_cq(a, QP_RECORD, INITIAL_OWNER_BYTE)),
    (&RECORD_SHARED, |a, _| a.connect(&QpContext { record: RECORD, ..a.context(Service::Rc) }, 2)),
    (&DOORBELL_NOTHING, |a, _| a.ring_send(&[0, 0, 0, 0x0a, 0, 0x77, 0, 2])),
    (&DOORBELL_NOTHING, |a, _| {
        let (other, doorbell) = (a.alloc_uar(), a.post_without_doorbell(&a.send(0, 8)));
        a.ring(other, driver::SEND, &doorbell);
    }),
    (&DOORBELL_NOTHING, |a, _| a.ring(UarIndex::new(0x77), driver::SEND, &[0; 8])),
    (&DOORBELL_NOTHING, |a, _| a.ring_arm(&ArmCq { cqn: Cqn::new(0x77), ..a.next_arm() })),
    (&DOORBELL_NOTHING, |a, _| update_eq(a, Eqn::new(9), 0)),
    (&DOORBELL_STATE, |a, _| {
        a.reset();
        a.post(&a.send(0, 8));
    }),
    (&DOORBELL_RECORD, |a, _| {
        let doorbell = a.post_without_doorbell(&a.send(0, 8));
        a.poke(QP_RECORD.get() + 6, &[0, 0]);
        a.ring_send(&doorbell);
    }),
    (&DOORBELL_WQE, |a, _| {
        let mut doorbell = a.post_without_doorbell(&a.send(0, 8));
        doorbell[3] ^= 1;
        a.ring_send(&doorbell);
    }),
    (&BLUE_FLAME, |a, _| ring(a, driver::SEND + 0x108, &[0; 8])),
    (&SQ_OVERRUN, |a, _| {
        let doorbell = a.post_without_doorbell(&a.send(0, 8));
        a.poke(QP_RECORD.get() + 6, &(BLOCKS + 1).to_be_bytes());
        a.ring_send(&doorbell);
    }),
    (&RQ_OVERRUN, |a, b| {
        (0..=RECEIVES).for_each(|_| a.post_recv(0, 64));
        b.post(&b.send(0, 8));
    }),
    (&RQ_OVERRUN, |a, b| {
        (*a, *b) = sharing_pair();
        (0..9).for_each(|_| a.post_shared(0, 64));
        b.post(&b.send(0, 8));
    }),
    (&EQ_CONSUMER, |a, _| update_eq(a, COMPLETION_EQ, 1)),
    (&EQ_CONSUMER, |a, b| {
        a.arm(false);
        a.post(&nop(a));
        exchange(&mut **a, &mut **b);
        a.receive_events();
        update_eq(a, COMPLETION_EQ, 0);
    }),
    (&CQ_CONSUMER, |a, _| arm(a, |arm| arm.consumer = 5)),
    (&CQ_CONSUMER, |a, _| {
        a.poke(RECORD.get(), &9_u32.to_be_bytes());
        a.post(&nop(a));
    }),
    (&CQ_OVERRUN, |a, b| {
        for _ in 0..65 {
            a.post(&nop(a));
            exchange(&mut **a, &mut **b);
        }
    }),
    (&ARM_RECORD, |a, b| {
        a.post(&nop(a));
        exchange(&mut **a, &mut **b);
        a.reap();
        a.ring_arm(&a.next_arm());
    }),
    (&ARM_SEQUENCE, |a, _| arm(a, |arm| arm.sequence = 1)),
    (&WQE_INDEX, |a, _| {
        let bytes = altered(a, |wqe| wqe[1..3].fill(0xff));
        post(a, &bytes);
    }),
    (&WQE_MALFORMED, |a, _| {
        let bytes = altered(a, |wqe| wqe[3] = 0x2c);
        post(a, &bytes);
    }),
    (&WQE_MALFORMED, |a, _| {
        let bytes = altered(a, |wqe| wqe[7] = 0);
        post(a, &bytes);
    }),
    (&WQE_KEY, |a, _| {
        let mut data = a.data(0, 8);
        data.lkey = Lkey::new(0x7700);
        a.post(&SendWqe { data: smallvec![DataItem::Pointer(data)], ..a.send(0, 8) });
    }),
    (&WQE_KEY, |a, b| {
        a.key += 1;
        a.post_recv(0, 8);
        b.post(&b.send(0, 8));
    }),
    (&WQE_KEY, |a, b| {
        (*a, *b) = sharing_pair();
        a.key += 1;
        a.post_shared(0, 8);
        b.post(&b.send(0, 8));
    }),
    (&SRQ_LINK, |a, b| {
        (*a, *b) = sharing_pair();
        a.post_shared(0, 64);
        a.poke(SRQ + 2, &[0, 9]);
        b.post(&b.send(0, 8));
    }),
    (&UMR_CONTROL, |a, b| {
        let (key, _) = free_key(a, AccessMode::Pages);
        let control = UmrControl {
            inline: true,
            check_free: true,
            check_used: true,
            mask: MkeyMask::FREE,
            ..UmrControl::default()
        };
        execute(a, b, &umr(key, control, MkeyContext::default(), Translation::None));
    }),
    (&UMR_CONTROL, |a, b| {
        let (key, _) = free_key(a, AccessMode::Pages);
        let mask = MkeyMask::FREE | MkeyMask::from_bits_retain(1 << 12);
        let free = MkeyContext { free: true, ..MkeyContext::default() };
        let control = UmrControl { inline: true, mask, ..UmrControl::default() };
        execute(a, b, &umr(key, control, free, Translation::None));
    }),
    (&UMR_CONTROL, |a, b| {
        let (key, context) = free_key(a, AccessMode::Pages);
        let key = register(a, b, key, context, 9);
        invalidate(a, b, key ^ 1);
    }),
    (&UMR_STRIDED, |a, b| strided(a, b, RepeatBlock { entries: 2, ..SOUND_HEADER })),
    (&UMR_STRIDED, |a, b| strided(a, b, RepeatBlock { byte_count: 9, ..SOUND_HEADER })),
    (&UMR_STRIDED, |a, b| strided(a, b, RepeatBlock { repetitions: 2, ..SOUND_HEADER })),
    (&KEY_REUSED, |a, b| {
        let (key, context) = free_key(a, AccessMode::Pages);
        let key = register(a, b, key, context, 9);
        invalidate(a, b, key);
        register(a, b, key, context, 9);
    }),
];

/// Header of a valid strided list. Its only entry is 8 bytes long and is repeated three times, which covers the 24-byte
/// region that the list describes.
const SOUND_HEADER: RepeatBlock = RepeatBlock { byte_count: 8, key: REPEAT_KEY, repetitions: 3, entries: 1 };

/// Registers a strided layout with the given header.
fn strided(a: &mut User, b: &mut User, header: RepeatBlock) {
    let (key, context) = free_key(a, AccessMode::Ranges);
    a.ok(&Command::DestroyMkey(MkeyNumber { index: MkeyIndex::of(key) }));
    let key = a.create_mkey(MkeyContext { translation_units: 2, ..context }, &[]);
    let entry = StridedEntry { stride: 10, byte_count: 8, key: a.key, va: Va::new(DATA_VA) };
    let mut list = [header.emit(), entry.emit()].concat();
    list.resize(64, 0);
    let control = UmrControl {
        inline: true,
        check_free: true,
        units: 4,
        mask: MkeyMask::FREE | MkeyMask::LENGTH,
        ..UmrControl::default()
    };
    let mkey = MkeyContext { free: false, length: 24, ..context };
    assert_eq!(execute(a, b, &umr(key, control, mkey, Translation::Inline(&list))), 0);
}

#[test]
fn correct_software_is_not_reported() {
    let (mut a, mut b) = pair();
    for _ in 0..40 {
        b.post_recv(0x100, 64);
        b.arm(false);
        a.post(&a.send(0, 64));
        exchange(&mut *a, &mut *b);
        assert_eq!((a.reap().len(), b.reap().len()), (1, 1));
        b.receive_events();
    }
    // The record may run ahead of the doorbells. Here, software posts three requests before it rings any doorbell.
    (0..3).for_each(|_| b.post_recv(0, 64));
    let doorbells: Vec<_> = (0..3).map(|_| a.post_without_doorbell(&a.send(0, 8))).collect();
    doorbells.iter().for_each(|doorbell| a.ring_send(doorbell));
    exchange(&mut *a, &mut *b);
    assert_eq!((a.reap().len(), b.reap().len()), (3, 3));
    let (key, context) = free_key(&mut b, AccessMode::Pages);
    for low in [9, 10] {
        let key = register(&mut b, &mut a, key, context, low);
        invalidate(&mut b, &mut a, key);
    }
    strided(&mut b, &mut a, SOUND_HEADER);
    create_cq(&mut b, UNUSED_RECORD, INITIAL_OWNER_BYTE);
    give_pages(&mut b, &[RING, RING + 0x1000]);
    release(&mut a);
    let (mut c, mut d) = sharing_pair();
    for _ in 0..20 {
        c.post_shared(0, 64);
        d.post(&d.send(0, 8));
        exchange(&mut *c, &mut *d);
        assert_eq!((c.reap().len(), d.reap().len()), (1, 1));
    }
    for user in [&a, &b, &c, &d] {
        assert_eq!(violations(user), []);
    }
}

/// Destroys all objects and stops the device, as the driver does when it is unloaded.
fn release(user: &mut User) {
    user.reset();
    let (qpn, cqn, pd, uar) = (user.qpn, user.cqn, user.pd, user.uar);
    user.ok(&Command::DestroyQp(QpNumber { qpn }));
    user.ok(&Command::DestroyCq(CqNumber { cqn }));
    let index = MkeyIndex::of(user.key);
    user.ok(&Command::DestroyMkey(MkeyNumber { index }));
    user.ok(&Command::DeallocPd(PdNumber { pd }));
    for eqn in [COMPLETION_EQ, Eqn::new(1)] {
        user.ok(&Command::DestroyEq(EqNumber { eqn }));
    }
    user.ok(&Command::DeallocUar(UarNumber { uar }));
    user.ok(&Command::TeardownHca(Teardown { profile: TeardownProfile::Graceful.code() }));
    user.ok(&Command::DisableHca(Function { function: 0 }));
}

#[test]
fn each_violation_is_reported_under_one_rule() {
    let reported = |(rule, software): &Case| {
        let (mut a, mut b) = pair();
        software(&mut a, &mut b);
        exchange(&mut *a, &mut *b);
        (rule.name, violations(&a))
    };
    let alone = |(rule, found): &(&'static str, Vec<(&'static str, u64)>)| matches!(&found[..], [(name, _)] if name == rule);
    let wrong: Vec<_> = CASES.iter().map(reported).filter(|found| !alone(found)).collect();
    assert!(wrong.is_empty(), "expected rules, each with the reported violations: {wrong:#?}");
}

#[test]
fn every_rule_has_a_test_case() {
    for rule in rules::ALL {
        let is_tested = CASES.iter().any(|(broken, _)| broken == rule) || netdev::strict::has_case(rule);
        assert!(is_tested, "{}", rule.name);
    }
}

#[test]
fn violations_are_reported_only_in_strict_mode() {
    let (mut a, mut b) = pair();
    a.hca.set_strict(false);
    for (_, software) in CASES.iter().take(6) {
        software(&mut a, &mut b);
    }
    assert_eq!(violations(&a), []);
}

#[test]
fn arm_sequence_stays_valid_until_event_is_read() {
    let (mut a, mut b) = pair();
    b.arm(false);
    b.post_recv(0, 64);
    a.post(&a.send(0, 8));
    exchange(&mut *a, &mut *b);
    b.reap();
    // The event is in the EQ, but software has not read it.
    arm(&mut b, |arm| arm.sequence = 0);
    assert_eq!(violations(&b), []);
    b.receive_events();
    arm(&mut b, |arm| arm.sequence = 0);
    assert_eq!(violations(&b), [("arm_sequence", 1)]);
    b.arm(false);
    assert_eq!(violations(&b), [("arm_sequence", 1)]);
}

/// The device owns the blocks of a WQE until the WQE has completed, not just until it has been fetched.
#[test]
fn wqe_blocks_stay_in_use_until_completion() {
    let (mut a, mut b) = pair();
    // The request does not complete, as the peer does not post a receive.
    a.post(&a.send(0, 8));
    exchange(&mut *a, &mut *b);
    for _ in 1..BLOCKS {
        let _ = a.post_without_doorbell(&nop(&a));
    }
    let doorbell = a.post_without_doorbell(&nop(&a));
    assert_eq!(violations(&a), []);
    a.ring_send(&doorbell);
    assert_eq!(violations(&a), [("sq_overrun", 1)]);
}

#[test]
fn rejected_command_is_not_reported() {
    let (mut a, _) = pair();
    // The command is rejected because the EQ does not exist.
    let context = CqContext { record: QP_RECORD, ..cq_context(a.uar, Eqn::new(9)) };
    let list = pages(RING, 1);
    assert_eq!(
        a.rejected(&Command::CreateCq(CreateCq { context, ..CreateCq::default() }, Pages::parse(&list))),
        Check::CqEq
    );
    assert_eq!(violations(&a), []);
}

#[test]
fn report_identifies_violation_and_object() {
    use card::telemetry::testing::Written;
    use card::telemetry::trace::TraceFormat;

    let (mut a, mut b) = pair();
    let written = Written::default();
    a.hca.set_trace(Some(written.trace(TraceFormat::Text)));
    b.post_recv(0, 64);
    let doorbell = a.post_without_doorbell(&a.send(0, 8));
    a.poke(QP_RECORD.get() + 6, &[0, 0]);
    a.ring_send(&doorbell);
    arm(&mut a, |arm| arm.sequence = 3);
    let mut data = a.data(0x10, 8);
    data.lkey = Lkey::new(0x7700);
    a.post(&SendWqe { data: smallvec![DataItem::Pointer(data)], ..a.send(0, 8) });
    exchange(&mut *a, &mut *b);
    a.hca.flush();
    let text = written.text();
    let reports: Vec<_> =
        text.lines().filter_map(|line| line.split_once(" violation ")).map(|(_, report)| report).collect();
    assert_eq!(
        reports,
        [
            "doorbell_record section=\"7.2, 7.3\" what=\"QP 0x80: doorbell announces 0x1 blocks, but the doorbell record has 0x0\"",
            "arm_sequence section=\"7.1, 9.2\" what=\"CQ 0x40 armed with sequence number 3, expected 0\"",
            "wqe_key section=13.4 what=\"element 0 of the WQE at block 0x1 of QP 0x80: local read of 8 bytes at 0x7f0000000810 with key 0x7700 in PD 0x1: no region or window has the key\"",
        ]
    );
}
