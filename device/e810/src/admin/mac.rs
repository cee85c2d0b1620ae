//! MAC address and configuration: commands 0107, 0108, 0603.
//!
//! # Spec
//! E810 interface, section 5.2.

use std::mem;

use card::frontend::Context;
use protocol::hca::e810::admin::AdminError;
use protocol::hca::e810::admin::mac::{LAN_ADDRESS_VALID, MacConfig, MacEntry, ReadMac, WriteMac};

use super::Command;
use crate::link::MAX_FRAME;
use crate::state::State;

/// Returns the port's MAC address. An address written by the driver persists until the driver reads the address for the
/// first time after a reset. `ice` reads it when it probes the device, but not when it recovers from a reset.
pub(super) fn read(state: &mut State, cx: &mut Context<'_>, command: &mut Command) -> Result<(), AdminError> {
    if mem::take(&mut state.keeps_mac) {
        cx.port.set_mac(state.setup.mac);
    }
    let entry = MacEntry { port: 0, kind: 0, mac: cx.port.addresses().own.mac };
    command.reply(&entry.emit())?;
    command.answer(ReadMac { flags: LAN_ADDRESS_VALID, count: 1 }.emit());
    Ok(())
}

pub(super) fn write(state: &mut State, cx: &mut Context<'_>, command: &Command) -> Result<(), AdminError> {
    let WriteMac { mac, .. } = command.parameters(WriteMac::parse);
    if mac.is_multicast() {
        return Err(AdminError::invalid(
            "multicast MAC address",
            mac.0.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)),
        ));
    }
    cx.port.set_mac(mac);
    state.keeps_mac = false;
    Ok(())
}

pub(super) fn set_config(state: &mut State, command: &Command) -> Result<(), AdminError> {
    let MacConfig { max_frame } = command.parameters(MacConfig::parse);
    if max_frame > MAX_FRAME {
        return Err(AdminError::invalid("frame length", max_frame.into()));
    }
    state.function.max_frame = max_frame;
    Ok(())
}
