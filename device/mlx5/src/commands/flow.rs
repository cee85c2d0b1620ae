//! Commands for flow tables, flow groups, flow table entries and flow counters.
//!
//! # Spec
//! mlx5 interface, section 16.4.

use protocol::hca::mlx5::flow_counter::{
    AllocFlowCounter, FlowCounterNumber, QueriedFlowCounter, QueryFlowCounter,
};
use protocol::hca::mlx5::flow_entry::{
    EntryChange, FlowContext, FlowEntrySelector, QueriedFlowEntry, SetFlowTableEntry,
};
use protocol::hca::mlx5::flow_group::{CreateFlowGroup, FlowGroupNumber, FlowGroupSelector};
use protocol::hca::mlx5::flow_table::{
    CreateFlowTable, FlowTableFields, FlowTableNumber, FlowTableSelector, ModifyFlowTable, QueriedFlowTable,
    RootChange, SetFlowTableRoot, TableType,
};
use protocol::hca::mlx5::match_parameters::MatchParameters;
use protocol::hca::mlx5::user_context::User;
use protocol::ids::{FlowCounterId, Tirn};

use super::{Call, Output, nothing};
use crate::check::{Check, Rejection};
use crate::limits::flow::MAX_QUERIED_COUNTERS;
use crate::resources::Resources;
use crate::steering::Place;
use crate::steering::fields::Fields;
use crate::steering::rule::{Parts, Rule};
use crate::steering::table::Group;

/// Accepts only NIC receive tables, the only type that the device advertises.
fn check_type(table_type: u8) -> Result<(), Rejection> {
    match TableType::from_code(table_type) {
        Some(TableType::NicReceive) => Ok(()),
        None => Err(Check::FlowTableType.rejects(table_type)),
    }
}

pub(super) fn create_table(call: Call<'_, '_>, create: &CreateFlowTable) -> Result<Output, Rejection> {
    check_type(create.table_type)?;
    let table = call.resources.steering.create_table(&create.context)?;
    Ok(FlowTableNumber { table }.emit().to_vec())
}

pub(super) fn modify_table(call: Call<'_, '_>, modify: &ModifyFlowTable) -> Result<Output, Rejection> {
    check_type(modify.table_type)?;
    if modify.fields != FlowTableFields::MISS {
        return Err(Check::FlowTableChange.rejects(modify.fields.bits()));
    }
    call.resources.steering.set_miss(modify.table, &modify.context).map(|()| nothing())
}

pub(super) fn destroy_table(call: Call<'_, '_>, selector: &FlowTableSelector) -> Result<Output, Rejection> {
    check_type(selector.table_type)?;
    call.resources.steering.destroy_table(selector.table).map(|()| nothing())
}

pub(super) fn query_table(call: Call<'_, '_>, selector: &FlowTableSelector) -> Result<Output, Rejection> {
    check_type(selector.table_type)?;
    let context = call.resources.steering.table(selector.table)?.context();
    Ok(QueriedFlowTable { context }.emit().to_vec())
}

pub(super) fn set_root(call: Call<'_, '_>, set: &SetFlowTableRoot) -> Result<Output, Rejection> {
    check_type(set.table_type)?;
    let root = match RootChange::from_code(set.change) {
        Some(RootChange::Set) => Some(set.table),
        Some(RootChange::Reset) => None,
        None => return Err(Check::FlowRootChange.rejects(set.change)),
    };
    call.resources.steering.set_root(root).map(|()| nothing())
}

pub(super) fn create_group(call: Call<'_, '_>, create: &CreateFlowGroup) -> Result<Output, Rejection> {
    check_type(create.table_type)?;
    let group = call.resources.steering.create_group(create.table, Group::new(create)?)?;
    Ok(FlowGroupNumber { group }.emit().to_vec())
}

pub(super) fn destroy_group(call: Call<'_, '_>, selector: &FlowGroupSelector) -> Result<Output, Rejection> {
    check_type(selector.table_type)?;
    call.resources.steering.destroy_group(selector.table, selector.group).map(|()| nothing())
}

pub(super) fn query_group(call: Call<'_, '_>, selector: &FlowGroupSelector) -> Result<Output, Rejection> {
    check_type(selector.table_type)?;
    let group = call.resources.steering.table(selector.table)?.group(selector.group)?;
    Ok(group.context().emit().to_vec())
}

fn has_tir(resources: &Resources, tirn: Tirn) -> bool {
    resources.netdev.tirs.contains(tirn.get())
}

pub(super) fn set_entry(
    call: Call<'_, '_>,
    set: &SetFlowTableEntry,
    lists: &[u8],
) -> Result<Output, Rejection> {
    check_type(set.table_type)?;
    let resources = call.resources;
    let table = resources.steering.table(set.table)?;
    let new = Parts::parse(&set.context, lists)?;
    let (value, parts) = match EntryChange::from_code(set.change) {
        Some(EntryChange::Set) => (Fields::from(&set.context.value.outer), new),
        // A modification cannot change the match value. The entry keeps its old one.
        Some(EntryChange::Modify) => {
            let (_, entry) = table.entry(set.index)?;
            let mut parts = Parts::from(&entry.rule);
            parts.modify(set.fields, new)?;
            (*entry.value(), parts)
        }
        None => return Err(Check::FlowEntryChange.rejects(set.change)),
    };
    let rule = Rule::try_from(&parts)?;
    if let Some(unknown) = rule.tirs().find(|tirn| !has_tir(resources, *tirn)) {
        return Err(Check::FlowDestinationTir.rejects(unknown.get()));
    }
    let used = rule.uses();
    let place = Place { table: set.table, group: set.context.group, index: set.index };
    let old = resources.steering.set_entry(place, &value, rule)?;
    resources.uses.add(&used);
    if let Some(old) = old {
        resources.uses.remove(&old.uses());
    }
    Ok(nothing())
}

pub(super) fn query_entry(call: Call<'_, '_>, selector: &FlowEntrySelector) -> Result<Output, Rejection> {
    check_type(selector.table_type)?;
    let (group, entry) = call.resources.steering.table(selector.table)?.entry(selector.index)?;
    let (context, lists) = Parts::from(&entry.rule).emit();
    let value = MatchParameters { outer: entry.value().headers(), ..MatchParameters::default() };
    let queried = QueriedFlowEntry { context: FlowContext { group: group.id(), value, ..context } };
    Ok([&queried.emit()[..], &lists].concat())
}

pub(super) fn delete_entry(call: Call<'_, '_>, selector: &FlowEntrySelector) -> Result<Output, Rejection> {
    check_type(selector.table_type)?;
    let resources = call.resources;
    let rule = resources.steering.delete_entry(selector.table, selector.index)?;
    resources.uses.remove(&rule.uses());
    Ok(nothing())
}

pub(super) fn alloc_counter(call: Call<'_, '_>, alloc: &AllocFlowCounter) -> Result<Output, Rejection> {
    if alloc.bulk != 0 {
        return Err(Check::FlowCounterBulk.rejects(alloc.bulk));
    }
    let counter = call.resources.steering.alloc_counter()?;
    Ok(FlowCounterNumber { counter }.emit().to_vec())
}

pub(super) fn dealloc_counter(call: Call<'_, '_>, counter: FlowCounterId) -> Result<Output, Rejection> {
    call.resources.steering.dealloc_counter(counter).map(|()| nothing())
}

pub(super) fn query_counter(call: Call<'_, '_>, query: &QueryFlowCounter) -> Result<Output, Rejection> {
    let Call { resources, user, .. } = call;
    let steering = &mut resources.steering;
    if query.count <= 1 {
        let traffic = steering.query_counter(query.counter, query.clear)?;
        return Ok(QueriedFlowCounter { traffic }.emit().to_vec());
    }
    // Section 23.1: the counters after the first one may belong to other users.
    if query.count > MAX_QUERIED_COUNTERS || matches!(user, User::Context(_)) {
        return Err(Check::FlowCounterBulk.rejects(query.count));
    }
    let mut output = nothing();
    for index in 0..query.count {
        let id = FlowCounterId::new(query.counter.get().wrapping_add(index.into()));
        // Section 16.4: the driver rounds the first number down, so counters in the range need not exist.
        let traffic = steering.query_counter(id, query.clear).unwrap_or_default();
        output.extend_from_slice(&traffic.emit());
    }
    Ok(output)
}
