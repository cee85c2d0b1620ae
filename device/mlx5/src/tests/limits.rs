//! Tests each limit from both sides. The largest permitted value works, and the next one is rejected with the right
//! status, counted, and logged on a single line (mlx5 interface, sections 3.3 and 6.1).
//!
//! The limits on CQ entries, EQs, Q counter sets, multicast groups and total queue pages are tested in other modules.

use card::frontend::snapshot::QpRow;
use card::frontend::testing::{exchange, logged};
use protocol::hca::mlx5::doorbell::EqDoorbell;
use protocol::hca::mlx5::input::Bytes;
use protocol::hca::mlx5::mkey::{ANY_QP, AccessMode, CreateMkey, MkeyContext};
use protocol::hca::mlx5::pages::{ManagePages, PageOperation};
use protocol::hca::mlx5::qp::{CreateQp, QpContext, QueryQp, Service};
use protocol::hca::mlx5::resource::{QpNumber, SrqNumber};
use protocol::hca::mlx5::srq::{CreateRmp, CreateSrq, RmpContext, SrqContext, WorkQueue};
use protocol::hca::mlx5::syndrome::Syndrome;
use protocol::hca::mlx5::wqe::{DataItem, DataSegment, Opcode as SendOpcode, Operation, SendWqe};
use protocol::ids::{Lkey, Qpn, Srqn, UserIndex, Va};

use super::user::{User, request, syndromes};
use super::*;

/// Configured limits, most of them the smallest values that the configuration allows.
const VECTORS: u16 = 3;
const QPS: u32 = 256;
const CQS: u32 = 256;
const SRQS: u32 = 256;
const MKEYS: u32 = 1 << 14;
const SRQ_WQES: u32 = 256;
const LOG_SRQ_WQES: u8 = 8;
const RD_ATOMIC: u32 = 4;
/// Last UAR page in a 1 MiB BAR.
const LAST_UAR: u32 = 255;

const RING: u64 = 0x40_0000;
const QUEUE: u64 = 0x44_0000;

fn small() -> Driver {
    let limits = serde_json::from_value(serde_json::json!({
        "max_qps": QPS, "max_cqs": CQS, "max_srqs": SRQS, "max_mkeys": MKEYS, "max_srq_wqes": SRQ_WQES,
        "max_rd_atomic": RD_ATOMIC, "bar_mib": 1,
    }));
    let vectors = VECTORS.try_into().unwrap();
    let mut driver = powered_on_with(1, Options { limits: limits.unwrap(), vectors, ..infiniband() });
    driver.ok(&Command::EnableHca(Function { function: 0 }));
    driver.ok(&Command::InitHca(InitHca::default()));
    driver
}

/// Asserts that a command fails `check` and that the rejection is counted and logged.
#[track_caller]
fn refused(driver: &mut Driver, command: &Command<'_>, check: Check) {
    let (name, status) = (command.opcode().name(), check.status().name());
    let count = |driver: &Driver| {
        let counted = driver.hca.monitor().commands().get(name);
        counted.and_then(|by_status| by_status.get(status)).copied().unwrap_or(0)
    };
    let before = count(driver);
    let text = logged(|| assert_eq!(driver.rejected(command), check, "{name}"));
    assert_eq!(count(driver), before + 1, "{name}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains(name) && text.contains(check.text()), "{text}");
}

fn number(output: &[u8]) -> u32 {
    u32::from_be_bytes(output[8..].first_chunk().copied().expect("the output has an object number"))
        & 0xff_ffff
}

/// A driver with one object of each kind that queues need.
struct Objects {
    driver: Driver,
    uar: UarIndex,
    eqn: Eqn,
    pd: Pdn,
    qp: QpContext,
}

impl Objects {
    fn new() -> Self {
        let mut driver = small();
        let uar = driver.alloc_uar();
        let eqn = driver.create_eq(uar, 0, EventMask::empty(), RING);
        let cqn = driver.create_cq(uar, eqn, RING + 0x8000);
        let pd = driver.alloc_pd();
        let qp = QpContext {
            service: Service::Rc.code(),
            pd,
            uar,
            user_index: UserIndex::NONE,
            send_cqn: cqn,
            recv_cqn: cqn,
            record: RECORD,
            ..QpContext::default()
        };
        Self { driver, uar, eqn, pd, qp }
    }

    /// Returns the command that creates an RMP with `2^log_entries` entries of `2^log_stride` bytes.
    fn rmp(&self, log_entries: u8, log_stride: u8) -> CreateRmp {
        let queue =
            WorkQueue { pd: self.pd, record: RECORD, log_stride, log_entries, ..WorkQueue::default() };
        CreateRmp { context: RmpContext { state: 1, queue, ..RmpContext::default() } }
    }

    /// Returns the command that creates a key for all of memory.
    fn physical(&self) -> CreateMkey {
        let context = MkeyContext { qpn: ANY_QP, key: 1, pd: self.pd, length64: true, ..Default::default() };
        CreateMkey { context: context.with_access_mode(AccessMode::Physical), ..CreateMkey::default() }
    }
}

fn create_qp(context: QpContext, list: &[u8]) -> Command<'_> {
    Command::CreateQp(CreateQp { context, ..CreateQp::default() }, Pages::parse(list))
}

/// QP numbers 0 to 127 are never assigned, which leaves 128 of the 256 numbers.
#[test]
fn object_limits_are_enforced() {
    let objects = Objects::new();
    let (list, rmp) = (pages(QUEUE, 1), objects.rmp(0, 5));
    let Objects { mut driver, uar, eqn, qp, .. } = objects;
    let cq = CreateCq { context: cq_context(uar, eqn), ..CreateCq::default() };
    // Each case gives the number of objects to create and the number assigned to the last one.
    for (command, count, last, check) in [
        (create_qp(qp, &list), QPS - 128, QPS - 1, Check::QpLimit),
        (Command::CreateCq(cq, Pages::parse(&list)), CQS - 1, 0x40 + CQS - 1, Check::CqLimit),
        (Command::CreateRmp(rmp, Pages::parse(&list)), SRQS, 0x10 + SRQS - 1, Check::SrqLimit),
        (Command::AllocUar(BARE), LAST_UAR - 16, LAST_UAR, Check::UarLimit),
        (Command::AllocTransportDomain(BARE), 1024, 1024, Check::DomainLimit),
    ] {
        for _ in 1..count {
            driver.ok(&command);
        }
        assert_eq!(number(&driver.ok(&command)), last, "{}", command.opcode().name());
        refused(&mut driver, &command, check);
    }
    for query in [
        Command::QueryQp(QueryQp { extended: false, qpn: Qpn::new(QPS - 1) }),
        Command::QueryCq(CqNumber { cqn: Cqn::new(0x40 + CQS - 1) }),
        Command::QueryRmp(SrqNumber { srqn: Srqn::new(0x10 + SRQS - 1) }),
    ] {
        driver.ok(&query);
    }
    driver.create_eq(UarIndex::new(LAST_UAR), 0, EventMask::empty(), RING);
    // Destroying an object makes room for a new one.
    driver.ok(&Command::DestroyQp(QpNumber { qpn: Qpn::new(0x80) }));
    driver.ok(&create_qp(qp, &list));
}

/// Filling the tables of PDs, XRC domains and keys with commands would take too long. The test therefore inserts the
/// objects directly, and only the last one in each table is created by a command.
#[test]
fn limits_of_large_tables_are_enforced() {
    const PDS: u32 = 1 << 16;
    const XRCDS: u32 = 1 << 16;
    let objects = Objects::new();
    let physical = objects.physical();
    let mut driver = objects.driver;
    let resources = driver.hca.frontend_and_memory().0.resources_mut().unwrap();
    for _ in 2..PDS {
        resources.pds.insert(()).unwrap();
    }
    for _ in 1..XRCDS {
        resources.xrcds.insert(()).unwrap();
    }
    // Indices 0 to 7 are unused. The command below creates the last key.
    for _ in 9..MKEYS {
        resources.mkeys.insert(physical.context, &[]).unwrap();
    }
    for (command, last, check) in [
        (Command::AllocPd(BARE), PDS, Check::PdLimit),
        (Command::AllocXrcd(BARE), XRCDS, Check::XrcdLimit),
        (Command::CreateMkey(physical, Bytes::default()), MKEYS - 1, Check::MkeyLimit),
    ] {
        assert_eq!(number(&driver.ok(&command)), last, "{}", command.opcode().name());
        refused(&mut driver, &command, check);
    }
}

/// An EQ has at most 2^22 entries, which fit in one 256 MiB page.
#[test]
fn eq_size_limit_is_enforced() {
    let Objects { mut driver, uar, .. } = Objects::new();
    let list = pages(0, 1);
    let create = |log_entries| {
        let context = EqContext { log_entries, log_page_size: 16, ..eq_context(uar, 0) };
        Command::CreateEq(CreateEq { context, ..CreateEq::default() }, Pages::parse(&list))
    };
    driver.ok(&create(22));
    refused(&mut driver, &create(23), Check::EqSize);
}

#[test]
fn srq_size_limits_are_enforced() {
    const LOG_ENTRY: u8 = 11;
    let objects = Objects::new();
    let list = pages(QUEUE, 2);
    let rmp = |entries, stride| Command::CreateRmp(objects.rmp(entries, stride), Pages::parse(&list));
    let basic = |log_entries| {
        let context = SrqContext { log_entries, pd: objects.pd, record: RECORD, ..SrqContext::default() };
        Command::CreateSrq(CreateSrq { context }, Pages::parse(&list))
    };
    let cases = [
        (rmp(LOG_SRQ_WQES, 5), rmp(LOG_SRQ_WQES + 1, 5)),
        (rmp(1, LOG_ENTRY), rmp(1, LOG_ENTRY + 1)),
        (basic(LOG_SRQ_WQES), basic(LOG_SRQ_WQES + 1)),
    ];
    let mut driver = objects.driver;
    for (last, next) in cases {
        driver.ok(&last);
        refused(&mut driver, &next, Check::SrqSize);
    }
}

/// The log2 of a queue's size is a 4-bit field, so a driver cannot request more than 2^15 entries.
#[test]
fn work_queue_size_limits_are_enforced() {
    let Objects { mut driver, qp, .. } = Objects::new();
    let list = pages(0x1000_0000, (64 << 15 | 16 << 15) >> 12);
    driver.ok(&create_qp(QpContext { log_sq_blocks: 15, log_rq_entries: 15, ..qp }, &list));
    // The stride is log2 of the entry size, minus 4.
    driver.ok(&create_qp(QpContext { log_rq_stride: 5, ..qp }, &list));
    refused(&mut driver, &create_qp(QpContext { log_rq_stride: 6, ..qp }, &list), Check::QpSize);
}

#[test]
fn msix_vector_limit_is_enforced() {
    let Objects { mut driver, uar, .. } = Objects::new();
    let last = VECTORS - 1;
    let eqn = driver.create_eq(uar, last, EventMask::PORT_CHANGE, QUEUE);
    driver.ring(uar, driver::ARM_EQ, &EqDoorbell { eqn, consumer: 0 }.emit());
    driver.hca.set_link(false);
    driver.settle();
    assert_eq!(driver.interrupts(usize::from(last)), 1);
    let list = pages(QUEUE, 4);
    let next = CreateEq { context: eq_context(uar, VECTORS), ..CreateEq::default() };
    refused(&mut driver, &Command::CreateEq(next, Pages::parse(&list)), Check::EqVector);
}

/// The driver enforces the configured `max_rd_atomic`; the device only reports it. A QP never has more than 16 READs
/// and atomics outstanding in either direction.
#[test]
fn qp_depth_is_capped_at_16() {
    for (log, depth) in [(2, 4), (3, 8), (4, 16), (5, 16)] {
        let mut user = User::new(1);
        let context = user.context(Service::Rc);
        user.connect(&QpContext { log_requester_depth: log, log_responder_depth: log, ..context }, 2);
        let rows = user.hca.rows::<QpRow>(0);
        let depths: Vec<_> = rows.iter().map(|row| [row.max_rd_atomic, row.max_dest_rd_atomic]).collect();
        assert_eq!(depths, [[depth; 2]]);
    }
}

#[test]
fn limit_on_pages_given_to_device_is_enforced() {
    const PAGES: u32 = 1 << 16;
    let mut driver = small();
    let list = pages(0, PAGES.into());
    let give = |count| {
        let give = ManagePages { operation: PageOperation::Give.code(), function: 0, count };
        Command::ManagePages(give, Pages::parse(&list))
    };
    driver.ok(&give(PAGES));
    refused(&mut driver, &give(1), Check::PageLimit);
}

/// Section 3.1: `mlx5_ib` lists all pages of a region of 256 MiB or more in CREATE_MKEY.
#[test]
fn mkey_can_list_4_kib_pages_of_1_gib() {
    const LOG_PAGE: u8 = 12;
    let objects = Objects::new();
    let mut driver = objects.driver;
    let list = pages(0, 1 << 18);
    let translation_units = 1 << 17;
    let context = MkeyContext {
        qpn: ANY_QP,
        key: 1,
        pd: objects.pd,
        length: 1 << 30,
        log_page: LOG_PAGE,
        translation_units,
        ..MkeyContext::default()
    };
    let context = context.with_access_mode(AccessMode::Pages);
    let create = CreateMkey { context, translation_units, ..CreateMkey::default() };
    driver.ok(&Command::CreateMkey(create, Bytes::parse(&list)));
}

/// The device accepts regions of any length. Translation lists are limited only by the page budget and by the length of
/// an input. The driver uses the reported limits only for attributes that `ibv_query_device` returns.
#[test]
fn reported_mkey_size_limits_are_not_enforced() {
    const LOG_PAGE: u8 = 30;
    let objects = Objects::new();
    let base = MkeyContext { qpn: ANY_QP, key: 1, pd: objects.pd, local_read: true, ..Default::default() };
    let mut driver = objects.driver;
    for (length, units) in [(1_u64 << 40, 512_u32), ((1 << 40) + 1, 513)] {
        let list = vec![0; 16 * usize::try_from(units).unwrap()];
        let context = MkeyContext { length, log_page: LOG_PAGE, translation_units: units, ..base };
        let context = context.with_access_mode(AccessMode::Pages);
        let create = CreateMkey { context, translation_units: units, ..CreateMkey::default() };
        driver.ok(&Command::CreateMkey(create, Bytes::parse(&list)));
    }
    for translation_units in [1 << 16, (1 << 16) + 1] {
        let context = MkeyContext { free: true, umr_enabled: true, translation_units, ..base };
        let context = context.with_access_mode(AccessMode::Ranges);
        driver.ok(&Command::CreateMkey(CreateMkey { context, ..CreateMkey::default() }, Bytes::default()));
    }
}

#[test]
fn message_length_limit_is_enforced() {
    for (len, expected) in [(1 << 30, None), ((1 << 30) + 1, Some(Syndrome::LocalLength.code()))] {
        let (mut a, _) = User::pair(Service::Rc);
        let context = MkeyContext { length64: true, ..a.mkey(AccessMode::Physical) };
        let lkey = Lkey::new(a.create_mkey(context, &[]));
        let data = DataSegment { byte_count: len, lkey, va: Va::new(0) };
        a.post(&request(SendOpcode::Write, Operation::Write(a.remote(0)), data));
        let frames = a.settle();
        assert_eq!(frames.is_empty(), expected.is_some(), "{len} bytes");
        assert_eq!(syndromes(&a.reap()).first().copied(), expected, "{len} bytes");
    }
}

/// The 6-bit size field of a send WQE counts 16-byte units. The largest WQE has 63 of them: a control segment and 62
/// data segments.
#[test]
fn send_wqe_size_limit_is_enforced() {
    let (mut a, mut b) = User::pair(Service::Rc);
    let data = |a: &User, count: u64| (0..count).map(|at| DataItem::Pointer(a.data(at, 1))).collect();
    a.put(0, &[7; 62]);
    b.post_recv(0x100, 64);
    a.post(&SendWqe { data: data(&a, 62), ..a.send(0, 0) });
    exchange(&mut *a, &mut *b);
    assert_eq!((syndromes(&a.reap()), b.get(0x100, 62)), (vec![0], vec![7; 62]));
    // A size of 64 units overflows the field and is encoded as 0. The WQE index is 16 because the first WQE took 16
    // blocks.
    let mut block = [0; 64];
    block[..8].copy_from_slice(&[0, 0, 16, SendOpcode::Send.code(), 0, 0, 0x80, 0]);
    let doorbell = a.post_bytes(&block);
    a.ring_send(&doorbell);
    exchange(&mut *a, &mut *b);
    assert_eq!(syndromes(&a.reap()), [Syndrome::LocalQpOperation.code()]);
}
