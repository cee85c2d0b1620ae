//! Registers that describe the firmware and its configuration.
//!
//! # Spec
//! mlx5 interface, section 14.5.

use protocol::hca::mlx5::access_register::{Direction, PortRegister};
use protocol::hca::mlx5::firmware_register::{
    ComponentInfo, ComponentVersion, Mcam, Mcqi, Mcqs, Mfrl, Mnvda,
};
use protocol::hca::mlx5::regs::FirmwareVersion;

use super::Output;
use crate::check::{Check, Rejection};

/// Index of the only component, the firmware image.
const IMAGE: u16 = 0;

const VERSION_LEN: u32 = 124;
const _: () = assert!(ComponentVersion::LEN == VERSION_LEN as usize);

/// Accesses a register and returns its data. Writes have no effect or are rejected.
///
/// # Errors
/// Fails if the register does not describe the firmware, if the data is too short or invalid, or if a configuration
/// item is written.
pub(super) fn access(register: PortRegister, direction: Direction, data: &[u8]) -> Result<Output, Rejection> {
    let short = || Check::RegisterLength.rejects(data.len() as u64);
    Ok(match register {
        PortRegister::Mcam => {
            let query = Mcam::parse_prefix(data).ok_or_else(short)?;
            let upper_registers = if query.register_group == 0 { Mcam::SUPPORTED } else { 0 };
            Mcam { upper_registers, ..query }.emit().to_vec()
        }
        PortRegister::Mcqs => {
            let Mcqs { component, .. } = Mcqs::parse_prefix(data).ok_or_else(short)?;
            check(component)?;
            let identifier = Mcqs::BOOT_IMAGE;
            let status = Mcqs::IN_USE;
            Mcqs { is_last: true, component, identifier, status, update_state: 0 }.emit().to_vec()
        }
        PortRegister::Mcqi => {
            let query = Mcqi::parse_prefix(data).ok_or_else(short)?;
            check(query.component)?;
            if ComponentInfo::from_code(query.info_type) != Some(ComponentInfo::Version) {
                return Err(Check::ComponentInfo.rejects(query.info_type));
            }
            let version = ComponentVersion::from(FirmwareVersion::THIS).emit();
            let offset = usize::try_from(query.offset).unwrap_or(usize::MAX);
            let part = version.iter().skip(offset).take(query.data_len.into());
            let fixed = Mcqi { info_len: VERSION_LEN, ..query }.emit();
            fixed.iter().chain(part).copied().collect()
        }
        // All items have their default values, which are zeros. In particular, there are no virtual functions.
        PortRegister::Mnvda => {
            let access = Mnvda::parse_prefix(data).ok_or_else(short)?;
            if direction == Direction::Write {
                return Err(Check::ConfigItem.rejects(access.item));
            }
            access.emit().to_vec()
        }
        // There is no new firmware to activate.
        PortRegister::Mfrl if direction == Direction::Read => {
            Mfrl::parse_prefix(data).ok_or_else(short)?;
            Mfrl { levels: 0 }.emit().to_vec()
        }
        _ => return Err(Check::Register.rejects(register.code())),
    })
}

fn check(component: u16) -> Result<(), Rejection> {
    if component == IMAGE { Ok(()) } else { Err(Check::Component.rejects(component)) }
}
