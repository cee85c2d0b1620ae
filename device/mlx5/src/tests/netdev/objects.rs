//! Commands for the netdev's objects (mlx5 interface, sections 5.6, 16.1, 16.2 and 16.3).

use protocol::hca::mlx5::resource::CounterSetNumber;
use protocol::hca::mlx5::rq::QueriedRq;
use protocol::hca::mlx5::rqt::{ModifyRqt, QueriedRqt};
use protocol::hca::mlx5::tir::{ModifyTir, QueriedTir, tir_fields};
use protocol::hca::mlx5::tis::{ModifyTis, PRIORITY, QueriedTis};

use super::*;

#[test]
fn objects_in_use_cannot_be_destroyed() {
    let mut net = Net::new();
    let rqtn = net.create_rqt(&[net.rqn; 3]);
    let tirn = net.create_tir(TirContext { dispatch: 1, rqtn, ..TirContext::default() });
    let Net { sqn, rqn, tisn, domain, .. } = net;
    let (destroy_rq, destroy_rqt) =
        (Command::DestroyRq(RqNumber { rqn }), Command::DestroyRqt(RqtNumber { rqtn }));
    let dealloc = Command::DeallocTransportDomain(TransportDomainNumber { domain });
    let destroy_tis = Command::DestroyTis(TisNumber { tisn });
    let driver = &mut net.driver;
    assert_eq!(driver.rejected(&destroy_rq), Check::RqInUse);
    assert_eq!(driver.rejected(&destroy_rqt), Check::RqtInUse);
    assert_eq!(driver.rejected(&destroy_tis), Check::TisInUse);
    assert_eq!(driver.rejected(&dealloc), Check::DomainInUse);
    assert_eq!(driver.rejected(&Command::DestroyCq(CqNumber { cqn: net.cqs[0] })), Check::CqInUse);
    driver.ok(&Command::DestroyTir(TirNumber { tirn }));
    driver.ok(&destroy_rqt);
    driver.ok(&destroy_rq);
    driver.ok(&Command::DestroySq(SqNumber { sqn }));
    driver.ok(&destroy_tis);
    driver.ok(&dealloc);
    for cqn in net.cqs {
        driver.ok(&Command::DestroyCq(CqNumber { cqn }));
    }
}

#[test]
fn unknown_objects_are_rejected() {
    let mut net = Net::new();
    let (rqn, sqn) = (Rqn::new(net.sqn.get()), Sqn::new(net.rqn.get()));
    for (command, check) in [
        (Command::DestroyRq(RqNumber { rqn }), Check::Rq),
        (Command::QueryRq(RqNumber { rqn }), Check::Rq),
        (Command::ModifyRq(ModifyRq { rqn, ..ModifyRq::default() }), Check::Rq),
        (Command::DestroySq(SqNumber { sqn }), Check::Sq),
        (Command::QuerySq(SqNumber { sqn }), Check::Sq),
        (Command::ModifySq(ModifySq { sqn, ..ModifySq::default() }), Check::Sq),
        (Command::DestroyTir(TirNumber::default()), Check::Tir),
        (Command::QueryTir(TirNumber::default()), Check::Tir),
        (Command::ModifyTir(ModifyTir::default()), Check::Tir),
        (Command::DestroyTis(TisNumber::default()), Check::Tis),
        (Command::QueryTis(TisNumber::default()), Check::Tis),
        (Command::ModifyTis(ModifyTis::default()), Check::Tis),
        (Command::DestroyRqt(RqtNumber::default()), Check::Rqt),
        (Command::QueryRqt(RqtNumber::default()), Check::Rqt),
        (Command::ModifyRqt(ModifyRqt::default(), RqNumbers::default()), Check::Rqt),
    ] {
        assert_eq!(net.driver.rejected(&command), check, "{}", command.opcode().name());
    }
}

#[test]
fn invalid_sq_contexts_are_rejected() {
    let mut net = Net::new();
    let good = net.sq_context();
    let queue = good.queue;
    let list = pages(SQ, 1);
    for (context, check) in [
        (SqContext { queue: WorkQueue { kind: 0, ..queue }, ..good }, Check::SqKind),
        (SqContext { queue: WorkQueue { log_stride: 4, ..queue }, ..good }, Check::SqStride),
        (SqContext { queue: WorkQueue { log_entries: 15, ..queue }, ..good }, Check::SqSize),
        (SqContext { queue: WorkQueue { log_entries: 7, ..queue }, ..good }, Check::SqPages),
        (SqContext { queue: WorkQueue { record: Iova::new(4), ..queue }, ..good }, Check::SqRecord),
        (SqContext { queue: WorkQueue { pd: Pdn::new(0), ..queue }, ..good }, Check::SqPd),
        (SqContext { queue: WorkQueue { uar: UarIndex::new(0), ..queue }, ..good }, Check::SqUar),
        (SqContext { cqn: Cqn::new(1), ..good }, Check::SqCq),
        (SqContext { tis_count: 2, ..good }, Check::SqTisCount),
        (SqContext { tisn: Tisn::new(9), ..good }, Check::SqTis),
    ] {
        let command = Command::CreateSq(CreateSq { context }, Pages::parse(&list));
        assert_eq!(net.driver.rejected(&command), check);
    }
}

#[test]
fn invalid_rq_contexts_are_rejected() {
    let mut net = Net::new();
    let good = net.rq_context(4);
    let queue = good.queue;
    let list = pages(RQ, 1);
    for (context, check) in [
        (RqContext { memory: 1, ..good }, Check::RqMemory),
        (RqContext { queue: WorkQueue { kind: 2, ..queue }, ..good }, Check::RqKind),
        (RqContext { queue: WorkQueue { log_stride: 3, ..queue }, ..good }, Check::RqStride),
        (RqContext { queue: WorkQueue { log_stride: 10, ..queue }, ..good }, Check::RqStride),
        (RqContext { queue: WorkQueue { log_entries: 15, ..queue }, ..good }, Check::RqSize),
        (RqContext { queue: WorkQueue { log_entries: 9, ..queue }, ..good }, Check::RqPages),
        (RqContext { queue: WorkQueue { record: Iova::new(4), ..queue }, ..good }, Check::RqRecord),
        (RqContext { queue: WorkQueue { pd: Pdn::new(9), ..queue }, ..good }, Check::RqPd),
        (RqContext { cqn: Cqn::new(1), ..good }, Check::RqCq),
        (RqContext { counter_set: CounterSet::new(9), ..good }, Check::RqCounterSet),
    ] {
        let command = Command::CreateRq(CreateRq { context }, Pages::parse(&list));
        assert_eq!(net.driver.rejected(&command), check);
    }
}

#[test]
fn invalid_tirs_tiss_and_rqts_are_rejected() {
    let mut net = Net::new();
    let good = TirContext { rqn: net.rqn, domain: net.domain, ..TirContext::default() };
    for (context, check) in [
        (TirContext { dispatch: 2, ..good }, Check::TirDispatch),
        (TirContext { hash_function: 3, ..good }, Check::TirHash),
        (TirContext { rqn: Rqn::new(net.sqn.get()), ..good }, Check::TirRq),
        (TirContext { dispatch: 1, ..good }, Check::TirRqt),
        (TirContext { domain: TransportDomain::new(9), ..good }, Check::TirDomain),
    ] {
        assert_eq!(net.driver.rejected(&Command::CreateTir(CreateTir { context })), check);
    }
    let list = net.sqn.get().to_be_bytes();
    let create = CreateRqt { context: RqtContext { max_entries: 1, entries: 1 } };
    let command = Command::CreateRqt(create, RqNumbers::parse(&list));
    assert_eq!(net.driver.rejected(&command), Check::RqtQueue);
    let context = TisContext { domain: TransportDomain::new(9), ..TisContext::default() };
    assert_eq!(net.driver.rejected(&Command::CreateTis(CreateTis { context })), Check::TisDomain);
}

/// Section 16.1: a raw packet QP that moves from INIT to the error state has an SQ in reset.
#[test]
fn only_valid_state_transitions_are_accepted() {
    let mut net = Net::new();
    let sqn = net.sqn;
    let states =
        [(1, true), (3, true), (3, true), (1, false), (0, true), (3, true), (2, false), (0, true), (1, true)];
    for (code, accepted) in states {
        let context = SqContext { state: code, ..SqContext::default() };
        let modify = Command::ModifySq(ModifySq { sqn, context, ..ModifySq::default() });
        match accepted {
            true => drop(net.driver.ok(&modify)),
            false => assert_eq!(net.driver.rejected(&modify), Check::SqTransition),
        }
    }
    let modify = ModifyRq { rqn: net.rqn, ..ModifyRq::default() };
    let context = RqContext { state: 2, ..RqContext::default() };
    assert_eq!(net.driver.rejected(&Command::ModifyRq(ModifyRq { context, ..modify })), Check::RqTransition);
    assert_eq!(net.driver.rejected(&Command::ModifyRq(ModifyRq { fields: 1, ..modify })), Check::RqChange);
    let context = RqContext { counter_set: CounterSet::new(9), ..RqContext::default() };
    let modify = ModifyRq { fields: 8, context, ..modify };
    assert_eq!(net.driver.rejected(&Command::ModifyRq(modify)), Check::RqCounterSet);
}

#[test]
fn queries_return_contexts_as_modified() {
    let mut net = Net::new();
    let other = net.create_rq(net.rq_context(4));
    let rqtn = net.create_rqt(&[net.rqn]);
    let tirn = net.create_tir(TirContext { dispatch: 1, rqtn, key: [7; 40], ..TirContext::default() });
    let new = TirContext { unicast_loopback: true, hash_function: 2, ..TirContext::default() };
    let modify = ModifyTir { tirn, fields: tir_fields::LOOPBACK, context: new };
    net.driver.ok(&Command::ModifyTir(modify));
    let query = Command::QueryTir(TirNumber { tirn });
    let QueriedTir { context } = QueriedTir::parse(&output(&net.driver.ok(&query)));
    assert_eq!((context.unicast_loopback, context.hash_function, context.key), (true, 0, [7; 40]));
    net.driver.ok(&Command::ModifyTir(ModifyTir { fields: tir_fields::HASH, ..modify }));
    let QueriedTir { context } = QueriedTir::parse(&output(&net.driver.ok(&query)));
    assert_eq!((context.hash_function, context.key, context.rqtn), (2, [0; 40], rqtn));
    assert_eq!(net.driver.rejected(&Command::ModifyTir(ModifyTir { fields: 2, ..modify })), Check::TirChange);

    let list = [net.rqn, other].map(|rqn| rqn.get().to_be_bytes()).concat();
    let context = RqtContext { entries: 2, ..RqtContext::default() };
    let modify = ModifyRqt { rqtn, has_entries: true, context };
    net.driver.ok(&Command::ModifyRqt(modify, RqNumbers::parse(&list)));
    let query = Command::QueryRqt(RqtNumber { rqtn });
    let input = query.emit(0);
    let answer = net.driver.execute(&input, QueriedRqt::LEN + 8);
    assert_eq!(QueriedRqt::parse(&output(&answer)).context, RqtContext { max_entries: 256, entries: 2 });
    assert_eq!(answer[QueriedRqt::LEN..], list);

    let context = TisContext { priority: 3, ..TisContext::default() };
    let modify = ModifyTis { tisn: net.tisn, fields: PRIORITY, context };
    net.driver.ok(&Command::ModifyTis(modify));
    assert_eq!(net.driver.rejected(&Command::ModifyTis(ModifyTis { fields: 2, ..modify })), Check::TisChange);
    let QueriedTis { context } =
        QueriedTis::parse(&output(&net.driver.ok(&Command::QueryTis(TisNumber { tisn: net.tisn }))));
    assert_eq!((context.priority, context.domain), (3, net.domain));

    let set = CounterSetNumber::parse(&output(&net.driver.ok(&Command::AllocQCounter(BARE)))).set;
    let context = RqContext { state: 1, counter_set: set, ..RqContext::default() };
    net.driver.ok(&Command::ModifyRq(ModifyRq { rqn: net.rqn, fields: 8, context, ..ModifyRq::default() }));
    let query = net.driver.ok(&Command::QueryRq(RqNumber { rqn: net.rqn }));
    let QueriedRq { context } = QueriedRq::parse(&output(&query));
    assert_eq!((context.counter_set, context.state, context.cqn), (set, 1, net.cqs[1]));
}

/// Section 20, M-22: QPs, SQs and RQs share one doorbell format and therefore have disjoint numbers.
#[test]
fn sq_and_rq_numbers_are_disjoint_from_qp_numbers() {
    let mut net = Net::new();
    assert_eq!((net.sqn, net.rqn), (Sqn::new(0x4000), Rqn::new(0x4001)));
    let mut numbers = crate::numbered::Numbered::new(0x80, 0x1_ffff).without(0x4000, 0x5fff);
    for _ in 0x80..0x4000 {
        numbers.insert(()).unwrap();
    }
    assert_eq!(numbers.insert(()), Some(0x6000));
    for _ in 2..1 << 13 {
        net.create_rq(net.rq_context(4));
    }
    let list = pages(RQ, 1);
    let command = Command::CreateRq(CreateRq { context: net.rq_context(4) }, Pages::parse(&list));
    assert_eq!(net.driver.rejected(&command), Check::WorkQueueLimit);
}
