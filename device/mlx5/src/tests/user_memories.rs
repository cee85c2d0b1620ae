//! Queues, doorbell records and regions in UMEMs (mlx5 interface, section 23.2).

use card::frontend::testing::{exchange, pattern};
use protocol::hca::mlx5::cq::{ModifyCq, QueriedCq};
use protocol::hca::mlx5::cqe::INITIAL_OWNER_BYTE;
use protocol::hca::mlx5::input::Bytes;
use protocol::hca::mlx5::mkey::{AccessMode, CreateMkey, MkeyContext};
use protocol::hca::mlx5::qp::{CreateQp, ModifyQp, QpContext, QueriedQp, QueryQp, Service};
use protocol::hca::mlx5::resource::{MkeyNumber, QpNumber};
use protocol::hca::mlx5::user_context::UserRights;
use protocol::hca::mlx5::user_memory::{CreateUmem, UmemNumber};
use protocol::ids::{UmemId, Va};

use super::user::{CQ, DATA_LEN, LAST_PAGE, QP, QP_RECORD, User};
use super::user_contexts::UserCommands as _;
use super::*;
use crate::limits::MAX_UMEMS;

/// Offsets within [`DevxUser`]'s UMEM.
const RECORDS_AT: u64 = 0x2000;
const DATA_AT: u64 = 0x3800;
/// Start address of [`DevxUser`]'s memory region. The address's offset within a page differs from the offset of the
/// region's data, which is at [`DATA_AT`].
const KEY_VA: u64 = 0x10;

fn create_umem(driver: &mut Driver, pages: &[u64]) -> UmemId {
    let list: Vec<u8> = pages.iter().flat_map(|page| page.to_be_bytes()).collect();
    let create = CreateUmem { count: pages.len() as u64, ..CreateUmem::default() };
    let created = driver.ok(&Command::CreateUmem(create, Pages::parse(&list)));
    UmemNumber::parse(&output(&created)).umem
}

/// A DevX program with its CQ, QP, doorbell records and data in one UMEM.
struct DevxUser {
    user: User,
    umem: UmemId,
}

impl DevxUser {
    fn new(lid: u16) -> Self {
        let mut user = User::new(lid);
        let id = user.create_user(UserRights::empty());
        user.interface.user = id.get();
        let data = (0..4).map(|page| LAST_PAGE - page * 0x1000);
        let pages: Vec<u64> = [CQ, QP, RECORD.get()].into_iter().chain(data).collect();
        let umem = create_umem(&mut user, &pages);
        (user.uar, user.pd) = (user.alloc_uar(), user.alloc_pd());
        let mut devx = Self { user, umem };
        for entry in 0..64 {
            devx.user.poke(CQ + entry * 64 + 63, &[INITIAL_OWNER_BYTE]);
        }
        let create = devx.create_cq(0, RECORDS_AT);
        devx.user.cqn = CqNumber::parse(&output(&devx.user.ok(&create))).cqn;
        let context = MkeyContext {
            start: Va::new(KEY_VA),
            length: DATA_LEN,
            log_page: 12,
            local_write: true,
            ..devx.user.mkey(AccessMode::Pages)
        };
        let create =
            CreateMkey { context, in_umem: true, umem, umem_offset: DATA_AT, ..CreateMkey::default() };
        let created = devx.user.ok(&Command::CreateMkey(create, Bytes::default()));
        devx.user.key = MkeyNumber::parse(&output(&created)).index.key(context.key);
        devx
    }

    fn create_cq(&self, at: u64, record: u64) -> Command<'static> {
        let context = CqContext {
            record: Iova::new(record),
            record_in_umem: true,
            record_umem: self.umem,
            ..cq_context(self.user.uar, super::user::COMPLETION_EQ)
        };
        let create = CreateCq { context, in_umem: true, umem: self.umem, umem_offset: at };
        Command::CreateCq(create, Pages::default())
    }

    fn create_qp(&self, at: u64, record: u64) -> Command<'static> {
        let context = QpContext {
            record: Iova::new(record),
            record_in_umem: true,
            record_umem: self.umem,
            fast_registration: false,
            ..self.user.context(Service::Rc)
        };
        let create =
            CreateQp { context, in_umem: true, umem: self.umem, umem_offset: at, ..CreateQp::default() };
        Command::CreateQp(create, Pages::default())
    }

    /// Creates the QP and connects it to the first QP on another device.
    fn connect(&mut self, lid: u16) {
        let create = self.create_qp(0x1000, RECORDS_AT + 0x40);
        let context = self.user.context(Service::Rc);
        self.user.qpn = QpNumber::parse(&output(&self.user.ok(&create))).qpn;
        self.user.send_queue = QP + context.rq_len() as u64;
        // As in `test_mlx5_devx.py`, the PD, the CQs and the doorbell record are 0 in RST2INIT.
        let unnamed = QpContext {
            pd: Pdn::default(),
            send_cqn: Cqn::default(),
            recv_cqn: Cqn::default(),
            record: Iova::default(),
            ..context
        };
        self.user.start(&unnamed, lid);
    }
}

#[test]
fn queues_in_umem_carry_messages() {
    let (mut a, mut b) = (DevxUser::new(1), User::new(2));
    a.connect(2);
    b.connect(&b.context(Service::Rc), 1);
    let message = pattern(0x1800, 3);
    a.user.put(0x10, &message);
    b.post_recv(0x20, 0x1800);
    let mut send = a.user.send(0, 0x1800);
    set_va(&mut send, KEY_VA + 0x10);
    a.user.post(&send);
    exchange(&mut *a.user, &mut *b);
    assert_eq!(b.get(0x20, 0x1800), message);
    assert_eq!((a.user.reap().len(), b.reap().len()), (1, 1));
}

/// Sets the address in a request's data segment.
fn set_va(wqe: &mut protocol::hca::mlx5::wqe::SendWqe<'_>, va: u64) {
    use protocol::hca::mlx5::wqe::DataItem;
    for item in &mut wqe.data {
        if let DataItem::Pointer(segment) = item {
            segment.va = Va::new(va);
        }
    }
}

#[test]
fn queries_report_offsets_instead_of_addresses() {
    let mut a = DevxUser::new(1);
    a.connect(2);
    let (cqn, qpn) = (a.user.cqn, a.user.qpn);
    let cq = a.user.ok(&Command::QueryCq(CqNumber { cqn }));
    let QueriedCq { context } = QueriedCq::parse(&output(&cq));
    assert_eq!(context.record, Iova::new(RECORDS_AT));
    let qp = a.user.ok(&Command::QueryQp(QueryQp { extended: false, qpn }));
    let QueriedQp { context } = QueriedQp::parse(&output(&qp));
    assert_eq!(context.record, Iova::new(RECORDS_AT + 0x40));
}

#[test]
fn queues_outside_umem_are_rejected() {
    let mut a = DevxUser::new(1);
    let umem = a.umem;
    let cq = |a: &mut DevxUser, at, record| {
        let command = a.create_cq(at, record);
        a.user.rejected(&command)
    };
    for at in [0x6001, 0x7000, u64::MAX, u64::MAX - 0xfff] {
        assert_eq!(cq(&mut a, at, 0), Check::UmemRange, "{at:#x}");
    }
    for record in [0x6ffc, 0x7000, 4, u64::MAX - 7] {
        assert_eq!(cq(&mut a, 0x6000, record), Check::UmemRecord, "{record:#x}");
    }
    let qp = a.create_qp(0x6f00, RECORDS_AT);
    assert_eq!(a.user.rejected(&qp), Check::UmemRange);
    let context = MkeyContext { length: 0x7000, log_page: 12, ..a.user.mkey(AccessMode::Pages) };
    let create = CreateMkey { context, in_umem: true, umem, umem_offset: 1, ..CreateMkey::default() };
    assert_eq!(a.user.rejected(&Command::CreateMkey(create, Bytes::default())), Check::UmemRange);
    let context = MkeyContext { length: u64::MAX, ..context };
    let create = CreateMkey { context, ..create };
    assert_eq!(a.user.rejected(&Command::CreateMkey(create, Bytes::default())), Check::UmemRange);
}

#[test]
fn umem_in_use_cannot_be_destroyed() {
    let mut a = DevxUser::new(1);
    let umem = a.umem;
    let destroy = Command::DestroyUmem(UmemNumber { umem });
    assert_eq!(a.user.rejected(&destroy), Check::UmemInUse);
    let (cqn, key) = (a.user.cqn, a.user.key);
    a.user.ok(&Command::DestroyMkey(MkeyNumber { index: protocol::ids::MkeyIndex::of(key) }));
    // The new ring is in a different UMEM, but the doorbell record remains in the first one.
    let other = create_umem(&mut a.user, &[0x44_0000, 0x44_1000]);
    let context = CqContext { log_entries: 7, ..CqContext::default() };
    let modify = ModifyCq { change: 1, cqn, context, in_umem: true, umem: other, ..ModifyCq::default() };
    a.user.ok(&Command::ModifyCq(modify, Pages::default()));
    assert_eq!(a.user.rejected(&destroy), Check::UmemInUse);
    let destroy_other = Command::DestroyUmem(UmemNumber { umem: other });
    assert_eq!(a.user.rejected(&destroy_other), Check::UmemInUse);
    a.user.ok(&Command::DestroyCq(CqNumber { cqn }));
    a.user.ok(&destroy);
    a.user.ok(&destroy_other);
    assert_eq!(a.user.rejected(&destroy), Check::UserObject);
}

/// The doorbell record of a verbs QP has a DMA address, which the QP's owner cannot change with an RST2INIT sent
/// through DevX.
#[test]
fn user_cannot_move_doorbell_record() {
    let mut a = DevxUser::new(1);
    let list = pages(QP, 1);
    let context = QpContext { fast_registration: false, ..a.user.context(Service::Rc) };
    let create = CreateQp { context, ..CreateQp::default() };
    let created = a.user.ok(&Command::CreateQp(create, Pages::parse(&list)));
    let QpNumber { qpn } = QpNumber::parse(&output(&created));
    let moved = QpContext { record: Iova::new(0x123_4000), ..context };
    a.user.ok(&Command::Rst2InitQp(ModifyQp { qpn, context: moved, ..ModifyQp::default() }));
    let queried = a.user.ok(&Command::QueryQp(QueryQp { extended: false, qpn }));
    assert_eq!(QueriedQp::parse(&output(&queried)).context.record, QP_RECORD);
}

#[test]
fn too_many_umems_are_rejected() {
    let mut driver = initialised();
    let first = create_umem(&mut driver, &[0x40_0000]);
    for _ in 1..MAX_UMEMS {
        create_umem(&mut driver, &[0x40_0000]);
    }
    let list = pages(0x40_0000, 1);
    let create = Command::CreateUmem(CreateUmem { count: 1, ..CreateUmem::default() }, Pages::parse(&list));
    assert_eq!(driver.rejected(&create), Check::UmemLimit);
    driver.ok(&Command::DestroyUmem(UmemNumber { umem: first }));
    driver.ok(&create);
}
