//! Commands for DevX user contexts and UMEMs, and restrictions on the commands that user contexts issue.
//!
//! # Spec
//! mlx5 interface, section 23.

use protocol::hca::mlx5::eqe::EventMask;
use protocol::hca::mlx5::flow_counter::FlowCounterNumber;
use protocol::hca::mlx5::flow_entry::FlowEntrySelector;
use protocol::hca::mlx5::flow_group::FlowGroupSelector;
use protocol::hca::mlx5::flow_table::{FlowTableSelector, TableType};
use protocol::hca::mlx5::input::{Command, Pages};
use protocol::hca::mlx5::mkey::AccessMode;
use protocol::hca::mlx5::opcode::Opcode;
use protocol::hca::mlx5::qp::Service;
use protocol::hca::mlx5::resource::{
    CounterSetNumber, CqNumber, MkeyNumber, PdNumber, QpNumber, RqNumber, RqtNumber, SqNumber, SrqNumber,
    TirNumber, TisNumber, TransportDomainNumber, UarNumber, XrcDomainNumber,
};
use protocol::hca::mlx5::user_context::{CreateUctx, UctxNumber, UserRights};
use protocol::hca::mlx5::user_memory::{CreateUmem, UmemNumber};
use protocol::ids::{
    CounterSet, Cqn, FlowCounterId, FlowGroupId, FlowTableId, MkeyIndex, Pdn, Qpn, Rqn, Rqtn, Sqn, Srqn,
    Tirn, Tisn, TransportDomain, UarIndex, UmemId, UserId, XrcDomain,
};

use super::resource::check_unused;
use super::{Call, Output, nothing, on_resources, ownership};
use crate::check::{Check, Rejection};
use crate::quota::Scarce;
use crate::resources::Resources;
use crate::steering::table::{Group, Table};
use crate::umem::Umem;
use crate::uses::Object;

/// Checks whether a user context may create the object that a command describes. Ownership is checked separately.
///
/// # Errors
/// Fails if the new object would give the user access to all of guest memory or to the port (section 23.3), or if the
/// quota for such objects is used up (section 23.1).
pub(super) fn check(resources: &Resources, user: UserId, command: &Command<'_>) -> Result<(), Rejection> {
    check_quota(resources, user, command)?;
    match command {
        Command::CreateCq(create, _) => {
            let eqn = create.context.eqn.get();
            // A user's CQ must not fill an EQ that receives the kernel's events.
            let is_shared = resources.eqs.get(eqn).is_some_and(|eq| eq.mask() != EventMask::empty());
            if is_shared { Err(Check::UserEq.rejects(eqn)) } else { Ok(()) }
        }
        Command::CreateMkey(create, _) => {
            let context = &create.context;
            let is_allowed = match context.access_mode() {
                Some(AccessMode::Pages) => create.in_umem && !context.free && !context.length64,
                Some(AccessMode::Ranges | AccessMode::FixedRanges) => !create.in_umem,
                _ => false,
            };
            let mode = context.mode_high << 2 | context.mode_low;
            if is_allowed { Ok(()) } else { Err(Check::UserMkey.rejects(mode)) }
        }
        Command::CreateQp(create, _) => {
            let context = &create.context;
            let pd = context.pd.get();
            if !matches!(context.service(), Some(Service::Rc | Service::Uc | Service::Ud)) {
                return Err(Check::UserService.rejects(context.service));
            }
            if context.fast_registration {
                return Err(Check::UserFastRegistration.rejects(pd));
            }
            reserved_key(context.reserved_lkey, pd)
        }
        Command::CreateSq(create, _) => {
            let rights = resources.users.rights(user).unwrap_or_default();
            if !rights.contains(UserRights::RAW_TRANSMIT) {
                return Err(Check::UserRawTransmit.rejects(user.get()));
            }
            reserved_key(create.context.reserved_lkey, create.context.queue.pd.get())
        }
        Command::CreateRq(create, _) => {
            reserved_key(create.context.reserved_lkey, create.context.queue.pd.get())
        }
        _ => Ok(()),
    }
}

/// Checks the quota for the kind of object that a command creates.
fn check_quota(resources: &Resources, user: UserId, command: &Command<'_>) -> Result<(), Rejection> {
    let tables = |count: fn(&Table) -> usize| {
        let (mut own, mut all) = (0, 0);
        for (table, owner) in resources.users.flow_tables() {
            let count = resources.steering.table(table).map_or(0, count);
            all += count;
            own += if owner == user { count } else { 0 };
        }
        [own, all]
    };
    let (kind, [own, all]) = match command {
        Command::CreateFlowGroup(_) => (Scarce::FlowGroup, tables(|table| table.groups().len())),
        Command::SetFlowTableEntry(set, _) => {
            let table = resources.steering.table(set.table);
            if table.is_ok_and(|table| table.entry(set.index).is_ok()) {
                return Ok(());
            }
            (Scarce::FlowEntry, tables(Table::entry_count))
        }
        _ => {
            let created = ownership::created(command).and_then(|object| Scarce::of(object(0)));
            let Some(kind) = created else { return Ok(()) };
            (kind, resources.users.owned(user, kind))
        }
    };
    if kind.has_room(own, all) { Ok(()) } else { Err(Check::UserQuota.rejects(own as u64)) }
}

/// Rejects a user's object that uses the reserved L_Key, which gives access to all of guest memory.
fn reserved_key(is_used: bool, pd: u32) -> Result<(), Rejection> {
    if is_used { Err(Check::UserReservedKey.rejects(pd)) } else { Ok(()) }
}

pub(super) fn create(call: Call<'_, '_>, create: &CreateUctx) -> Result<Output, Rejection> {
    if !call.setup.options.devx {
        return Err(Check::Opcode.rejects(call.opcode.code()));
    }
    let users = &mut call.resources.users;
    let user = users.insert(create.rights & UserRights::RAW_TRANSMIT);
    let user = user.ok_or_else(|| Check::UserLimit.rejects(users.count() as u64))?;
    Ok(UctxNumber { user }.emit().to_vec())
}

/// Destroys a user context and its objects. An object that is still used by an object of the kernel or of another user
/// is not destroyed. The kernel becomes its owner.
pub(super) fn destroy(call: Call<'_, '_>, user: UserId) -> Result<Output, Rejection> {
    let Call { resources, issi, setup, cx, user: by, .. } = call;
    if resources.users.rights(user).is_none() {
        return Err(Check::UserContext.rejects(user.get()));
    }
    let mut objects = resources.users.objects(user);
    objects.sort_by_key(|object| rank(resources, *object));
    for object in objects {
        let commands = match object {
            Object::FlowTable(number) => Some(clear(resources, FlowTableId::new(number))),
            _ => None,
        };
        for command in commands.into_iter().flatten().chain(destroy_command(resources, object)) {
            let opcode = command.opcode();
            let call = Call { resources: &mut *resources, issi, opcode, setup, cx: &mut *cx, user: by };
            // The command is rejected only if an object of the kernel or of another user still uses this object. The
            // kernel then becomes its owner.
            let _ = on_resources(call, &command);
        }
    }
    resources.users.remove(user);
    Ok(nothing())
}

/// Returns the sort key for destroying a user's objects. Each object is destroyed before the objects that it uses. Flow
/// tables are sorted by level, because a table refers only to tables at higher levels.
fn rank(resources: &Resources, object: Object) -> (u8, u8) {
    let rank = match object {
        Object::FlowTable(number) => {
            let level = resources.steering.table(FlowTableId::new(number)).map_or(0, |table| table.level());
            return (0, level);
        }
        Object::Tir(_) => 1,
        Object::Rqt(_) | Object::Sq(_) | Object::Qp(_) | Object::Mkey(_) => 2,
        Object::Rq(_) | Object::Tis(_) | Object::Srq(_) => 3,
        Object::Cq(_) | Object::FlowCounter(_) | Object::CounterSet(_) => 4,
        Object::Eq(_) => 5,
        Object::Pd(_) | Object::Uar(_) | Object::Xrcd(_) | Object::Domain(_) | Object::Umem(_) => 6,
    };
    (rank, 0)
}

const NIC_RECEIVE: u8 = TableType::NicReceive.code();

/// Returns the commands that delete a flow table's entries and groups. They are built lazily, because a table can have
/// a million entries.
fn clear(resources: &Resources, table: FlowTableId) -> impl Iterator<Item = Command<'static>> + use<> {
    let found = resources.steering.table(table).ok();
    let entries: Vec<u32> = found.iter().flat_map(|found| found.entries()).collect();
    let groups: Vec<FlowGroupId> = found.iter().flat_map(|found| found.groups()).map(Group::id).collect();
    let table_type = NIC_RECEIVE;
    let entries = entries
        .into_iter()
        .map(move |index| Command::DeleteFlowTableEntry(FlowEntrySelector { table_type, table, index }));
    let groups = groups
        .into_iter()
        .map(move |group| Command::DestroyFlowGroup(FlowGroupSelector { table_type, table, group }));
    entries.chain(groups)
}

/// Returns the command that destroys a user's object, or `None` if users cannot own objects of that kind.
fn destroy_command(resources: &Resources, object: Object) -> Option<Command<'static>> {
    Some(match object {
        Object::Pd(number) => Command::DeallocPd(PdNumber { pd: Pdn::new(number) }),
        Object::Uar(number) => Command::DeallocUar(UarNumber { uar: UarIndex::new(number) }),
        Object::Xrcd(number) => Command::DeallocXrcd(XrcDomainNumber { xrcd: XrcDomain::new(number) }),
        Object::Domain(number) => {
            let domain = TransportDomain::new(number);
            Command::DeallocTransportDomain(TransportDomainNumber { domain })
        }
        Object::CounterSet(number) => {
            let set = CounterSet::new(u8::try_from(number).ok()?);
            Command::DeallocQCounter(CounterSetNumber { set })
        }
        Object::FlowCounter(number) => {
            let counter = FlowCounterId::new(number);
            Command::DeallocFlowCounter(FlowCounterNumber { counter })
        }
        Object::Umem(number) => Command::DestroyUmem(UmemNumber { umem: UmemId::new(number) }),
        Object::Cq(number) => Command::DestroyCq(CqNumber { cqn: Cqn::new(number) }),
        Object::Mkey(number) => Command::DestroyMkey(MkeyNumber { index: MkeyIndex::new(number) }),
        Object::Qp(number) => Command::DestroyQp(QpNumber { qpn: Qpn::new(number) }),
        Object::Srq(number) => {
            let srq = SrqNumber { srqn: Srqn::new(number) };
            match resources.srqs.get(number)?.created_by() {
                Opcode::CreateXrcSrq => Command::DestroyXrcSrq(srq),
                Opcode::CreateSrq => Command::DestroySrq(srq),
                _ => Command::DestroyRmp(srq),
            }
        }
        Object::Tir(number) => Command::DestroyTir(TirNumber { tirn: Tirn::new(number) }),
        Object::Tis(number) => Command::DestroyTis(TisNumber { tisn: Tisn::new(number) }),
        Object::Rqt(number) => Command::DestroyRqt(RqtNumber { rqtn: Rqtn::new(number) }),
        Object::Sq(number) => Command::DestroySq(SqNumber { sqn: Sqn::new(number) }),
        Object::Rq(number) => Command::DestroyRq(RqNumber { rqn: Rqn::new(number) }),
        Object::FlowTable(number) => {
            let table = FlowTableId::new(number);
            Command::DestroyFlowTable(FlowTableSelector { table_type: NIC_RECEIVE, table })
        }
        Object::Eq(_) => return None,
    })
}

pub(super) fn create_umem(
    call: Call<'_, '_>,
    create: &CreateUmem,
    list: Pages<'_>,
) -> Result<Output, Rejection> {
    let resources = call.resources;
    let full = Check::UmemLimit.rejects(resources.umems.count() as u64);
    resources.umems.next().ok_or(full)?;
    let umem = Umem::new(create, list)?;
    resources.take_pages(umem.pages())?;
    let umem = UmemId::new(resources.umems.insert(umem).ok_or(full)?);
    Ok(UmemNumber { umem }.emit().to_vec())
}

/// Destroys a UMEM. Fails while a queue uses it, since the kernel unpins a destroyed UMEM's pages.
pub(super) fn destroy_umem(call: Call<'_, '_>, umem: UmemId) -> Result<Output, Rejection> {
    check_unused(&call, Object::Umem(umem.get()), Check::UmemInUse)?;
    let resources = call.resources;
    let removed = resources.umems.remove(umem.get()).ok_or_else(|| Check::Umem.rejects(umem.get()))?;
    resources.release_pages(removed.pages());
    Ok(nothing())
}
