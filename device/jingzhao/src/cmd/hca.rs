//! Identification, initialisation and shutdown: QUERY_DEV_LIM, QUERY_ADAPTER, MAD_IFC, INIT_HCA, CLOSE_HCA.
//!
//! # Spec
//! JingZhao interface, sections 3.1 to 3.4 and 3.14.

use card::frontend::Context;
use hcr::command::Outbox;
use protocol::hca::jingzhao::caps::Adapter;
use protocol::hca::jingzhao::cmd::CmdError;
use protocol::hca::jingzhao::init::InitHca;
use protocol::hca::jingzhao::mad_ifc::MadIfc;
use protocol::mad::port::{LinkState, PortInfo};

use crate::options::Options;
use crate::options::Setup;
use crate::resources::DeviceState;

pub(super) fn query_dev_lim(options: &Options) -> Outbox {
    options.limits.dev_lim().emit().to_vec()
}

pub(super) fn query_adapter(options: &Options) -> Outbox {
    Adapter { board_id: options.board_id.0 }.emit().to_vec()
}

/// Executes MAD_IFC: returns the port's LID and link state, in a layout specific to this interface.
pub(super) fn mad_ifc(cx: &Context<'_>) -> Outbox {
    let PortInfo { lid, state, .. } = cx.port_info().unwrap_or_default();
    MadIfc { lid, link_up: state == LinkState::ACTIVE }.emit().to_vec()
}

/// Executes INIT_HCA. A second INIT_HCA discards all existing objects.
pub(super) fn init(
    state: &mut DeviceState,
    setup: &Setup,
    cx: &mut Context<'_>,
    inbox: &[u8; InitHca::LEN],
) -> Result<(), CmdError> {
    let layout = InitHca::parse(inbox)?;
    close(state, setup, cx);
    cx.engine.reset(engine::Config { qp_index_bits: layout.qpc.log_entries, ..setup.engine });
    state.open(&layout);
    Ok(())
}

/// Executes CLOSE_HCA. Writes the final contexts to guest memory, which software may reuse afterwards.
pub(super) fn close(state: &mut DeviceState, setup: &Setup, cx: &mut Context<'_>) {
    if let Some(resources) = &mut state.resources {
        resources.write_back_all(cx);
    }
    cx.engine.reset(setup.engine);
    cx.monitor.forget_qps();
    state.close();
}
