//! Commands that start, stop and identify the device.
//!
//! # Spec
//! mlx5 interface, sections 5.1 and 18.3.

use card::frontend::Context;
use card::limited;
use protocol::hca::mlx5::device::{
    AdapterInfo, Function as FunctionNumber, Issi, SetDriverVersion, SetIssi, Teardown, TeardownProfile,
    TeardownState,
};

use super::{Output, nothing};
use crate::check::{Check, Rejection};
use crate::function::{Enabled, Function};
use crate::options::{Port, Setup};
use crate::port;
use crate::resources::Resources;

/// Mask of the supported interface steps (ISSIs), 0 and 1. QUERY_ISSI does not report step 0, which every device
/// supports.
const STEPS: u32 = 0b11;

/// Drops all objects in the device and the engine and returns the port to its power-on state.
pub(crate) fn reset(function: &mut Function, setup: &Setup, cx: &mut Context<'_>) {
    cx.engine.reset(setup.engine);
    cx.monitor.forget_qps();
    if let Some(management) = &mut cx.management {
        management.reset();
    }
    if setup.options.port == Port::Ethernet {
        port::release(cx.port);
    }
    function.disable();
}

/// Executes ENABLE_HCA. Section 20, M-21: the command resets the device, because a driver that recovers from a failure
/// does not send TEARDOWN_HCA first.
pub(super) fn enable(
    function: &mut Function,
    setup: &Setup,
    cx: &mut Context<'_>,
    arguments: &FunctionNumber,
) -> Result<Output, Rejection> {
    check(arguments)?;
    reset(function, setup, cx);
    function.enable(&setup.options);
    Ok(nothing())
}

pub(super) fn disable(
    function: &mut Function,
    setup: &Setup,
    cx: &mut Context<'_>,
    arguments: &FunctionNumber,
) -> Result<Output, Rejection> {
    check(arguments)?;
    reset(function, setup, cx);
    Ok(nothing())
}

/// Rejects every function number except 0, which denotes the function that issued the command. The device has no other
/// functions.
fn check(arguments: &FunctionNumber) -> Result<(), Rejection> {
    match arguments.function {
        0 => Ok(()),
        other => Err(Check::Function.rejects(other)),
    }
}

pub(super) fn init(enabled: &mut Enabled, setup: &Setup, cx: &mut Context<'_>) -> Result<Output, Rejection> {
    if enabled.resources.is_some() {
        return Err(Check::AlreadyInitialised.rejects(0_u8));
    }
    let limits = &setup.options.limits;
    cx.engine.reset(engine::Config { qp_index_bits: limits.max_qps.log(), ..setup.engine });
    let mut resources = Resources::new(setup, enabled.caps.log_uar_page());
    if let Some(management) = &cx.management {
        cx.engine.set_pkeys(management.pkeys());
        resources.pkeys = management.pkeys().into();
    }
    if let Some(port) = resources.port.ethernet_mut() {
        port.frames = std::mem::take(&mut enabled.frames);
    }
    enabled.resources = Some(Box::new(resources));
    Ok(nothing())
}

/// Executes TEARDOWN_HCA. The graceful profile drops all objects. The device keeps the driver's pages until
/// MANAGE_PAGES returns them. The fast profile drops nothing, because the driver still uses and arms the EQ for command
/// events. The driver then requests a reset through the NIC state.
pub(super) fn teardown(
    enabled: &mut Enabled,
    setup: &Setup,
    cx: &mut Context<'_>,
    teardown: &Teardown,
) -> Result<Output, Rejection> {
    match TeardownProfile::from_code(teardown.profile) {
        Some(TeardownProfile::Graceful) => {
            cx.engine.reset(setup.engine);
            cx.monitor.forget_qps();
            if setup.options.port == Port::Ethernet {
                port::release(cx.port);
            }
            enabled.drop_resources();
        }
        Some(TeardownProfile::Fast) => {}
        Some(TeardownProfile::Forced) | None => return Err(Check::TeardownProfile.rejects(teardown.profile)),
    }
    Ok(TeardownState { failed: false }.emit().to_vec())
}

pub(super) fn query_issi(enabled: &Enabled) -> Output {
    Issi { current: enabled.issi, supported: STEPS & !1 }.emit().to_vec()
}

pub(super) fn set_issi(enabled: &mut Enabled, set: &SetIssi) -> Result<Output, Rejection> {
    if STEPS.checked_shr(set.issi.into()).is_none_or(|steps| steps & 1 == 0) {
        return Err(Check::Issi.rejects(set.issi));
    }
    enabled.issi = set.issi;
    Ok(nothing())
}

pub(super) fn query_adapter(setup: &Setup) -> Output {
    AdapterInfo { vendor: AdapterInfo::OUI, board_id: setup.options.board_id.0 }.emit().to_vec()
}

pub(super) fn set_driver_version(version: &SetDriverVersion) -> Output {
    limited!(info, version = version.text(), "driver reported its version");
    nothing()
}
