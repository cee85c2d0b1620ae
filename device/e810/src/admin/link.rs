//! PHY and link: commands 0600, 0601, 0605, 0607, 0620, and the link status event.
//!
//! # Spec
//! E810 interface, sections 4.3 and 5.6.

use card::frontend::Context;
use card::limited;
use card::net::Link;
use protocol::hca::e810::admin::link::{
    EVENTS_DISABLE, EVENTS_ENABLE, GetLinkStatus, GetPhyCapabilities, PhyAbilities, PhyConfig,
    RestartNegotiation, SetMacLoopback,
};
use protocol::hca::e810::admin::{AdminError, Opcode, PARAMETERS_LEN};

use super::Command;
use crate::state::State;
use crate::vectors::Cause;

pub(super) fn get_phy_capabilities(state: &State, command: &mut Command) -> Result<(), AdminError> {
    let GetPhyCapabilities { mode, .. } = command.parameters(GetPhyCapabilities::parse);
    command.reply(&state.link.phy(mode).emit())
}

/// Executes "set PHY configuration".
///
/// A configuration that applies immediately restarts the link: the device reports the link as down until the driver has
/// read this status, and then as up. `ice` stops its interface before some of these commands, and starts it only if the
/// link status has changed. The port stays up, so no frames are lost.
pub(super) fn set_phy_config(
    state: &mut State,
    cx: &mut Context<'_>,
    command: &Command,
) -> Result<(), AdminError> {
    let config = command.object(PhyConfig::parse_prefix)?;
    let was_up = cx.port.is_up();
    state.link.configure(config);
    let enable = config.abilities.contains(PhyAbilities::LINK_ENABLED);
    // Without link events, the driver would not learn that the link is up again.
    if was_up && enable && config.abilities.contains(PhyAbilities::APPLY_NOW) && state.function.link_events {
        state.link.restart();
    }
    set_link_enabled(state, cx, enable);
    Ok(())
}

pub(super) fn restart_negotiation(
    state: &mut State,
    cx: &mut Context<'_>,
    command: &Command,
) -> Result<(), AdminError> {
    let restart = command.parameters(RestartNegotiation::parse);
    set_link_enabled(state, cx, restart.enable);
    Ok(())
}

/// Enables or disables the link on behalf of the driver. A link event is posted even if nothing changes. The setting
/// also applies to the port, because RDMA packets use the same link.
fn set_link_enabled(state: &mut State, cx: &mut Context<'_>, enabled: bool) {
    cx.port.set_link(Link { enabled, ..cx.port.link() });
    if state.link.set_enabled(enabled) {
        limited!(info, enabled, "driver changed the link state");
    }
    post_link_event(state, cx);
}

pub(super) fn set_mac_loopback(cx: &mut Context<'_>, command: &Command) {
    let SetMacLoopback { enable } = command.parameters(SetMacLoopback::parse);
    if cx.port.set_loopback(enable) {
        limited!(info, enable, "driver changed the MAC loopback setting");
    }
}

pub(super) fn get_status(
    state: &mut State,
    cx: &mut Context<'_>,
    command: &mut Command,
) -> Result<(), AdminError> {
    let request = command.parameters(GetLinkStatus::parse);
    match request.events {
        EVENTS_ENABLE => state.function.link_events = true,
        EVENTS_DISABLE => state.function.link_events = false,
        _ => {}
    }
    command.reply(&state.link.status(cx.port, state.function.max_frame).emit())?;
    command.answer(answer(state));
    if state.link.finish_restart() {
        post_link_event(state, cx);
    }
    Ok(())
}

fn answer(state: &State) -> [u8; PARAMETERS_LEN] {
    GetLinkStatus { events: u8::from(state.function.link_events) }.emit()
}

pub(crate) fn post_link_event(state: &mut State, cx: &mut Context<'_>) {
    if !state.function.link_events {
        return;
    }
    let status = state.link.status(cx.port, state.function.max_frame).emit();
    let [a, b, c, d, e, f, g, h, ..] = answer(state);
    let parameters = [a, b, c, d, e, f, g, h];
    if state.function.rings.receive.post(cx.dma, Opcode::GetLinkStatus, parameters, &status) {
        state.function.vectors.fire(cx, Cause::AdminEvent);
    } else {
        limited!(info, "link event lost: the admin receive queue is full");
    }
}
