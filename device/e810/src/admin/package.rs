//! DDP package: commands 0C40, 0C42, 0C43.
//!
//! # Spec
//! E810 interface, section 7.2.

use protocol::hca::e810::admin::AdminError;
use protocol::hca::e810::package::{Download, PackageCount};

use super::Command;
use crate::state::State;

pub(super) fn download(state: &mut State, command: &mut Command) -> Result<(), AdminError> {
    state.package.add(command.buffer());
    no_error(command)
}

/// Executes "Update package". Only RSS profiles take effect; this device's parser is fixed.
pub(super) fn update(state: &mut State, command: &mut Command) -> Result<(), AdminError> {
    state.function.pf_config.vsis.profiles.update(state.package.packet_groups(), command.buffer());
    no_error(command)
}

fn no_error(command: &mut Command) -> Result<(), AdminError> {
    let download = command.parameters(Download::parse);
    command.answer(Download { error_offset: 0, error_info: 0, ..download }.emit());
    let _ = command.buffer_mut();
    Ok(())
}

pub(super) fn info(state: &State, command: &mut Command) -> Result<(), AdminError> {
    let entry = state.package.info();
    let count = PackageCount { count: entry.is_some().into() }.emit();
    let mut bytes = count.to_vec();
    bytes.extend(entry.iter().flat_map(|entry| entry.emit()));
    let buffer = command.buffer_mut();
    let len = buffer.len();
    let place = buffer.get_mut(..bytes.len()).ok_or(AdminError::invalid("buffer length", len as u64))?;
    place.copy_from_slice(&bytes);
    Ok(())
}
