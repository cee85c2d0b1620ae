//! Memory the guest lends: MAP_ICM and UNMAP_ICM, MAP_FA and MAP_ICM_AUX.
//!
//! # Spec
//! mthca interface, sections 3.3.3, 3.3.4 and 4.4.

use protocol::hca::mthca::cmd::Command;
use protocol::hca::mthca::icm::{self, Block};
use protocol::hca::status::CmdError;

use super::Answer;
use crate::frontend::hcr::icm::{IcmRange, pages};
use crate::frontend::mthca::resources::DeviceState;

/// A page that is mapped already is mapped anew.
pub(super) fn map(state: &mut DeviceState, inbox: &[u8]) -> Result<Answer, CmdError> {
    let ranges: Vec<_> = icm::parse(inbox)?.iter().map(range).collect();
    state.map_icm(&ranges)?;
    Ok(Answer::Nothing)
}

fn range(block: &Block) -> IcmRange {
    IcmRange { start: block.start, length: block.length, bus: block.bus }
}

/// Pages that are not mapped are no error: the driver unmaps whole chunks whatever it mapped of them.
pub(super) fn unmap(state: &mut DeviceState, command: &Command) -> Result<Answer, CmdError> {
    state.unmap_icm(pages(command.in_param, command.in_modifier)?)?;
    Ok(Answer::Nothing)
}

/// Memory for the firmware and for tables of the device's own, which it has no use for.
pub(super) fn map_unused(inbox: &[u8]) -> Result<Answer, CmdError> {
    icm::parse(inbox)?;
    Ok(Answer::Nothing)
}
