//! DevX user contexts: the commands they may send, and the objects they may access (mlx5 interface, section 23).

pub(super) mod world;

use protocol::hca::mlx5::flow_group::CreateFlowGroup;
use protocol::hca::mlx5::flow_table::{
    CreateFlowTable, FlowTableContext, FlowTableNumber, FlowTableSelector,
};
use protocol::hca::mlx5::input::Bytes;
use protocol::hca::mlx5::mkey::{AccessMode, CreateMkey, MkeyContext};
use protocol::hca::mlx5::qp::{CreateQp, ModifyQp, QpContext, Service};
use protocol::hca::mlx5::resource::{CounterSetNumber, QpNumber};
use protocol::hca::mlx5::rq::{CreateRq, RqContext};
use protocol::hca::mlx5::sq::{CreateSq, SqContext};
use protocol::hca::mlx5::transition::QpAttributes;
use protocol::hca::mlx5::user_context::{CreateUctx, UctxNumber, UserRights};
use protocol::ids::{CounterSet, FlowTableId, Qpn, UserId};

use self::world::{World, creators, targets};
use super::*;
use crate::limits::MAX_USER_CONTEXTS;

/// Returns a driver and two users, each of which has created a [`World`].
fn two_worlds() -> (Driver, [World; 2]) {
    let mut driver = initialised_with_ethernet();
    let uar = driver.alloc_uar();
    let eqn = driver.create_eq(uar, 0, EventMask::empty(), 0x40_0000);
    let worlds = [(); 2].map(|()| World::new(&mut driver, eqn));
    (driver, worlds)
}

/// Commands that a driver executes on behalf of users.
pub(super) trait UserCommands {
    fn create_user(&mut self, rights: UserRights) -> UserId;
    fn destroy_user(&mut self, user: UserId);

    /// Executes a command on behalf of a user. Returns the check that rejected it, if any.
    fn check_of(&mut self, user: u16, input: &[u8]) -> Option<Check>;
}

impl UserCommands for Driver {
    fn create_user(&mut self, rights: UserRights) -> UserId {
        self.interface.user = 0;
        let created = self.ok(&Command::CreateUctx(CreateUctx { rights }));
        UctxNumber::parse(&output(&created)).user
    }

    fn destroy_user(&mut self, user: UserId) {
        self.interface.user = 0;
        self.ok(&Command::DestroyUctx(UctxNumber { user }));
    }

    fn check_of(&mut self, user: u16, input: &[u8]) -> Option<Check> {
        let mut input = input.to_vec();
        input[2..4].copy_from_slice(&user.to_be_bytes());
        let header = OutputHeader::parse(&output(&self.execute(&input, 0x400)));
        Check::ALL.iter().copied().find(|check| check.syndrome() == header.syndrome)
    }
}

fn opcode(input: &[u8]) -> Opcode {
    Opcode::from_code(u16::from_be_bytes([input[0], input[1]])).unwrap()
}

#[test]
fn objects_of_other_users_are_unreachable() {
    let (mut driver, [own, other]) = two_worlds();
    for input in targets(&other) {
        let check = driver.check_of(own.user.get(), &input);
        assert_eq!(check, Some(Check::UserObject), "{}", opcode(&input).name());
    }
    for creator in creators() {
        let mut mixed = own;
        (creator.replace)(&mut mixed, &other);
        let input = (creator.input)(&mixed);
        let check = driver.check_of(own.user.get(), &input);
        assert_eq!(check, Some(Check::UserObject), "{} with {}", opcode(&input).name(), creator.reference);
        // Without the foreign object, the same command passes the ownership check.
        let check = driver.check_of(own.user.get(), &(creator.input)(&own));
        assert_ne!(check, Some(Check::UserObject), "{}", opcode(&input).name());
        driver.check_of(own.user.get(), &Command::ToRstQp(QpNumber { qpn: own.qpn }).emit(0));
    }
}

#[test]
fn kernel_objects_are_unreachable() {
    let (mut driver, [own, other]) = two_worlds();
    driver.interface.user = 0;
    let pd = PdNumber { pd: driver.alloc_pd() };
    assert_eq!(driver.check_of(own.user.get(), &Command::DeallocPd(pd).emit(0)), Some(Check::UserObject));
    // The same check rejects numbers of objects that do not exist.
    driver.destroy_user(other.user);
    for input in targets(&other) {
        let check = driver.check_of(own.user.get(), &input);
        assert_eq!(check, Some(Check::UserObject), "{}", opcode(&input).name());
    }
}

/// Section 23.1: one user context can own 64 of the 256 flow tables, and all user contexts together can own 192.
#[test]
fn user_contexts_share_flow_table_quota() {
    let mut driver = initialised_with_ethernet();
    let rights = UserRights::empty();
    let [first, second, third, fourth] = [(); 4].map(|()| driver.create_user(rights).get());
    let create = Command::CreateFlowTable(CreateFlowTable::default()).emit(0);
    let fill = |driver: &mut Driver, user: u16| {
        (0..300).take_while(|_| driver.check_of(user, &create).is_none()).count()
    };
    assert_eq!([first, second].map(|user| fill(&mut driver, user)), [64, 64]);
    assert_eq!(driver.check_of(first, &create), Some(Check::UserQuota));
    assert_eq!(
        [third, fourth].map(|user| fill(&mut driver, user)),
        [64, 0],
        "all users together can own only three quarters"
    );
    assert_eq!(fill(&mut driver, 0), 64, "the kernel can create the rest");
    let table = FlowTableSelector { table: FlowTableId::new(1), ..FlowTableSelector::default() };
    assert_eq!(driver.check_of(first, &Command::DestroyFlowTable(table).emit(0)), None);
    assert_eq!((fill(&mut driver, fourth), fill(&mut driver, first)), (1, 0));
    driver.destroy_user(UserId::new(second));
    assert_eq!(
        (fill(&mut driver, second), fill(&mut driver, first)),
        (0, 1),
        "only existing contexts can create tables"
    );
    assert_eq!(fill(&mut driver, fourth), 63);
}

#[test]
fn flow_groups_per_user_are_limited() {
    let mut driver = initialised_with_ethernet();
    let user = driver.create_user(UserRights::empty()).get();
    let tables: Vec<FlowTableId> = (0..17)
        .map(|_| {
            let context = FlowTableContext { log_size: 15, ..FlowTableContext::default() };
            let create = Command::CreateFlowTable(CreateFlowTable { context, ..<_>::default() });
            let mut input = create.emit(0);
            input[2..4].copy_from_slice(&user.to_be_bytes());
            FlowTableNumber::parse(&output(&driver.execute(&input, 0x400))).table
        })
        .collect();
    // A table holds at most 128 groups, so 16 full tables exhaust one user context's quota.
    let group = |table, n: u32| {
        let group = CreateFlowGroup { table, first: n * 200, last: n * 200 + 199, ..<_>::default() };
        Command::CreateFlowGroup(group).emit(0)
    };
    for table in &tables[..16] {
        for n in 0..128 {
            assert_eq!(driver.check_of(user, &group(*table, n)), None);
        }
    }
    assert_eq!(driver.check_of(user, &group(tables[16], 0)), Some(Check::UserQuota));
}

#[test]
fn every_command_has_an_ownership_rule() {
    let (mut driver, [own, _]) = two_worlds();
    let mut reachable: Vec<Opcode> = targets(&own).iter().map(|input| opcode(input)).collect();
    reachable.extend(creators().iter().map(|creator| opcode(&(creator.input)(&own))));
    let nameless = [
        Opcode::QueryHcaCap,
        Opcode::QueryAdapter,
        Opcode::QueryIssi,
        Opcode::Nop,
        Opcode::QueryLag,
        Opcode::QueryVnicEnv,
        Opcode::QueryHcaVportContext,
        Opcode::QueryVportState,
        Opcode::QueryNicVportContext,
        Opcode::QueryRoceAddress,
        Opcode::QueryVportCounter,
        Opcode::AllocPd,
        Opcode::AllocUar,
        Opcode::AllocXrcd,
        Opcode::AllocTransportDomain,
        Opcode::AllocQCounter,
        Opcode::AllocFlowCounter,
        Opcode::CreateUmem,
    ];
    reachable.extend(nameless);
    for opcode in Command::OPCODES {
        let mut input = [0; 0x400];
        input[..2].copy_from_slice(&opcode.code().to_be_bytes());
        let is_reserved = driver.check_of(own.user.get(), &input) == Some(Check::UserCommand);
        assert_eq!(is_reserved, !reachable.contains(opcode), "{}", opcode.name());
    }
}

#[test]
fn user_can_query_its_own_objects() {
    let (mut driver, [own, _]) = two_worlds();
    for input in targets(&own).iter().filter(|input| opcode(input).name().starts_with("QUERY")) {
        let check = driver.check_of(own.user.get(), input);
        assert_eq!(check, None, "{}", opcode(input).name());
    }
}

#[test]
fn kernel_can_query_objects_of_all_users() {
    let (mut driver, worlds) = two_worlds();
    for input in worlds.iter().flat_map(targets).filter(|input| opcode(input).name().starts_with("QUERY")) {
        assert_eq!(driver.check_of(0, &input), None, "{}", opcode(&input).name());
    }
}

/// mlx5_ib allocates a port's counter set for use by all users.
#[test]
fn users_can_use_but_not_change_shared_counter_set() {
    let (mut driver, [own, _]) = two_worlds();
    driver.interface.user = 0xffff;
    let allocated = driver.ok(&Command::AllocQCounter(BARE));
    let CounterSetNumber { set } = CounterSetNumber::parse(&output(&allocated));
    let rq = creators().into_iter().find(|creator| creator.reference == "counter set").unwrap();
    assert_eq!(driver.check_of(own.user.get(), &(rq.input)(&World { set, ..own })), None);
    let dealloc = Command::DeallocQCounter(CounterSetNumber { set }).emit(0);
    assert_eq!(driver.check_of(own.user.get(), &dealloc), Some(Check::UserObject));
    let missing = World { set: CounterSet::new(77), ..own };
    assert_eq!(driver.check_of(own.user.get(), &(rq.input)(&missing)), Some(Check::UserObject));
}

#[test]
fn destroying_user_context_drops_its_objects() {
    let (mut driver, [first, second]) = two_worlds();
    driver.destroy_user(first.user);
    for input in targets(&first).iter().filter(|input| opcode(input).name().starts_with("QUERY")) {
        assert!(driver.check_of(0, input).is_some(), "{}", opcode(input).name());
    }
    for input in targets(&second).iter().filter(|input| opcode(input).name().starts_with("QUERY")) {
        assert_eq!(driver.check_of(second.user.get(), input), None, "{}", opcode(input).name());
    }
    assert_eq!(driver.check_of(first.user.get(), &driver::bare(0x800)), Some(Check::UserContext));
    driver.interface.user = 0;
    assert_eq!(driver.rejected(&Command::DestroyUctx(UctxNumber { user: first.user })), Check::UserContext);
    // Run more rounds than the device has counter sets or flow tables so that a leak reaches a limit.
    for _ in 0..600 {
        let world = World::new(&mut driver, second.eqn);
        driver.destroy_user(world.user);
    }
}

/// Section 10.2: a failed datagram moves a QP from RTS to the send queue error state without a command.
#[test]
fn qp_with_failed_send_queue_cannot_use_foreign_cq() {
    // The UMEM of a world begins at this bus address.
    const UMEM: u64 = 0x60_0000;
    let (mut driver, [own, other]) = two_worlds();
    driver.interface.user = own.user.get();
    let context = QpContext { service: Service::Ud.code(), ..own.qp_context() };
    let create = CreateQp { context, in_umem: true, umem: own.umem, umem_offset: 0x2000, ..<_>::default() };
    let created = driver.ok(&Command::CreateQp(create, Pages::default()));
    let QpNumber { qpn } = QpNumber::parse(&output(&created));
    let modify = ModifyQp { qpn, context, ..ModifyQp::default() };
    driver.ok(&Command::Rst2InitQp(modify));
    driver.ok(&Command::Init2RtrQp(modify));
    driver.ok(&Command::Rtr2RtsQp(modify));
    // The WQE has size 0.
    driver.poke(UMEM + 0x40 + 6, &[0, 1]);
    let doorbell = u64::from(qpn.get()) << 8;
    driver.ring(own.uar, 0x800, &doorbell.to_be_bytes());
    driver.settle();
    let mut recover = |recv_cqn| {
        let context = QpContext { recv_cqn, ..context };
        let modify = ModifyQp { optional: QpAttributes::RECV_CQN, context, ..modify };
        driver.check_of(own.user.get(), &Command::SqErr2RtsQp(modify).emit(0))
    };
    assert_eq!(recover(other.cqn), Some(Check::UserObject));
    assert_eq!(recover(own.cqn), None);
}

/// XRC initiator QPs, which the kernel creates outside any user context, use a CQ owned by a user context.
#[test]
fn object_in_use_by_kernel_outlives_user_context() {
    let (mut driver, [own, other]) = two_worlds();
    driver.interface.user = 0;
    let pd = driver.alloc_pd();
    let context = QpContext {
        service: Service::Rc.code(),
        pd,
        uar: own.uar,
        send_cqn: own.cqn,
        recv_cqn: own.cqn,
        record: RECORD,
        ..QpContext::default()
    };
    let list = pages(0x42_0000, 1);
    let create = CreateQp { context, ..CreateQp::default() };
    let created = driver.ok(&Command::CreateQp(create, Pages::parse(&list)));
    let QpNumber { qpn } = QpNumber::parse(&output(&created));
    driver.destroy_user(own.user);
    driver.ok(&Command::QueryCq(CqNumber { cqn: own.cqn }));
    let query = Command::QueryCq(CqNumber { cqn: own.cqn }).emit(0);
    assert_eq!(driver.check_of(other.user.get(), &query), Some(Check::UserObject));
    driver.ok(&Command::DestroyQp(QpNumber { qpn }));
    driver.ok(&Command::DestroyCq(CqNumber { cqn: own.cqn }));
    driver.ok(&Command::DeallocUar(UarNumber { uar: own.uar }));
}

#[test]
fn user_cannot_request_access_to_all_memory() {
    let (mut driver, [own, _]) = two_worlds();
    let user = own.user.get();
    let qp =
        |context| Command::CreateQp(CreateQp { context, ..CreateQp::default() }, Pages::default()).emit(0);
    let context = own.qp_context();
    let mut check = |input: Vec<u8>| driver.check_of(user, &input);
    for service in [Service::Umr, Service::Qp0, Service::Qp1, Service::Xrc, Service::Raw] {
        let context = QpContext { service: service.code(), ..context };
        assert_eq!(check(qp(context)), Some(Check::UserService), "{}", service.name());
    }
    assert_eq!(check(qp(QpContext { reserved_lkey: true, ..context })), Some(Check::UserReservedKey));
    assert_eq!(
        check(qp(QpContext { fast_registration: true, ..context })),
        Some(Check::UserFastRegistration)
    );
    let sq = CreateSq { context: SqContext { reserved_lkey: true, ..own.sq_context() } };
    assert_eq!(check(Command::CreateSq(sq, Pages::default()).emit(0)), Some(Check::UserReservedKey));
    let rq = CreateRq { context: RqContext { reserved_lkey: true, ..own.rq_context() } };
    assert_eq!(check(Command::CreateRq(rq, Pages::default()).emit(0)), Some(Check::UserReservedKey));
    let region = own.mkey();
    let modes = [AccessMode::Physical, AccessMode::DeviceMemory, AccessMode::Ranges];
    let keys = modes.map(|mode| region.context.with_access_mode(mode)).map(|context| (context, true));
    let free = MkeyContext { free: true, ..region.context };
    let whole = MkeyContext { length64: true, ..region.context };
    for (context, in_umem) in keys.into_iter().chain([(free, true), (whole, true), (region.context, false)]) {
        let key = Command::CreateMkey(CreateMkey { context, in_umem, ..region }, Bytes::default());
        assert_eq!(check(key.emit(0)), Some(Check::UserMkey), "{context:?}");
    }
}

#[test]
fn creating_sq_requires_raw_transmit_right() {
    let (mut driver, [own, _]) = two_worlds();
    let user = driver.create_user(UserRights::empty());
    let world = World::without_sq(&mut driver, user, own.eqn);
    let create = Command::CreateSq(CreateSq { context: world.sq_context() }, Pages::default()).emit(0);
    assert_eq!(driver.check_of(user.get(), &create), Some(Check::UserRawTransmit));
    assert_eq!(driver.check_of(own.user.get(), &own.create_sq()), None);
}

#[test]
fn user_cq_cannot_use_asynchronous_eq() {
    let (mut driver, [own, _]) = two_worlds();
    driver.interface.user = 0;
    let uar = driver.alloc_uar();
    let eqn = driver.create_eq(uar, 0, EventMask::COMMAND, 0x60_0000);
    let cq = creators().into_iter().find(|creator| creator.reference == "ring of CQ").unwrap();
    assert_eq!(driver.check_of(own.user.get(), &(cq.input)(&World { eqn, ..own })), Some(Check::UserEq));
}

#[test]
fn too_many_user_contexts_are_rejected() {
    let mut driver = initialised();
    for _ in 0..MAX_USER_CONTEXTS {
        driver.create_user(UserRights::empty());
    }
    let create = Command::CreateUctx(CreateUctx::default());
    assert_eq!(driver.rejected(&create), Check::UserLimit);
    driver.destroy_user(UserId::new(5));
    driver.ok(&create);
}

#[test]
fn device_without_devx_rejects_user_contexts() {
    let mut driver = initialised_with(Options { devx: false, ..Options::default() });
    assert_eq!(driver.rejected(&Command::CreateUctx(CreateUctx::default())), Check::Opcode);
}

#[test]
fn reset_drops_user_contexts() {
    let mut driver = initialised();
    let user = driver.create_user(UserRights::empty());
    driver.ok(&Command::EnableHca(Function { function: 0 }));
    assert_eq!(driver.check_of(user.get(), &driver::bare(0x800)), Some(Check::UserContext));
    driver.ok(&Command::InitHca(InitHca::default()));
    assert_eq!(driver.check_of(user.get(), &driver::bare(0x800)), Some(Check::UserContext));
    assert_eq!(
        driver.check_of(1, &Command::DestroyQp(QpNumber { qpn: Qpn::new(0x80) }).emit(0)),
        Some(Check::UserContext)
    );
}
