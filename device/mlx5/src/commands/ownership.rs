//! Checks the owners of the objects named by a command. A command from a user context is rejected if it names an object
//! that belongs to another user.
//!
//! # Spec
//! mlx5 interface, section 23.1.

use protocol::hca::mlx5::flow_table::{FlowTableContext, MissAction};
use protocol::hca::mlx5::input::Command;
use protocol::hca::mlx5::qp::{QpContext, QpState};
use protocol::hca::mlx5::rq::rq_fields;
use protocol::hca::mlx5::srq::WorkQueue;
use protocol::hca::mlx5::user_context::User;
use protocol::hca::mlx5::user_memory::UmemPlace;
use protocol::ids::UserId;

use crate::check::{Check, Rejection};
use crate::netdev::rq::Rq;
use crate::netdev::rqt::Rqt;
use crate::netdev::sq::Sq;
use crate::netdev::tir::Tir;
use crate::queue_pair::QueuePair;
use crate::resources::Resources;
use crate::steering::rule::Parts;
use crate::umem::Umems;
use crate::uses::{Object, Used};

/// Objects named by a command.
#[derive(Debug, Default)]
struct Named {
    /// Object that the command changes, queries or destroys.
    target: Option<Object>,
    /// Objects that the command adds references to.
    references: Used,
}

impl Named {
    fn target(object: Object) -> Self {
        Self { target: Some(object), references: Used::new() }
    }

    fn with(mut self, references: impl IntoIterator<Item = Object>) -> Self {
        self.references.extend(references);
        self
    }

    fn references(references: impl IntoIterator<Item = Object>) -> Self {
        Self::default().with(references)
    }
}

/// Checks a command from a user context.
///
/// # Errors
/// Fails if the command is not available to user contexts, or names an object that belongs to another user.
pub(super) fn check(resources: &Resources, user: UserId, command: &Command<'_>) -> Result<(), Rejection> {
    let opcode = command.opcode().code();
    let Named { target, references } =
        named(resources, command).ok_or_else(|| Check::UserCommand.rejects(opcode))?;
    let foreign = target
        .filter(|object| !resources.users.may_change(user, *object))
        .or_else(|| references.iter().copied().find(|object| !resources.users.may_refer(user, *object)));
    foreign.map_or(Ok(()), |object| Err(Check::UserObject.rejects(object.number())))
}

/// Updates the owners after a command has succeeded.
pub(super) fn update(resources: &mut Resources, user: User, command: &Command<'_>, output: &[u8]) {
    if let Some(object) = destroyed(command) {
        resources.users.set_owner(object, User::Kernel);
    }
    // Section 5: the number of a new object is in bits 23 to 0 of the word at offset 8.
    if let Some(object) = created(command)
        && let Some([_, number @ ..]) = output.get(8..).and_then(<[u8]>::first_chunk::<4>)
    {
        let [high, middle, low] = *number;
        resources.users.set_owner(object(u32::from_be_bytes([0, high, middle, low])), user);
    }
}

/// Returns the kind of object that a command creates.
pub(super) fn created(command: &Command<'_>) -> Option<fn(u32) -> Object> {
    Some(match command {
        Command::AllocPd(_) => Object::Pd,
        Command::AllocUar(_) => Object::Uar,
        Command::AllocXrcd(_) => Object::Xrcd,
        Command::AllocTransportDomain(_) => Object::Domain,
        Command::AllocQCounter(_) => Object::CounterSet,
        Command::AllocFlowCounter(_) => Object::FlowCounter,
        Command::CreateUmem(..) => Object::Umem,
        Command::CreateCq(..) => Object::Cq,
        Command::CreateMkey(..) => Object::Mkey,
        Command::CreateQp(..) => Object::Qp,
        Command::CreateRmp(..) | Command::CreateXrcSrq(..) | Command::CreateSrq(..) => Object::Srq,
        Command::CreateTir(_) => Object::Tir,
        Command::CreateTis(_) => Object::Tis,
        Command::CreateRqt(..) => Object::Rqt,
        Command::CreateSq(..) => Object::Sq,
        Command::CreateRq(..) => Object::Rq,
        Command::CreateFlowTable(_) => Object::FlowTable,
        _ => return None,
    })
}

/// Returns the object that a command destroys.
fn destroyed(command: &Command<'_>) -> Option<Object> {
    Some(match command {
        Command::DeallocPd(number) => Object::Pd(number.pd.get()),
        Command::DeallocUar(number) => Object::Uar(number.uar.get()),
        Command::DeallocXrcd(number) => Object::Xrcd(number.xrcd.get()),
        Command::DeallocTransportDomain(number) => Object::Domain(number.domain.get()),
        Command::DeallocQCounter(number) => Object::CounterSet(number.set.get().into()),
        Command::DeallocFlowCounter(number) => Object::FlowCounter(number.counter.get()),
        Command::DestroyUmem(number) => Object::Umem(number.umem.get()),
        Command::DestroyCq(number) => Object::Cq(number.cqn.get()),
        Command::DestroyMkey(number) => Object::Mkey(number.index.get()),
        Command::DestroyQp(number) => Object::Qp(number.qpn.get()),
        Command::DestroyRmp(number) | Command::DestroyXrcSrq(number) | Command::DestroySrq(number) => {
            Object::Srq(number.srqn.get())
        }
        Command::DestroyTir(number) => Object::Tir(number.tirn.get()),
        Command::DestroyTis(number) => Object::Tis(number.tisn.get()),
        Command::DestroyRqt(number) => Object::Rqt(number.rqtn.get()),
        Command::DestroySq(number) => Object::Sq(number.sqn.get()),
        Command::DestroyRq(number) => Object::Rq(number.rqn.get()),
        Command::DestroyFlowTable(selector) => Object::FlowTable(selector.table.get()),
        _ => return None,
    })
}

/// Returns the objects named by a command, or `None` if it is not available to user contexts. A command must be listed
/// here to be available to them.
fn named(resources: &Resources, command: &Command<'_>) -> Option<Named> {
    if let Some(object) = destroyed(command) {
        // Section 23.1: commands for XRC SRQs are for the kernel only. So are commands for basic SRQs, which are used
        // with ISSI 0.
        let is_kernel = matches!(command, Command::DestroyXrcSrq(_) | Command::DestroySrq(_));
        return (!is_kernel).then(|| Named::target(object));
    }
    if let Some((transition, modify)) = command.transition() {
        let qp = resources.qps.get(modify.qpn.get()).map(|qp| qp.context);
        // The context may hold an old state, for example if a datagram has failed since. The command itself checks the
        // state, so assume the one that the transition requires.
        let next = qp.and_then(|old| {
            let state = transition.source().map_or(old.state, QpState::code);
            QpContext { state, ..old }.modified(transition, modify.optional, &modify.context).ok()
        });
        let old = qp.map(|old| qp_references(&old)).unwrap_or_default();
        let next = next.map(|next| qp_references(&next)).unwrap_or_default();
        let new = next.into_iter().filter(|object| !old.contains(object));
        return Some(Named::target(Object::Qp(modify.qpn.get())).with(new));
    }
    Some(match command {
        // Commands that do not name objects.
        Command::QueryHcaCap(_)
        | Command::QueryAdapter(_)
        | Command::QueryIssi(_)
        | Command::Nop(_)
        | Command::QueryLag(_)
        | Command::QueryVnicEnv(_)
        | Command::QueryHcaVportContext(_)
        | Command::QueryVportState(_)
        | Command::QueryNicVportContext(_)
        | Command::QueryRoceAddress(_)
        | Command::QueryVportCounter(_)
        | Command::AllocPd(_)
        | Command::AllocUar(_)
        | Command::AllocXrcd(_)
        | Command::AllocTransportDomain(_)
        | Command::AllocQCounter(_)
        | Command::AllocFlowCounter(_)
        | Command::CreateUmem(..) => Named::default(),

        // Commands that change or query an object.
        Command::QueryQCounter(query) => Named::target(Object::CounterSet(query.set.get().into())),
        Command::QueryFlowCounter(query) => Named::target(Object::FlowCounter(query.counter.get())),
        Command::QueryCq(number) => Named::target(Object::Cq(number.cqn.get())),
        Command::QueryMkey(number) => Named::target(Object::Mkey(number.index.get())),
        Command::QueryQp(query) => Named::target(Object::Qp(query.qpn.get())),
        Command::AttachToMcg(member) | Command::DetachFromMcg(member) => {
            Named::target(Object::Qp(member.qpn.get()))
        }
        Command::ModifyRmp(modify) => Named::target(Object::Srq(modify.srqn.get())),
        Command::QueryRmp(number) => Named::target(Object::Srq(number.srqn.get())),
        Command::ModifyTir(modify) => Named::target(Object::Tir(modify.tirn.get())),
        Command::QueryTir(number) => Named::target(Object::Tir(number.tirn.get())),
        Command::ModifyTis(modify) => Named::target(Object::Tis(modify.tisn.get())),
        Command::QueryTis(number) => Named::target(Object::Tis(number.tisn.get())),
        Command::QueryRqt(number) => Named::target(Object::Rqt(number.rqtn.get())),
        Command::ModifySq(modify) => Named::target(Object::Sq(modify.sqn.get())),
        Command::QuerySq(number) => Named::target(Object::Sq(number.sqn.get())),
        Command::QueryRq(number) => Named::target(Object::Rq(number.rqn.get())),
        Command::QueryFlowTable(selector) => Named::target(Object::FlowTable(selector.table.get())),
        // A group or an entry belongs to the owner of its table.
        Command::CreateFlowGroup(create) => Named::target(Object::FlowTable(create.table.get())),
        Command::DestroyFlowGroup(selector) | Command::QueryFlowGroup(selector) => {
            Named::target(Object::FlowTable(selector.table.get()))
        }
        Command::QueryFlowTableEntry(selector) | Command::DeleteFlowTableEntry(selector) => {
            Named::target(Object::FlowTable(selector.table.get()))
        }

        // Commands that add references from an existing object to other objects.
        Command::ModifyCq(modify, _) => {
            Named::target(Object::Cq(modify.cqn.get())).with(umem(modify.place()))
        }
        Command::ModifyRqt(modify, list) => {
            let table = resources.netdev.rqts.get(modify.rqtn.get());
            let new = table.and_then(|table| table.with_entries(&modify.context, *list).ok());
            Named::target(Object::Rqt(modify.rqtn.get())).with(new.iter().flat_map(Rqt::uses))
        }
        Command::ModifyRq(modify) => {
            let set = Some(modify.context.counter_set.get());
            let set = set.filter(|_| modify.fields & rq_fields::COUNTER_SET != 0);
            Named::target(Object::Rq(modify.rqn.get())).with(set.and_then(counter_set))
        }
        Command::ModifyFlowTable(modify) => {
            Named::target(Object::FlowTable(modify.table.get())).with(miss_table(&modify.context))
        }
        Command::SetFlowTableEntry(set, lists) => {
            let parts = Parts::parse(&set.context, lists.bytes()).ok();
            Named::target(Object::FlowTable(set.table.get())).with(parts.iter().flat_map(Parts::references))
        }

        // Commands that create an object with references to other objects. A CQ's EQ is not listed, since EQs belong to
        // the kernel.
        Command::CreateCq(create, _) => {
            let umems = Umems { queue: create.place(), record: create.context.record_place() };
            Named::references([Object::Uar(create.context.uar.get())]).with(umems.uses())
        }
        Command::CreateMkey(create, _) => {
            Named::references([Object::Pd(create.context.pd.get())]).with(umem(create.place()))
        }
        Command::CreateQp(create, _) => {
            let umems = Umems { queue: create.place(), record: create.context.record_place() };
            Named::references(qp_references(&create.context)).with(umems.uses())
        }
        Command::CreateRmp(create, _) => {
            let queue = &create.context.queue;
            Named::references([Object::Pd(queue.pd.get())]).with(queue_umems(queue))
        }
        Command::CreateSq(create, _) => {
            Named::references(Sq::uses(&create.context)).with(queue_umems(&create.context.queue))
        }
        Command::CreateRq(create, _) => {
            let queue = &create.context.queue;
            Named::references(Rq::uses(&create.context))
                .with([Object::Pd(queue.pd.get())])
                .with(counter_set(create.context.counter_set.get()))
                .with(queue_umems(queue))
        }
        Command::CreateTir(create) => {
            let tir = Tir::new(create.context).ok();
            Named::references(tir.iter().flat_map(Tir::uses))
        }
        Command::CreateTis(create) => Named::references([Object::Domain(create.context.domain.get())]),
        Command::CreateRqt(create, list) => {
            let table = Rqt::new(&create.context, *list).ok();
            Named::references(table.iter().flat_map(Rqt::uses))
        }
        Command::CreateFlowTable(create) => Named::references(miss_table(&create.context)),
        _ => return None,
    })
}

fn umem(place: Option<UmemPlace>) -> Option<Object> {
    place.map(|place| Object::Umem(place.umem.get()))
}

fn queue_umems(queue: &WorkQueue) -> Used {
    Umems { queue: queue.place(), record: queue.record_place() }.uses()
}

/// Returns counter set number `set`, or `None` for 0, which means that the queue has no set.
fn counter_set(set: u8) -> Option<Object> {
    (set != 0).then_some(Object::CounterSet(set.into()))
}

fn miss_table(context: &FlowTableContext) -> Option<Object> {
    let is_table = MissAction::from_code(context.miss_action) == Some(MissAction::Table);
    is_table.then_some(Object::FlowTable(context.miss_table.get()))
}

fn qp_references(context: &QpContext) -> Used {
    let mut used = QueuePair::uses(context);
    used.extend(counter_set(context.counter_set.get()));
    used
}
