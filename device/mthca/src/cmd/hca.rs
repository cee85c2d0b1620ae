//! Identification, initialisation and shutdown.
//!
//! # Spec
//! mthca interface, sections 3.2 to 3.4.

use card::frontend::Context;
use card::vfio::Bar;
use hcr::command::fixed;
use protocol::hca::mthca::PAGE;
use protocol::hca::mthca::caps::{Adapter, QueryFw};
use protocol::hca::mthca::cmd::Command;
use protocol::hca::mthca::init::InitHca;
use protocol::hca::status::{CmdError, CmdStatus};

use super::Answer;
use crate::options::Setup;
use crate::resources::DeviceState;

/// Number of auxiliary ICM pages that the device requests but does not use. If it requested 0, the driver would skip
/// MAP_ICM_AUX.
const AUX_PAGES: u64 = 1;

pub(super) fn query_fw(cx: &Context<'_>) -> Answer {
    Answer::Mailbox(QueryFw::recommended(cx.config.bar_address(Bar::Bar0)).emit().to_vec())
}

/// Returns the error for commands on device-local memory. Section 12, T14: after a "bad opcode" error, the driver would
/// abort its initialisation.
pub(super) fn no_local_memory() -> CmdError {
    CmdError::new(CmdStatus::NoLocalMemory, "local memory size", 0)
}

pub(super) fn query_dev_lim(setup: &Setup) -> Answer {
    Answer::Mailbox(setup.options.limits.dev_lim().emit().to_vec())
}

pub(super) fn query_adapter(setup: &Setup) -> Answer {
    Answer::Mailbox(Adapter { board_id: setup.options.board_id.0 }.emit().to_vec())
}

pub(super) fn set_icm_size(setup: &Setup, command: &Command) -> Result<Answer, CmdError> {
    let bytes = command.in_param;
    if bytes > setup.options.limits.dev_lim().max_icm_len {
        return Err(CmdError::new(CmdStatus::ExceedLim, "ICM size", bytes));
    }
    if !bytes.is_multiple_of(PAGE as u64) {
        return Err(CmdError::param("ICM size", bytes));
    }
    Ok(Answer::Immediate(AUX_PAGES))
}

/// Executes INIT_HCA. A second INIT_HCA discards all existing objects.
pub(super) fn init(
    state: &mut DeviceState,
    setup: &Setup,
    cx: &mut Context<'_>,
    inbox: &[u8],
) -> Result<Answer, CmdError> {
    let layout = InitHca::parse(fixed(inbox)?)?;
    close(state, setup, cx);
    cx.engine.reset(engine::Config { qp_index_bits: layout.qpc.log_entries, ..setup.engine });
    if let Some(management) = &cx.management {
        cx.engine.set_pkeys(management.pkeys());
    }
    state.open(&layout);
    Ok(Answer::Nothing)
}

pub(super) fn close(state: &mut DeviceState, setup: &Setup, cx: &mut Context<'_>) -> Answer {
    cx.engine.reset(setup.engine);
    cx.monitor.forget_qps();
    cx.close_port();
    state.close();
    Answer::Nothing
}
