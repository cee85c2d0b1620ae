//! Versions, resource locks and flash access: commands 0001, 0002, 0008, 0009, 0701, 0706.
//!
//! # Spec
//! E810 interface, sections 5.2, 5.3 and 7.1.

use card::limited;
use protocol::hca::e810::admin::control::{
    ACCESS_READ, ACCESS_WRITE, ResourceId, ResourceLock, STATUS_DONE, Version,
};
use protocol::hca::e810::admin::nvm::{NvmChecksum, ReadNvm};
use protocol::hca::e810::admin::{AdminError, AdminStatus};

use super::Command;
use crate::state::State;

/// Lock timeout in milliseconds, as reported to drivers. With only one driver, locks never need to expire.
const GRANTED_MS: u32 = 3000;

/// Firmware and API version. The API version must stay below 1.5.2. From that version on, drivers require flash modules
/// that this device's flash image does not contain.
const VERSION: Version = Version {
    rom: 0,
    build: 0x8001_4040,
    firmware_branch: 0,
    firmware_major: 6,
    firmware_minor: 1,
    firmware_patch: 0,
    api_branch: 0,
    api_major: 1,
    api_minor: 5,
    api_patch: 0,
};

pub(super) fn get_version(command: &mut Command) -> Result<(), AdminError> {
    command.answer(VERSION.emit());
    Ok(())
}

pub(super) fn driver_version(command: &Command) -> Result<(), AdminError> {
    limited!(info, "driver version: {}", command.buffer().escape_ascii());
    Ok(())
}

pub(super) fn request_resource(state: &mut State, command: &mut Command) -> Result<(), AdminError> {
    let lock = parse_lock(command)?;
    if lock.access != ACCESS_READ && lock.access != ACCESS_WRITE {
        return Err(AdminError::invalid("lock access type", lock.access.into()));
    }
    let mut answer = ResourceLock { timeout: GRANTED_MS, status: 0, ..lock };
    if lock.resource == ResourceId::GlobalConfig {
        if state.package.is_complete() {
            answer.status = STATUS_DONE;
        } else {
            state.package.begin();
        }
    }
    command.answer(answer.emit());
    Ok(())
}

pub(super) fn release_resource(state: &mut State, command: &Command) -> Result<(), AdminError> {
    let lock = parse_lock(command)?;
    if lock.resource == ResourceId::GlobalConfig {
        state.package.end();
    }
    Ok(())
}

fn parse_lock(command: &Command) -> Result<ResourceLock, AdminError> {
    let lock = command.parameters(ResourceLock::parse);
    match lock.resource {
        ResourceId::Other(code) => Err(AdminError::invalid("lock ID", code.into())),
        _ => Ok(lock),
    }
}

/// Reads flash (section 5.3). A read past the end must fail with EINVAL, because `ice` finds the flash size this way.
pub(super) fn read_nvm(state: &State, command: &mut Command) -> Result<(), AdminError> {
    let read = command.parameters(ReadNvm::parse);
    if read.module != 0 {
        return Err(AdminError::new(AdminStatus::Invalid, "flash module", read.module.into()));
    }
    let bytes = state.nvm.get(read.offset, read.len);
    let bytes = bytes.ok_or(AdminError::invalid("flash offset", read.offset.into()))?;
    command.reply(bytes)
}

/// Returns the shadow RAM checksum, which the driver verifies.
pub(super) fn nvm_checksum(state: &State, command: &mut Command) -> Result<(), AdminError> {
    let request = command.parameters(NvmChecksum::parse);
    if request.recalculate {
        return Err(AdminError::new(
            AdminStatus::NotPermitted,
            "checksum recalculation, which writes flash module",
            0,
        ));
    }
    command.answer(NvmChecksum { checksum: state.nvm.checksum(), ..request }.emit());
    Ok(())
}
