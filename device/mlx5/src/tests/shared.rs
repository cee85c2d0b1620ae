//! Shared receive queues and XRC (mlx5 interface, section 12).

use card::frontend::testing::{exchange, pattern, wait};
use protocol::hca::mlx5::cqe::Cqe;
use protocol::hca::mlx5::eqe::{Eqe, QueueEvent, QueueKind};
use protocol::hca::mlx5::qp::{QpContext, QpState, QueriedQp, QueryQp, Service};
use protocol::hca::mlx5::resource::{QpNumber, SrqNumber, XrcDomainNumber};
use protocol::hca::mlx5::srq::{ArmSrq, CreateSrq, ModifyRmp, QueriedRmp, SrqContext, WorkQueueKind};
use protocol::hca::mlx5::syndrome::Syndrome;
use protocol::hca::mlx5::wqe::{Opcode, Operation};
use protocol::ids::{Srqn, UserIndex, XrcDomain};

use super::user::{COMPLETION_EQ, SRQ, SRQ_RECORD, User, request, syndromes};
use super::*;

/// Creates two devices with connected QPs. The second device's QP receives from an SRQ.
fn pair() -> (User, User, Srqn) {
    pair_with(WorkQueueKind::Linked)
}

fn pair_with(kind: WorkQueueKind) -> (User, User, Srqn) {
    let (mut a, mut b) = (User::new(1), User::new(2));
    a.connect(&a.context(Service::Rc), 2);
    let srqn = b.create_rmp(kind);
    b.connect(&QpContext { receive_kind: 1, srqn, ..b.context(Service::Rc) }, 1);
    (a, b, srqn)
}

fn entries(cqes: &[Cqe]) -> Vec<u16> {
    let of = |entry: &Cqe| match entry {
        Cqe::Received(receipt) => receipt.wqe_counter,
        other => panic!("{other:?}"),
    };
    cqes.iter().map(of).collect()
}

#[test]
fn srq_entries_are_consumed_in_list_order() {
    let (mut a, mut b, _) = pair();
    for n in 0..20_u64 {
        b.post_shared(0x80, 64);
        let message = pattern(64, u8::try_from(n).unwrap());
        a.put(0, &message);
        a.post(&a.send(0, 64));
        exchange(&mut *a, &mut *b);
        assert_eq!(b.get(0x80, 64), message);
        assert_eq!(entries(&b.reap()), [u16::try_from((800 - n) % 8).unwrap()]);
        a.reap();
    }
}

/// Section 12.2: a cyclic RMP ignores the links in its entries. Here, every link points to the wrong entry.
#[test]
fn cyclic_rmp_entries_are_consumed_in_ascending_order() {
    let (mut a, mut b, _) = pair_with(WorkQueueKind::Cyclic);
    for n in 0..20_u16 {
        b.post_shared_entry(n & 7, n & 3, 0x80, 64);
        let message = pattern(64, n.to_le_bytes()[0]);
        a.put(0, &message);
        a.post(&a.send(0, 64));
        exchange(&mut *a, &mut *b);
        assert_eq!(b.get(0x80, 64), message);
        assert_eq!(entries(&b.reap()), [n & 7]);
        a.reap();
    }
}

#[test]
fn srq_limit_event_is_raised_once() {
    let (mut a, mut b, srqn) = pair();
    (0..4).for_each(|_| b.post_shared(0, 64));
    let mut modify = ModifyRmp { srqn, has_limit: true, ..ModifyRmp::default() };
    modify.context.queue.limit = 3;
    b.ok(&Command::ModifyRmp(modify));
    for events in [0, 1, 1] {
        a.post(&a.send(0, 8));
        exchange(&mut *a, &mut *b);
        let low = b.events().into_iter().filter(|event| *event == Eqe::SrqLimit(srqn)).count();
        assert_eq!(low, events);
    }
}

/// Section 12.2: the limit is a level. The SRQ can run low before software sets the limit.
#[test]
fn srq_limit_above_posted_entries_raises_event() {
    let (_, mut b, srqn) = pair();
    (0..2).for_each(|_| b.post_shared(0, 64));
    for (limit, events) in [(2, 0), (3, 1), (0, 1)] {
        let mut modify = ModifyRmp { srqn, has_limit: true, ..ModifyRmp::default() };
        modify.context.queue.limit = limit;
        b.ok(&Command::ModifyRmp(modify));
        let low = b.events().into_iter().filter(|event| *event == Eqe::SrqLimit(srqn)).count();
        assert_eq!(low, events, "limit {limit}");
    }
    let queried = b.ok(&Command::QueryRmp(SrqNumber { srqn }));
    assert_eq!(QueriedRmp::parse(&output(&queried)).context.queue.limit, 0);
    let (_, mut b, srqn) = xrc();
    b.ok(&Command::ArmXrcSrq(ArmSrq { op_mod: 1, srqn, limit: 1 }));
    assert!(b.events().contains(&Eqe::SrqLimit(srqn)));
}

/// Section 20, M-12: an SRQ is refilled without a doorbell. A QP in the error state does not consume entries from its
/// SRQ.
#[test]
fn empty_srq_resumes_after_receive_is_posted() {
    let (mut a, mut b, _) = pair();
    a.post(&a.send(0, 8));
    exchange(&mut *a, &mut *b);
    b.post_shared(0, 64);
    wait(&mut *a, &mut *b);
    assert_eq!((syndromes(&a.reap()), entries(&b.reap())), (vec![0], vec![0]));
    b.post_shared(0, 64);
    let qpn = b.qpn;
    b.ok(&Command::ToErrQp(QpNumber { qpn }));
    exchange(&mut *a, &mut *b);
    let last = Eqe::Queue { event: QueueEvent::LastWqeReached, kind: QueueKind::Qp, number: qpn.get() };
    assert!(b.reap().is_empty() && b.events().contains(&last));
}

/// Creates an XRC initiator and an XRC target with its domain and SRQ.
fn xrc() -> (User, User, Srqn) {
    xrc_with(|user| user.cqn)
}

/// Like [`xrc`]; `cq` returns the CQ of the SRQ.
fn xrc_with(cq: impl FnOnce(&mut User) -> Cqn) -> (User, User, Srqn) {
    let (mut a, mut b) = (User::new(1), User::new(2));
    a.connect(&QpContext { receive_kind: 3, ..a.context(Service::Xrc) }, 2);
    let allocated = b.ok(&Command::AllocXrcd(BARE));
    let xrcd = XrcDomainNumber::parse(&output(&allocated)).xrcd;
    let cqn = cq(&mut b);
    let srqn = xrc_srq_on(&mut b, xrcd, cqn);
    let target = QpContext {
        no_sq: true,
        uar: UarIndex::new(0),
        // Section 20, M-25: keys are checked against the SRQ's PD. The QP's PD can differ.
        pd: b.alloc_pd(),
        receive_kind: 1,
        srqn,
        xrcd,
        ..b.context(Service::Xrc)
    };
    b.connect(&target, 1);
    (a, b, srqn)
}

fn xrc_srq(user: &mut User, xrcd: XrcDomain) -> Srqn {
    xrc_srq_on(user, xrcd, user.cqn)
}

fn xrc_srq_on(user: &mut User, xrcd: XrcDomain, cqn: Cqn) -> Srqn {
    let context = SrqContext {
        log_entries: 3,
        log_stride: 2,
        xrcd,
        cqn,
        user_index: UserIndex::new(0x55),
        pd: user.pd,
        record: SRQ_RECORD,
        ..SrqContext::default()
    };
    let list = pages(SRQ, 1);
    let created = user.ok(&Command::CreateXrcSrq(CreateSrq { context }, Pages::parse(&list)));
    SrqNumber::parse(&output(&created)).srqn
}

#[test]
fn xrc_message_completes_on_srq_cq() {
    let (mut a, mut b, srqn) = xrc();
    b.post_shared(0x40, 64);
    a.put(0, b"shared by many");
    let mut wqe = a.send(0, 14);
    wqe.xrc_srqn = Some(srqn);
    a.post(&wqe);
    exchange(&mut *a, &mut *b);
    assert_eq!((syndromes(&a.reap()), b.get(0x40, 14)), (vec![0], b"shared by many".to_vec()));
    let cqes = b.reap();
    let [Cqe::Received(receipt)] = cqes[..] else { panic!("{cqes:?}") };
    assert_eq!((receipt.user_index, receipt.wqe_counter, receipt.qpn), (UserIndex::new(0x55), 0, b.qpn));
    let mut write = request(Opcode::Write, Operation::Write(a.remote(0x100)), a.data(0, 14));
    write.xrc_srqn = Some(srqn);
    a.post(&write);
    exchange(&mut *a, &mut *b);
    assert_eq!((syndromes(&a.reap()), b.get(0x100, 14)), (vec![0], b"shared by many".to_vec()));
}

/// Section 9.6: the CQ of an XRC SRQ is not one of the CQs of the target.
#[test]
fn overrun_of_xrc_srq_cq_fails_xrc_target() {
    const RING: u64 = 0x46_0000;
    let (mut a, mut b, srqn) = xrc_with(|user| {
        let record = Iova::new(RECORD.get() + 0xc0);
        let context = CqContext { log_entries: 0, record, ..cq_context(user.uar, COMPLETION_EQ) };
        let list = pages(RING, 1);
        let create = Command::CreateCq(CreateCq { context, ..CreateCq::default() }, Pages::parse(&list));
        CqNumber::parse(&output(&user.ok(&create))).cqn
    });
    for _ in 0..2 {
        b.post_shared(0x40, 64);
        let mut wqe = a.send(0, 14);
        wqe.xrc_srqn = Some(srqn);
        a.post(&wqe);
        exchange(&mut *a, &mut *b);
    }
    let qpn = b.qpn;
    let queried = b.ok(&Command::QueryQp(QueryQp { extended: false, qpn }));
    assert_eq!(QueriedQp::parse(&output(&queried)).context.state(), Some(QpState::Error));
}

#[test]
fn xrc_request_requires_srq_in_same_domain() {
    let (mut a, mut b, srqn) = xrc();
    let allocated = b.ok(&Command::AllocXrcd(BARE));
    let foreign = xrc_srq(&mut b, XrcDomainNumber::parse(&output(&allocated)).xrcd);
    assert_ne!(foreign, srqn);
    let mut wqe = a.send(0, 8);
    wqe.xrc_srqn = Some(foreign);
    a.post(&wqe);
    exchange(&mut *a, &mut *b);
    assert_eq!(syndromes(&a.reap()), [Syndrome::RemoteInvalidRequest.code()]);
    let event = Eqe::Queue { event: QueueEvent::AccessViolation, kind: QueueKind::Qp, number: b.qpn.get() };
    assert!(b.events().contains(&event), "{:?}", b.events());
}
