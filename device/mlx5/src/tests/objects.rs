//! Object numbers, and objects other than QPs: EQs, CQs, memory keys and SRQs (mlx5 interface, sections 5.2 to 5.4).

use card::frontend::snapshot::MrRow;
use protocol::hca::mlx5::counter::QueryQCounter;
use protocol::hca::mlx5::cq::{CqChange, CqFields, ModifyCq, QueriedCq};
use protocol::hca::mlx5::eq::QueriedEq;
use protocol::hca::mlx5::input::Bytes;
use protocol::hca::mlx5::mkey::{ANY_QP, AccessMode, CreateMkey, MkeyContext, QueriedMkey};
use protocol::hca::mlx5::resource::{
    CounterSetNumber, MkeyNumber, SrqNumber, TransportDomainNumber, XrcDomainNumber,
};
use protocol::hca::mlx5::srq::{
    ArmSrq, CreateRmp, CreateSrq, ModifyRmp, QueriedRmp, QueriedSrq, RmpContext, SrqContext, WorkQueue,
};
use protocol::ids::{CounterSet, MkeyIndex, Srqn, TransportDomain, XrcDomain};

use super::*;

const RING: u64 = 0x40_0000;

#[test]
fn first_object_numbers_match_recording() {
    let mut driver = initialised();
    assert_eq!((driver.alloc_pd(), driver.alloc_pd()), (Pdn::new(1), Pdn::new(2)));
    let uar = driver.alloc_uar();
    assert_eq!(uar, UarIndex::new(16));
    let eqn = driver.create_eq(uar, 0, EventMask::empty(), RING);
    assert_eq!((eqn, driver.create_cq(uar, eqn, RING)), (Eqn::new(1), Cqn::new(0x40)));
    driver.ok(&Command::DeallocPd(PdNumber { pd: Pdn::new(1) }));
    assert_eq!(driver.alloc_pd(), Pdn::new(3), "a freed number is reused last");
    assert_eq!(driver.rejected(&Command::DeallocPd(PdNumber { pd: Pdn::new(1) })), Check::Pd);
}

#[test]
fn unknown_numbers_are_rejected() {
    let mut driver = initialised();
    let srq = SrqNumber { srqn: Srqn::new(0x10) };
    for (command, check) in [
        (Command::DeallocUar(UarNumber { uar: UarIndex::new(16) }), Check::Uar),
        (Command::DeallocXrcd(XrcDomainNumber { xrcd: XrcDomain::new(1) }), Check::Xrcd),
        (
            Command::DeallocTransportDomain(TransportDomainNumber { domain: TransportDomain::new(1) }),
            Check::Domain,
        ),
        (Command::DeallocQCounter(CounterSetNumber { set: CounterSet::new(0) }), Check::CounterSet),
        (Command::QueryQCounter(QueryQCounter { clear: false, set: CounterSet::new(1) }), Check::CounterSet),
        (Command::DestroyEq(EqNumber { eqn: Eqn::new(1) }), Check::Eq),
        (Command::DestroyCq(CqNumber { cqn: Cqn::new(0x40) }), Check::Cq),
        (Command::QueryCq(CqNumber { cqn: Cqn::new(0x40) }), Check::Cq),
        (Command::DestroyMkey(MkeyNumber { index: MkeyIndex::new(8) }), Check::Mkey),
        (Command::QueryMkey(MkeyNumber { index: MkeyIndex::new(0) }), Check::Mkey),
        (Command::DestroyRmp(srq), Check::Srq),
        (Command::QueryXrcSrq(srq), Check::Srq),
    ] {
        assert_eq!(driver.rejected(&command), check, "{}", command.opcode().name());
    }
}

#[test]
fn q_counter_set_limit_is_enforced() {
    let mut driver = initialised();
    for set in 1..=255 {
        let output = driver.ok(&Command::AllocQCounter(BARE));
        assert_eq!(CounterSetNumber::parse(&self::output(&output)).set, CounterSet::new(set));
    }
    assert_eq!(driver.rejected(&Command::AllocQCounter(BARE)), Check::CounterLimit);
    driver.ok(&Command::DeallocQCounter(CounterSetNumber { set: CounterSet::new(9) }));
    driver.ok(&Command::AllocQCounter(BARE));
}

#[test]
fn create_eq_rejects_invalid_context_fields() {
    let mut driver = initialised();
    let uar = driver.alloc_uar();
    let list = pages(RING, 4);
    let mut check = |context: EqContext| {
        driver.rejected(&Command::CreateEq(CreateEq { context, ..CreateEq::default() }, Pages::parse(&list)))
    };
    let context = eq_context(uar, 0);
    assert_eq!(check(EqContext { log_entries: 23, ..context }), Check::EqSize);
    assert_eq!(check(EqContext { log_entries: 9, ..context }), Check::EqPages);
    assert_eq!(check(EqContext { page_offset: 1, ..context }), Check::EqPages);
    assert_eq!(check(EqContext { uar: UarIndex::new(17), ..context }), Check::EqUar);
    assert_eq!(check(EqContext { vector: 32, ..context }), Check::EqVector);
    for _ in 0..64 {
        driver.create_eq(uar, 0, EventMask::empty(), RING);
    }
    let more = CreateEq { context, ..CreateEq::default() };
    assert_eq!(driver.rejected(&Command::CreateEq(more, Pages::parse(&list))), Check::EqLimit);
    let queried = driver.ok(&Command::QueryEq(EqNumber { eqn: Eqn::new(64) }));
    assert_eq!(QueriedEq::parse(&output(&queried)).context, context);
}

#[test]
fn largest_cq_can_use_4_kib_pages() {
    let mut driver = initialised();
    let uar = driver.alloc_uar();
    let eqn = driver.create_eq(uar, 0, EventMask::empty(), RING);
    let context = CqContext { cqe_size: 1, log_entries: 22, ..cq_context(uar, eqn) };
    let list = pages(0x2000_0000, (128 << 22) >> 12);
    driver.ok(&Command::CreateCq(CreateCq { context, ..CreateCq::default() }, Pages::parse(&list)));
}

#[test]
fn create_cq_rejects_invalid_context_fields() {
    let mut driver = initialised();
    let uar = driver.alloc_uar();
    let eqn = driver.create_eq(uar, 0, EventMask::empty(), RING);
    let list = pages(RING, 1);
    let mut check = |context: CqContext| {
        driver.rejected(&Command::CreateCq(CreateCq { context, ..CreateCq::default() }, Pages::parse(&list)))
    };
    let context = cq_context(uar, eqn);
    assert_eq!(check(CqContext { cqe_size: 3, ..context }), Check::CqEntrySize);
    assert_eq!(check(CqContext { log_entries: 23, ..context }), Check::CqSize);
    assert_eq!(check(CqContext { cqe_size: 1, ..context }), Check::CqPages);
    assert_eq!(check(CqContext { uar: UarIndex::new(17), ..context }), Check::CqUar);
    assert_eq!(check(CqContext { eqn: Eqn::new(2), ..context }), Check::CqEq);
    assert_eq!(check(CqContext { record: Iova::new(0x30_0004), ..context }), Check::CqRecord);
    let cqn = driver.create_cq(uar, eqn, RING);
    driver.poke(RECORD.get(), &5_u32.to_be_bytes());
    let queried = driver.ok(&Command::QueryCq(CqNumber { cqn }));
    assert_eq!(QueriedCq::parse(&output(&queried)).context, CqContext { consumer: 5, ..context });
    assert_eq!(driver.rejected(&Command::DestroyEq(EqNumber { eqn })), Check::EqInUse);
    driver.ok(&Command::DestroyCq(CqNumber { cqn }));
    driver.ok(&Command::DestroyEq(EqNumber { eqn }));
}

#[test]
fn modify_cq_changes_only_selected_fields() {
    let mut driver = initialised();
    let uar = driver.alloc_uar();
    let eqn = driver.create_eq(uar, 0, EventMask::empty(), RING);
    let cqn = driver.create_cq(uar, eqn, RING);
    let new =
        CqContext { moderation_period: 7, moderation_count: 9, ignore_overrun: true, ..CqContext::default() };
    let modify = ModifyCq {
        change: 0,
        cqn,
        fields: CqFields::COUNT | CqFields::IGNORE_OVERRUN,
        context: new,
        ..ModifyCq::default()
    };
    driver.ok(&Command::ModifyCq(modify, Pages::default()));
    let context = QueriedCq::parse(&output(&driver.ok(&Command::QueryCq(CqNumber { cqn })))).context;
    assert_eq!((context.moderation_period, context.moderation_count), (0, 9));
    assert!(context.ignore_overrun);
    let unknown = ModifyCq { change: 2, ..modify };
    assert_eq!(driver.rejected(&Command::ModifyCq(unknown, Pages::default())), Check::CqChange);
}

/// Section 9.5 and section 20, M-30: a resize fails if the unread entries do not fit in the new ring.
#[test]
fn resized_cq_keeps_producer_index() {
    const NEW: u64 = 0x41_0000;
    let mut driver = initialised();
    let uar = driver.alloc_uar();
    let eqn = driver.create_eq(uar, 0, EventMask::empty(), RING);
    let cqn = driver.create_cq(uar, eqn, RING + 0x8000);
    let list = pages(NEW, 2);
    let resize = |driver: &mut Driver, log_entries| {
        let context = CqContext { log_entries, ..CqContext::default() };
        let modify = ModifyCq {
            change: CqChange::Resize.code(),
            cqn,
            fields: CqFields::RESIZE,
            context,
            ..ModifyCq::default()
        };
        driver.command(&Command::ModifyCq(modify, Pages::parse(&list))).0
    };
    let status = |check: Check| OutputHeader { status: check.status().code(), syndrome: check.syndrome() };
    assert_eq!(resize(&mut driver, 8), status(Check::CqPages));
    assert_eq!(resize(&mut driver, 23), status(Check::CqSize));
    assert_eq!(resize(&mut driver, 7), OutputHeader::default());
    assert_eq!(driver.peek(RING + 0x8000 + 63, 1), [0x50], "the old ring must contain the resize entry");
    // The resize entry is unread. A one-entry ring is too small: the new ring must have room for the unread entry and
    // one more.
    assert_eq!(resize(&mut driver, 0), status(Check::CqUnread));
    driver.poke(RECORD.get(), &1_u32.to_be_bytes());
    assert_eq!(resize(&mut driver, 0), OutputHeader::default());
    assert_eq!(driver.peek(NEW + 64 + 63, 1), [0x50], "the producer index must carry over");
    let context = QueriedCq::parse(&output(&driver.ok(&Command::QueryCq(CqNumber { cqn })))).context;
    assert_eq!((context.log_entries, context.producer), (0, 2));
}

fn mkey(pd: Pdn, mode: AccessMode) -> CreateMkey {
    let context = MkeyContext { qpn: ANY_QP, key: 1, pd, local_read: true, ..MkeyContext::default() };
    CreateMkey { context: context.with_access_mode(mode), ..CreateMkey::default() }
}

#[test]
fn mkeys_appear_in_mr_rows_until_destroyed() {
    let mut driver = initialised();
    let pd = driver.alloc_pd();
    let mut physical = mkey(pd, AccessMode::Physical);
    physical.context.length64 = true;
    let created = driver.ok(&Command::CreateMkey(physical, Bytes::default()));
    let number = MkeyNumber::parse(&output(&created));
    assert_eq!(number.index, MkeyIndex::new(8));
    let queried = driver.ok(&Command::QueryMkey(number));
    assert_eq!(QueriedMkey::parse(&output(&queried)).context, physical.context);
    let mut listed = mkey(pd, AccessMode::Pages);
    listed.context.length = 0x2000;
    listed.context.log_page = 12;
    let short = Command::CreateMkey(CreateMkey { translation_units: 2, ..listed }, Bytes::parse(&[0; 16]));
    assert_eq!(driver.rejected(&short), Check::MkeyList);
    let list = pages(0x50_0000, 2);
    listed.translation_units = 1;
    driver.ok(&Command::CreateMkey(listed, Bytes::parse(&list)));
    let rows = driver.hca.rows::<MrRow>(0);
    assert_eq!(
        rows.iter().map(|row| (row.key, row.length)).collect::<Vec<_>>(),
        [(0x801, u64::MAX), (0x901, 0x2000)]
    );
    assert_eq!(driver.rejected(&Command::DeallocPd(PdNumber { pd })), Check::PdInUse);
    for index in [8, 9] {
        driver.ok(&Command::DestroyMkey(MkeyNumber { index: MkeyIndex::new(index) }));
    }
    driver.ok(&Command::DeallocPd(PdNumber { pd }));
    let foreign = Command::CreateMkey(mkey(pd, AccessMode::Physical), Bytes::default());
    assert_eq!(driver.rejected(&foreign), Check::MkeyPd);
}

/// Section 20, M-17: the Linux 6.12 driver creates about 6,100 keys when it is loaded.
#[test]
fn device_holds_thousands_of_free_keys() {
    let mut driver = initialised();
    let pd = driver.alloc_pd();
    let mut free = mkey(pd, AccessMode::Pages);
    (free.context.free, free.context.umr_enabled, free.context.log_page) = (true, true, 12);
    free.context.translation_units = 1 << 15;
    for _ in 0..6200 {
        driver.ok(&Command::CreateMkey(free, Bytes::default()));
    }
}

/// Creates keys with long page lists until the device's limit on list memory is reached.
#[test]
fn total_page_count_of_keys_is_limited() {
    let mut driver = initialised();
    let pd = driver.alloc_pd();
    let list = vec![0; (1 << 20) - 0x110];
    let mut listed = mkey(pd, AccessMode::Pages);
    listed.translation_units = u32::try_from(list.len() / 16).unwrap();
    (listed.context.length, listed.context.log_page) = (4096, 12);
    let input = Command::CreateMkey(listed, Bytes::parse(&list)).emit(0);
    driver.post(0, &input, 16);
    let slot = driver.peek(driver::Layout::LARGE.slot(0), 64);
    let mut created = 0;
    loop {
        driver.poke(driver::Layout::LARGE.slot(0), &slot);
        driver.submit(1);
        driver.settle();
        let header = OutputHeader::parse(&output(&driver.output(0, 16)));
        if header.status != 0 {
            assert_eq!(header.syndrome, Check::QueueMemory.syndrome());
            break;
        }
        created += 1;
        assert!(created < 200, "the limit of 2^24 pages must be enforced");
    }
    assert_eq!(created, (1 << 24) / (list.len() / 8));
    driver.post(1, &Command::DestroyMkey(MkeyNumber { index: MkeyIndex::new(8) }).emit(0), 16);
    driver.submit(1 << 1);
    for syndrome in [0, Check::QueueMemory.syndrome()] {
        driver.poke(driver::Layout::LARGE.slot(0), &slot);
        driver.submit(1);
        driver.settle();
        assert_eq!(OutputHeader::parse(&output(&driver.output(0, 16))).syndrome, syndrome);
    }
}

fn rmp(pd: Pdn) -> CreateRmp {
    let queue = WorkQueue { pd, record: RECORD, log_stride: 5, log_entries: 4, ..WorkQueue::default() };
    CreateRmp { context: RmpContext { state: 1, queue, ..RmpContext::default() } }
}

/// Section 12.2: QUERY_RMP returns the limit exactly as the driver set it.
#[test]
fn modify_rmp_sets_srq_limit() {
    let mut driver = initialised();
    let pd = driver.alloc_pd();
    let list = pages(RING, 1);
    let create = |create| Command::CreateRmp(create, Pages::parse(&list));
    let created = driver.ok(&create(rmp(pd)));
    let number = SrqNumber::parse(&output(&created));
    assert_eq!(number.srqn, Srqn::new(0x10));
    let mut modify = ModifyRmp { srqn: number.srqn, has_limit: true, ..ModifyRmp::default() };
    modify.context.queue.limit = 7;
    driver.poke(RECORD.get(), &7_u32.to_be_bytes());
    driver.ok(&Command::ModifyRmp(modify));
    let queried = QueriedRmp::parse(&output(&driver.ok(&Command::QueryRmp(number)))).context;
    assert_eq!((queried.queue.limit, queried.queue.log_entries, queried.state), (7, 4, 1));
    assert_eq!(driver.rejected(&Command::QueryXrcSrq(number)), Check::Srq, "an RMP is not an XRC SRQ");
    let kind = |kind| {
        let mut rmp = rmp(pd);
        rmp.context.queue.kind = kind;
        rmp
    };
    assert_eq!(driver.rejected(&create(kind(2))), Check::SrqKind);
    let mut without_links = kind(1);
    without_links.context.without_links = true;
    assert_eq!(driver.rejected(&create(without_links)), Check::SrqKind);
    let mut large = rmp(pd);
    large.context.queue.log_stride = 12;
    assert_eq!(driver.rejected(&create(large)), Check::SrqSize);
    large.context.queue.log_stride = 9;
    assert_eq!(driver.rejected(&create(large)), Check::SrqPages);
    assert_eq!(driver.rejected(&create(rmp(Pdn::new(9)))), Check::SrqPd);
    driver.ok(&Command::DestroyRmp(number));
}

#[test]
fn create_xrc_srq_requires_domain_and_cq() {
    let mut driver = initialised();
    let uar = driver.alloc_uar();
    let eqn = driver.create_eq(uar, 0, EventMask::empty(), RING);
    let cqn = driver.create_cq(uar, eqn, RING);
    let pd = driver.alloc_pd();
    let xrcd = XrcDomainNumber::parse(&output(&driver.ok(&Command::AllocXrcd(BARE)))).xrcd;
    let list = pages(RING, 1);
    let context =
        SrqContext { log_entries: 4, log_stride: 1, xrcd, cqn, pd, record: RECORD, ..SrqContext::default() };
    let create = |context| Command::CreateXrcSrq(CreateSrq { context }, Pages::parse(&list));
    assert_eq!(driver.rejected(&create(SrqContext { xrcd: XrcDomain::new(2), ..context })), Check::SrqXrcd);
    assert_eq!(driver.rejected(&create(SrqContext { cqn: Cqn::new(1), ..context })), Check::SrqCq);
    let record = Iova::new(RECORD.get() + 1);
    assert_eq!(driver.rejected(&create(SrqContext { record, ..context })), Check::SrqRecord);
    let number = SrqNumber::parse(&output(&driver.ok(&create(context))));
    driver.poke(RECORD.get(), &6_u32.to_be_bytes());
    driver.ok(&Command::ArmXrcSrq(ArmSrq { op_mod: 1, srqn: number.srqn, limit: 3 }));
    let unknown = Command::ArmXrcSrq(ArmSrq { op_mod: 0, srqn: number.srqn, limit: 3 });
    assert_eq!(driver.rejected(&unknown), Check::SrqArm);
    let queried = QueriedSrq::parse(&output(&driver.ok(&Command::QueryXrcSrq(number)))).context;
    assert_eq!(queried, SrqContext { limit: 3, count: 6, ..context });
    assert_eq!(driver.rejected(&Command::DeallocXrcd(XrcDomainNumber { xrcd })), Check::XrcdInUse);
    assert_eq!(driver.rejected(&Command::DestroyCq(CqNumber { cqn })), Check::CqInUse);
    driver.ok(&Command::DestroyXrcSrq(number));
    driver.ok(&Command::DestroyCq(CqNumber { cqn }));
    driver.ok(&Command::DeallocXrcd(XrcDomainNumber { xrcd }));
}

/// Section 12.2: with interface step sequence ID (ISSI) 1, drivers create ordinary SRQs as RMPs, not with CREATE_SRQ.
#[test]
fn create_srq_is_rejected_with_issi_1() {
    let mut driver = initialised();
    let pd = driver.alloc_pd();
    let list = pages(RING, 1);
    let context = SrqContext { log_entries: 4, pd, record: RECORD, ..SrqContext::default() };
    let create = Command::CreateSrq(CreateSrq { context }, Pages::parse(&list));
    let number = SrqNumber::parse(&output(&driver.ok(&create)));
    driver.ok(&Command::ArmRq(ArmSrq { op_mod: 1, srqn: number.srqn, limit: 2 }));
    driver.ok(&Command::DestroySrq(number));
    driver.ok(&Command::SetIssi(protocol::hca::mlx5::device::SetIssi { issi: 1 }));
    assert_eq!(driver.rejected(&create), Check::SrqStep);
}
