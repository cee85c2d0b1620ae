//! PHY and link: commands 0600, 0601, 0605, 0607, 0620, and the link status event.
//!
//! # Spec
//! E810 interface, sections 4.3 and 5.6.

use protocol::hca::e810::admin::link::{
    EVENTS_DISABLE, EVENTS_ENABLE, GetLinkStatus, PhyAbilities, PhyConfig, RestartNegotiation, SetMacLoopback,
};
use protocol::hca::e810::admin::{AdminError, Opcode, PARAMETERS_LEN};

use super::Command;
use crate::frontend::Context;
use crate::frontend::e810::device::E810;
use crate::frontend::e810::vectors::Cause;
use crate::limited;

pub(super) fn get_phy_capabilities(device: &E810, command: &mut Command) -> Result<(), AdminError> {
    command.reply(&device.link.phy().emit())
}

pub(super) fn set_phy_config(
    device: &mut E810,
    cx: &mut Context<'_>,
    command: &Command,
) -> Result<(), AdminError> {
    let config = command.object(PhyConfig::parse_prefix)?;
    device.set_link_enabled(cx, config.abilities.contains(PhyAbilities::LINK_ENABLED));
    Ok(())
}

pub(super) fn restart_negotiation(
    device: &mut E810,
    cx: &mut Context<'_>,
    command: &Command,
) -> Result<(), AdminError> {
    let restart = command.parameters(RestartNegotiation::parse);
    device.set_link_enabled(cx, restart.enable);
    Ok(())
}

/// Any reset disables the loopback, so that a new driver never starts with a disconnected port.
pub(super) fn set_mac_loopback(cx: &mut Context<'_>, command: &Command) {
    let SetMacLoopback { enable } = command.parameters(SetMacLoopback::parse);
    if cx.port.set_loopback(enable) {
        limited!(info, enable, "driver changed the MAC loopback setting");
    }
}

pub(super) fn get_status(
    device: &mut E810,
    cx: &mut Context<'_>,
    command: &mut Command,
) -> Result<(), AdminError> {
    let request = command.parameters(GetLinkStatus::parse);
    match request.events {
        EVENTS_ENABLE => device.function.link_events = true,
        EVENTS_DISABLE => device.function.link_events = false,
        _ => {}
    }
    command.reply(&device.link.status(cx.port, device.function.max_frame).emit())?;
    command.answer(answer(device));
    Ok(())
}

fn answer(device: &E810) -> [u8; PARAMETERS_LEN] {
    GetLinkStatus { events: u8::from(device.function.link_events) }.emit()
}

/// Posts a link status event, if the driver has enabled them.
pub(in crate::frontend::e810) fn post_link_event(device: &mut E810, cx: &mut Context<'_>) {
    if !device.function.link_events {
        return;
    }
    let status = device.link.status(cx.port, device.function.max_frame).emit();
    let [a, b, c, d, e, f, g, h, ..] = answer(device);
    let parameters = [a, b, c, d, e, f, g, h];
    if device.function.rings.receive.post(cx.dma, Opcode::GetLinkStatus, parameters, &status) {
        device.function.vectors.fire(cx, Cause::AdminEvent);
    } else {
        limited!(info, "link event lost: the admin receive queue is full");
    }
}
