//! Transmit queues and RDMA queue sets: commands 0C30 to 0C33.
//!
//! # Spec
//! E810 interface, section 5.9.

use protocol::hca::e810::admin::queue::{
    AddParameters, AddQueue, AddRdmaSet, DisableGroup, DisableParameters, QueueGroup, RDMA, RdmaSetGroup,
};
use protocol::hca::e810::admin::{AdminError, AdminStatus, Opcode};

use super::Command;
use crate::buffer::Buffer;
use crate::lan::AddError;
use crate::limits::MAX_RDMA_SETS;
use crate::state::State;
use crate::vsi::VsiNumber;

/// Executes a queue command. Returns `None` for other commands.
pub(crate) fn dispatch(
    state: &mut State,
    opcode: Opcode,
    command: &mut Command,
) -> Option<Result<(), AdminError>> {
    Some(match opcode {
        Opcode::AddTxQueues => add_queues(state, command),
        Opcode::DisableTxQueues => disable(state, command),
        // Moving a leaf has no effect, since transmit queues are served round-robin.
        Opcode::MoveTxQueues => Ok(()),
        Opcode::AddRdmaQueueSet => add_rdma_sets(state, command),
        _ => return None,
    })
}

/// Executes "Add transmit queues". If a queue is rejected, the queues added before it remain.
fn add_queues(state: &mut State, command: &mut Command) -> Result<(), AdminError> {
    let groups = command.parameters(AddParameters::parse).groups;
    let mut left = Buffer::new(command.buffer_mut());
    for _ in 0..groups {
        let group = QueueGroup::parse(left.next()?);
        let records: &mut [[u8; AddQueue::LEN]] = left.next_all(group.count.into())?;
        for record in records {
            let request = AddQueue::parse(record);
            let pf_config = &mut state.function.pf_config;
            let vsi = request.context.vsi;
            if pf_config.vsis.get(VsiNumber::new(vsi)).is_none() {
                return Err(AdminError::no_entry("VSI of the transmit queue", vsi.into()));
            }
            let teid = pf_config.scheduler.add_leaf(group.parent, request.element)?;
            state.lan.add_transmit(request.queue, request.context).map_err(|error| {
                pf_config.scheduler.remove_leaf(teid);
                to_admin_error(error)
            })?;
            state.function.leaves.queues.insert(request.queue, teid);
            *record = AddQueue { teid, ..request }.emit();
        }
    }
    Ok(())
}

fn to_admin_error(error: AddError) -> AdminError {
    match error {
        AddError::NoSuchQueue(queue) => AdminError::invalid("transmit queue", queue.into()),
        AddError::Enabled(queue) => AdminError::new(AdminStatus::Exists, "transmit queue", queue.into()),
        AddError::RingLength(_, len) => AdminError::invalid("ring length", len.into()),
    }
}

/// Executes "Add RDMA queue sets". If a set is rejected, the sets added before it remain.
fn add_rdma_sets(state: &mut State, command: &mut Command) -> Result<(), AdminError> {
    let groups = command.parameters(AddParameters::parse).groups;
    let function = &mut state.function;
    let mut left = Buffer::new(command.buffer_mut());
    for _ in 0..groups {
        let group = RdmaSetGroup::parse(left.next()?);
        let records: &mut [[u8; AddRdmaSet::LEN]] = left.next_all(group.count)?;
        for record in records {
            let request = AddRdmaSet::parse(record);
            if function.leaves.rdma_sets.contains_key(&request.set) {
                return Err(AdminError::new(AdminStatus::Exists, "RDMA queue set", request.set.into()));
            }
            if request.set & RDMA != 0 {
                // In "disable queues", this bit distinguishes RDMA queue sets from transmit queues, so it must not be
                // part of a handle.
                return Err(AdminError::invalid("RDMA queue set", request.set.into()));
            }
            if function.leaves.rdma_sets.len() >= MAX_RDMA_SETS {
                return Err(AdminError::new(
                    AdminStatus::NoSpace,
                    "limit of RDMA queue sets reached at",
                    MAX_RDMA_SETS as u64,
                ));
            }
            let teid = function.pf_config.scheduler.add_leaf(group.parent, request.element)?;
            function.leaves.rdma_sets.insert(request.set, teid);
            *record = AddRdmaSet { teid, ..request }.emit();
        }
    }
    Ok(())
}

/// Executes "Disable queues": immediately removes queues and their pending frames.
fn disable(state: &mut State, command: &mut Command) -> Result<(), AdminError> {
    /// Bytes of padding after a group with an even number of IDs. A group has a 6-byte header and 2-byte IDs, and is
    /// aligned to four bytes.
    const PADDING: usize = 2;
    let groups = command.parameters(DisableParameters::parse).groups;
    let function = &mut state.function;
    let mut left = Buffer::new(command.buffer_mut());
    for group in 0..groups {
        let count = DisableGroup::parse(left.next()?).count;
        let ids: &mut [[u8; 2]] = left.next_all(count.into())?;
        for id in ids.iter().map(|id| u16::from_le_bytes(*id)) {
            let (what, leaf) = if id & RDMA == 0 {
                state.lan.remove_transmit(id);
                ("transmit queue", function.leaves.queues.remove(&id))
            } else {
                ("RDMA queue set", function.leaves.rdma_sets.remove(&(id & !RDMA)))
            };
            let leaf = leaf.ok_or(AdminError::no_entry(what, (id & !RDMA).into()))?;
            function.pf_config.scheduler.remove_leaf(leaf);
        }
        if count.is_multiple_of(2) && group + 1 < groups {
            let _: &mut [u8; PADDING] = left.next()?;
        }
    }
    Ok(())
}
