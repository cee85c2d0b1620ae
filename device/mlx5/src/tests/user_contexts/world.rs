//! One object of each kind that a user can create, and the commands that refer to them.

use protocol::hca::mlx5::counter::QueryQCounter;
use protocol::hca::mlx5::cq::ModifyCq;
use protocol::hca::mlx5::flow_counter::{AllocFlowCounter, FlowCounterNumber, QueryFlowCounter};
use protocol::hca::mlx5::flow_entry::{
    FlowActions, FlowContext, FlowDestination, FlowEntrySelector, SetFlowTableEntry,
};
use protocol::hca::mlx5::flow_group::{CreateFlowGroup, FlowGroupNumber, FlowGroupSelector};
use protocol::hca::mlx5::flow_table::{
    CreateFlowTable, FlowTableContext, FlowTableFields, FlowTableNumber, FlowTableSelector, ModifyFlowTable,
};
use protocol::hca::mlx5::input::Bytes;
use protocol::hca::mlx5::mkey::{ANY_QP, AccessMode, CreateMkey, MkeyContext};
use protocol::hca::mlx5::qp::{CreateQp, ModifyQp, QpContext, QueryQp, Service};
use protocol::hca::mlx5::resource::{
    CounterSetNumber, MkeyNumber, Multicast, QpNumber, RqNumber, RqtNumber, SqNumber, SrqNumber, TirNumber,
    TisNumber, TransportDomainNumber, XrcDomainNumber,
};
use protocol::hca::mlx5::rq::{CreateRq, ModifyRq, RqContext, rq_fields};
use protocol::hca::mlx5::rqt::{CreateRqt, ModifyRqt, RqNumbers, RqtContext};
use protocol::hca::mlx5::sq::{CreateSq, ModifySq, SqContext};
use protocol::hca::mlx5::srq::{CreateRmp, ModifyRmp, RmpContext, WorkQueue};
use protocol::hca::mlx5::tir::{CreateTir, ModifyTir, TirContext};
use protocol::hca::mlx5::tis::{CreateTis, ModifyTis, TisContext};
use protocol::hca::mlx5::transition::QpAttributes;
use protocol::hca::mlx5::user_context::UserRights;
use protocol::hca::mlx5::user_memory::{CreateUmem, UmemNumber};
use protocol::ids::{
    CounterSet, FlowCounterId, FlowGroupId, FlowTableId, MkeyIndex, Qpn, Rqn, Rqtn, Sqn, Srqn, Tirn, Tisn,
    TransportDomain, UmemId, UserId, XrcDomain,
};

use super::super::*;
use super::UserCommands as _;

/// Bus address of the UMEM, which has a page for each queue and record.
const UMEM: u64 = 0x60_0000;
const UMEM_PAGES: u64 = 16;

#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct World {
    pub(in super::super) user: UserId,
    pub(super) eqn: Eqn,
    pub(super) umem: UmemId,
    /// UMEM that holds doorbell records. Initially the same as `umem`.
    pub(super) records: UmemId,
    pub(super) uar: UarIndex,
    pub(super) pd: Pdn,
    pub(super) xrcd: XrcDomain,
    pub(super) domain: TransportDomain,
    pub(super) set: CounterSet,
    pub(super) counter: FlowCounterId,
    pub(super) cqn: Cqn,
    pub(super) index: MkeyIndex,
    pub(super) qpn: Qpn,
    pub(super) srqn: Srqn,
    pub(super) rqn: Rqn,
    pub(super) tisn: Tisn,
    pub(super) sqn: Sqn,
    pub(super) rqtn: Rqtn,
    pub(super) tirn: Tirn,
    pub(super) table: FlowTableId,
    pub(super) group: FlowGroupId,
}

/// A command that makes a new or changed object refer to another object.
pub(super) struct Creator {
    pub(super) reference: &'static str,
    /// Copies the number of the referenced object from the second world to the first.
    pub(super) replace: fn(&mut World, &World),
    pub(super) input: fn(&World) -> Vec<u8>,
}

impl World {
    pub(in super::super) fn new(driver: &mut Driver, eqn: Eqn) -> Self {
        let user = driver.create_user(UserRights::RAW_TRANSMIT);
        let mut world = Self::without_sq(driver, user, eqn);
        world.sqn = SqNumber::parse(&world.run(driver, &world.create_sq())).sqn;
        driver.interface.user = 0;
        world
    }

    pub(super) fn without_sq(driver: &mut Driver, user: UserId, eqn: Eqn) -> Self {
        driver.interface.user = user.get();
        let mut world = Self { user, eqn, ..Self::default() };
        let list = pages(UMEM, UMEM_PAGES);
        let create = CreateUmem { count: UMEM_PAGES, ..CreateUmem::default() };
        let created = driver.ok(&Command::CreateUmem(create, Pages::parse(&list)));
        world.umem = UmemNumber::parse(&output(&created)).umem;
        world.records = world.umem;
        world.uar = driver.alloc_uar();
        world.pd = driver.alloc_pd();
        let allocated = driver.ok(&Command::AllocXrcd(BARE));
        world.xrcd = XrcDomainNumber::parse(&output(&allocated)).xrcd;
        let allocated = driver.ok(&Command::AllocTransportDomain(BARE));
        world.domain = TransportDomainNumber::parse(&output(&allocated)).domain;
        let allocated = driver.ok(&Command::AllocQCounter(BARE));
        world.set = CounterSetNumber::parse(&output(&allocated)).set;
        let allocated = driver.ok(&Command::AllocFlowCounter(AllocFlowCounter::default()));
        world.counter = FlowCounterNumber::parse(&output(&allocated)).counter;
        world.cqn = CqNumber::parse(&world.run(driver, &world.create_cq())).cqn;
        let create = Command::CreateMkey(world.mkey(), Bytes::default()).emit(0);
        world.index = MkeyNumber::parse(&world.run(driver, &create)).index;
        world.srqn = SrqNumber::parse(&world.run(driver, &world.create_rmp())).srqn;
        world.qpn = QpNumber::parse(&world.run(driver, &world.create_qp())).qpn;
        world.rqn = RqNumber::parse(&world.run(driver, &world.create_rq())).rqn;
        world.tisn = TisNumber::parse(&world.run(driver, &world.create_tis())).tisn;
        world.rqtn = RqtNumber::parse(&world.run(driver, &world.create_rqt())).rqtn;
        world.tirn = TirNumber::parse(&world.run(driver, &world.create_tir(0))).tirn;
        world.table = FlowTableNumber::parse(&world.run(driver, &table(20, None))).table;
        let group = CreateFlowGroup { table: world.table, last: 7, ..CreateFlowGroup::default() };
        let created = driver.ok(&Command::CreateFlowGroup(group));
        world.group = FlowGroupNumber::parse(&output(&created)).group;
        world.run(driver, &world.set_entry(&[(2, world.tirn.get())], 0));
        world
    }

    fn run(&self, driver: &mut Driver, input: &[u8]) -> [u8; 16] {
        let mut input = input.to_vec();
        input[2..4].copy_from_slice(&self.user.get().to_be_bytes());
        let output = driver.execute(&input, 0x200);
        assert_eq!(output[..8], [0; 8], "{:?}", Command::parse(&input));
        *output.first_chunk().unwrap()
    }

    /// Returns a queue of thirty-two 64-byte entries in the UMEM.
    fn queue(&self, kind: u8, page: u64) -> WorkQueue {
        WorkQueue {
            kind,
            pd: self.pd,
            uar: self.uar,
            record: Iova::new(page << 12),
            log_stride: 6,
            log_entries: 5,
            record_in_umem: true,
            in_umem: true,
            record_umem: self.records,
            umem: self.umem,
            umem_offset: (page << 12) + 0x800,
            ..WorkQueue::default()
        }
    }

    fn create_cq(&self) -> Vec<u8> {
        let context = CqContext {
            log_entries: 6,
            uar: self.uar,
            eqn: self.eqn,
            record: Iova::new(8),
            record_in_umem: true,
            record_umem: self.records,
            ..CqContext::default()
        };
        let create = CreateCq { context, in_umem: true, umem: self.umem, umem_offset: 0x1000 };
        Command::CreateCq(create, Pages::default()).emit(0)
    }

    fn modify_cq(&self) -> Vec<u8> {
        let context = CqContext { log_entries: 7, ..CqContext::default() };
        let (umem, umem_offset) = (self.umem, 0x8000);
        let modify = ModifyCq {
            change: 1,
            cqn: self.cqn,
            context,
            in_umem: true,
            umem,
            umem_offset,
            ..ModifyCq::default()
        };
        Command::ModifyCq(modify, Pages::default()).emit(0)
    }

    pub(super) fn mkey(&self) -> CreateMkey {
        let context =
            MkeyContext { qpn: ANY_QP, pd: self.pd, length: 0x2000, log_page: 12, ..MkeyContext::default() };
        CreateMkey {
            in_umem: true,
            context: context.with_access_mode(AccessMode::Pages),
            umem: self.umem,
            umem_offset: 0x123,
            ..CreateMkey::default()
        }
    }

    pub(super) fn qp_context(&self) -> QpContext {
        QpContext {
            service: Service::Rc.code(),
            pd: self.pd,
            uar: self.uar,
            log_sq_blocks: 4,
            send_cqn: self.cqn,
            recv_cqn: self.cqn,
            counter_set: self.set,
            receive_kind: 1,
            srqn: self.srqn,
            record: Iova::new(0x40),
            record_in_umem: true,
            record_umem: self.records,
            ..QpContext::default()
        }
    }

    fn create_qp(&self) -> Vec<u8> {
        let context = self.qp_context();
        let create =
            CreateQp { context, in_umem: true, umem: self.umem, umem_offset: 0x2000, ..CreateQp::default() };
        Command::CreateQp(create, Pages::default()).emit(0)
    }

    fn rst2init(&self) -> Vec<u8> {
        let modify = ModifyQp { qpn: self.qpn, context: self.qp_context(), ..ModifyQp::default() };
        Command::Rst2InitQp(modify).emit(0)
    }

    fn create_rmp(&self) -> Vec<u8> {
        let context = RmpContext { queue: self.queue(0, 3), ..RmpContext::default() };
        Command::CreateRmp(CreateRmp { context }, Pages::default()).emit(0)
    }

    pub(super) fn rq_context(&self) -> RqContext {
        RqContext { cqn: self.cqn, counter_set: self.set, queue: self.queue(1, 4), ..RqContext::default() }
    }

    fn create_rq(&self) -> Vec<u8> {
        Command::CreateRq(CreateRq { context: self.rq_context() }, Pages::default()).emit(0)
    }

    fn modify_rq(&self) -> Vec<u8> {
        let context = RqContext { state: 1, ..self.rq_context() };
        let fields = rq_fields::COUNTER_SET;
        Command::ModifyRq(ModifyRq { rqn: self.rqn, fields, context, ..ModifyRq::default() }).emit(0)
    }

    pub(super) fn sq_context(&self) -> SqContext {
        let queue = self.queue(1, 5);
        SqContext { cqn: self.cqn, tis_count: 1, tisn: self.tisn, queue, ..SqContext::default() }
    }

    pub(super) fn create_sq(&self) -> Vec<u8> {
        Command::CreateSq(CreateSq { context: self.sq_context() }, Pages::default()).emit(0)
    }

    fn create_tis(&self) -> Vec<u8> {
        let context = TisContext { domain: self.domain, ..TisContext::default() };
        Command::CreateTis(CreateTis { context }).emit(0)
    }

    fn create_rqt(&self) -> Vec<u8> {
        let context = RqtContext { max_entries: 4, entries: 1 };
        let list = self.rqn.get().to_be_bytes();
        Command::CreateRqt(CreateRqt { context }, RqNumbers::parse(&list)).emit(0)
    }

    fn modify_rqt(&self) -> Vec<u8> {
        let context = RqtContext { max_entries: 4, entries: 1 };
        let list = self.rqn.get().to_be_bytes();
        let modify = ModifyRqt { rqtn: self.rqtn, has_entries: true, context };
        Command::ModifyRqt(modify, RqNumbers::parse(&list)).emit(0)
    }

    /// Returns the input for creating a TIR. Dispatch type 0 is direct (to the RQ), and 1 is indirect (to the RQT).
    fn create_tir(&self, dispatch: u8) -> Vec<u8> {
        let (domain, rqn, rqtn) = (self.domain, self.rqn, self.rqtn);
        let context = TirContext { dispatch, domain, rqn, rqtn, ..TirContext::default() };
        Command::CreateTir(CreateTir { context }).emit(0)
    }

    /// Returns the input for setting a flow table entry. It forwards frames to destinations, each given as its kind and
    /// number, and counts them in `counters` flow counters.
    fn set_entry(&self, destinations: &[(u8, u32)], counters: u32) -> Vec<u8> {
        let list =
            destinations.iter().map(|(kind, number)| FlowDestination { kind: *kind, number: *number }.emit());
        let counter = (0..counters).map(|_| [self.counter.get().to_be_bytes(), [0; 4]].concat());
        let lists: Vec<u8> = list.map(Vec::from).chain(counter).flatten().collect();
        let count = if counters == 0 { FlowActions::empty() } else { FlowActions::COUNT };
        let context = FlowContext {
            group: self.group,
            actions: FlowActions::FORWARD | count,
            destination_count: u32::try_from(destinations.len()).unwrap(),
            counter_count: counters,
            ..FlowContext::default()
        };
        let set = SetFlowTableEntry { table: self.table, context, ..SetFlowTableEntry::default() };
        Command::SetFlowTableEntry(set, Bytes::parse(&lists)).emit(0)
    }
}

/// Returns the input for creating a flow table.
fn table(level: u8, miss: Option<FlowTableId>) -> Vec<u8> {
    Command::CreateFlowTable(CreateFlowTable { table_type: 0, context: table_context(level, miss) }).emit(0)
}

fn table_context(level: u8, miss: Option<FlowTableId>) -> FlowTableContext {
    FlowTableContext {
        miss_action: miss.is_some().into(),
        level,
        log_size: 4,
        miss_table: miss.unwrap_or_default(),
    }
}

/// Returns all commands that change, query or destroy an object of a world.
pub(in super::super) fn targets(world: &World) -> Vec<Vec<u8>> {
    let World { table, group, qpn, .. } = *world;
    let (cq, qp, mkey) = (CqNumber { cqn: world.cqn }, QpNumber { qpn }, MkeyNumber { index: world.index });
    let (rmp, rq, sq) =
        (SrqNumber { srqn: world.srqn }, RqNumber { rqn: world.rqn }, SqNumber { sqn: world.sqn });
    let (rqt, tir, tis) =
        (RqtNumber { rqtn: world.rqtn }, TirNumber { tirn: world.tirn }, TisNumber { tisn: world.tisn });
    let modify = ModifyQp { qpn, optional: QpAttributes::empty(), ..ModifyQp::default() };
    let member = Multicast { qpn, gid: [0xff; 16] };
    let selector = FlowTableSelector { table_type: 0, table };
    let group = FlowGroupSelector { table_type: 0, table, group };
    let entry = FlowEntrySelector { table_type: 0, table, index: 0 };
    let set = CounterSetNumber { set: world.set };
    let counter = FlowCounterNumber { counter: world.counter };
    let commands = [
        Command::QueryQCounter(QueryQCounter { set: world.set, ..QueryQCounter::default() }),
        Command::QueryFlowCounter(QueryFlowCounter { counter: world.counter, ..QueryFlowCounter::default() }),
        Command::QueryCq(cq),
        Command::QueryMkey(mkey),
        Command::QueryQp(QueryQp { qpn, ..QueryQp::default() }),
        Command::Rst2InitQp(modify),
        Command::Init2InitQp(modify),
        Command::Init2RtrQp(modify),
        Command::Rtr2RtsQp(modify),
        Command::Rts2RtsQp(modify),
        Command::SqErr2RtsQp(modify),
        Command::Sqd2RtsQp(modify),
        Command::ToErrQp(qp),
        Command::ToRstQp(qp),
        Command::AttachToMcg(member),
        Command::DetachFromMcg(member),
        Command::ModifyRmp(ModifyRmp { srqn: world.srqn, ..ModifyRmp::default() }),
        Command::QueryRmp(rmp),
        Command::ModifyTir(ModifyTir { tirn: world.tirn, ..ModifyTir::default() }),
        Command::QueryTir(tir),
        Command::ModifyTis(ModifyTis { tisn: world.tisn, ..ModifyTis::default() }),
        Command::QueryTis(tis),
        Command::ModifyRqt(ModifyRqt { rqtn: world.rqtn, ..ModifyRqt::default() }, RqNumbers::default()),
        Command::QueryRqt(rqt),
        Command::ModifySq(ModifySq { sqn: world.sqn, ..ModifySq::default() }),
        Command::QuerySq(sq),
        Command::ModifyRq(ModifyRq { rqn: world.rqn, ..ModifyRq::default() }),
        Command::QueryRq(rq),
        Command::ModifyCq(ModifyCq { cqn: world.cqn, ..ModifyCq::default() }, Pages::default()),
        Command::QueryFlowTable(selector),
        Command::ModifyFlowTable(ModifyFlowTable { table, ..ModifyFlowTable::default() }),
        Command::CreateFlowGroup(CreateFlowGroup { table, first: 8, last: 8, ..CreateFlowGroup::default() }),
        Command::QueryFlowGroup(group),
        Command::QueryFlowTableEntry(entry),
        Command::SetFlowTableEntry(
            SetFlowTableEntry { table, ..SetFlowTableEntry::default() },
            Bytes::default(),
        ),
        Command::DeleteFlowTableEntry(entry),
        Command::DestroyFlowGroup(group),
        Command::DestroyFlowTable(selector),
        Command::DestroyTir(tir),
        Command::DestroyRqt(rqt),
        Command::DestroySq(sq),
        Command::DestroyRq(rq),
        Command::DestroyTis(tis),
        Command::DestroyQp(qp),
        Command::DestroyRmp(rmp),
        Command::DestroyMkey(mkey),
        Command::DestroyCq(cq),
        Command::DeallocFlowCounter(counter),
        Command::DeallocQCounter(set),
        Command::DeallocUar(UarNumber { uar: world.uar }),
        Command::DeallocPd(PdNumber { pd: world.pd }),
        Command::DeallocXrcd(XrcDomainNumber { xrcd: world.xrcd }),
        Command::DeallocTransportDomain(TransportDomainNumber { domain: world.domain }),
        Command::DestroyUmem(UmemNumber { umem: world.umem }),
    ];
    commands.iter().map(|command| command.emit(0)).collect()
}

/// Returns all commands that make an object refer to another object. A command with several references is listed once
/// per reference.
pub(super) fn creators() -> Vec<Creator> {
    let creator = |reference, replace, input| Creator { reference, replace, input };
    vec![
        creator("UAR page of CQ", |to, from| to.uar = from.uar, World::create_cq),
        creator("ring of CQ", |to, from| to.umem = from.umem, World::create_cq),
        creator("record of CQ", |to, from| to.records = from.records, World::create_cq),
        creator("new ring of CQ", |to, from| to.umem = from.umem, World::modify_cq),
        creator(
            "PD of key",
            |to, from| to.pd = from.pd,
            |world| Command::CreateMkey(world.mkey(), Bytes::default()).emit(0),
        ),
        creator(
            "region of key",
            |to, from| to.umem = from.umem,
            |world| Command::CreateMkey(world.mkey(), Bytes::default()).emit(0),
        ),
        creator("PD of QP", |to, from| to.pd = from.pd, World::create_qp),
        creator("UAR page of QP", |to, from| to.uar = from.uar, World::create_qp),
        creator("CQs of QP", |to, from| to.cqn = from.cqn, World::create_qp),
        creator("SRQ of QP", |to, from| to.srqn = from.srqn, World::create_qp),
        creator("counter set of QP", |to, from| to.set = from.set, World::create_qp),
        creator("queues of QP", |to, from| to.umem = from.umem, World::create_qp),
        creator("record of QP", |to, from| to.records = from.records, World::create_qp),
        creator("new PD of QP", |to, from| to.pd = from.pd, World::rst2init),
        creator("new CQs of QP", |to, from| to.cqn = from.cqn, World::rst2init),
        creator("new SRQ of QP", |to, from| to.srqn = from.srqn, World::rst2init),
        creator("new counter set of QP", |to, from| to.set = from.set, World::rst2init),
        creator("PD of RMP", |to, from| to.pd = from.pd, World::create_rmp),
        creator("queue of RMP", |to, from| to.umem = from.umem, World::create_rmp),
        creator("record of RMP", |to, from| to.records = from.records, World::create_rmp),
        creator("PD of RQ", |to, from| to.pd = from.pd, World::create_rq),
        creator("kernel PD of RQ", |to, _| to.pd = Pdn::new(0), World::create_rq),
        creator("CQ of RQ", |to, from| to.cqn = from.cqn, World::create_rq),
        creator("counter set", |to, from| to.set = from.set, World::create_rq),
        creator("queue of RQ", |to, from| to.umem = from.umem, World::create_rq),
        creator("record of RQ", |to, from| to.records = from.records, World::create_rq),
        creator("new counter set of RQ", |to, from| to.set = from.set, World::modify_rq),
        creator("PD of SQ", |to, from| to.pd = from.pd, World::create_sq),
        creator("UAR page of SQ", |to, from| to.uar = from.uar, World::create_sq),
        creator("CQ of SQ", |to, from| to.cqn = from.cqn, World::create_sq),
        creator("TIS of SQ", |to, from| to.tisn = from.tisn, World::create_sq),
        creator("queue of SQ", |to, from| to.umem = from.umem, World::create_sq),
        creator("record of SQ", |to, from| to.records = from.records, World::create_sq),
        creator("domain of TIS", |to, from| to.domain = from.domain, World::create_tis),
        creator("RQ of RQT", |to, from| to.rqn = from.rqn, World::create_rqt),
        creator("new RQ of RQT", |to, from| to.rqn = from.rqn, World::modify_rqt),
        creator("RQ of TIR", |to, from| to.rqn = from.rqn, |world| world.create_tir(0)),
        creator("RQT of TIR", |to, from| to.rqtn = from.rqtn, |world| world.create_tir(1)),
        creator("domain of TIR", |to, from| to.domain = from.domain, |world| world.create_tir(0)),
        creator("miss table", |to, from| to.table = from.table, |world| table(3, Some(world.table))),
        creator(
            "new miss table",
            |to, from| to.group = FlowGroupId::new(from.table.get()),
            |world| {
                // This command does not use a flow group, so `world.group` holds the number of the miss table.
                let miss = FlowTableId::new(world.group.get());
                let context = table_context(3, Some(miss));
                let fields = FlowTableFields::MISS;
                Command::ModifyFlowTable(ModifyFlowTable {
                    table: world.table,
                    fields,
                    context,
                    ..ModifyFlowTable::default()
                })
                .emit(0)
            },
        ),
        creator(
            "TIR of entry",
            |to, from| to.tirn = from.tirn,
            |world| world.set_entry(&[(2, world.tirn.get())], 0),
        ),
        creator(
            "second TIR of entry",
            |to, from| to.tirn = from.tirn,
            |world| world.set_entry(&[(2, world.rqtn.get()), (2, world.tirn.get())], 0),
        ),
        creator(
            "counter of entry",
            |to, from| to.counter = from.counter,
            |world| world.set_entry(&[(2, world.tirn.get())], 1),
        ),
        creator(
            "table of entry",
            |to, from| to.group = FlowGroupId::new(from.table.get()),
            |world| world.set_entry(&[(1, world.group.get())], 0),
        ),
    ]
}
