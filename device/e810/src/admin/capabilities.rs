//! Function and device capabilities: commands 000A and 000B. Optional features (SR-IOV, PTP, sensors, LEDs and
//! alternative scheduler topologies) are not reported.
//!
//! # Spec
//! E810 interface, sections 6.1 and 6.2.

use protocol::hca::e810::admin::AdminError;
use protocol::hca::e810::admin::capability::{Capabilities, Capability, id};

use super::Command;
use crate::limits::{
    DEVICE_FILTERS, DEVICE_VSIS, FUNCTION_FILTERS, FUNCTION_VSIS, RSS_FUNCTION_ENTRIES, TRAFFIC_CLASSES,
};
use crate::link::MAX_FRAME;
use crate::state::State;

/// Width of an RSS lookup table entry, in bits.
const RSS_ENTRY_WIDTH: u32 = 9;

pub(super) fn function(state: &State, command: &mut Command) -> Result<(), AdminError> {
    list(
        state,
        command,
        FUNCTION_VSIS,
        record(id::FLOW_DIRECTOR, FUNCTION_FILTERS.into(), FUNCTION_FILTERS.into(), 0),
    )
}

pub(super) fn device(state: &State, command: &mut Command) -> Result<(), AdminError> {
    list(state, command, DEVICE_VSIS, record(id::FLOW_DIRECTOR, DEVICE_FILTERS, 0, 0))
}

fn list(state: &State, command: &mut Command, vsis: u32, filters: Capability) -> Result<(), AdminError> {
    let options = &state.setup.options;
    let queues = options.queues.get().into();
    let mut records = vec![
        record(id::VALID_FUNCTIONS, 1, 0, 0),
        record(id::VSI, vsis, 0, 0),
        record(id::RX_QUEUES, queues, 0, 0),
        record(id::TX_QUEUES, queues, 0, 0),
        record(id::MSIX, options.vectors.get().into(), 0, 0),
        record(id::MAX_MTU, MAX_FRAME.into(), 0, 0),
        record(id::RSS, RSS_FUNCTION_ENTRIES.into(), RSS_ENTRY_WIDTH, 0),
        filters,
        record(id::DCB, 1, 1, TRAFFIC_CLASSES),
    ];
    if options.rdma {
        records.push(record(id::RDMA, 1, 0, 0));
    }
    let bytes: Vec<u8> = records.iter().flat_map(|record| record.emit()).collect();
    command.reply(&bytes)?;
    let count = u32::try_from(records.len()).unwrap_or(u32::MAX);
    command.answer(Capabilities { count }.emit());
    Ok(())
}

fn record(id: u16, number: u32, logical_id: u32, physical_id: u32) -> Capability {
    Capability { id, major: 1, minor: 0, number, logical_id, physical_id }
}
