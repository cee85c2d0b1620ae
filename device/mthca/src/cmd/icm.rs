//! Commands that map guest memory: MAP_ICM, UNMAP_ICM, MAP_FA and MAP_ICM_AUX.
//!
//! # Spec
//! mthca interface, sections 3.3.3, 3.3.4 and 4.4.

use hcr::icm::{IcmRange, pages};
use protocol::hca::mthca::cmd::Command;
use protocol::hca::mthca::icm::{self, Block};
use protocol::hca::status::CmdError;

use super::Answer;
use crate::resources::DeviceState;

/// Executes MAP_ICM. A page that is already mapped is remapped (section 12, T55).
pub(super) fn map(state: &mut DeviceState, inbox: &[u8]) -> Result<Answer, CmdError> {
    let ranges: Vec<_> = icm::parse(inbox)?.iter().map(range).collect();
    state.map_icm(&ranges)?;
    Ok(Answer::Nothing)
}

fn range(block: &Block) -> IcmRange {
    IcmRange { start: block.start, length: block.length, bus: block.bus }
}

/// Executes UNMAP_ICM. Unmapping an unmapped page is not an error, because the driver unmaps whole chunks even if only
/// parts of them are mapped.
pub(super) fn unmap(state: &mut DeviceState, command: &Command) -> Result<Answer, CmdError> {
    state.unmap_icm(pages(command.in_param, command.in_modifier)?)?;
    Ok(Answer::Nothing)
}

/// Executes MAP_FA and MAP_ICM_AUX. The device does not use the mapped memory, which is for firmware and auxiliary
/// tables.
pub(super) fn map_unused(inbox: &[u8]) -> Result<Answer, CmdError> {
    icm::parse(inbox)?;
    Ok(Answer::Nothing)
}
